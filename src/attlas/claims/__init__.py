"""What a statement, its evidence and its verdict are.

>>> import xarray as xr
>>> from attlas.claims import Agreement, Approximation, Bound, Convergence
>>> from attlas.claims import Order, Rate, Rule, SameLaw
>>> points = xr.Dataset({"predicted": ("cell", [1.0, 2.0]), "error": ("cell", [0.01, 0.01])})
>>> verdict = Agreement().judge(points.assign(measured=points.predicted + 0.02))
>>> print(verdict.word, f"{verdict.statistic:.1f} of {verdict.threshold:.1f} standard errors")
confirmed 2.0 of 4.1 standard errors
>>> Approximation(margin=0.05).judge(points.assign(measured=1.2 * points.predicted)).word
'refuted'
>>> Bound().judge(points.assign(measured=points.predicted - 1, bound=points.predicted)).word
'confirmed'
>>> sizes = xr.Dataset({"x": ("cell", [1.0, 10.0, 100.0]), "error": ("cell", [0.0, 0.0, 0.0])})
>>> Rate(margin=0.1).judge(sizes.assign(measured=sizes.x**0.5, exponent=0.5)).word
'confirmed'
>>> runs = xr.Dataset({"arrived": (("cell", "repeat"), [[True] * 60])})
>>> Convergence(share=0.5).judge(runs).word
'confirmed'
>>> Order().judge(points.assign(lower=points.predicted - 1, upper=points.predicted)).word
'confirmed'
>>> draws = xr.Dataset({name: (("cell", "draw"), [[0.1 * i for i in range(50)]])
...                     for name in ("sample_a", "sample_b")})
>>> print(SameLaw().judge(draws).word, isinstance(SameLaw(), Rule))
confirmed True
"""

from attlas.claims.claim import Claim, Control, Hypothesis, Need
from attlas.claims.evidence import Values, on
from attlas.claims.map import Map, Measurement
from attlas.claims.registry import catalogue, find_claim, load_file, select
from attlas.claims.rules import (
    Agreement,
    Approximation,
    Bound,
    Convergence,
    Order,
    Rate,
    Rule,
    SameLaw,
)
from attlas.claims.setting import Setting, Value, product, together, whole
from attlas.claims.verdict import Verdict
from attlas.draws import Draws
