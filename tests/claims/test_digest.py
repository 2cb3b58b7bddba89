import pytest

from attlas.claims import load_file
from attlas.claims.digest import _closure, code_digest, figure_digest
from tests.claims.test_map import CLAIM_FILE, registry, written  # noqa: F401

FIGURE = """

@first.figure
def drawn(evidence):
    return None
"""


@pytest.fixture
def digests(written):  # noqa: F811
    """The digests of a claim file's numbers and figures, by its text."""

    def of(text, **others):
        (claim,) = load_file(written(text, **others))
        return code_digest(claim.module), figure_digest(claim.module)

    return of


def test_words_comments_and_figures_change_no_number(digests):
    code, figure = digests(CLAIM_FILE + FIGURE)
    for old, new in (
        ('words="It is."', 'words="It is so."'),
        ("def first(cell, draws):", 'def first(cell, draws):\n    """Measure."""'),
        ("    return {", "    # a comment\n    return {"),
        ("lambda s: s.temperature < 9", "lambda s: s.temperature < 99"),
        ("return None", "return 1"),
    ):
        other, drawn = digests((CLAIM_FILE + FIGURE).replace(old, new))
        assert other == code, old
        assert (drawn == figure) == ("comment" in new), old


def test_what_measures_changes_the_digest_and_so_does_what_it_imports(
    digests, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    text = CLAIM_FILE.replace("\nmine =", "\nimport helper_of_mine\n\nmine =", 1)
    (tmp_path / "helper_of_mine.py").write_text("x = 1\n")
    code, _ = digests(text)
    assert digests(text.replace('measured": cell.length', 'measured": 2 * cell.length'))[0] != code
    (tmp_path / "helper_of_mine.py").write_text("x = 1  # the same\n")
    assert digests(text)[0] == code
    (tmp_path / "helper_of_mine.py").write_text("x = 1 + 1\n")
    assert digests(text)[0] != code


def test_a_claim_depends_on_what_its_module_imports_and_on_nothing_that_prints():
    names = set(_closure("attlas.single_location.claims.risk", figures=False))
    assert {"attlas.gaussian", "attlas.draws", "attlas.claims.evidence"} <= names
    assert {"attlas.single_location.population", "attlas.single_location.task"} <= names
    outside = ("attlas.lab", "attlas.atlas", "attlas.cli", "attlas.figure", "attlas.sparse")
    assert not [name for name in names if name.startswith(outside)]
    assert "attlas.claims.rules" not in names
    assert "attlas.figure" in _closure("attlas.single_location.claims.risk", figures=True)
