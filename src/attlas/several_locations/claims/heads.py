"""Claims about how many heads several informative tokens need."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Setting, Values, on
from attlas.claims.rules import Approximation, Order
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import (
    Heads,
    Overlaps,
    Places,
    Problem,
    Readout,
    ValueSum,
    best_overlaps,
    risk,
)
from attlas.several_locations.claims import several_locations
from attlas.several_locations.task import bayes_losses, heads_problem

SHARPNESS = (0.5, 0.8, 1.2, 1.8, 2.6, 4.0)
"""Lengths of the key at which a head that keeps key and value apart is tried."""
TITLES = {"one": "one head", "apart": "one, key apart", "two": "two heads", "bayes": "Bayes"}


@several_locations.measurement(
    "best-heads",
    kind="training",
    quick=Setting(
        length=8, signals=(4.0, 6.0, 8.0), starts=24, points=1024, trips=120, samples=20_000
    ),
    paper=dict(signals=(3.0, 4.0, 5.0, 6.0, 8.0), starts=24, points=4096, trips=300),
    cells=whole,
    budget="points",
)
def best_heads(cell: Setting, draws: Draws) -> Values:
    """The best risks of one and two softmax heads on two informative tokens, and Bayes' risk."""
    problems = [heads_problem(cell.length, (s, s)) for s in cell.signals]
    search = {"starts": cell.starts, "points": cell.points, "trips": cell.trips}
    seed = draws.integer("points")
    one, two = (
        best_overlaps(problems, 2 * heads, directions=4, seed=seed, **search) for heads in (1, 2)
    )
    apart, apart_error = zip(*(best_apart(p, cell, seed) for p in problems), strict=True)
    losses = np.stack(
        [
            bayes_losses(draws.stream("bayes"), cell.samples, cell.length, (s, s))
            for s in cell.signals
        ]
    )
    return {
        **on("signal", one=one["risk"], one_error=one["error"], reads=reads_values(one)),
        **on("signal", two=two["risk"], two_error=two["error"]),
        **on("signal", apart=np.array(apart), apart_error=np.array(apart_error)),
        **on("signal", bayes=losses.mean(1), bayes_error=losses.std(1) / np.sqrt(cell.samples)),
        "signal": list(cell.signals),
        "repetitions": 16,
    }


def reads_values(best: xr.Dataset) -> np.ndarray:
    """The length of the best key's part along the values, of its whole length."""
    m, q = best["best_m"].values, best["best_q"].values
    return np.hypot(m[:, 0, 1], m[:, 0, 3]) / np.sqrt(q[:, 0, 0])


def best_apart(problem: Problem, cell: Setting, seed: int) -> tuple[float, float]:
    """The least risk of heads with the key along k1 + k2 and the value along v1 + v2."""
    m = np.zeros((len(SHARPNESS), 2, 4))
    m[:, 0, [0, 2]] = np.array(SHARPNESS)[:, None]
    m[:, 1, [1, 3]] = 1.0
    q = m @ m.swapaxes(1, 2)
    found = risk(problem, Overlaps(m, q), points=16 * cell.points, seed=seed)
    least = int(np.argmin(found.mean))
    return float(found.mean[least]), float(found.error[least])


def risks(evidence: xr.Dataset) -> Figure:
    """The risks of one head, two heads and Bayes' rule against the signal."""
    title, note = "Two informative tokens", "least risks found, cut at 1e-3; dashed: Bayes' rule"
    shown = evidence.isel(cell=0)[["one", "two", "bayes"]].clip(min=1e-3)
    figure = Figure(shown, title, note, x="signal s of both tokens", y="risk", log="y")
    figure.lines("signal", {name: TITLES[name] for name in ("one", "two")}, points=True)
    return figure.lines("signal", "bayes", theory=True)


@several_locations.claim(
    origin="ours",
    reference="several informative tokens",
    statement=r"$y = \langle X_{J_1}, v_1^*\rangle + \langle X_{J_2}, v_2^*\rangle$ with two places"
    r" $J_1 \ne J_2$. The best two softmax heads have less than half the risk of the best one.",
    words="Two heads, one for each informative token, leave less than half the risk of the best"
    " single head.",
    measured_by=best_heads,
    rule=Order(),
    control=Control("two heads as good as one", lambda e: {"lower": e.one}),
)
def two_heads_suffice(evidence: xr.Dataset) -> Values:
    half = evidence["one"] / 2
    error = np.hypot(evidence["two_error"], evidence["one_error"] / 2)
    return {"lower": evidence["two"], "upper": half, "error": error}


two_heads_suffice.figure(risks)


@several_locations.claim(
    origin="ours",
    reference="several informative tokens, one head",
    statement=r"One softmax head whose key has no overlap with $v_1^*, v_2^*$ and whose value has"
    r" none with $k_1^*, k_2^*$ leaves a risk of at least 1, half the variance of the target,"
    r" whatever its weights are: so do the best heads along $k_1^* + k_2^*$ and $v_1^* + v_2^*$.",
    words="One softmax head whose key does not read values leaves at least half of the variance"
    " of a sum of two tokens: its weights sum to one.",
    measured_by=best_heads,
    rule=Order(),
    control=Control(
        "{size:.0%} less is left",
        lambda e, size: {"upper": (1 - size) * e.upper},
        size=0.5,
    ),
)
def head_apart_keeps_half(evidence: xr.Dataset) -> Values:
    return {
        "lower": xr.ones_like(evidence["apart"]),
        "upper": evidence["apart"],
        "error": evidence["apart_error"],
    }


