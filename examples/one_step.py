"""A fourth map, in a file outside the package: linear attention is one step of gradient descent.

Run it, or make an atlas of it alone:

    attlas run 'one-step/*' --claims examples/one_step.py
    attlas atlas 'one-step/*' --claims examples/one_step.py --out build/one-step

A prompt holds N examples (x_i, y_i) of a linear function with a random weight w, and a query x. Linear attention with keys x_i and
values y_i predicts at the query what one step of gradient descent on the squared loss, from weight 0, would predict. Its risk
is known, and so is the best step. one_step.toml, beside this file, holds what is said about the map in prose.
"""

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attlas.attention import linear_attention
from attlas.claims import Control, Hypothesis, Setting, claim, key_for, together
from attlas.drawing import agreement, colour, finish
from attlas.gaussian import monte_carlo
from attlas.statistics import Agreement, Order

DESCENT, RISK, BEST = "one-step/attention-is-descent", "one-step/risk", "one-step/best-step"
ENOUGH = Hypothesis("examples >= 1", lambda s: s.examples >= 1, defining=True)


def prompt(key, block, examples, dim, noise):
    """`block` prompts: inputs [block, N, d], labels [block, N], queries [block, d], answers [block]."""
    inputs, weight, query, errors = (
        jax.random.normal(k, shape)
        for k, shape in zip(
            jax.random.split(key, 4),
            ((block, examples, dim), (block, dim), (block, dim), (block, examples)),
            strict=True,
        )
    )
    labels = jnp.einsum("bnd,bd->bn", inputs, weight) + noise * errors
    return inputs, labels, query, jnp.einsum("bd,bd->b", query, weight)


def attend(inputs, labels, query, step):
    """The answer of one linear attention head, [block]."""
    out = linear_attention(
        query[:, None], inputs, labels[..., None], temperature=inputs.shape[1] / step
    )
    return out[:, 0, 0]


def descend_once(inputs, labels, query, step):
    """The answer after one step of descent on (1/2N) sum (<w, x_i> - y_i)^2 from w = 0, by automatic differentiation."""

    def loss(weight, x, y):
        return jnp.mean((x @ weight - y) ** 2) / 2

    weights = -step * jax.vmap(jax.grad(loss), (None, 0, 0))(
        jnp.zeros(inputs.shape[-1]), inputs, labels
    )
    return jnp.einsum("bd,bd->b", query, weights)


def risk(examples, dim, noise, step):
    """E(<w, x> - prediction)^2 for standard normal weights, inputs and query."""
    return dim * (1 - 2 * step + step**2 * (examples + dim + 1 + noise**2) / examples)


def best_step(examples, dim, noise):
    return examples / (examples + dim + 1 + noise**2)


@claim(
    DESCENT,
    source="attlas",  # in your own map: the key of your paper
    reference="one step of descent",
    statement=r"$\frac\alpha N\sum_i y_i\langle x_i, x\rangle$, linear attention to $N$ examples, is the prediction at $x$ of one step of gradient descent of size $\alpha$ on $\frac1{2N}\sum_i(\langle w, x_i\rangle - y_i)^2$ from $w = 0$.",
    words="A head without softmax does at the query what one step of training on the prompt would do.",
    hypotheses=(ENOUGH,),
    quick=Setting(examples=16, dim=8, noise=0.5, step=0.7),
    paper=Setting(examples=128, dim=64, noise=0.5, step=0.7),
    rule=Agreement(),
    control=Control("a step 0.1 % longer", lambda e: e.assign(predicted=1.001 * e["predicted"])),
    figure=lambda evidence: agreement(evidence, "Attention is a step of descent", what="answer"),
    origin="our reading",
)
def attention_is_descent(cells, seed):
    (cell,) = cells
    inputs, labels, query, _ = prompt(
        key_for(seed, DESCENT, "prompts"), 64, cell.examples, cell.dim, cell.noise
    )
    parts = {"predicted": descend_once, "measured": attend}
    values = {
        name: (("cell", "prompt"), f(inputs, labels, query, cell.step)[None])
        for name, f in parts.items()
    }
    return xr.Dataset({**values, "error": (("cell", "prompt"), np.zeros((1, 64)))})


