import base64
import hashlib
import re

from attlas.content_policy import with_policy


def test_a_page_runs_the_scripts_that_stand_in_it_and_no_others():
    page = '<head>\n<meta charset="utf-8">\n</head><script>1 + 1</script><script>\n2\n</script>'
    safe = with_policy(page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', safe)[1]
    assert policy.startswith("default-src 'none';") and "unsafe-eval" not in policy
    digest = base64.b64encode(hashlib.sha256(b"1 + 1").digest()).decode()
    assert policy.count("'sha256-") == 2 and f"'sha256-{digest}'" in policy
    assert "script-src 'none'" in with_policy('<meta charset="utf-8">')
