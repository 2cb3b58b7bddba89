"""Claims about what probes read from encoders of one layer and more, beside the mean word."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.encoders import tasks
from attlas.latent_posterior.claims.runs import RUNS, finite_runs, or_failed, sides
from attlas.latent_posterior.claims.variants import hardest
from attlas.latent_posterior.encoders import (
    Recipe,
    explained,
    random_encoders,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import draw_runs
from attlas.latent_posterior.sequential import Prefixes
from attlas.latent_posterior.trained_attention import minimise

SOURCES = ("a trained state", "an untrained state", "the mean of the words")
PROBES = ("linear", "perceptron")
TARGETS = ("the posterior", "its logarithm")
HIDDEN, STEPS, RATE = 16, 300, 0.03
"""Of the perceptron that probes."""


def explained_by_perceptron(
    key: Array, inputs: Float[Any, "run n p"], targets: Float[Any, "run n q"]
) -> Float[np.ndarray, " run"]:
    """The share of the targets' variance that a perceptron of one hidden layer explains, trained by
    Adam on the first half of the sequences and judged on the second, as `explained` is."""
    half = inputs.shape[1] // 2
    x, y = (values - values[:, :half].mean(1, keepdims=True) for values in (inputs, targets))
    spread = x[:, :half].std(1, keepdims=True)
    x, y = (np.asarray(z, np.float32) for z in (x / np.where(spread > 0, spread, 1), y))
    inner = jax.random.normal(key, (len(x), x.shape[-1], HIDDEN)) / x.shape[-1] ** 0.5
    start = inner, np.zeros((len(x), HIDDEN)), np.zeros((len(x), HIDDEN, y.shape[-1]))
    found = minimise(_missed, start, (x[:, :half], y[:, :half]), steps=STEPS, rate=RATE).last
    left = np.asarray(
        jax.vmap(_missed, (0, 0, None))(
            found,
            (x[:, half:], y[:, half:]),  # type: ignore[arg-type]
            None,
        )
    )
    return 1 - left / (y[:, half:].astype(float) ** 2).mean((1, 2))


def _missed(weights: Any, data: tuple[Array, Array], _: None) -> Array:
    (inner, offset, outer), (x, y) = weights, data
    return ((jax.nn.gelu(x @ inner + offset) @ outer - y) ** 2).mean()


@latent_posterior.measurement(
    "probed-encoders",
    hypotheses=(RUNS,),
    quick=Setting(
        layers=(1,),
        latents=3,
        vocabulary=8,
        smoothing=0.02,
        length=16,
        width=12,
        steps=1200,
        batch=32,
        rate=0.01,
        runs=32,
        sequences=1000,
    ),
    paper=dict(layers=(1, 2, 4), width=16, steps=1500, rate=0.006, runs=24),
    cells=together("layers"),
    budget="runs",
    precision="float32",
    long=True,
)
def probed_encoders(cell: Setting, draws: Draws) -> Values:
    """What probes read of the posterior after any number of words: from the state of encoders that
    were trained on all those lengths, from the state before training, and from the mean word."""
    topics = tasks(cell, draws)
    weights, training, asked = (
        jax.random.split(draws(name), cell.runs) for name in ("weights", "training", "asked")
    )
    shape: dict[str, Any] = {"width": cell.width, "layers": cell.layers}
    start = random_encoders(weights, cell.vocabulary, cell.vocabulary, **shape)
    recipe = Recipe(cell.steps, cell.batch, cell.rate)
    found = train_encoders(start, Prefixes(topics), training, recipe)
    seen = draw_runs(Prefixes(topics), asked, 2 * cell.sequences)
    counts, posterior = np.asarray(seen.counts, float), topics.posterior(seen)
    mean = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    states = [np.asarray(represent(x, seen)[:, -1], float) for x in (found.encoders, start)]
    read = [*states, np.pad(mean, [(0, 0)] * 2 + [(0, cell.width - cell.vocabulary)])]
    scores = topics.scores(seen)
    targets = posterior, scores - scores.mean(-1, keepdims=True)
    linear = [[explained(x, y) for x in read] for y in targets]
    every = [np.concatenate(x) for x in (read * 2, [y for y in targets for _ in read])]
    bent = explained_by_perceptron(draws("probe"), *every).reshape(np.shape(linear))
    left = or_failed(1 - np.stack([linear, bent], 2), found.finite)
    return {
        **on("target source probe run", left=left),
        "target": list(TARGETS),
        "source": list(SOURCES),
        "probe": list(PROBES),
    }


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="sufficiency, beside random attention and the mean of the tokens",
    statement=r"Encoders of one layer (and of two and four at the paper's scale) are trained to"
    r" predict the next word after fewer than $L$ words of a topic. A probe of the state at the"
    r" masked token leaves less of the variance of the posterior $\pi_X$ than the same probe of the"
    r" state before training, and than the same probe of the mean of the words, be it linear or a"
    r" perceptron with a hidden layer. Of $\ln\pi_X$, less its mean over the latents, it leaves"
    r" less than the probe of the mean of the words. The perceptron leaves less than the linear"
    r" probe (geometric means over networks; probes are fitted to other sequences than they are"
    r" judged on).",
    words="Training brings the belief about the latent into the state. Neither random attention nor"
    " the mean of the words, which does not know how many they were, holds as much of it,"
    " whichever probe reads them. Some of what a linear probe misses of a trained state is there"
    " all the same. The logarithm of the belief is held less well than the belief.",
    measured_by=probed_encoders,
    rule=Order(),
    control=Control(
        "the two sides exchanged to {size:.0%} of the way, at the inequality where that is hardest"
        " to tell",
        lambda e, size: hardest(
            e, e.lower + size * (e.upper - e.lower), e.upper + size * (e.lower - e.upper)
        ),
        size=1.0,
    ),
    needs=("sufficient", "trained-sufficient"),
)
def trained_beside_pooling(evidence: xr.Dataset) -> Values:
    # Logarithms, since runs differ by factors.
    logs: Any = np.log(finite_runs(evidence[["left"]])["left"])
    rows = []
    for target in TARGETS:
        trained, *others = (logs.sel(target=target, source=x, drop=True) for x in SOURCES)
        linear, bent = (trained.sel(probe=probe, drop=True) for probe in PROBES)
        rows.append((f"{target}, {SOURCES[0]}: perceptron, linear", bent, linear))
        for source, other in zip(SOURCES[1:], others, strict=True):
            for probe in PROBES:
                if (target, source) == (TARGETS[1], SOURCES[1]):
                    continue  # these differ too little to be told apart on every seed
                low, high = (x.sel(probe=probe, drop=True) for x in (trained, other))
                rows.append((f"{target}, {probe}: {SOURCES[0]}, {source}", low, high))
    return sides(*rows)


@trained_beside_pooling.figure
def left_by_probes(evidence: xr.Dataset) -> Figure:
    logs: Any = np.log(evidence["left"])
    names = [f"{layers:g}" for layers in np.ravel(evidence["layers"])]
    shown = np.exp(logs.mean("run")).to_dataset(name="left").assign(depth=("cell", names))
    figure = Figure(
        shown,
        "What probes miss of the posterior",
        "geometric mean over runs; 0 is the whole posterior",
        x="read from",
        y="share of the variance left",
        log="y",
        legend={"probe": "probe", "depth": "layers"},
    )
    figure.points("source", "left", color="probe", shape="depth", size=60)
    return figure.facet("{target}", width=330, height=190)
