"""What a self-contained page may do in a browser."""

import base64
import hashlib
import re


def with_policy(page: str) -> str:
    """A self-contained page with a Content-Security-Policy: nothing is loaded, and no script runs
    but those that stand in it now.

    Arguments:
        page: HTML whose head begins with its character set.
    """
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in hashes) or "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " font-src data:; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}', 1)