def draw_risk(evidence):
    frame = evidence[["examples", "predicted", "measured", "error"]].to_dataframe()
    x = alt.X("examples:Q", title="examples in the prompt", scale=alt.Scale(type="log"))
    line = (
        alt.Chart(frame).mark_line(color="#222").encode(x=x, y=alt.Y("predicted:Q", title="risk"))
    )
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=60)
        .encode(x=x, y="measured:Q", color=alt.value("#0072B2"))
    )
    return finish(
        (line + points).properties(width=460, height=300),
        "The risk of one step",
        "line: formula; points: simulated",
    )


@claim(
    RISK,
    source="attlas",
    reference="risk of one step",
    statement=r"With standard normal weights and inputs in $d$ dimensions and label noise $\sigma$ the head has the risk $d\,\big(1 - 2\alpha + \alpha^2\frac{N + d + 1 + \sigma^2}{N}\big)$.",
    words="How well one step does is a formula of the number of examples, the dimension and the noise.",
    hypotheses=(ENOUGH,),
    quick=Setting(examples=(4, 16, 64), dim=8, noise=0.5, step=0.7, samples=20_000),
    paper=Setting(examples=(4, 16, 64, 256), dim=8, noise=0.5, step=0.7, samples=400_000),
    rule=Agreement(),
    control=Control(
        "N + d in place of N + d + 1",
        lambda e: e.assign(predicted=e["predicted"] - e["dim"] * e["step"] ** 2 / e["examples"]),
    ),
    figure=draw_risk,
    needs=(DESCENT,),
    cells=together("examples"),
    budget="samples",
    origin="ours",
)
def risk_of_one_step(cells, seed):
    (cell,) = cells

    def loss(key, block, examples, dim, noise, step):
        inputs, labels, query, answer = prompt(key, block, len(examples), len(dim), noise)
        return (attend(inputs, labels, query, step) - answer) ** 2

    sampled = monte_carlo(
        loss,
        key_for(seed, RISK, "prompts"),
        cell.samples,
        jnp.arange(cell.examples),
        jnp.arange(cell.dim),
        cell.noise,
        cell.step,
    )
    return xr.Dataset(
        {
            "predicted": ("cell", [risk(cell.examples, cell.dim, cell.noise, cell.step)]),
            "measured": ("cell", [float(sampled.mean)]),
            "error": ("cell", [float(sampled.error)]),
        }
    )


def draw_steps(evidence):
    frame = evidence[["other", "lower", "upper"]].to_dataframe().reset_index()
    frame = frame.melt("other", ["lower", "upper"], "step", "risk")
    frame["step"] = frame["step"].map({"lower": "the best step", "upper": "another"})
    chart = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(x="other:Q", y="risk:Q", color=colour("step:N", None))
    )
    return finish(chart.properties(width=460, height=300), "No other step does better")


@claim(
    BEST,
    source="attlas",
    reference="the best step",
    statement=r"The step $\alpha = \frac{N}{N + d + 1 + \sigma^2}$ has a lower risk than every other, and its risk is $d(1 - \alpha)$.",
    words="There is one best step, and it is shorter the fewer examples there are.",
    hypotheses=(ENOUGH,),
    quick=Setting(examples=16, dim=8, noise=0.5, others=21),
    paper=Setting(examples=16, dim=8, noise=0.5, others=201),
    rule=Order(),
    control=Control(
        "the order turned round", lambda e: e.assign(lower=e["upper"], upper=e["lower"])
    ),
    figure=draw_steps,
    needs=(RISK,),
    origin="ours",
)
def best_of_steps(cells, seed):
    (cell,) = cells
    best = best_step(cell.examples, cell.dim, cell.noise)
    others = best * np.linspace(0.5, 1.5, cell.others + 1 - cell.others % 2)[None]
    others = others[:, np.abs(others[0] - best) > 1e-9]
    values = risk(cell.examples, cell.dim, cell.noise, others)
    return xr.Dataset(
        {
            "lower": (("cell", "step"), np.full_like(values, cell.dim * (1 - best))),
            "upper": (("cell", "step"), values),
            "error": (("cell", "step"), np.zeros_like(values)),
            "other": (("cell", "step"), others),
        }
    )
