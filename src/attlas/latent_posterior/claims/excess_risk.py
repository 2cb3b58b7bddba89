"""Claims about the excess risk of trained networks: its three parts, each by its own route."""

from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims import Control, Draws, Setting, Values, on, whole
from attlas.claims.rules import Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, sides, slope_over_runs
from attlas.latent_posterior.claims.shared import defining, log_figure, random_topics
from attlas.latent_posterior.claims.variants import hardest
from attlas.latent_posterior.encoders import Encoder, random_encoders
from attlas.latent_posterior.exact_training import (
    excess_by_place,
    predictions,
    tangent_price,
    train_on_risk,
)
from attlas.latent_posterior.models import FiniteLatent, posterior_variance
from attlas.latent_posterior.trained_attention import Risk, Topics, ledger, topics

LOOKS = 8
"""How often networks are looked at while they are trained."""
FLOOR = 1e-5
"""What a part of the excess risk is at least, before its logarithm is taken."""
STARTS = 2
"""Weights from which the best of a class is sought."""


def models(cell: Setting, draws: Draws) -> list[FiniteLatent]:
    """Random topics without rare words for each run, with labels from -1 to 1 over the latents."""
    rng, values = draws.stream("topics"), np.linspace(-1, 1, cell.latents)[:, None]
    drawn = [random_topics(rng, cell.latents, cell.vocabulary) for _ in range(cell.runs)]
    return [FiniteLatent(x.prior, (x.words + 1 / cell.vocabulary) / 2, values) for x in drawn]


def stacked(risks: list[Risk]) -> Risk:
    parts = zip(*risks, strict=True)
    return Risk(*(np.concatenate([np.atleast_1d(x) for x in part]) for part in parts))


def best_of(risk: Risk, found: Float[np.ndarray, "start run k"]) -> Any:
    """Of each run the start [run] that has the lowest risk, and its predictions [run, k]."""
    chosen = risk(found).argmin(0)
    return chosen, found[chosen, np.arange(len(chosen))]


