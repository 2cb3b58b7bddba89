"""Claims about encoders of Gaussian tokens: what the state holds of a location or of a class."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Approximation, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, finite_runs, or_failed, over_runs
from attlas.latent_posterior.claims.shared import defining
from attlas.latent_posterior.encoders import (
    Recipe,
    excess_risk,
    explained,
    random_encoders,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import Data, Locations, Mixtures, draw_runs
from attlas.surface import public

DATA = ("a location", "a class")
"""Latents of Gaussian tokens: their mean itself, or which of a few means they have."""
LOOKS = 4
"""How often encoders are looked at while they are trained."""


class Changing(NamedTuple):
    """A task whose sequences begin, in some runs, with tokens of another latent, up to a random
    place: they are not exchangeable. The target is of the latent with which they end."""

    task: Any
    changes: Bool[Any, " run"]

    @property
    def length(self) -> Int[Any, " run"]:
        return self.task.length

    @property
    def outputs(self) -> int:
        return self.task.outputs

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        keys = jax.random.split(key, 3)
        here, other = (self.task.draw(k, samples, longest) for k in keys[:2])
        place = jax.random.randint(keys[2], (samples, 1, 1), 0, self.task.length)
        before = (jnp.arange(longest)[:, None] < place) & self.changes
        return here._replace(tokens=jnp.where(before, other.tokens, here.tokens))

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        """Of sequences whose latent does not change."""
        return self.task.bayes(seen)


def gaussian_task(cell: Setting, draws: Draws) -> Any:
    """Random means of the latent's law for each run: a location is normal about one of them, of
    variance 1, and a class has one of them."""
    shape = (cell.runs, cell.latents, cell.dim)
    centres = draws.stream("centres").standard_normal(shape)
    noise, length = np.full(cell.runs, cell.noise), np.full(cell.runs, cell.length)
    if cell.data == DATA[0]:
        return Locations(centres[:, 0], np.ones(cell.runs), noise, length)
    return Mixtures(np.full(shape[:2], 1 / cell.latents), centres, noise, length)


def said_of_latent(task: Any, bayes: Float[np.ndarray, "run n o"]) -> Float[np.ndarray, " run"]:
    r"""What Bayes' rule gains by the tokens: $E|E[z \mid X] - c|^2$, or $E\,KL(\pi_X\,\|\,p)$."""
    if isinstance(task, Locations):
        return ((bayes - task.centre[:, None]) ** 2).sum(-1).mean(-1)
    return (bayes * np.log(bayes / task.prior[:, None])).sum(-1).mean(-1)


def scatter(seen: Data) -> Float[np.ndarray, "run n pairs"]:
    """Second moments of the tokens about their mean in each sequence, which is all that the
    posterior sees of them and of which these are independent."""
    tokens = np.asarray(seen.tokens, float)
    off = tokens - tokens.mean(-2, keepdims=True)
    return (off.swapaxes(-1, -2) @ off)[..., *np.triu_indices(tokens.shape[-1])]


