"""What a check becomes: a claim file, and LaTeX."""

import pytest

import attlas
from attlas.claims.checks import check
from attlas.claims.registry import load_file
from attlas.errors import InputError
from attlas.lab.runner import run
from tests.claims.test_checks import GRID, draw, half_normal


def test_it_becomes_a_claim_that_says_the_same(tmp_path, store, registry):
    file = check(half_normal, draw, grid=GRID, quiet=True).to_claim(tmp_path / "mine.py")
    text = file.read_text()
    assert "FACTOR = 0.797" in text and "def half_normal" in text
    (claim,) = load_file(file)
    result = run(claim, store=store)
    assert result.verdict.word == "confirmed" and result.control.word == "refuted"
    with pytest.raises(InputError, match="exists already"):
        check(half_normal, draw, grid=GRID, quiet=True).to_claim(file)


def test_what_has_no_source_of_its_own_is_no_claim(tmp_path):
    inner = 2.0

    def closes(scale, length):
        return inner * half_normal(scale, length) / 2

    for formula, words in ((lambda **c: half_normal(**c), "no name"), (closes, "around it")):
        with pytest.raises(InputError, match=words):
            check(formula, draw, grid=GRID, quiet=True).to_claim(tmp_path / "mine.py")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"NAME\.py"):
        check(half_normal, draw, grid=GRID, quiet=True).to_claim(tmp_path / "mine.txt")


def ceiling(scale, length):
    return 2.0 * scale


def raised(rng, n, scale, length):
    return 1 + draw(rng, n, scale, length)


def arrives(rng, n, scale, length):
    return rng.random(n) < 2


@pytest.mark.parametrize(
    "made",
    [
        lambda: attlas.check_bound(ceiling, draw, grid=GRID, quiet=True),
        lambda: attlas.check_rate(
            draw, along="length", exponent=-1, grid={**GRID, "length": [1, 2, 4]}, quiet=True
        ),
        lambda: attlas.check_order(draw, raised, grid=GRID, quiet=True),
        lambda: attlas.check_same_law(draw, draw, grid=GRID, quiet=True),
        lambda: attlas.check_convergence(arrives, share=0.5, grid=GRID, quiet=True),
    ],
    ids=["bound", "rate", "order", "law", "convergence"],
)
def test_every_form_becomes_a_claim(made, tmp_path, store, registry):
    (claim,) = load_file(made().to_claim(tmp_path / "mine.py"))
    result = run(claim, store=store)
    assert (result.verdict.word, result.control.word) == ("confirmed", "refuted")
