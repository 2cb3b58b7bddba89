"""Claims about encoders that were pretrained on a target that shows some directions of the latent
dimly: what a task pays that reads them."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on, whole
from attlas.claims.rules import Approximation, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs, slope_over_runs
from attlas.latent_posterior.claims.shared import defining, log_figure
from attlas.latent_posterior.encoders import (
    Recipe,
    excess_of_few,
    random_encoders,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import Topics, draw_runs
from attlas.latent_posterior.pretraining import tangent
from attlas.latent_posterior.transfer import condition_number

LATENTS = 4
SIZE = 0.6
"""Of the direction that the masked target shows best, so that all its answers have a chance."""
SETS = 8
"""Sets of labels with which each probe is fitted."""
CONDITION = "condition number κ"


def masked_answers(kappa: float) -> Float[np.ndarray, "m m"]:
    """Laws of the masked target given the latent, which show orthogonal directions of the latent
    with sizes from `SIZE` to that over the root of kappa."""
    sizes = SIZE * np.geomspace(1, kappa**-0.5, LATENTS - 1)
    return 1 / LATENTS + tangent(LATENTS) * sizes @ tangent(LATENTS).T


@latent_posterior.measurement(
    "pretrained-encoders",
    hypotheses=(
        RUNS,
        defining("kappa runs from 1 to 1000", lambda s: s.kappa[0] == 1 and s.kappa[-1] == 1000),
        defining("labels >= 2 width", lambda s: s.labels >= 2 * s.width),
    ),
    quick=Setting(
        kappa=(1.0, 5.6, 31.6, 178.0, 1000.0),
        length=8,
        samples=4000,
        labels=100,
        width=8,
        steps=1000,
        batch=32,
        rate=0.01,
        runs=24,
        sequences=1000,
    ),
    paper=dict(samples=8000, steps=5000, sequences=4000),
    cells=whole,
    budget="runs",
    precision="float32",
    long=True,
)
def pretrained_encoders(cell: Setting, draws: Draws) -> Values:
    """Excess risks of encoders pretrained on n sequences, of the task that reads the dimmest
    direction through the exact head, and of linear probes with few labels."""
    runs, numbers = cell.runs, len(cell.kappa)
    words = np.tile(0.4 * np.eye(LATENTS) + 0.6 / LATENTS, (runs * numbers, 1, 1))
    answers = np.repeat([masked_answers(kappa) for kappa in cell.kappa], runs, 0)
    prior = np.full((runs * numbers, LATENTS), 1 / LATENTS)
    topics = Topics(prior, words, answers, np.full(runs * numbers, cell.length))
    # Condition numbers share weights and sequences.
    weights, training, sample, asked = (
        jnp.concatenate([jax.random.split(draws(name), runs)] * numbers)
        for name in ("weights", "training", "sample", "asked")
    )
    start = random_encoders(weights, LATENTS, LATENTS, width=cell.width)
    data = draw_runs(topics, sample, cell.samples)
    recipe = Recipe(cell.steps, cell.batch, cell.rate)
    found = train_encoders(start, topics, training, recipe, data=data)
    seen = draw_runs(topics, asked, SETS * cell.labels + cell.sequences)
    states = np.asarray(represent(found.encoders, seen)[:, -1], float)
    off = special.softmax(states @ np.asarray(found.encoders.read, float), -1) - topics.bayes(seen)
    task = tangent(LATENTS)[:, -1]
    heads = [task @ np.linalg.pinv(masked_answers(kappa).T - 1 / LATENTS) for kappa in cell.kappa]
    through = np.einsum("rno,ro->rn", off, np.repeat(heads, runs, 0))
    shares = np.asarray(seen.counts, float) / cell.length
    task = task[:, None]
    labels, target = task[np.asarray(seen.latent)], topics.posterior(seen) @ task

    def split(values: np.ndarray) -> np.ndarray:
        return values.reshape(numbers, runs)

    return {
        **on(
            "number run",
            pretraining=split((off**2).sum(-1).mean(-1)),
            head=split((through**2).mean(-1)),
            probe=split(excess_of_few(states, labels, target, cell.labels, SETS)),
            scratch=split(excess_of_few(shares, labels, target, cell.labels, SETS)),
        ),
        **on("run", finite=found.finite.reshape(numbers, runs).min(0).astype(float)),
        **on("number", bound=[exact_number(kappa) for kappa in cell.kappa]),
        "number": list(cell.kappa),
    }


def exact_number(kappa: float) -> float:
    """The condition number of the masked target and the task: `kappa` over the square of `SIZE`."""
    task = tangent(LATENTS)[:, -1:].T
    return condition_number(masked_answers(kappa).T, task, simplex=True).value


def slope_of(evidence: xr.Dataset, name: str) -> tuple[float, float]:
    """The exponent of an excess risk in the condition number, with its standard error."""
    values = evidence[name].isel(cell=0).transpose("number", "run").values
    return slope_over_runs(evidence["number"].values, values)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="pretraining excess and downstream excess, on trained networks",
    statement=r"Encoders are pretrained on $n$ sequences of topics with a masked target that"
    r" shows directions of the latent with sizes from 1 to $\kappa^{-1/2}$, $\kappa$ from 1 to"
    r" $10^3$. A task that reads the dimmest direction through the exact head $D T^+$ has an"
    r" excess risk that grows with the exponent 1 of $\kappa$, to 20 %.",
    words="Trained networks pay in proportion to the condition number, as the formula of the linear"
    " model has it: their error is spread over all directions of the posterior.",
    measured_by=pretrained_encoders,
    rule=Approximation(margin=0.2),
    control=Control(
        "the excess risk of pretraining in place of the task's",
        lambda e: {"measured": e.of_pretraining},
    ),
    needs=("transfer-price", "trained-predictor"),
)
def trained_price(evidence: xr.Dataset) -> Values:
    slope, error = slope_of(evidence, "head")
    return {
        "predicted": 1.0,
        "measured": slope,
        "error": error,
        "repetitions": float(evidence.sizes["run"]),
        "of_pretraining": slope_of(evidence, "pretraining")[0],
    }


@trained_price.figure
def prices_of_trained_networks(evidence: xr.Dataset) -> Figure:
    mean = evidence[["pretraining", "head", "probe", "scratch"]].mean("run")
    names = {
        "head": "task, exact head",
        "probe": "task, probe with few labels",
        "scratch": "task, no pretraining",
        "pretraining": "pretraining",
    }
    figure = log_figure(
        mean.assign(allowed=evidence["bound"] * mean["pretraining"]),
        "The price of a dimly seen direction, on trained networks",
        "dashed: the condition number times the pretraining excess",
        x=CONDITION,
        y="mean excess risk",
    )
    figure.lines("number", "allowed", theory=True)
    return figure.lines("number", names, points=True)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="linear probes and few labels, on trained networks",
    statement=r"A linear probe with few labels on the state of a pretrained encoder has a lower"
    r" excess risk than one on the shares of the words where $\kappa = 1$, and a higher one where"
    r" $\kappa = 10^3$ than where $\kappa = 1$.",
    words="Pretraining saves a task labels if it saw what the task reads, and fewer or none if it"
    " hardly did.",
    measured_by=pretrained_encoders,
    rule=Order(),
    control=Control(
        "the condition numbers exchanged", lambda e: {"lower": e.of_last, "upper": e.of_others}
    ),
    needs=("probe-crossover", "trained-price"),
)
def trained_probe_gains(evidence: xr.Dataset) -> Values:
    probe, scratch = evidence["probe"], evidence["scratch"].isel(number=0, drop=True)
    first, last = (probe.isel(number=i, drop=True) for i in (0, -1))
    sides = ["the probe, from scratch", "condition number 1, 1000"]

    def both(a: xr.DataArray, b: xr.DataArray) -> xr.DataArray:
        return xr.concat([a, b], xr.Variable("sides", sides))

    return {
        "lower": both(first, first).mean("run"),
        "upper": both(scratch, last).mean("run"),
        **over_runs(both(scratch, last) - both(first, first)),
        "of_last": both(last, last).mean("run"),
        "of_others": both(scratch, first).mean("run"),
    }


@trained_probe_gains.figure
def probes_of_trained_networks(evidence: xr.Dataset) -> Figure:
    names = {"probe": "probe on pretraining", "scratch": "from scratch"}
    title = "A probe of trained networks against training from scratch"
    shown = evidence[list(names)].mean("run")
    figure = log_figure(shown, title, x=CONDITION, y="excess risk of the task")
    return figure.lines("number", names, points=True)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="what a probe finds that the head does not show",
    statement=r"The excess risk of a linear probe with few labels on the state of a pretrained"
    r" encoder grows with an exponent of $\kappa$ below $\frac14$, where through the exact head it"
    r" is 1.",
    words="The state of a trained network is not minimal, and a task profits from that: what the"
    " masked target hardly shows is in the state nonetheless, and a probe finds it.",
    measured_by=pretrained_encoders,
    rule=Order(),
    control=Control("the exact head in place of a probe", lambda e: {"lower": e.of_head}),
    needs=("trained-price", "trained-not-minimal"),
)
def trained_probe_saturates(evidence: xr.Dataset) -> Values:
    slope, error = slope_of(evidence, "probe")
    return {
        "lower": slope,
        "upper": 0.25,
        "error": error,
        "repetitions": float(evidence.sizes["run"]),
        "of_head": slope_of(evidence, "head")[0],
    }


@trained_probe_saturates.figure
def probe_beside_head(evidence: xr.Dataset) -> Figure:
    names = {"head": "exact head", "probe": "probe with few labels"}
    title = "What a probe finds that the head does not show"
    shown = evidence[list(names)].mean("run")
    figure = log_figure(shown, title, x=CONDITION, y="excess risk of the task")
    return figure.lines("number", names, points=True)
