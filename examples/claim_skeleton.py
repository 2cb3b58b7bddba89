"""A claim of one's own: the smallest complete one.

Run it with

    attlas run softmax/sums-to-one --claims examples/claim_skeleton.py

and copy it to begin another. It states that the mean of softmax(z)_1 over Gaussian scores z of
length L is 1/L.
"""

import jax
import jax.numpy as jnp

from attlas.claims import Agreement, Control, Hypothesis, Map, Setting, together
from attlas.figure import agreement
from attlas.gaussian import monte_carlo

softmax = Map("softmax", source="attlas")  # the key of a BibTeX entry, such as "marion2025"


@softmax.claim(
    kind="simulation",  # a formula against samples; or identity, two routes, training, real
    reference="exchangeability of the weights",
    origin="ours",
    statement=r"$E[\mathrm{softmax}(z)_1] = \frac1L$ for $z \sim N(0, \beta^2 I_L)$.",
    words="On average a token gets its fair share of attention, however sharp the softmax.",
    hypotheses=(Hypothesis("sharpness >= 0", lambda s: s.sharpness >= 0),),
    quick=Setting(length=(2, 5, 20), sharpness=3.0, samples=50_000),
    paper=dict(length=(2, 5, 20, 200), samples=1_000_000),  # what differs
    cells=together("length"),
    budget="samples",
    rule=Agreement(),
    control=Control(
        "a share that is {size:.1%} too large",
        lambda e, size: {"predicted": (1 + size) * e.predicted},
        size=0.05,
    ),
)
def sums_to_one(cell, draws):
    tokens = jnp.arange(cell.length)
    sampled = monte_carlo(first_weight, draws("scores"), cell.samples, tokens, cell.sharpness)
    return {"predicted": 1 / cell.length, "measured": sampled}  # with its standard error


@sums_to_one.figure
def measured_against_predicted(evidence):
    return agreement(evidence, "The mean weight of a token", what="weight", color="L = {length}")


def first_weight(key, block, tokens, sharpness):
    """The first softmax weight of `block` sequences of scores, of the length of `tokens`."""
    scores = sharpness * jax.random.normal(key, (len(tokens), block))
    return jax.nn.softmax(scores, axis=0)[0]
