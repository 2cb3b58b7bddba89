"""What others wrote, made fit for a message, a terminal or a page."""

import base64
import hashlib
import re

MOST = 80


def printable(text: object, most: int = MOST) -> str:
    r"""`text` with what cannot be printed escaped (control characters, changes of the direction of
    writing, bytes that are no text), and cut after `most` characters."""
    words = str(text)
    kept = (c if c.isprintable() else ascii(c)[1:-1] for c in words[:most])
    return "".join(kept) + ("…" if len(words) > most else "")


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
