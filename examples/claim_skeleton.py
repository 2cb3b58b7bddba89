"""A claim of one's own: the smallest complete one.

Run it with

    attlas run softmax/sums-to-one --claims examples/claim_skeleton.py

and copy it to begin another. It states that the mean of softmax(z)_1 over Gaussian scores z of length L is 1/L.
"""

import jax
import jax.numpy as jnp
import xarray as xr

from attlas.claims import Control, Hypothesis, Setting, claim, key_for, together
from attlas.gaussian import monte_carlo
from attlas.statistics import Agreement

ID = "softmax/sums-to-one"


def first_weight(key, block, tokens, sharpness):
    """The first softmax weight of `block` sequences of scores; `tokens` only lends its length."""
    scores = sharpness * jax.random.normal(key, (len(tokens), block))
    return jax.nn.softmax(scores, axis=0)[0]


@claim(
    ID,
    source="attlas",  # the key of a BibTeX entry, such as "marion2025"
    reference="exchangeability of the weights",
    statement=r"$E[\mathrm{softmax}(z)_1] = \frac1L$ for $z \sim N(0, \beta^2 I_L)$.",
    words="On average a token gets its fair share of attention, however sharp the softmax.",
    hypotheses=(Hypothesis("sharpness >= 0", lambda s: s.sharpness >= 0),),
    quick=Setting(length=(2, 5, 20), sharpness=3.0, samples=50_000),
    paper=Setting(length=(2, 5, 20, 200), sharpness=3.0, samples=1_000_000),
    rule=Agreement(),
    control=Control("a share 5 % too large", lambda e: e.assign(predicted=1.05 * e["predicted"])),
    cells=together("length"),
    budget="samples",
    origin="ours",
)
def sums_to_one(cells, seed):
    (cell,) = cells
    sampled = monte_carlo(
        first_weight,
        key_for(seed, ID, "scores"),
        cell.samples,
        jnp.arange(cell.length),
        cell.sharpness,
    )
    return xr.Dataset(
        {
            "predicted": ("cell", [1 / cell.length]),
            "measured": ("cell", [float(sampled.mean)]),
            "error": ("cell", [float(sampled.error)]),
        }
    )
