"""The checker: its formulas against the package's, what it accepts, and what it refuses."""

import copy
import json

import pytest
from flint import arb

from attlas.certificates import FOLDER, checker, statements
from attlas.certificates.checker import Refused, check, digest

FILES = sorted(FOLDER.glob("*.json"))
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def content_of(file):
    return json.loads(file.read_text())


def sealed(content):
    return content | {"checksum": digest(content)}


def refused(content, why=""):
    with pytest.raises(Refused, match=why):
        check(content)


@every_file
def test_every_shipped_certificate_proves_what_it_says(file):
    content = content_of(file)
    assert check(content) == content["enclosures"]
    assert file.name.startswith(content["claim"].replace("/", "."))


def test_every_statement_ships_a_certificate():
    assert {content_of(file)["claim"] for file in FILES} == set(checker.STATEMENTS)


def numbers_changed(value):
    """Variants of plain data in each of which one number, or digit of a text, is another."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (value | {key: other} for other in numbers_changed(item))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            for other in numbers_changed(item):
                yield [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, int):
        yield from (value - 1, value + 1)
    elif isinstance(value, str):
        digits = [place for place, letter in enumerate(value) if letter.isdigit()]
        for place in digits[:: max(1, len(digits) // 20)]:
            yield value[:place] + str((int(value[place]) + 1) % 10) + value[place + 1 :]


@every_file
def test_a_certificate_with_any_number_changed_is_refused(file):
    variants = list(numbers_changed(content_of(file)))
    assert len(variants) > 10
    for variant in variants:
        refused(variant, "checksum|precision|known")


@every_file
def test_an_enclosure_that_is_not_the_proved_one_is_refused_whatever_the_checksum(file):
    content = content_of(file)
    for variant in list(numbers_changed(content["enclosures"]))[:1]:
        refused(sealed(content | {"enclosures": variant}), "its enclosures are")


@every_file
def test_a_tree_that_does_not_cover_the_box_is_refused(file):
    content = content_of(file)
    tree = content["tree"]
    for other in (tree[:-1], tree + ".", "x", ""):
        refused(sealed(content | {"tree": other}), "its tree|not proved")
    if len(tree) > 3:
        refused(sealed(content | {"tree": "."}), "not proved")


def zeta_certificate():
    return content_of(FOLDER / "single-location.zeta.2.json")


@pytest.mark.parametrize(
    "change, why",
    [
        ({"claim": "single-location/other"}, "no statement is known"),
        ({"words": "All is well."}, "states something else"),
        ({"precision": 20}, "its precision must be 64 bits"),
        ({"box": {"t": ["-4", "4"]}}, "states something else"),
        ({"box": {"t": ["4", "-4"], "spread": ["0.5", "0.5"]}}, "the side is empty"),
        ({"box": {"t": ["x", "4"], "spread": ["0.5", "0.5"]}}, "two numbers"),
        ({"box": {"t": ["-4", "4"], "spread": ["0.5", "0.6"]}}, "single number"),
        ({"box": {"t": ["-4", "4"], "spread": ["-1", "-1"]}}, "must be above 0"),
        ({"tree": 3}, "another form"),
    ],
)
def test_what_is_not_a_certificate_is_refused(change, why):
    refused(sealed(zeta_certificate() | change), why)
    refused({"claim": "single-location/zeta"}, "it must have")
    refused([], "it must have")


def test_false_statements_are_not_proved(monkeypatch):
    # The constant of Owen's T 1e-9 too large: the identity fails.
    right = statements.zeta_by_owen
    monkeypatch.setattr(statements, "zeta_by_owen", lambda t, s: right(t, s * (1 + arb("1e-9"))))
    refused(zeta_certificate(), "not proved")


def test_the_swapped_point_is_not_certified_where_the_oracle_wins():
    content = content_of(FOLDER / "single-location.swapped-beats-oracle.1.json")
    wrong = copy.deepcopy(content)
    wrong["box"]["lam"] = ["0.03", "0.1"]
    refused(sealed(wrong), "not proved")


def test_the_checker_runs_alone(tmp_path, capsys):
    good, bad = FILES[0], tmp_path / "bad.json"
    bad.write_text(json.dumps(content_of(good) | {"precision": 1}))
    assert checker.main([str(good)]) == 0
    assert "certified on" in capsys.readouterr().out
    assert checker.main([str(good), str(bad)]) == 1
    assert "refused: its contents do not match" in capsys.readouterr().out
