"""How checks display."""

import pytest

import attlas
from attlas.claims.checks import check
from tests.claims.test_checks import GRID, draw, half_normal

FORMS = {
    "agreement": lambda: check(half_normal, draw, grid=GRID, quiet=True),
    "bound": lambda: attlas.check_bound(
        lambda scale, length: 2.0 * scale, draw, grid=GRID, quiet=True
    ),
    "rate": lambda: attlas.check_rate(
        draw, along="length", exponent=-1, grid={**GRID, "length": [1, 2, 4]}, quiet=True
    ),
    "order": lambda: attlas.check_order(
        draw, lambda rng, n, **c: 1 + draw(rng, n, **c), grid=GRID, quiet=True
    ),
    "law": lambda: attlas.check_same_law(draw, draw, grid=GRID, quiet=True),
    "convergence": lambda: attlas.check_convergence(
        lambda rng, n, scale: rng.random(n) < 2, share=0.5, grid={"scale": [1.0, 2.0]}, quiet=True
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_displays(form):
    found = FORMS[form]()
    assert found.verdict.word == "confirmed"
    page = found._repr_html_()
    assert "<svg" in page and "<table" in page and "confirmed" in page
    tex = found.to_latex()
    assert tex.count("\\\\\n") == 1 + len(found.table()) and "\\begin{tabular}" in tex