@latent_posterior.measurement(
    "trained-on-gaussians",
    hypotheses=(
        RUNS,
        defining(f"data is {' or '.join(map(repr, DATA))}", lambda s: s.data in DATA),
        defining("latents >= 2", lambda s: s.latents >= 2),
    ),
    quick=Setting(
        data=DATA,
        latents=3,
        dim=3,
        noise=2.5,
        length=10,
        width=16,
        steps=600,
        batch=32,
        rate=0.012,
        runs=16,
        sequences=1000,
    ),
    paper=dict(latents=4, width=32, steps=1500, rate=0.006, runs=24, sequences=2000),
    cells=together("data"),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_on_gaussians(cell: Setting, draws: Draws) -> Values:
    """What encoders of Gaussian tokens predict and hold while they are trained to tell the latent,
    and what those lose that learnt from sequences whose latent changes on the way."""
    task = gaussian_task(cell, draws)
    both = jax.tree.map(lambda x: np.concatenate([x, x]), task)
    changes = np.repeat([False, True], cell.runs)
    weights, training = (
        jnp.concatenate([jax.random.split(draws(name), cell.runs)] * 2)
        for name in ("weights", "training")
    )
    start = random_encoders(weights, cell.dim, task.outputs, width=cell.width)
    recipe = Recipe(cell.steps, cell.batch, cell.rate)
    found = train_encoders(
        start, Changing(both, changes), training, recipe, record_every=max(1, cell.steps // LOOKS)
    )
    seen = draw_runs(task, jax.random.split(draws("asked"), cell.runs), 2 * cell.sequences)
    bayes, unseen = task.bayes(seen), scatter(seen)
    finite = found.finite.reshape(2, cell.runs).all(0)

    def look(place: int) -> Any:
        return jax.tree.map(lambda x: x[place, : cell.runs], found.path)

    looks = [look(place) for place in range(len(found.steps))]
    states = [np.asarray(represent(encoders, seen)[:, -1], float) for encoders in looks]
    misled = jax.tree.map(lambda x: x[cell.runs :], found.encoders)
    of_looks = {
        "excess": [excess_risk(encoders, task, seen) for encoders in looks],
        "posterior": [explained(x, bayes) for x in states],
        "kept": [explained(x, unseen) for x in states],
    }
    return {
        **on("step run", **{name: or_failed(x, finite) for name, x in of_looks.items()}),
        **on("run", information=said_of_latent(task, bayes), minimal=explained(bayes, unseen)),
        **on("run", misled=or_failed(excess_risk(misled, task, seen), finite)),
        "step": found.steps,
    }


def curves(evidence: xr.Dataset, title: str, note: str, y: str) -> Figure:
    """Means over runs while encoders are trained."""
    legend = {"data": "the latent is"}
    figure = Figure(evidence, title, note, x="training steps", y=y, legend=legend)
    return figure.lines("step", str(*evidence.data_vars), points=True, color="data")


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="prediction by the posterior, on trained networks, for Gaussian tokens",
    statement=r"Encoders of attention are trained to tell the latent of Gaussian tokens,"
    r" $x_i \sim N(z, \sigma^2I)$ with $z \sim N(c, I)$, or with $z$ one of a few means. At the"
    r" length of training they gain what the tokens $X$ say of it to 5 %: of"
    r" $E\,|E[z \mid X] - c|^2$, in mean squares, where it is a location, and of"
    r" $E\,KL(\pi_X\,\|\,p)$ where it is a class of prior $p$.",
    words="Networks that were shown examples only come to weigh the mean of the tokens against the"
    " prior as Bayes' rule does. Networks that were trained on sequences whose latent changes on"
    " the way, which are not exchangeable, weigh them otherwise. Runs that become non-finite are"
    " left out; if more than a quarter do, nothing is decided.",
    measured_by=trained_on_gaussians,
    rule=Approximation(margin=0.05),
    control=Control(
        "encoders that were trained on sequences whose latent changes on the way",
        lambda e: {"measured": e.of_misled, "error": e.of_misled_error},
    ),
    needs=("predictive", "trained-predictor"),
)
def gaussian_latents_told(evidence: xr.Dataset) -> Values:
    runs = finite_runs(evidence)
    full, lost = runs["information"], runs["excess"].isel(step=-1, drop=True)
    misled = runs["misled"]
    return {
        "predicted": full.mean("run"),
        "measured": (full - lost).mean("run"),
        **over_runs(lost),
        "of_misled": (full - misled).mean("run"),
        "of_misled_error": over_runs(misled)["error"],
    }


@gaussian_latents_told.figure
def excess_on_gaussians(evidence: xr.Dataset) -> Figure:
    share = (evidence["excess"] / evidence["information"]).isel(step=slice(1, None)).mean("run")
    y = "distance from Bayes, of what X says"
    return curves(
        share.to_dataset(name="share"), "Gaussian latents", "mean over runs; 0 is Bayes' rule", y
    )


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="sufficiency, on trained networks, for Gaussian tokens",
    statement=r"A linear probe of the state of the encoders of `gaussian-latents-told` reads the"
    r" posterior mean of the location, and the posterior of the class: it explains at least 97 %"
    r" of their variance (fitted to other sequences than it is judged on).",
    words="What these encoders hold of a sequence is sufficient: the belief about the latent can be"
    " read off by a linear map.",
    measured_by=trained_on_gaussians,
    rule=Approximation(margin=0.03),
    control=Control("encoders without training", lambda e: {"measured": e.untrained}),
    needs=("sufficient", "gaussian-latents-told"),
)
def gaussian_latents_held(evidence: xr.Dataset) -> Values:
    share = finite_runs(evidence)["posterior"]
    trained, untrained = share.isel(step=-1, drop=True), share.isel(step=0, drop=True)
    return {
        "predicted": xr.ones_like(trained.mean("run")),
        "measured": trained.mean("run"),
        **over_runs(trained),
        "untrained": untrained.mean("run"),
    }


@gaussian_latents_held.figure
def posterior_on_gaussians(evidence: xr.Dataset) -> Figure:
    title, note = "The belief that a linear probe reads", "mean over runs; 1: exactly the posterior"
    y = "explained variance of the posterior"
    return curves(evidence[["posterior"]].mean("run"), title, note, y)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="minimality, on trained networks, for Gaussian tokens",
    statement=r"The state of the encoders of `gaussian-latents-told` is not minimal: of the scatter"
    r" of the tokens about their mean, $\sum_i(x_i - \bar x)(x_i - \bar x)^\top$, of which the"
    r" posterior is independent, a linear probe of it explains more than a twentieth.",
    words="The posterior of a Gaussian latent depends on the mean of the tokens alone. The state of"
    " a trained encoder holds something of their scatter too.",
    measured_by=trained_on_gaussians,
    rule=Order(),
    control=Control(
        "the exact posterior in place of the state",
        lambda e: {"upper": e.of_minimal, "error": e.of_minimal_error},
    ),
    needs=("minimal", "gaussian-latents-held"),
)
def gaussian_scatter_kept(evidence: xr.Dataset) -> Values:
    runs = finite_runs(evidence)
    kept, minimal = runs["kept"].isel(step=-1, drop=True), runs["minimal"]
    return {
        "lower": xr.full_like(kept.mean("run"), 0.05),
        "upper": kept.mean("run"),
        **over_runs(kept),
        "of_minimal": minimal.mean("run"),
        "of_minimal_error": over_runs(minimal)["error"],
    }


@gaussian_scatter_kept.figure
def scatter_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "What the latent does not need", "mean over runs; 0: a minimal state"
    y = "explained variance of the scatter"
    return curves(evidence[["kept"]].mean("run"), title, note, y)
