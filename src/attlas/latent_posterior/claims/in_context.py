"""Claims about learning in context: the regret of trained encoders, more tokens than in training,
and wrong labels."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on
from attlas.claims.rules import Bound, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs, sides
from attlas.latent_posterior.claims.shared import defining, log_figure, random_topics
from attlas.latent_posterior.claims.variants import hardest
from attlas.latent_posterior.encoders import Recipe, random_encoders, represent, train_encoders
from attlas.latent_posterior.latent_tasks import Data, Topics
from attlas.latent_posterior.sequential import Prefixes

LONGER = 4
"""How many times as many tokens there are in a prompt as there were in training."""


def labelled(cell: Setting, draws: Draws) -> Topics:
    """Pairs of an input, whose law is the same for all latents, and a label, whose law given the
    input is the latent's own; random in each run. A word is such a pair."""
    rng = draws.stream("topics")
    models = [random_topics(rng, cell.latents, 2) for _ in range(cell.runs)]
    inputs = rng.dirichlet(np.full(cell.inputs, 5.0), (cell.runs, 1))[..., None]
    shape = (cell.runs, cell.latents, cell.inputs)
    laws = rng.dirichlet(np.full(cell.labels, 0.7), shape)
    laws = (laws + cell.smoothing) / (1 + cell.smoothing * cell.labels)
    words = (inputs * laws).reshape(cell.runs, cell.latents, -1)
    prior = np.stack([model.prior for model in models])
    return Topics(prior, words, words, np.full(cell.runs, cell.length))


def with_wrong_labels(cell: Setting, words: Float[Any, "run m v"]) -> Float[Any, "run m v"]:
    """The law of pairs of which a share has a label that is drawn at random."""
    pairs = words.reshape(*words.shape[:2], cell.inputs, cell.labels)
    random = np.broadcast_to(pairs.mean(-1, keepdims=True), pairs.shape)
    return ((1 - cell.wrong) * pairs + cell.wrong * random).reshape(words.shape)


