"""Claims about other lengths than that of training, and about attention trained on functions."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import binom

from attlas.claims import Control, Draws, Setting, Values, on, together, whole
from attlas.claims.rules import Bound, Order
from attlas.figure import Figure
from attlas.gaussian import Estimate
from attlas.kernels import RBF
from attlas.latent_posterior import bounds
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import defining, log_figure
from attlas.latent_posterior.models import BayesianRegression
from attlas.latent_posterior.trained_attention import (
    MECHANISMS,
    Comparison,
    absorbed,
    compare,
    draw_training,
    length_curves,
    train,
)
from attlas.rademacher import mean_of

CHANCES = 1 / (1 + np.exp(-np.linspace(-8, 8, 33)))
NORMS = (0.25, 1.0, 3.0)


@latent_posterior.claim(
    kind="two routes",
    origin="ours",
    reference="self-normalised weights",
    statement=r"$\sqrt{E|f(X_L) - f(X_\infty)|^2} \le 2B_vR\sqrt{\rho_w/L}$ with"
    r" $\rho_w = \cosh^2(B_uR)$ for a softmax head on independent tokens of norm R, here of two"
    r" values with any chances.",
    words="The output of a head on a longer context differs less from its limit: by at most a"
    " constant over the root of the length. For tokens of two values 1.3 would do in place of"
    " the factor 2 at great length.",
    quick=Setting(length=(16, 64, 256, 1024)),
    paper=dict(length=(16, 64, 256, 1024, 4096, 16_384)),
    cells=together("length"),
    rule=Bound(),
    control=Control(
        "a constant that is {size:.2g} smaller than 2",
        lambda e, size: {"bound": (1 - size / 2) * e.bound},
    ),
)
def length_shift(cell: Setting, draws: Draws) -> Values:
    r"""Tokens are e with some chance and -e otherwise, $u = B_ue$, $v = e$; exact by counting e."""
    count = np.arange(cell.length + 1)
    chance, norm = CHANCES[:, None], np.array(NORMS)[:, None, None]
    tilt = np.exp(-2 * norm)

    def output(up: Any, down: Any) -> Any:
        return (up - tilt * down) / (up + tilt * down)

    limit = output(chance, 1 - chance)
    law = binom.pmf(count, cell.length, chance)
    square = (law * (output(count, cell.length - count) - limit) ** 2).sum(-1)
    return {
        **on("norm chance", measured=np.sqrt(square)),
        **on("norm", bound=bounds.length_shift(cell.length, query_norm=np.array(NORMS))),
        "error": 0.0,
        "norm": list(NORMS),
        "chance": CHANCES,
    }


@length_shift.figure
def distances_to_the_limit(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence.assign(worst=evidence["measured"].max("chance")),
        "A head settles as its context grows",
        "the worst chance of the two values; dashed: the bound",
        y="distance to the limit",
    )
    figure.lines("length", "bound", color="norm", theory=True)
    return figure.lines("length", "worst", color="norm", points=True)


# --- trained on functions ----------------------------------------------------------------------

PROCESS = BayesianRegression(3, kernel=RBF(0.3), noise=0.3)
"""A Gaussian process on the sphere in three dimensions."""
REPEATS = defining("repeats >= 20", lambda s: s.repeats >= 20)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="supervised learning of attention",
    statement=r"CME attention with learnt temperature and ridge, trained on $n$ contexts of"
    r" random functions, nears the Bayes predictor faster than $n^{-1/2}$: with 16 times the"
    r" contexts $E|f_n - f^*|^2$ is less than a quarter of what it was, in geometric mean over"
    r" training sets. The Bayes predictor is in its class, and the expected rate is $\frac1n$.",
    words="CME attention, whose class holds the Bayes predictor, nears it faster than one over"
    " the root of the number of contexts.",
    quick=Setting(samples=4, length=8, queries=4, steps=30, rate=0.2, repeats=128, contexts=64),
    paper=dict(samples=16, length=16, steps=80, rate=0.15, contexts=128),
    budget="repeats",
    rule=Order(),
    control=Control(
        "an exponent below -1/2 by {size:.2g}",
        lambda e, size: {"upper": e.upper - size * np.log(16)},
        size=1.25,
    ),
    needs=("cme-is-posterior-mean",),
)
def supervised_fast_rate(cell: Setting, draws: Draws) -> Values:
    fresh = PROCESS.sample(draws("test"), cell.contexts, cell.length, cell.queries)
    sizes = [cell.samples, 16 * cell.samples]
    data = draw_training(PROCESS, draws("training"), sizes, cell.repeats, cell.length, cell.queries)
    found = train("CME", data, steps=cell.steps, rate=cell.rate)
    excess = compare("CME", found, PROCESS, fresh).excess.mean(1).reshape(2, cell.repeats)
    # Logarithms, because some small training sets err by far more than others; the two sizes of a
    # repeat share their contexts.
    first, last = np.log(excess)
    return {
        "lower": last.mean(),
        "upper": first.mean() - np.log(4),
        "error": mean_of(first - last).error,
        "repetitions": cell.repeats,
        "first": first.mean(),
        **on("size repeat", excess=excess),
        "size": sizes,
    }


@supervised_fast_rate.figure
def distances_by_training_set(evidence: xr.Dataset) -> Figure:
    logarithm = evidence.assign(excess=np.log(evidence["excess"]))["excess"]
    mean: Any = np.exp(logarithm.mean("repeat"))
    shrunk = evidence["size"][0] / evidence["size"]
    guides = {"fast": mean.isel(size=0) * shrunk, "slow": mean.isel(size=0) * shrunk**0.5}
    figure = log_figure(
        evidence.assign(mean=mean, **guides),
        "Learning the temperature and the ridge",
        "points: training sets, and their geometric mean in orange; dashed: 1/n, full: its root",
        x="contexts n",
        y="square distance to the Bayes predictor",
    )
    figure.lines("size", "fast", theory=True).lines("size", "slow", theory="solid")
    figure.points("size", "excess", size=24, opacity=0.5)
    return figure.points("size", "mean", size=110, ink="#D55E00")


BY_PLACE = "a weight for each place"


@latent_posterior.measurement(
    "supervised-in-length",
    quick=Setting(
        length=(4, 16), samples=(32, 128), queries=4, steps=30, rate=0.2, repeats=48, contexts=768
    ),
    paper=dict(length=(4, 16, 64), samples=(128, 512), steps=80, rate=0.15, repeats=32),
    hypotheses=(
        defining("samples >= 2 length, for the control", lambda s: min(s.samples) >= 2 * s.length),
        REPEATS,
    ),
    cells=together("length"),
    budget="repeats",
)
def trained_by_length(cell: Setting, draws: Draws) -> Values:
    test, training = draws(f"test {cell.length}"), draws(f"training {cell.length}")
    fresh = PROCESS.sample(test, cell.contexts, cell.length, cell.queries)
    data = draw_training(PROCESS, training, cell.samples, cell.repeats, cell.length, cell.queries)
    found = train("softmax", data, steps=cell.steps, rate=cell.rate)
    attended = compare("softmax", found, PROCESS, fresh).excess
    excess = np.stack([attended, excess_by_place(data, fresh)])
    excess = excess.reshape(2, len(cell.samples), cell.repeats, cell.contexts)
    logs, over = np.log(excess.mean(-1)), excess.mean(-2)
    # Training sets and test contexts are both draws.
    sets, tests = mean_of(logs).error, mean_of(over).error / over.mean(-1)
    return {
        **on("learner size", logarithm=logs.mean(-1), deviation=np.hypot(sets, tests)),
        "learner": ["softmax", BY_PLACE],
        "size": list(cell.samples),
    }


def excess_by_place(data: tuple[Any, Any], fresh: Any) -> Float[np.ndarray, "lane n"]:
    """Mean square distance to the Bayes predictor of least squares with a weight for each place."""
    contexts, weight = jax.tree.map(np.asarray, data)
    values, targets = contexts.values[..., 0], contexts.targets[..., 0].mean(-1)
    gram = np.einsum("rn,rni,rnj->rij", weight, values, values)
    moment = np.einsum("rn,rni->ri", weight * targets, values)
    fitted = np.linalg.solve(gram, moment[..., None])[..., 0]
    mean = np.asarray(PROCESS.predictive(*fresh[:3])[0])[..., 0]
    found = fitted @ np.asarray(fresh.values)[..., 0].T
    return ((found[..., None] - mean) ** 2).mean(-1)


@latent_posterior.claim(
    kind="training",
    measured_by=trained_by_length,
    origin="our reading",
    reference="supervised learning of attention, with an error that does not grow with the length",
    statement="Softmax attention with learnt maps of queries and keys and a learnt temperature,"
    " trained on $n$ contexts of $L$ tokens of random functions: at every $n$ $E|f_n - f^*|^2$"
    " falls when $L$ is taken four times as long, in geometric mean over training sets. The"
    " distance holds approximation and generalisation error together; the number of parameters"
    " does not depend on $L$.",
    words="Trained on as many contexts, attention comes nearer to the Bayes predictor the longer"
    " they are.",
    rule=Order(),
    ranges={"queries": (2, 8)},
    control=Control(
        "least squares with a weight for each place", lambda e: longer_is_better(e, BY_PLACE)
    ),
    needs=("supervised-fast-rate",),
)
def supervised_in_length(evidence: xr.Dataset) -> Values:
    return longer_is_better(evidence, "softmax")


def longer_is_better(evidence: xr.Dataset, learner: str) -> Values:
    """Logarithms of the error at each length, to be below those at the length before."""
    chosen = evidence[["logarithm", "deviation"]].sel(learner=learner).transpose("cell", "size")
    logs, deviations = chosen["logarithm"].values, chosen["deviation"].values
    axes = ("pair", "size")
    return {
        "lower": (axes, logs[1:]),
        "upper": (axes, logs[:-1]),
        "error": (axes, np.hypot(deviations[1:], deviations[:-1])),
        "repetitions": evidence["repeats"].variable,
    }


@supervised_in_length.figure
def distances_against_length(evidence: xr.Dataset) -> Figure:
    low, high = (evidence["logarithm"] + sign * 2 * evidence["deviation"] for sign in (-1, 1))
    figure = log_figure(
        evidence.assign(excess=np.exp(evidence["logarithm"]), low=np.exp(low), high=np.exp(high)),
        "Trained on longer contexts",
        "geometric means over training sets",
        y="square distance to the Bayes predictor",
    )
    figure.spans("length", "low", "high", width=1, color="learner", detail="size")
    return figure.lines("length", "excess", color="learner", dash="size", points=True)


@latent_posterior.measurement(
    "length-generalisation",
    quick=Setting(
        trained=8, length=(4, 8, 128), samples=512, steps=30, rate=0.2, repeats=20, contexts=96
    ),
    paper=dict(trained=32, length=(8, 32, 128, 512), samples=256, steps=80, rate=0.15, contexts=64),
    hypotheses=(
        defining(
            "trained is among length, which is in ascending order",
            lambda s: s.trained in s.length and list(s.length) == sorted(s.length),
        ),
        REPEATS,
    ),
    cells=whole,
    budget="contexts",
)
def other_lengths(cell: Setting, draws: Draws) -> Values:
    """Every mechanism, trained at one length: its risk over the Bayes risk at others."""
    data = draw_training(PROCESS, draws("training"), [cell.samples], cell.repeats, cell.trained, 4)
    found: dict[str, Any] = {}
    for name, mechanism in MECHANISMS.items():
        first = next(other for other in MECHANISMS if MECHANISMS[other].attend is mechanism.attend)
        if name == first:
            found[name] = train(name, data, steps=cell.steps, rate=cell.rate)
        else:
            found[name] = absorbed(first, name, found[first], data[0])
    curves = length_curves(found, PROCESS, cell.length, draws("test"), contexts=cell.contexts)
    risks = np.array([[relative_risk(at) for at in curve] for curve in curves.values()])
    return {
        **on("mechanism tokens", ratio=risks[..., 0], deviation=risks[..., 1]),
        "mechanism": list(MECHANISMS),
        "tokens": list(cell.length),
    }


def relative_risk(found: Comparison) -> Estimate:
    """The risk over the Bayes risk; training sets and test contexts are both draws."""
    bayes = found.bayes.mean()
    ratio = mean_of(found.excess.mean(1) / bayes)
    left = found.excess.mean(0) - ratio.mean * found.bayes
    return Estimate(1 + ratio.mean, np.hypot(mean_of(left).error / bayes, ratio.error))


@latent_posterior.claim(
    kind="training",
    measured_by=other_lengths,
    long=True,
    origin="our reading",
    reference="invariance to the input size",
    statement="CME attention whose temperature and constant ridge were learnt at one length has"
    " a risk within 5 % of the Bayes risk at shorter contexts and at longer ones, the longest"
    " of which have four times that length or more.",
    words="CME attention that was trained on contexts of one length has nearly the Bayes risk"
    " at the other lengths tested.",
    rule=Bound(),
    control=Control(
        "a ridge in proportion to the length",
        lambda e: excess_of(e, "CME, ridge in proportion to the length"),
    ),
    needs=("supervised-fast-rate",),
)
def length_generalisation(evidence: xr.Dataset) -> Values:
    return excess_of(evidence, "CME")


def excess_of(evidence: xr.Dataset, name: str) -> Values:
    """By how many Bayes risks the risk exceeds it, which no risk falls short of."""
    one = evidence.sel(mechanism=name, drop=True)
    return {
        "bound": 0.05,
        "measured": one["ratio"] - 1,
        "error": one["deviation"],
        "repetitions": evidence["repeats"].variable,
    }


FAILING = [name for name in MECHANISMS if name not in ("CME", "softmax, temperature by the length")]


@latent_posterior.claim(
    kind="training",
    measured_by=other_lengths,
    origin="our reading",
    reference="invariance to the input size",
    statement="At the longest length tested the risk of CME attention with ridge $cL$, of"
    " softmax attention of a learnt temperature and of linear attention, averaged or summed,"
    " is, in units of the Bayes risk, more than 1.4 times what it is at the length of training.",
    words="A ridge that grows with the length, a fixed temperature and a plain sum do not carry"
    " over to longer contexts.",
    rule=Order(),
    control=Control("CME attention with a constant ridge", lambda e: worse_when_longer(e, ["CME"])),
    needs=("supervised-fast-rate",),
)
def length_failures(evidence: xr.Dataset) -> Values:
    return worse_when_longer(evidence, FAILING)


def worse_when_longer(evidence: xr.Dataset, names: Sequence[str]) -> Values:
    chosen = evidence[["ratio", "deviation"]].sel(mechanism=list(names)).drop_vars("mechanism")
    chosen = chosen.rename(mechanism="failing")
    near = chosen.sel(tokens=int(evidence["trained"].values[0]), drop=True)
    far = chosen.isel(tokens=-1, drop=True)
    return {
        "lower": 1.4 * near["ratio"],
        "upper": far["ratio"],
        "error": np.hypot(far["deviation"], 1.4 * near["deviation"]),
        "repetitions": evidence["repeats"].variable,
    }


@length_generalisation.figure
@length_failures.figure
def risks_at_other_lengths(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence,
        "Trained at one length, tested at others",
        "vertical: the length of training; dashed: the Bayes risk",
        x="tokens of the test",
        y="risk over the Bayes risk",
    )
    figure.rule(float(evidence["trained"].values[0]), axis="x", dash=False).rule(1.0)
    return figure.lines("tokens", "ratio", error="deviation", color="mechanism", points=True)