@head_apart_keeps_half.figure
def half_left(evidence: xr.Dataset) -> Figure:
    title = "A head that keeps key and value apart"
    shown = evidence.isel(cell=0)
    figure = Figure(shown, title, "", x="signal s of both tokens", y="least risk", zero="y")
    figure.lines("signal", TITLES, points=True)
    return figure.rule(1, "half the variance of the target")


@several_locations.claim(
    origin="ours",
    reference="several informative tokens, one head",
    statement="At a signal of 8 the best single softmax head leaves less than half the variance"
    " of the target: its key reads the values, with overlaps with $v_1^*$ and $v_2^*$ of"
    " opposite signs, and its value reads the keys, so that its weights depend on the values.",
    words="One head can leave less than half of the variance of two tokens: where signals are"
    " strong, its key reads the values, so that its attention weights depend on them.",
    measured_by=best_heads,
    rule=Order(),
    control=Control(
        "a risk that is {size:.0%} higher",
        lambda e, size: {"lower": (1 + size) * e.lower},
        size=1.0,
    ),
    needs=("head-apart-keeps-half",),
)
def one_head_through_its_key(evidence: xr.Dataset) -> Values:
    strongest = evidence.isel(signal=[-1]).rename(signal="at")
    return {
        "lower": strongest["one"],
        "upper": xr.ones_like(strongest["one"]),
        "error": strongest["one_error"],
    }


@one_head_through_its_key.figure
def key_reads_values(evidence: xr.Dataset) -> Figure:
    title, note = "The key of the best single head", "its part along the values, and its risk"
    figure = Figure(evidence.isel(cell=0), title, note, x="signal s of both tokens", y="")
    figure.lines("signal", {"reads": "part of the key", "one": "risk"}, points=True)
    return figure.rule(1, "half the variance of the target")


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="values of rank above one, vector targets",
    statement=r"$y \in R^q$ with $y_j = \langle X_J, v_j^*\rangle$ at one informative token. One"
    r" softmax head with one key and $q$ values, all of them and a readout trained from six starts"
    r" of which the best counts, comes within 10 % of Bayes' risk, which is $q$ times that of a"
    r" target in one dimension.",
    words="One key serves any number of values: what is hard is to find the token, and that is the"
    " same for all of them. With one value fewer a dimension of the target is lost.",
    quick=Setting(length=6, signals=(2.0, 3.0), targets=2, starts=6, points=8192, trips=150),
    paper=dict(signals=(2.0, 3.0, 4.0), targets=3, starts=6, points=32_768, trips=300),
    cells=whole,
    budget="points",
    rule=Approximation(margin=0.1),
    control=Control("a head with one value fewer", lambda e: {"measured": e.with_one_fewer}),
)
def vector_targets(cell: Setting, draws: Draws) -> Values:
    size, seed = cell.targets, draws.integer("points")
    ranks = list(range(1, size + 1))
    found, errors = np.zeros((2, size, len(cell.signals)))
    for i, rank in enumerate(ranks):
        problems = [
            Problem(
                Places(cell.length, s, values=size),
                ValueSum(values=size),
                Readout(Heads(values=rank)),
            )
            for s in cell.signals
        ]
        best = best_overlaps(
            problems,
            1 + rank,
            directions=1 + size,
            parameters={"scale": np.eye(size, rank), "constant": np.zeros(size)},
            starts=cell.starts,
            points=cell.points,
            trips=cell.trips,
            seed=seed,
        )
        found[i], errors[i] = best["risk"].values, best["error"].values
    # The last, with all values, on more points.
    found[-1], errors[-1] = risk(
        problems,
        Overlaps(best["best_m"].values, best["best_q"].values),
        {"constant": best["parameter_0"].values, "scale": best["parameter_1"].values},
        points=64 * cell.points,
        seed=seed + 2,
    )
    samples = 64 * cell.points
    losses = np.stack(
        [bayes_losses(draws.stream("bayes"), samples, cell.length, s) for s in cell.signals]
    )
    bayes, error = size * losses.mean(1), size * losses.std(1) / np.sqrt(samples)
    return {
        **on("rank signal", risk=found),
        **on("signal", measured=found[-1], predicted=bayes, error=np.hypot(errors[-1], error)),
        **on("signal", with_one_fewer=found[-2]),
        "rank": ranks,
        "signal": list(cell.signals),
        "repetitions": 16,
    }


@vector_targets.figure
def risk_by_rank(evidence: xr.Dataset) -> Figure:
    title = "A target of several dimensions"
    note = "trained heads with one key and p values; dashed: (q - p) + p times Bayes' for one"
    shown = evidence.isel(cell=0)
    size = shown.sizes["rank"]
    line = size - shown["rank"] * (1 - shown["predicted"] / size)
    shown = shown.assign(line=line.transpose("rank", "signal"))
    figure = Figure(shown, title, note, x="values p of the head", y="risk", zero="y")
    figure.lines("rank", "line", color="signal", theory=True)
    return figure.points("rank", "risk", color="signal", size=60)
