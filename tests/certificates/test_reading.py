"""The text of a certificate is read as plain data, or refused."""

import pytest

from attlas.certificates.reading import parse


def test_plain_data_is_read():
    assert parse('{"boxes": [{"low": "1/3"}, {"low": "2/3"}]}') == {
        "boxes": [{"low": "1/3"}, {"low": "2/3"}]
    }


@pytest.mark.parametrize("text", ['{"low": 1, "low": 2}', '{"box": {"low": 1, "low": 1}}'])
def test_a_name_that_stands_twice_is_refused(text: str):
    """Readers would differ in which of the two they take."""
    with pytest.raises(ValueError, match="stands twice"):
        parse(text)


@pytest.mark.parametrize("text", ["", "{", "[1,", "NULL"])
def test_what_is_no_json_is_refused(text: str):
    with pytest.raises(ValueError, match=r"Expecting"):
        parse(text)


def test_what_is_nested_too_deeply_is_refused():
    with pytest.raises(ValueError, match="too deeply"):
        parse("[" * 200_000)
