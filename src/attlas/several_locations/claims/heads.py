"""Claims about how many heads several informative tokens need."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Setting, Values, on
from attlas.claims.rules import Order
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import Overlaps, Problem, best_overlaps, risk
from attlas.several_locations.claims import several_locations
from attlas.several_locations.task import bayes_losses, heads_problem

SHARPNESS = (0.5, 0.8, 1.2, 1.8, 2.6, 4.0)
"""Lengths of the key at which a head that keeps key and value apart is tried."""
TITLES = {"one": "one head", "apart": "one, key apart", "two": "two heads", "bayes": "Bayes"}


@several_locations.measurement(
    "best-heads",
    kind="training",
    quick=Setting(
        length=8, signals=(4.0, 6.0, 8.0), starts=12, points=1024, trips=120, samples=20_000
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
    words="Two heads do what one head cannot do as well: one for each informative token.",
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
    words="Weights that sum to one can hand out one token's worth of information, in any shares.",
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
    statement=r"At a signal of 8 the best single softmax head leaves less than half the variance of"
    r" the target: its key reads the values, with overlaps with $v_1^*$ and $v_2^*$ of opposite"
    r" signs, and its value the keys, so that its weights carry what their sum cannot.",
    words="One head is not confined to one token's worth: where signals are strong, it writes the"
    " second value into its attention weights.",
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
