"""Conditions that were written for a terminal are shown as mathematics."""

import pytest

from attlas.atlas.conditions import with_formulas
from attlas.atlas.filters import told
from attlas.atlas.formulas import mathml
from attlas.atlas.notes import notes_of
from attlas.claims import catalogue

LETTERS = {"lam": r"\lambda", "dim": "d", "gamma": r"\gamma", "step_size": r"\alpha", "length": "L"}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("lam > 0", r"$\lambda > 0$"),
        ("0.5 <= lam <= 1: as said", r"$0.5 \le \lambda \le 1$: as said"),
        ("lam sqrt(dim / 2) <= 1.06", r"$\lambda\sqrt{\frac{d}{2}} \le 1.06$"),
        ("5 sqrt(1 + 2 lam^2 gamma^2) > 1", r"$5\sqrt{1 + 2\,\lambda^{2} \gamma^{2}} > 1$"),
        (
            "A exp(-A^2 / 4 (1 + 1/x^2)) < 1",
            r"$A\exp( - \frac{A^{2}}{4}( 1 + \frac{1}{x^{2}})) < 1$",
        ),
        ("length >= 3 times the rest", r"$L \ge 3$ times the rest"),
        ("dim = 80 and gamma^2 = 1/2", r"$d = 80$ and $\gamma^{2} = \frac{1}{2}$"),
        ("step_size * steps >= 40", r"$\alpha \cdot \mathrm{steps} \ge 40$"),
        ("published_steps >= 10,000", r"$\mathrm{published~steps} \ge 10{,}000$"),
        ("step_size is below it", r"$\alpha$ is below it"),
        ("length has two values", "length has two values"),
        ("the start (start = square)", "the start (start = square)"),
        ("cells (dim = 4, gamma = 0.7071067811865476)", r"cells ($d = 4$, $\gamma = 0.7071$)"),
        ("a share between 0.97 and 1; 1e-25", "a share between 0.97 and 1; 10⁻²⁵"),
        ("a formula $x$ stays, 1e-25 not", "a formula $x$ stays, 10⁻²⁵ not"),
    ],
)
def test_conditions_become_formulas_and_words_stay(words, shown):
    assert with_formulas(words, LETTERS, ("steps", "published_steps", "start")) == shown


def test_every_hypothesis_of_the_package_can_be_set():
    notes = notes_of(catalogue().values())
    for claim in catalogue().values():
        for hypothesis in claim.hypotheses:
            shown = told(hypothesis.words, claim, notes[claim.map])
            assert not set("^*") & set(shown.unescape().split("<math")[0]), hypothesis.words
            assert "&lt;=" not in shown and "sqrt(" not in shown, hypothesis.words


def test_a_condition_is_the_formula_that_it_was():
    assert mathml(with_formulas("lam < 1", LETTERS)) == mathml(r"$\lambda < 1$")