def of_starts(encoders: Encoder, starts: int, chosen: Any) -> Encoder:
    """The weights of one start of each run, from those of all, [start * run]."""

    def pick(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(starts, len(chosen), *leaf.shape[1:])[chosen, np.arange(len(chosen))]

    return jax.tree.map(pick, encoders)


def joined(*parts: Any) -> Any:
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def drawn_from(draws: Draws, purpose: str, samples: int, laws: list[Topics]) -> Risk:
    """The empirical risk of a sample of each law."""
    length = int(laws[0].counts[0].sum())
    keys = jax.random.split(draws(f"{purpose} {length} {samples}"), len(laws))
    return stacked([one.sample(key, samples, 1) for one, key in zip(laws, keys, strict=True)])


def with_shuffled_labels(law: Topics) -> Topics:
    """Sequences as before, and labels that have nothing to do with them."""
    prior = law.risk.weight @ law.posterior
    return law._replace(posterior=np.broadcast_to(prior / prior.sum(), law.posterior.shape))


class Split(NamedTuple):
    """Parts of the excess risk; the optimisation is of one start, at every look."""

    approximation: Float[np.ndarray, " run"]
    optimisation: Float[np.ndarray, "look sample run"]
    generalisation: Float[np.ndarray, "sample run"]
    advantage: Float[np.ndarray, "sample run"]
    excess: Float[np.ndarray, "look sample run"]
    formula: Float[np.ndarray, " run"]
    dimension: Float[np.ndarray, " run"]


def split_excess(
    cell: Setting, draws: Draws, laws: list[Topics], samples: list[Risk], mlp: bool = False
) -> Split:
    """Train networks on the population and on samples, and split what they exceed Bayes by."""
    counts, runs = laws[0].counts, len(laws)
    population = stacked([Risk(*(np.asarray(x)[None] for x in one.risk)) for one in laws])
    size: dict[str, Any] = {"width": cell.width, "heads": 1, "mlp": mlp}
    shape = cell.vocabulary, 1
    start = random_encoders(jax.random.split(draws("weights"), STARTS * runs), *shape, **size)
    every = max(1, cell.steps // LOOKS)
    # Population and samples are trained in groups of as many lanes, by one compiled program.
    lanes = STARTS * runs
    recipe: dict[str, Any] = {"steps": cell.steps, "rate": cell.rate, "record_every": every}

    def said(encoders: Encoder) -> Float[np.ndarray, "lane run k"]:
        found = predictions(encoders, counts, lanes=lanes)
        return found.reshape(-1, runs, len(counts))

    repeated = Risk(*(np.concatenate([x] * STARTS) for x in population))
    found = train_on_risk(start, repeated, counts, lanes=lanes, **recipe).last
    chosen, best = best_of(population, said(found))
    of_best = of_starts(found, STARTS, chosen)
    # On every sample one network from a start of its own, and one from the best of the class: the
    # two share neither weights nor steps.
    own = random_encoders(jax.random.split(draws("trained"), runs), *shape, **size)
    both = [own, of_best] * len(samples)
    twice = stacked([sample for sample in samples for _ in range(2)])
    path = train_on_risk(joined(*both), twice, counts, lanes=lanes, **recipe)
    looks = [said(jax.tree.map(lambda x, i=i: x[i], path.observed)) for i in range(LOOKS + 1)]
    trained = np.stack(looks).reshape(LOOKS + 1, len(samples), 2, runs, -1)
    minimisers = trained[-1, :, 1]
    terms = [
        ledger(
            population.__call__,
            sample.__call__,
            trained=trained[:, i, 0],
            minimiser=minimisers[i],
            best=best,
            bayes=population.target,
        )
        for i, sample in enumerate(samples)
    ]
    spread = [posterior_variance(x.posterior, x.values[:, None]) + x.noise**2 for x in laws]
    square = np.array(spread) + (population.target - best) ** 2
    return Split(
        population(best) - population(population.target),
        np.stack([x.optimisation for x in terms], 1),
        population(minimisers) - population(best),
        -np.stack([x.advantage for x in terms]),
        np.stack([x.excess for x in terms], 1),
        *tangent_price(of_best, counts, population.weight, square),
    )


@latent_posterior.measurement(
    "trained-on-samples",
    hypotheses=(
        RUNS,
        defining(
            "length has five values or more and samples two, in ascending order",
            lambda s: all(
                len(x) >= least and list(x) == sorted(set(x))
                for x, least in ((s.length, 5), (s.samples, 2))
            ),
        ),
        defining("vocabulary <= 4: counts are summed over", lambda s: s.vocabulary <= 4),
        defining(f"steps is a multiple of {LOOKS}", lambda s: s.steps % LOOKS == 0),
    ),
    quick=Setting(
        length=(3, 5, 8, 11, 14),
        samples=(800, 3200),
        latents=3,
        vocabulary=3,
        noise=0.3,
        width=4,
        steps=240,
        rate=0.04,
        runs=64,
    ),
    paper=dict(length=(4, 8, 12, 16, 24), samples=(800, 1600, 3200, 6400), steps=480, runs=40),
    cells=whole,
    budget="runs",
    precision="float32",
    long=True,
)
def trained_on_samples(cell: Setting, draws: Draws) -> Values:
    """The parts of the excess risk at every length and number of samples, of attention alone; of
    attention and MLP at the longest; and least squares with a weight for each place."""
    drawn = models(cell, draws)
    laws = [[topics(model, length, cell.noise) for model in drawn] for length in cell.length]
    samples = [[drawn_from(draws, "sample", n, some) for n in cell.samples] for some in laws]
    broken = drawn_from(
        draws, "shuffled", cell.samples[-1], [with_shuffled_labels(law) for law in laws[-1]]
    )
    parts = [
        split_excess(cell, draws, some, [*of_law, *[broken] * (some is laws[-1])])
        for some, of_law in zip(laws, samples, strict=True)
    ]
    wide = split_excess(cell, draws, laws[-1], samples[-1][:1], mlp=True)

    def every(name: str, ahead: int = 0) -> np.ndarray:
        keep = (slice(None),) * ahead + (slice(len(cell.samples)),)
        return np.stack([getattr(part, name)[keep] for part in parts])

    def without_network(length: int, some: list[Topics], n: int) -> list[float]:
        keys = jax.random.split(draws(f"places {length} {n}"), cell.runs)
        return [
            excess_by_place(key, law, model.words, n)
            for key, law, model in zip(keys, some, drawn, strict=True)
        ]

    by_place = [
        [without_network(length, some, n) for n in cell.samples]
        for length, some in zip(cell.length, laws, strict=True)
    ]
    return {
        **on("tokens look size run", optimisation=every("optimisation", 1)),
        **on("tokens look size run", excess=every("excess", 1)),
        **on("tokens size run", generalisation=every("generalisation")),
        **on("tokens size run", advantage=every("advantage"), by_place=by_place),
        **on("tokens run", approximation=np.stack([x.approximation for x in parts])),
        **on("tokens run", formula=np.stack([x.formula for x in parts])),
        **on("tokens run", dimension=np.stack([x.dimension for x in parts])),
        **on("run", shuffled=parts[-1].generalisation[-1]),
        **on(
            "run",
            approximation_mlp=wide.approximation,
            generalisation_mlp=(wide.generalisation[0] + wide.advantage[0]) / 2,
        ),
        "tokens": list(cell.length),
        "size": [float(n) for n in cell.samples],
        "look": [cell.steps // LOOKS * i for i in range(LOOKS + 1)],
    }


def generalisation(evidence: xr.Dataset) -> xr.DataArray:
    r"""$R(\hat f) - R(f^\circ)$ and $R_n(f^\circ) - R_n(\hat f)$, which are alike to first order
    in $\frac1n$, in mean."""
    return (evidence["generalisation"] + evidence["advantage"]) / 2


def in_units_of_the_formula(values: xr.DataArray, evidence: xr.Dataset) -> xr.DataArray:
    """Parts of the excess risk times n over what the formula has for it, in the mean over lengths
    and samples."""
    return (values * evidence["size"] / evidence["formula"]).mean(("tokens", "size"))


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="excess risk: generalisation, optimisation, approximation, of trained networks",
    statement=r"A softmax encoder is trained for $T$ steps on $n$ labelled sequences from"
    r" topics, and $R(f_T) - R(f^*)$ is split by the best of its class $f^\circ$, the better of"
    r" two trainings on the exact risk of the population, and the empirical minimiser $\hat f$,"
    r" trained on that of the sample from $f^\circ$ on. Generalisation, $R(\hat f) -"
    r" R(f^\circ)$ and $R_n(f^\circ) - R_n(\hat f)$ in mean, is"
    r" $\frac1n\mathrm{tr}(\Sigma^+E[e^2\phi\phi^\top])$ to a third, with $\phi = \nabla_\theta"
    r" f^\circ$, $\Sigma = E[\phi\phi^\top]$, $e = y - f^\circ$. Optimisation, $R_n(f_T) -"
    r" R_n(\hat f)$, in most runs more than halves between $T/8$ and $T$, and at $T$ is less"
    r" than half of the generalisation by its formula; some runs end in other minima, and lift"
    r" the mean of optimisation up to several times the generalisation. Approximation,"
    r" $R(f^\circ) - R(f^*)$, grows with the length. An MLP behind the attention lowers the"
    r" approximation error and adds to generalisation.",
    words="The excess risk of a trained network, part by part. Its generalisation error depends"
    " on the number of directions in which its function can move, not on the number of its"
    " weights. Attention without an MLP cannot be Bayes' rule; an MLP lowers that part and"
    " raises the generalisation error.",
    measured_by=trained_on_samples,
    rule=Order(),
    control=Control(
        "a false variant of each inequality, {size:.0%} of the way there, at the one where it is"
        " hardest to tell: no training on the sample, training on shuffled labels, training that"
        " stops at T/8, lengths exchanged, and networks with and without an MLP exchanged",
        lambda e, size: hardest(
            e,
            e.lower + size * (e.false_lower - e.lower),
            e.upper + size * (e.false_upper - e.upper),
        ),
        size=1.0,
    ),
    needs=("predictive", "optimisation-error"),
)
def trained_ledger(evidence: xr.Dataset) -> Values:
    misled = in_units_of_the_formula(generalisation(evidence), evidence)
    undone = evidence["optimisation"]
    late, early = (undone.isel(look=look, drop=True) for look in (-1, 1))
    formula = evidence["formula"] / evidence["size"]
    little, at_first, falling = (
        below.mean(("tokens", "size"))
        for below in (2 * late < formula, 2 * early < formula, 2 * late < early)
    )
    one = xr.ones_like(misled)
    lacking: Any = np.log(evidence["approximation"])
    longest = evidence.isel(tokens=-1, drop=True)
    first: Any = np.log(generalisation(longest).isel(size=0, drop=True).clip(min=FLOOR))
    helped: Any = np.log(evidence["approximation_mlp"])
    short, most = (lacking.isel(tokens=place, drop=True) for place in (0, -1))
    with_mlp: Any = np.log(evidence["generalisation_mlp"].clip(min=FLOOR))
    shuffled = evidence["shuffled"] * longest["size"].isel(size=-1, drop=True) / longest["formula"]
    # Each inequality, and what its sides are in a false variant of it.
    rows: list[tuple[Any, ...]] = [
        ("2/3: generalisation", one * 2 / 3, misled, one * 2 / 3, 0 * one),
        ("generalisation: 4/3", misled, one * 4 / 3, shuffled, one * 4 / 3),
        ("half of the runs: with little left to do", 0.5 * one, little, 0.5 * one, at_first),
        ("half of the runs: with half as much left", 0.5 * one, falling, 0.5 * one, 0 * one),
        ("log of approximation: longer", short, most, most, short),
        ("log of approximation with an MLP: without", helped, most, most, helped),
        ("log of generalisation: with an MLP", first, with_mlp, with_mlp, first),
    ]
    found = sides(*((name, low, high) for name, low, high, _, _ in rows))
    axis = found["lower"]["inequality"]
    variants = (xr.concat([row[side] for row in rows], axis).mean("run") for side in (3, 4))
    return {**found, **dict(zip(("false_lower", "false_upper"), variants, strict=True))}


@trained_ledger.figure
def parts_while_training(evidence: xr.Dataset) -> Figure:
    # Medians, because the few runs that end in other minima would carry a mean of optimisation.
    middle = evidence.isel(cell=0).median("run")
    names = {
        "excess": "excess risk",
        "optimisation": "optimisation",
        "generalisation": "generalisation",
        "approximation": "approximation",
    }
    like = middle["excess"]
    shown = (
        middle[list(names)].broadcast_like(like).assign(formula=middle["formula"] / middle["size"])
    )
    shown = shown.sel(look=shown["look"] > 0).clip(min=1e-6)
    figure = log_figure(
        shown.stack(place=("tokens", "size")).reset_index("place"),
        "What a trained network lacks",
        "median over runs; dashed: the formula of generalisation",
        x="steps of training",
        y="excess risk, part by part",
    )
    figure.lines("look", "formula", theory=True)
    figure.lines("look", names, points=True)
    return figure.facet("L = {tokens}, n = {size:g}", width=190, height=130)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="generalisation that does not depend on the length, of trained networks",
    statement=r"The generalisation error, as in `trained-ledger`, of a softmax encoder that was"
    r" trained on $n$ labelled sequences of $L$ words does not grow with the length as that of"
    r" a class with a weight for each place does: its exponent in $L$, over five lengths, is"
    r" below $\frac12$, and that of the class is above. In $n$ it falls faster than $n^{-3/4}$.",
    words="The generalisation error of attention grows more slowly with the length, if at all,"
    " than that of a model with a weight for each place. What attention learns has as many"
    " directions at every length.",
    measured_by=trained_on_samples,
    rule=Order(),
    control=Control(
        "least squares with a weight for each place", lambda e: exponents_of(e["by_place"])
    ),
    needs=("trained-ledger", "complexity-in-length"),
)
def generalisation_in_length(evidence: xr.Dataset) -> Values:
    return exponents_of(generalisation(evidence))


def exponents_of(values: xr.DataArray) -> Values:
    """The exponents of an error in the length, to be below 1/2, and in the number of samples, to be
    below -3/4."""
    values = values.isel(cell=0).transpose("tokens", "size", "run")
    scaled = (values * values["size"]).mean("size").values
    in_length = slope_over_runs(values["tokens"], scaled)
    in_samples = slope_over_runs(values["size"], values.mean("tokens").values)
    slopes, errors = zip(in_length, in_samples, strict=True)
    return {
        **on("axis", lower=list(slopes), upper=[0.5, -0.75], error=list(errors)),
        "axis": ["length", "samples"],
        "repetitions": float(values.sizes["run"]),
    }


@generalisation_in_length.figure
def generalisation_by_length(evidence: xr.Dataset) -> Figure:
    mean = evidence[["generalisation", "by_place", "formula"]].isel(cell=0).mean("run")
    names = {"generalisation": "softmax encoder", "by_place": "a weight for each place"}
    figure = log_figure(
        mean.assign(formula=mean["formula"] / mean["size"]),
        "Generalisation and the length",
        "mean over runs; black: the formula of the encoder",
        y="generalisation error",
        legend={"series": None, "size": "sequences n"},
    )
    figure.lines("tokens", "formula", dash="size", theory=True)
    return figure.lines("tokens", names, dash="size", points=True)
