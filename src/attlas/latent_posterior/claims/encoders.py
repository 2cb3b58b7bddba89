"""Claims about encoders that were trained: what the state at a masked token holds of a sequence."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Approximation, Bound, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs
from attlas.latent_posterior.claims.shared import defining, random_topics
from attlas.latent_posterior.encoders import (
    Encoder,
    Recipe,
    excess_risk,
    explained,
    random_encoder,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import Topics, draw_runs

RATIOS = (0.25, 1.0, 4.0)
"""Lengths at which encoders are asked, in units of the length that they were trained at."""
LOOKS = 5
"""How often encoders are looked at while they are trained."""


def tasks(cell: Setting, draws: Draws) -> Topics:
    """Random topics for each run; what is to be predicted is one more word."""
    rng = draws.stream("topics")
    models = [random_topics(rng, cell.latents, cell.vocabulary) for _ in range(cell.runs)]
    words = np.stack([model.words for model in models])
    words = (words + cell.smoothing) / (1 + cell.smoothing * cell.vocabulary)
    prior = np.stack([model.prior for model in models])
    return Topics(prior, words, words, np.full(cell.runs, cell.length))


def unseen_directions(words: Float[Any, "m vocabulary"]) -> Float[np.ndarray, "vocabulary u"]:
    """An orthonormal basis of the directions of the counts that neither the posterior nor the
    length sees: orthogonal to all differences of log probabilities, and to the sum."""
    contrasts = np.concatenate([np.log(words) - np.log(words).mean(0), np.ones((1, len(words.T)))])
    _, sizes, axes = np.linalg.svd(contrasts)
    return axes[np.sum(sizes > 1e-9 * sizes[0]) :].T


def kept_beside(
    states: Float[Any, "run n width"], known: Float[Any, "run n p"], asked: Float[Any, "run n u"]
) -> Float[np.ndarray, " run"]:
    """The share of what is asked, and cannot be had from what is known, that states add."""
    both = explained(np.concatenate([known, states], -1), asked)
    return 1 - (1 - both) / (1 - explained(known, asked))


@latent_posterior.measurement(
    "trained-encoders",
    hypotheses=(RUNS,),
    quick=Setting(
        latents=3,
        vocabulary=8,
        smoothing=0.02,
        length=16,
        attention="softmax",
        layers=1,
        width=16,
        steps=2500,
        batch=32,
        rate=0.01,
        runs=16,
        sequences=1000,
    ),
    paper=dict(latents=4, vocabulary=12, length=24, layers=2, width=32, steps=10_000, batch=64),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_encoders(cell: Setting, draws: Draws) -> Values:
    """What encoders hold of sequences of three lengths, while they are trained on fresh ones."""
    topics, outputs = tasks(cell, draws), cell.vocabulary
    names = ("width", "layers", "attention")
    shape: dict[str, Any] = {name: cell[name] for name in names}
    keys = jax.random.split(draws("weights"), cell.runs)
    start = jax.vmap(lambda key: random_encoder(key, cell.vocabulary, outputs, **shape))(keys)
    found = train_encoders(
        start,
        topics,
        jax.random.split(draws("training"), cell.runs),
        Recipe(cell.steps, cell.batch, cell.rate),
        record_every=max(1, cell.steps // LOOKS),
    )
    looks = [jax.tree.map(lambda leaf, i=i: leaf[i], found.path) for i in range(len(found.steps))]
    rows = [asked_at(cell, draws, topics, looks, ratio) for ratio in RATIOS]
    joined = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {
        **on("ratio run", **{name: joined[name] for name in ("information", "likeliest")}),
        **on("ratio step run", **{name: joined[name] for name in ("excess", "posterior", "kept")}),
        "ratio": list(RATIOS),
        "step": found.steps,
    }


def asked_at(
    cell: Setting, draws: Draws, topics: Topics, looks: list[Encoder], ratio: float
) -> dict[str, np.ndarray]:
    """What encoders hold at every look of sequences of another length [step, run], beside what
    these say about the answer and what the likeliest latent alone would lose [run]."""
    length = max(1, round(ratio * cell.length))
    here = topics._replace(length=np.full(cell.runs, length))
    keys = jax.random.split(jax.random.fold_in(draws("asked"), length), cell.runs)
    seen = draw_runs(here, keys, 2 * cell.sequences)
    counts, posterior, scores = np.asarray(seen.counts), topics.posterior(seen), topics.scores(seen)
    bayes, marginal = posterior @ topics.answers, topics.prior[:, None] @ topics.answers
    hard = np.take_along_axis(topics.answers, posterior.argmax(-1)[..., None], 1)
    scores -= scores.mean(-1, keepdims=True)
    known = np.concatenate([posterior, scores, scores**2], -1)
    asked = np.stack([n @ unseen_directions(w) for n, w in zip(counts, topics.words, strict=True)])
    states = [np.asarray(represent(encoders, seen)[:, -1], float) for encoders in looks]
    return {
        "information": (bayes * np.log(bayes / marginal)).sum(-1).mean(-1),
        "likeliest": (bayes * np.log(bayes / hard)).sum(-1).mean(-1),
        "excess": np.stack([excess_risk(encoders, topics, seen) for encoders in looks]),
        "posterior": np.stack([explained(x, posterior) for x in states]),
        "kept": np.stack([kept_beside(x, known, asked) for x in states]),
    }


def curves(evidence: xr.Dataset, name: str, title: str, note: str, y: str) -> Figure:
    """Means over runs while encoders are trained, for each length at which they are asked."""
    shown = evidence[[name]].mean("run").isel(cell=0)
    shown = shown.assign_coords(asked=("ratio", [f"{r:g} L" for r in shown.ratio.values]))
    legend = {"asked": "asked at length"}
    figure = Figure(shown, title, note, x="training steps", y=y, legend=legend)
    return figure.lines("step", name, points=True, color="asked")


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="prediction by the posterior, on trained networks",
    statement=r"An encoder of attention that was trained to predict a masked word of sequences"
    r" from topics takes from the other words, at the length of training, what they say of it,"
    r" $I = E\,KL(P(y \mid X)\,\|\,P(y))$ with $P(y \mid X) = \sum_z \pi_X(z)P(y \mid z)$, to 5 %:"
    r" $I - E\,KL(P(y \mid X)\,\|\,\text{network}) \approx I$.",
    words="Trained on nothing but masked words, a network comes to predict nearly as Bayes' rule"
    " does. That it averages over the latent and does not name the likeliest is not shown by this:"
    " that would cost a few per cent only.",
    measured_by=trained_encoders,
    rule=Approximation(margin=0.05),
    control=Control(
        "networks that are {size:.0%} of the way back to the law of the words without a context",
        lambda e, size: {"measured": e.measured + size * (e.without_context - e.measured)},
        size=0.1,
    ),
    needs=("predictive",),
)
def trained_predictor(evidence: xr.Dataset) -> Values:
    here = evidence.sel(ratio=1.0, drop=True)
    taken = here["information"] - here["excess"]
    return {
        "predicted": here["information"].mean("run"),
        "measured": taken.isel(step=-1).mean("run"),
        **over_runs(here["excess"].isel(step=-1)),
        "without_context": 0 * here["information"].mean("run"),
    }


@trained_predictor.figure
def excess_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "On the way to the Bayes predictor", "mean over runs; 0 is Bayes' rule"
    shares = evidence.assign(share=evidence["excess"] / evidence["information"])
    y = "divergence from Bayes, of what X says"
    return curves(shares.isel(step=slice(1, None)), "share", title, note, y)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="sufficiency, on trained networks",
    statement=r"At the length of training a linear probe of the state at the masked token reads the"
    r" posterior $\pi_X$ of the latent: it explains its variance to 2 % (fitted to other sequences"
    r" than it is judged on).",
    words="What a trained encoder holds of a sequence is sufficient: the belief about the latent"
    " can be read off by a linear map.",
    measured_by=trained_encoders,
    rule=Approximation(margin=0.02),
    control=Control("encoders without training", lambda e: {"measured": e.untrained}),
    needs=("sufficient", "trained-predictor"),
)
def trained_sufficient(evidence: xr.Dataset) -> Values:
    share = evidence["posterior"].sel(ratio=1.0, drop=True)
    trained, untrained = share.isel(step=-1), share.isel(step=0)
    return {
        "predicted": xr.ones_like(trained.mean("run")),
        "measured": trained.mean("run"),
        **over_runs(trained),
        "untrained": untrained.mean("run"),
    }


@trained_sufficient.figure
def posterior_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "The belief that a linear probe reads", "mean over runs; 1: exactly the posterior"
    return curves(evidence, "posterior", title, note, "explained variance of the posterior")


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="minimality, on trained networks",
    statement=r"The state of a trained encoder is not minimal at the length of training: of the"
    r" counts of words in directions that neither $\pi_X$ nor the length sees, a linear probe of it"
    r" explains more than a quarter of what the posterior leaves open; but less than a probe of the"
    r" state before training.",
    words="Training forgets what the latent does not need, and is far from having forgotten all.",
    measured_by=trained_encoders,
    rule=Order(),
    control=Control(
        "a trained state that keeps {size:.0%} less",
        lambda e, size: {"upper": e.upper - size * e.of_trained},
    ),
    needs=("minimal", "trained-sufficient"),
)
def trained_not_minimal(evidence: xr.Dataset) -> Values:
    kept = evidence["kept"].sel(ratio=1.0, drop=True)
    trained, untrained = kept.isel(step=-1), kept.isel(step=0)
    quarter = xr.full_like(trained, 0.25)
    sides = ["a quarter, the trained", "the trained, the untrained"]

    def both(first: xr.DataArray, second: xr.DataArray) -> xr.DataArray:
        return xr.concat([first, second], xr.Variable("sides", sides))

    lower, upper = both(quarter, trained), both(trained, untrained)
    return {
        "lower": lower.mean("run"),
        "upper": upper.mean("run"),
        **over_runs(upper - lower),
        "of_trained": both(trained, 0 * trained).mean("run"),
    }


@trained_not_minimal.figure
def kept_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "What the latent does not need", "mean over runs; 0: a minimal state"
    return curves(evidence, "kept", title, note, "explained share beside the posterior")


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="regret in context (Proposition 4.2 of the sequel)",
    statement=r"Words of a topic $z$ are predicted one after the other by the predictive law of"
    r" those before. The mean regret to $P(\cdot \mid z)$ over t words is at most"
    r" $\ln(1/p(z))/t$ with $p$ the prior.",
    words="Whoever predicts by Bayes' rule pays once for not knowing the latent: the logarithm of"
    " how unlikely it was.",
    hypotheses=(
        defining("latents >= 2", lambda s: s.latents >= 2),
        defining("length <= 200: counts are summed over", lambda s: s.length <= 200),
        defining("vocabulary <= 4: counts are summed over", lambda s: s.vocabulary <= 4),
    ),
    quick=Setting(latents=3, vocabulary=3, length=(1, 4, 16, 64)),
    paper=dict(length=(1, 4, 16, 64, 160)),
    cells=together("length"),
    rule=Bound(),
    control=Control(
        "a bound that is {size:.1%} smaller",
        lambda e, size: {"bound": (1 - size) * e.bound},
        size=0.5,
    ),
    needs=("predictive",),
)
def regret_in_context(cell: Setting, draws: Draws) -> Values:
    model = random_topics(draws.stream("topics"), cell.latents, cell.vocabulary)
    regret = np.zeros(cell.latents)
    for seen in range(cell.length):
        if seen:
            _, law, posterior = model.counted(seen)
        else:
            law, posterior = np.ones(1), model.prior[None]
        given = law[:, None] * posterior / model.prior  # of the counts, for each latent
        predicted = np.log(posterior @ model.words)
        regret += (model.words * np.log(model.words)).sum(-1) - np.einsum(
            "kz,zw,kw->z", given, model.words, predicted
        )
    return {
        **on("latent", measured=regret / cell.length, bound=-np.log(model.prior) / cell.length),
        "error": 0.0,
    }


@regret_in_context.figure
def regrets(evidence: xr.Dataset) -> Figure:
    title, note = "Regret of the Bayes predictor", "each latent; dashed: its bound"
    figure = Figure(evidence, title, note, x="words t", y="mean regret, nats", log="xy")
    figure.lines("length", "bound", color="latent {latent}", theory=True)
    return figure.points("length", "measured", color="latent {latent}")
