"""Names that others wrote, made fit for a message or a terminal."""

MOST = 80


def printable(text: object, most: int = MOST) -> str:
    r"""`text` with what cannot be printed escaped (control characters, changes of the direction of
    writing, bytes that are no text), and cut after `most` characters."""
    words = str(text)
    kept = (c if c.isprintable() else ascii(c)[1:-1] for c in words[:most])
    return "".join(kept) + ("…" if len(words) > most else "")