@latent_posterior.measurement(
    "trained-in-context",
    hypotheses=(
        RUNS,
        defining("0 < wrong < 1", lambda s: 0 < s.wrong < 1),
        defining("latents >= 2 and labels >= 2", lambda s: min(s.latents, s.labels) >= 2),
        defining("smoothing > 0: every label has a chance", lambda s: s.smoothing > 0),
    ),
    quick=Setting(
        latents=3,
        inputs=2,
        labels=3,
        smoothing=0.02,
        wrong=0.3,
        length=16,
        width=16,
        steps=1200,
        batch=32,
        rate=0.01,
        runs=36,
        sequences=32,
    ),
    paper=dict(
        latents=4, labels=4, length=24, width=32, steps=5000, batch=64, runs=24, sequences=200
    ),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_in_context(cell: Setting, draws: Draws) -> Values:
    """Divergences of what encoders and the Bayes predictor say from the law of every latent, after
    some of its words, right ones and partly wrong ones; and the encoders' distance to Bayes."""
    topics, vocabulary = labelled(cell, draws), cell.inputs * cell.labels
    weights = jax.random.split(draws("weights"), cell.runs)
    start = random_encoders(weights, vocabulary, vocabulary, width=cell.width)
    training = jax.random.split(draws("training"), cell.runs)
    recipe = Recipe(cell.steps, cell.batch, cell.rate)
    found = train_encoders(start, Prefixes(topics), training, recipe)
    truth, length = topics.words[:, :, None, None], LONGER * cell.length

    def said(purpose: str, words: Any) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of the laws that network and Bayes predictor give after each prefix."""
        counts = prefixes(draws.stream(purpose), words, length, cell.sequences)
        flat = Data(counts.reshape(cell.runs, -1, vocabulary), None)
        outputs = np.asarray(represent(found.encoders, flat)[:, -1] @ found.encoders.read, float)
        laws = special.log_softmax(outputs, -1), np.log(topics.bayes(flat))
        network, bayes = (law.reshape(counts.shape) for law in laws)
        return network, bayes

    def lost(law: np.ndarray) -> np.ndarray:
        return (truth * (np.log(truth) - law)).sum(-1).mean(2)

    network, bayes = said("words", topics.words)
    apart = np.exp(bayes) * (bayes - network), abs(np.exp(bayes) - np.exp(network)) / 2
    nats, variation = (np.einsum("rz,rzsto->rt", topics.prior, x) / cell.sequences for x in apart)
    misled = said("wrong labels", with_wrong_labels(cell, topics.words))
    even = (topics.words * np.log(topics.words * vocabulary)).sum(-1)
    return {
        **on("run latent t", network=lost(network), bayes=lost(bayes)),
        **on("run latent t", misled_network=lost(misled[0]), misled_bayes=lost(misled[1])),
        **on("run t", nats=nats, variation=variation),
        **on("run latent", prior=topics.prior, untrained=even),
        **on("run", finite=found.finite.astype(float)),
        "t": [1.0 + seen for seen in range(length)],
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
    statement=r"An encoder is trained to predict the next pair of an input and a label after up"
    r" to $L - 1$ pairs of a latent $z$. Its mean regret to $P(\cdot \mid z)$ over $t$ pairs is"
    r" at most $\ln(1/p(z))/t + \frac1{p(z)}(\varepsilon + \delta)$, up to four times the"
    r" length of training. $\varepsilon$ is its mean divergence from the Bayes predictor in"
    r" pretraining and $\delta$ the mean total variation between the two, over the first $t$"
    r" pairs, or over $L$ of them where $t > L$; $1/p(z)$ is the coverage number of one latent.",
    words="The regret of a trained network is at most that of Bayes' rule plus the network's"
    " own error in pretraining, divided by the prior of the latent. Up to the length of"
    " training this follows from the definitions. Beyond that length it is tested, and the"
    " bound leaves much room: the excess of networks over Bayes' rule is there about twice as"
    " large at each pair as before. The total variation is needed: on single latents the excess"
    " of single networks over Bayes' rule is many times their divergence over p(z).",
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
    """Mean regrets over the first t pairs of each latent, and their bound, for which the error in
    pretraining is known up to the length of training only."""
    t = evidence["t"]
    once = -np.log(evidence["prior"]) / t
    error = (evidence["nats"] + evidence["variation"]).cumsum("t") / t
    length = int(evidence["length"].values.ravel()[0])
    known = error.where(t <= length, error.sel(t=float(length), drop=True)) / evidence["prior"]
    so_far = {name: evidence[name].cumsum("t") / t for name in ("network", "bayes")}
    return xr.Dataset({**so_far, "once": once, "bound": once + known})


@trained_regret.figure
def regrets_of_trained_networks(evidence: xr.Dataset) -> Figure:
    shown = regrets(evidence).mean(("run", "latent"))
    names = {"network": "trained encoder", "bayes": "Bayes predictor", "bound": "the bound"}
    title, note = (
        "Regret in context",
        "mean over latents; dashed: ln(1/p)/t; vertical: the length of training",
    )
    figure = log_figure(shown, title, note, x="pairs t", y="mean regret, nats")
    figure.rule(float(evidence["length"].values.ravel()[0]), axis="x", dash=False)
    return figure.lines("t", "once", theory=True).lines("t", names)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="wrong labels in context (Proposition 6.3 of the sequel)",
    statement=r"The encoders of `trained-regret` read prompts in which a share of the labels is"
    r" drawn at random, which they never saw. After as many pairs as in training their"
    r" divergence from $P(\cdot \mid z)$ is less than 5/4 of that of the Bayes predictor, which"
    r" is misled by the same labels, and in the mean from there to four times as many pairs"
    r" less than twice that (geometric means over networks); at the end it is less than half of"
    r" that without a prompt. Where all labels are right, they lose between $L$ and $4L$ pairs"
    r" in mean less than a fifth of the divergence without a prompt more than Bayes' rule.",
    words="Labels drawn at random speak for no other latent in particular, and the evidence of"
    " the right ones adds up. A network that predicts nearly as Bayes' rule does is misled by"
    " them little more than that rule.",
    measured_by=trained_in_context,
    rule=Order(),
    control=Control(
        "networks that are {size:.0%} of the way back to their weights before training, at the"
        " inequality where it is hardest to tell",
        lambda e, size: hardest(e, e.lower + size * (e.before - e.lower)),
        size=1.0,
    ),
    needs=("trained-regret",),
)
def wrong_labels(evidence: xr.Dataset) -> Values:
    weighed = evidence.weighted(evidence["prior"].fillna(0)).mean("latent")
    length = float(evidence["length"].values.ravel()[0])
    there: dict[str, Any] = {"t": length, "drop": True}
    beyond = weighed.sel(t=weighed["t"] > length).mean("t")
    misled, bayes = (weighed[f"misled_{name}"] for name in ("network", "bayes"))
    without, untrained = weighed["bayes"].isel(t=0, drop=True), weighed["untrained"]
    # Logarithms, since what there is to lose differs by factors between the laws of the networks.
    here = xr.Dataset({"network": misled.sel(**there), "bayes": bayes.sel(**there)})
    later = xr.Dataset({name: beyond[f"misled_{name}"] for name in ("network", "bayes")})
    now, then, back = (np.log(x) for x in (here, later, untrained))
    rows: list[tuple[Any, ...]] = [
        ("log, at L: 5/4 of Bayes", now["network"], now["bayes"] + np.log(1.25), back),
        ("log, beyond L: twice Bayes", then["network"], then["bayes"] + np.log(2), back),
        (
            "at 4 L: half of that without a prompt",
            misled.isel(t=-1, drop=True),
            without / 2,
            untrained,
        ),
        (
            "beyond L, right labels: a fifth of that without a prompt",
            beyond["network"] - beyond["bayes"],
            without / 5,
            untrained - beyond["bayes"],
        ),
    ]
    found = sides(*((name, low, high) for name, low, high, _ in rows))
    before = xr.concat([row[3] for row in rows], found["lower"]["inequality"])
    return {**found, "before": before.mean("run")}


@wrong_labels.figure
def losses_with_wrong_labels(evidence: xr.Dataset) -> Figure:
    shown = evidence.isel(cell=0).weighted(evidence["prior"].isel(cell=0)).mean("latent")
    names = {
        "misled_network": "trained encoder, wrong labels",
        "misled_bayes": "Bayes predictor, wrong labels",
        "network": "trained encoder, right labels",
        "bayes": "Bayes predictor, right labels",
    }
    figure = log_figure(
        shown[list(names)].mean("run"),
        "Wrong labels in a prompt",
        "mean over runs and latents; vertical: the length of training",
        x="pairs t",
        y="divergence from the latent's law, nats",
    )
    figure.rule(float(evidence["length"].values.ravel()[0]), axis="x", dash=False)
    return figure.lines("t", names)
