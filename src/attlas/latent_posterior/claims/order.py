"""Claims about sequences that are not exchangeable: what encoders without positions lose."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Approximation, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.encoders import RUNS, over_runs
from attlas.latent_posterior.claims.shared import defining
from attlas.latent_posterior.encoders import (
    Encoder,
    Recipe,
    random_encoders,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import Data
from attlas.latent_posterior.sequential import Bags, Chains, enumerated, order_information

LAWS = ("words in a Markov chain", "a latent that drifts")


def chains(cell: Setting, draws: Draws) -> Chains:
    """Random laws for each run, of the kind that the cell names: a Markov chain of words, which
    mostly repeat, or topics, mostly of a word each, whose latent is drawn again before a word with
    probability `drift`."""
    v, rng = cell.vocabulary, draws.stream("laws")
    near = [[rng.dirichlet(0.5 + 8 * row) for row in np.eye(v)] for _ in range(cell.runs)]
    laws = (np.array(near) + cell.smoothing) / (1 + cell.smoothing * v)
    same, drawn = (np.tile(x, (cell.runs, 1, 1)) for x in (np.eye(v), np.full((v, v), 1 / v)))
    if cell.law == LAWS[0]:
        moves, words = laws, same
    else:
        moves, words = (1 - cell.drift) * same + cell.drift * drawn, laws
    return Chains(drawn[:, 0], moves, words, np.full(cell.runs, cell.length))


@latent_posterior.measurement(
    "trained-on-order",
    hypotheses=(
        RUNS,
        defining(f"law is {' or '.join(map(repr, LAWS))}", lambda s: s.law in LAWS),
        defining("0 < drift < 1", lambda s: 0 < s.drift < 1),
        defining("vocabulary >= 2", lambda s: s.vocabulary >= 2),
        defining("smoothing > 0: every word has a chance", lambda s: s.smoothing > 0),
    ),
    quick=Setting(
        law=LAWS,
        vocabulary=3,
        drift=0.3,
        smoothing=0.02,
        length=6,
        width=16,
        steps=1500,
        batch=64,
        rate=0.01,
        runs=20,
    ),
    paper=dict(vocabulary=4, width=32, steps=5000, rate=0.003, runs=24),
    cells=together("law"),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_on_order(cell: Setting, draws: Draws) -> Values:
    """Divergences from the forward filter of encoders with and without positions, exact over all
    sequences, beside what the order says."""
    task = chains(cell, draws)
    bags = Bags(task)
    words, law, following = enumerated(task)
    places = np.eye(cell.vocabulary)[words].reshape(1, len(words), -1)
    ways: dict[str, tuple[Any, np.ndarray]] = {
        "positions": (task, places),
        "bags": (bags, bags.without_positions(places)),
    }
    found, recipe = {}, Recipe(cell.steps, cell.batch, cell.rate)
    for name, (some, counts) in ways.items():
        weights = jax.random.split(draws("weights"), cell.runs)
        start = random_encoders(weights, counts.shape[-1], cell.vocabulary, width=cell.width)
        keys = jax.random.split(draws("training"), cell.runs)
        trained = train_encoders(start, some, keys, recipe)
        seen = Data(np.repeat(counts, cell.runs, 0), None)
        found[name] = divergence(trained.encoders, seen, law, following)
    return on("run", order=order_information(task), **found)


def divergence(
    encoders: Encoder, seen: Data, law: Float[Any, "run n"], following: Float[Any, "run n o"]
) -> Float[np.ndarray, " run"]:
    r"""$E\,KL(P(y \mid X)\,\|\,\text{network})$ over all sequences, of the given law."""
    outputs = np.asarray(represent(encoders, seen)[:, -1] @ encoders.read, float)
    gained = special.entr(following) + following * special.log_softmax(outputs, -1)
    return -(law * gained.sum(-1)).sum(-1)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="exchangeability, broken",
    statement=r"Where words come from a Markov chain or from a latent that drifts, an encoder"
    r" without positions that was trained on them stays away from the exact predictor, the"
    r" forward filter, by what the order $X$ of the words says beside their counts $N$, to 5 %:"
    r" $E\,KL(P(y \mid X)\,\|\,\text{network}) \approx E\,KL(P(y \mid X)\,\|\,P(y \mid N))$.",
    words="Attention without positions sees a bag of words. It learns nearly all that the bag"
    " says of the next word. What the order says beside that it cannot learn.",
    measured_by=trained_on_order,
    rule=Approximation(margin=0.05),
    control=Control("encoders that see positions", lambda e: {"measured": e.with_positions}),
    needs=("exchangeable", "trained-predictor"),
)
def order_is_lost(evidence: xr.Dataset) -> Values:
    return {
        "predicted": evidence["order"].mean("run"),
        "measured": evidence["bags"].mean("run"),
        **over_runs(evidence["bags"] - evidence["order"]),
        "with_positions": evidence["positions"].mean("run"),
    }


@order_is_lost.figure
def losses_of_order(evidence: xr.Dataset) -> Figure:
    figure = Figure(
        evidence,
        "What the order says, and what is lost without it",
        "each run; on the line: all of it",
        x="information of the order, nats",
        y="divergence from the forward filter, nats",
        legend={"series": None, "law": None},
    )
    figure.diagonal("order", "bags")
    names = {"bags": "without positions", "positions": "with positions"}
    return figure.points("order", names, shape="law", size=50)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="a token carries its position",
    statement="An encoder as in `order-is-lost`, but with its position as part of each token,"
    " has a divergence from the forward filter below a fifth of what the order says.",
    words="Positions make words exchangeable again: pairs of a word and its place may be listed in"
    " any order, and attention learns from them what the order says.",
    measured_by=trained_on_order,
    rule=Order(),
    control=Control(
        "an encoder that is {size:.0%} of the way to one without positions",
        lambda e, size: {"lower": e.lower + size * (e.without - e.lower)},
        size=0.5,
    ),
    needs=("order-is-lost", "pairs-exchange"),
)
def positions_restore(evidence: xr.Dataset) -> Values:
    lower, upper = evidence["positions"], evidence["order"] / 5
    return {
        "lower": lower.mean("run"),
        "upper": upper.mean("run"),
        **over_runs(upper - lower),
        "without": evidence["bags"].mean("run"),
    }


@positions_restore.figure
def positions_and_none(evidence: xr.Dataset) -> Figure:
    names = {"order": "what the order says", "bags": "without positions", "positions": "with them"}
    means = [evidence[name].mean("run") for name in names]
    shown = xr.concat(means, xr.Variable("who", list(names.values())))
    figure = Figure(
        shown.to_dataset(name="nats").assign(law=evidence["law"]),
        "Positions restore what the order says",
        x="divergence from the forward filter, nats",
        y="",
    )
    return figure.bars("nats", "who").facet("{law}", width=200, height=90)
