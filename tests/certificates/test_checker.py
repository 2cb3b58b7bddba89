"""The checker: its formulas against the package's, what it accepts, and what it refuses."""

import copy
import functools
import json

import pytest
from flint import arb

from attlas.certificates import FOLDER, checker, statements
from attlas.certificates.checker import Refused, check, digest

FILES = sorted(FOLDER.glob("*.json"))
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def content_of(file):
    return json.loads(file.read_text())


@functools.cache
def proved(file):
    """What a shipped certificate proves: found once."""
    return check(content_of(file))


def sealed(content):
    return content | {"checksum": digest(content)}


def refused(content, why=""):
    with pytest.raises(Refused, match=why):
        check(content)


@every_file
def test_every_shipped_certificate_proves_what_it_says(file):
    content = content_of(file)
    assert proved(file) == content["enclosures"]
    assert file.name.startswith(content["claim"].replace("/", "."))


def test_every_statement_ships_a_certificate():
    assert {content_of(file)["claim"] for file in FILES} == set(checker.STATEMENTS)


def numbers_changed(value):
    """Variants of plain data in each of which one number, or one digit of a text, is another."""
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
        for place, letter in enumerate(value):
            if letter.isdigit():
                yield value[:place] + str((int(letter) + 1) % 10) + value[place + 1 :]


@every_file
def test_a_certificate_with_any_number_changed_is_refused(file):
    content = content_of(file)
    rest = {name: value for name, value in content.items() if name != "tree"}
    variants = [{**other, "tree": content["tree"]} for other in numbers_changed(rest)]
    assert len(variants) > 40  # of the checksum alone
    tree = content["tree"]
    for place in range(0, len(tree), len(tree) // 20 + 1):
        letter = "." if tree[place] != "." else "0"
        variants.append(content | {"tree": tree[:place] + letter + tree[place + 1 :]})
    for variant in variants:
        refused(variant, "checksum")


@every_file
def test_any_number_of_an_enclosure_is_refused_whatever_the_checksum(file, monkeypatch):
    content, found = content_of(file), proved(file)
    # What the leaves prove is the same for all variants.
    monkeypatch.setattr(checker, "leaves_of", lambda box, tree: [])
    monkeypatch.setattr(checker, "enclosures_of", lambda statement, leaves: found)
    variants = list(numbers_changed(content["enclosures"]))
    assert len(variants) >= len(content["enclosures"])
    for variant in variants:
        refused(sealed(content | {"enclosures": variant}), "its enclosures are")


@every_file
def test_a_wider_box_is_refused_whatever_the_checksum(file):
    content = content_of(file)
    name, (low, high) = next(iter(content["box"].items()))
    wider = {**content["box"], name: [low, str(2 * float(high) + 1)]}
    refused(sealed(content | {"box": wider}), "not proved|must be from|its enclosures are")


@every_file
def test_a_tree_that_does_not_cover_the_box_is_refused(file):
    content = content_of(file)
    tree = content["tree"]
    for other in (tree[:-1], tree + ".", "x", ""):
        refused(sealed(content | {"tree": other}), "its tree")
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
    good, bad = FOLDER / "single-location.zeta.2.json", tmp_path / "bad.json"
    bad.write_text(json.dumps(content_of(good) | {"precision": 1}))
    assert checker.main([str(good)]) == 0
    assert "certified on" in capsys.readouterr().out
    assert checker.main([str(good), str(bad)]) == 1
    assert "refused: its contents do not match" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_or_has_a_name_twice_is_refused(tmp_path, capsys):
    text = FILES[-1].read_text()
    twice, deep = tmp_path / "twice.json", tmp_path / "deep.json"
    twice.write_text(text.replace("{", '{"tree": "..",', 1))
    deep.write_text("[" * 100_000)
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(content_of(FILES[-1]) | {"box": []}))
    files = [str(tmp_path / "missing.json"), str(twice), str(deep), str(listed)]
    assert checker.main(files) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(": refused: " in line for line in lines)
    assert "a name stands twice" in lines[1]


@pytest.mark.parametrize(
    "ends",
    [
        *([2, 32], [2.0, 32.0], "29", {"2": 1, "32": 0}, [float("inf")] * 2, ["2"], None),
        *(["2", "3_2"], ["2", "1/0"], ["2", "1e999999999"], ["2", "nan"], ["\u0662", "32"]),
    ],
)
def test_ends_of_sides_are_texts_of_plain_numbers(ends):
    content = content_of(FOLDER / "sparse-variables.threshold-margin.1.json")
    content["box"]["sparsity"] = ends
    refused(sealed(content), "has two numbers, as texts")


@pytest.mark.parametrize(
    "low, high, expected",
    [
        ("0.5", "5", ["0.5", "5"]),
        ("1", "1", ["1", "1"]),
        ("0.12345", "0.12345", ["0.1234", "0.1235"]),
        ("-0.12345", "1e-40", ["-0.1235", "1.001E-40"]),
    ],
)
def test_enclosures_are_rounded_outwards(low, high, expected):
    found = checker.rounded_outwards(arb(low).lower(), arb(high).upper())
    assert found[0] == expected[0] and found[1] in (expected[1], "1E-40")
    assert arb(found[0]) <= arb(low).upper() and arb(found[1]) >= arb(high).lower()


def test_numbers_that_no_double_holds_keep_their_sign():
    tiny = (-(arb(10) ** 13)).exp()
    low, high = checker.rounded_outwards(tiny.lower(), tiny.upper())
    assert low.endswith("E-4342944819033") and high.endswith("E-4342944819033") and low < high
    low, high = checker.rounded_outwards(-tiny.upper(), -tiny.lower())
    assert low.startswith("-") and high.startswith("-") and high.endswith("E-4342944819033")
