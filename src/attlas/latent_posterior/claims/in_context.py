"""Claims about learning in context: the regret of trained encoders."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on
from attlas.claims.rules import Bound
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.encoders import RUNS, over_runs, tasks
from attlas.latent_posterior.claims.shared import log_figure
from attlas.latent_posterior.encoders import Recipe, random_encoder, represent, train_encoders
from attlas.latent_posterior.latent_tasks import Data
from attlas.latent_posterior.sequential import Prefixes


@latent_posterior.measurement(
    "trained-in-context",
    hypotheses=(RUNS,),
    quick=Setting(
        latents=3,
        vocabulary=4,
        smoothing=0.02,
        length=16,
        width=16,
        steps=1200,
        batch=32,
        rate=0.01,
        runs=24,
        sequences=64,
    ),
    paper=dict(latents=4, vocabulary=8, length=24, width=32, steps=8000, batch=64, sequences=400),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_in_context(cell: Setting, draws: Draws) -> Values:
    """Divergences of what encoders and the Bayes predictor say from the topic of every latent,
    after some of its words; and the encoders' error in pretraining."""
    topics, shape = tasks(cell, draws), (cell.runs, cell.latents, cell.sequences, cell.length)
    start = jax.vmap(
        lambda key: random_encoder(key, cell.vocabulary, cell.vocabulary, width=cell.width)
    )(jax.random.split(draws("weights"), cell.runs))
    training = jax.random.split(draws("training"), cell.runs)
    recipe = Recipe(cell.steps, cell.batch, cell.rate)
    found = train_encoders(start, Prefixes(topics), training, recipe)
    counts = prefixes(draws.stream("words"), topics.words, cell.length, cell.sequences)
    flat = Data(counts.reshape(cell.runs, -1, cell.vocabulary), None)
    outputs = np.asarray(represent(found.encoders, flat)[:, -1] @ found.encoders.read, float)
    network = special.log_softmax(outputs, -1).reshape(*shape, -1)
    bayes = np.log(topics.bayes(flat)).reshape(*shape, -1)
    truth = topics.words[:, :, None, None]
    lost = [(truth * (np.log(truth) - law)).sum(-1).mean(2) for law in (network, bayes)]
    apart = np.exp(bayes) * (bayes - network), abs(np.exp(bayes) - np.exp(network)) / 2
    nats, variation = (np.einsum("rz,rzsto->rt", topics.prior, x) / cell.sequences for x in apart)
    even = (topics.words * np.log(topics.words * cell.vocabulary)).sum(-1)
    return {
        **on("run latent t", network=lost[0], bayes=lost[1]),
        **on("run t", nats=nats, variation=variation),
        **on("run latent", prior=topics.prior, untrained=even),
        **on("run", finite=found.finite.astype(float)),
        "t": [1.0 + seen for seen in range(cell.length)],
    }


def prefixes(
    rng: np.random.Generator, words: Any, length: int, samples: int
) -> Float[np.ndarray, "run latent sample length vocabulary"]:
    """Counts of the first 0, 1, ..., length - 1 words of sequences of every latent, whose law is
    `words` [run, latent, vocabulary]."""
    place = rng.random((*words.shape[:2], samples, length - 1, 1))
    drawn = (place > np.cumsum(words, -1)[:, :, None, None, :-1]).sum(-1)
    counted = np.cumsum(np.eye(words.shape[-1], dtype=np.float32)[drawn], 3)
    return np.pad(counted, [(0, 0)] * 3 + [(1, 0), (0, 0)])


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="regret in context of a pretrained network (Theorem 6.2 of the sequel)",
    statement=r"An encoder is trained to predict the next word after up to L - 1 words of a topic."
    r" Its mean regret to $P(\cdot \mid z)$ over t words of z is at most $\ln(1/p(z))/t +"
    r" \frac1{p(z)}(\varepsilon_t + \delta_t)$ for $t \le L$, with $\varepsilon$ its divergence"
    r" from the Bayes predictor in pretraining and $\delta$ their distance in total variation;"
    r" $1/p(z)$ is the coverage number of one topic.",
    words="A trained network pays what Bayes' rule pays for not knowing the topic, and its own"
    " error as often as the topic was rare in training. The total variation is needed: beyond"
    " Bayes' rule single networks lose on single topics many times their divergence over p(z).",
    measured_by=trained_in_context,
    rule=Bound(),
    control=Control(
        "networks that are {size:.0%} of the way back to their weights before training",
        lambda e, size: {"measured": e.measured + size * (e.before - e.measured)},
        size=1.0,
    ),
    needs=("regret-in-context", "trained-predictor"),
)
def trained_regret(evidence: xr.Dataset) -> Values:
    found = regrets(evidence)
    return {
        "bound": found["bound"].mean("run"),
        "measured": found["network"].mean("run"),
        **over_runs(found["network"] - found["bound"]),
        "before": evidence["untrained"].mean("run") + 0 * found["network"].mean("run"),
    }


def regrets(evidence: xr.Dataset) -> xr.Dataset:
    """Mean regrets over the first t words of each latent, and their bound."""
    t = evidence["t"]
    once = -np.log(evidence["prior"]) / t
    error = (evidence["nats"] + evidence["variation"]).cumsum("t") / t / evidence["prior"]
    so_far = {name: evidence[name].cumsum("t") / t for name in ("network", "bayes")}
    return xr.Dataset({**so_far, "once": once, "bound": once + error})


@trained_regret.figure
def regrets_of_trained_networks(evidence: xr.Dataset) -> Figure:
    shown = regrets(evidence).mean(("run", "latent"))
    names = {"network": "trained encoder", "bayes": "Bayes predictor", "bound": "the bound"}
    title, note = "Regret in context", "mean over topics; dashed: ln(1/p)/t, the price of a latent"
    figure = log_figure(shown, title, note, x="words t", y="mean regret, nats")
    return figure.lines("t", "once", theory=True).lines("t", names, points=True)
