"""A fourth map, in a file outside the package: linear attention is one step of gradient descent.

Run it, or make an atlas of it alone:

    attlas run 'one-step/*' --claims examples/one_step.py
    attlas atlas 'one-step/*' --claims examples/one_step.py --out build/one-step

A prompt holds N examples (x_i, y_i) of a linear function with a random weight w, and a query x.
Linear attention with keys x_i and values y_i predicts at the query what one step of gradient
descent on the squared loss, from weight 0, would predict. Its risk is known, and so is the best
step. one_step.toml, beside this file, holds what is said about the map in prose.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attlas.attention import linear_attention
from attlas.claims import Agreement, Control, Map, Order, Setting, on, together
from attlas.figure import Figure, agreement
from attlas.gaussian import monte_carlo

one_step = Map(
    "one-step",
    source="attlas",  # in your own map: the key of your paper
    domain=("noise >= 0", "step > 0"),
)


@one_step.claim(
    kind="two routes",
    reference="one step of descent",
    origin="our reading",
    statement=r"$\frac\alpha N\sum_i y_i\langle x_i, x\rangle$, linear attention to $N$ examples,"
    r" is the prediction at $x$ of one step of gradient descent of size $\alpha$ on"
    r" $\frac1{2N}\sum_i(\langle w, x_i\rangle - y_i)^2$ from $w = 0$.",
    words="A head without softmax does at the query what one step of training on the prompt would"
    " do.",
    quick=Setting(examples=16, dim=8, noise=0.5, step=0.7),
    paper=dict(examples=128, dim=64),
    rule=Agreement(),
    control=Control(
        "a step longer by {size:.2g} of its length",
        lambda e, size: {"predicted": (1 + size) * e.predicted},
        size=1e-3,
    ),
)
def attention_is_descent(cell, draws):
    inputs, labels, query, _ = prompt(draws("prompts"), 64, cell.examples, cell.dim, cell.noise)
    step = (inputs, labels, query, cell.step)
    return {**on("prompt", predicted=descend_once(*step), measured=attend(*step)), "error": 0.0}


@attention_is_descent.figure
def answers(evidence):
    return agreement(evidence, "Attention is a step of descent", what="answer")


def prompt(key, block, examples, dim, noise):
    """`block` prompts: inputs [block, N, d], labels [block, N], queries [block, d], answers."""
    shapes = (block, examples, dim), (block, dim), (block, dim), (block, examples)
    keys = jax.random.split(key, 4)
    inputs, weight, query, errors = map(jax.random.normal, keys, shapes)
    labels = jnp.einsum("bnd,bd->bn", inputs, weight) + noise * errors
    return inputs, labels, query, jnp.einsum("bd,bd->b", query, weight)


def attend(inputs, labels, query, step):
    """The answer of one linear attention head, [block]."""
    temperature = inputs.shape[1] / step
    out = linear_attention(query[:, None], inputs, labels[..., None], temperature=temperature)
    return out[:, 0, 0]


def descend_once(inputs, labels, query, step):
    """The answer after a step of descent on (1/2N) sum (<w, x_i> - y_i)^2 from w = 0."""

    def loss(weight, x, y):
        return jnp.mean((x @ weight - y) ** 2) / 2

    start = jnp.zeros(inputs.shape[-1])
    weights = -step * jax.vmap(jax.grad(loss), (None, 0, 0))(start, inputs, labels)
    return jnp.einsum("bd,bd->b", query, weights)


@one_step.claim(
    kind="simulation",
    reference="risk of one step",
    origin="ours",
    statement=r"With standard normal weights and inputs in $d$ dimensions and label noise $\sigma$"
    r" the head has the risk"
    r" $d\,\big(1 - 2\alpha + \alpha^2\frac{N + d + 1 + \sigma^2}{N}\big)$.",
    words="How well one step does is a formula of the number of examples, the dimension and the"
    " noise.",
    quick=Setting(examples=(4, 16, 64), dim=8, noise=0.5, step=0.7, samples=20_000),
    paper=dict(examples=(4, 16, 64, 256), samples=400_000),
    cells=together("examples"),
    budget="samples",
    rule=Agreement(),
    control=Control(
        "N + d in place of N + d + 1",
        lambda e: {"predicted": e.predicted - e.dim * e.step**2 / e.examples},
    ),
    needs=("attention-is-descent",),
)
def risk(cell, draws):
    def loss(key, block, examples, dim, noise, step):
        inputs, labels, query, answer = prompt(key, block, len(examples), len(dim), noise)
        return (attend(inputs, labels, query, step) - answer) ** 2

    shape = jnp.arange(cell.examples), jnp.arange(cell.dim)
    return {
        "predicted": risk_of_step(cell, cell.step),
        "measured": monte_carlo(
            loss, draws("prompts"), cell.samples, *shape, cell.noise, cell.step
        ),
    }


@risk.figure
def risk_by_examples(evidence):
    return (
        Figure(
            evidence,
            "The risk of one step",
            "line: formula; points: simulated",
            x="examples in the prompt",
            y="risk",
            log="x",
        )
        .lines("examples", "predicted", theory="solid")
        .points("examples", "measured", error=True, size=60)
    )


def risk_of_step(cell, step):
    """E(<w, x> - prediction)^2 for standard normal weights, inputs and query."""
    more = cell.examples + cell.dim + 1 + cell.noise**2
    return cell.dim * (1 - 2 * step + step**2 * more / cell.examples)


@one_step.claim(
    kind="two routes",
    reference="the best step",
    origin="ours",
    statement=r"The step $\alpha = \frac{N}{N + d + 1 + \sigma^2}$ has a lower risk than every"
    r" other, and its risk is $d(1 - \alpha)$.",
    words="There is one best step, and it is shorter the fewer examples there are.",
    quick=Setting(examples=16, dim=8, noise=0.5, others=21),
    paper=dict(others=201),
    rule=Order(),
    control=Control("the order turned round", lambda e: {"lower": e.upper, "upper": e.lower}),
    needs=("risk",),
)
def best_step(cell, draws):
    best = cell.examples / (cell.examples + cell.dim + 1 + cell.noise**2)
    others = best * np.linspace(0.5, 1.5, cell.others + 1 - cell.others % 2)
    others = others[abs(others - best) > 1e-9]
    return {
        **on("other", upper=risk_of_step(cell, others)),
        "other": others,
        "lower": cell.dim * (1 - best),
        "error": 0.0,
    }


@best_step.figure
def risk_by_step(evidence):
    return Figure(evidence, "No other step does better", x="step", y="risk").lines(
        "other", {"lower": "the best step", "upper": "another"}, points=True
    )
