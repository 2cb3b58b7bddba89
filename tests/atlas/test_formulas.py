import re

import pytest

from attlas.atlas.formulas import code, mathml, stated
from attlas.claims import catalogue
from attlas.errors import InputError


def test_formulas_become_mathml_and_text_is_escaped():
    assert mathml("if $x^2 < 1$ & y").startswith("if <math") and mathml("a & b") == "a &amp; b"
    with pytest.raises(InputError, match="cannot be read"):
        mathml(r"$\frac$")


def test_every_statement_is_readable_tex():
    for claim in catalogue().values():
        assert "\\" not in re.sub(r"<[^>]*>", "", mathml(claim.statement)), claim.id


def test_a_formula_keeps_its_tex():
    assert 'alttext="x_1 &lt; 2"' in mathml("$x_1 < 2$") and "<code>attlas run</code>" in mathml(
        "`attlas run`"
    )


def test_the_name_of_a_function_keeps_its_distance():
    assert mathml(r"$4s\ln T$").count("mspace") == 2 and mathml(r"$b\ln(T)$").count("mspace") == 1
    assert "mspace" not in mathml(r"$\ln(T)$")


def test_a_formula_keeps_its_stop_and_an_option_its_dashes():
    assert mathml("so ($x$), and $y$.").count('<span class="unbroken">') == 2
    assert mathml("so $x$ is").startswith("so <math") and mathml("($x$),").endswith(
        "</math>),</span>"
    )
    assert (
        mathml("`a --out b < c`") == '<code>a <span class="unbroken">--out</span> b &lt; c</code>'
    )
    assert code("single-location/zeta") == "<code>single-location/zeta</code>"


def test_long_formulas_of_a_statement_are_displayed_and_short_ones_are_not():
    long = r"R = \varepsilon^2 + \gamma^2 - 2\gamma^2\big[\nu e_0 + \lambda\eta m\theta e_1\big]"
    shown = stated(rf"For $\lambda > 0$ the risk is ${long}$, which is exact ($d \ge 4$).")
    assert shown.count('display="block"') == 1 and shown.count('class="formula scroll"') == 1
    assert "</math>,</span>" in shown and shown.count("<math") == 3
    assert stated("No formula at all.") == "No formula at all."
