"""Names that others wrote are escaped and cut."""

from attlas.escaping import printable


def test_what_cannot_be_printed_is_escaped_and_what_is_long_is_cut():
    assert printable("naïve 東京") == "naïve 東京"
    assert printable("a\x1b[31m\n\u202e\udcff") == r"a\x1b[31m\n\u202e\udcff"
    assert printable("x" * 100, 5) == "xxxxx…"
