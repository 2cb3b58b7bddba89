"""Claims about tokens that are not centred, not independent, or of another number."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Setting, Values, on
from attlas.claims.rules import Agreement, Bound, Order
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import (
    Heads,
    Overlaps,
    Places,
    Pooled,
    Problem,
    ValueSum,
    best_overlaps,
    risk,
)
from attlas.several_locations.claims import several_locations
from attlas.several_locations.task import bayes_losses

ORACLE = Overlaps(np.eye(2)[None], np.eye(2)[None])
"""The head with the teacher's key and value."""
SHARPNESS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0)
SETS = 16
"""Sets of points behind an error of `risk`."""


def oracles(count: int, *columns: int) -> Overlaps:
    """The teacher's key and value for several problems, or some of its columns."""
    m = np.eye(2)[list(columns) or [0, 1]]
    return Overlaps(*(np.tile(x, (count, 1, 1)) for x in (m, m @ m.T)))


@several_locations.claim(
    kind="simulation",
    origin="ours",
    reference="a background that is not centred",
    statement=r"All tokens are moved by $c\,k^*$. The softmax head with $k = sk^*$, $v = v^*$ has"
    r" the same risk for every $c$. That of the erf head with $k = k^*$, $v = v^*$ at its best"
    r" sharpness is higher for every $c$, and rises with $c$ towards that of the best linear"
    r" predictor, $1 - 1/L$.",
    words="A common shift of all scores cancels in a softmax. It raises the risk of an erf"
    " gate, at its best sharpness towards that of the best linear predictor and not beyond.",
    quick=Setting(length=10, signal=4.0, shifts=(0.0, 2.0, 4.0), points=4096),
    paper=dict(shifts=(0.0, 1.0, 2.0, 4.0, 8.0), points=65_536),
    cells=whole,
    budget="points",
    rule=Order(),
    control=Control(
        "a gate whose risk falls by {size:.0%} at the furthest shift",
        lambda e, size: {"upper": e.upper - size * e.upper * e.last},
        size=0.9,
    ),
)
def shifted_background(cell: Setting, draws: Draws) -> Values:
    seed, linear = draws.integer("points"), 1 - 1 / cell.length
    best: dict[str, list[float]] = {"softmax": [], "erf": []}
    errors: dict[str, list[float]] = {"softmax": [], "erf": []}
    for name, sharpness in (("softmax", (cell.signal,)), ("erf", SHARPNESS)):
        for shift in cell.shifts:
            law = Places(cell.length, cell.signal, background=[shift])
            problems = [Problem(law, ValueSum(), Heads(name, lam)) for lam in sharpness]
            found = risk(problems, oracles(len(problems)), points=cell.points, seed=seed)
            least = int(np.argmin(found.mean))
            best[name].append(float(found.mean[least]))
            errors[name].append(float(found.error[least]))
    softmax, erf = (np.array(best[name]) for name in ("softmax", "erf"))
    count, error = len(erf), np.array(errors["erf"])
    # All shifts share their points: the error of a difference is at most that of both.
    return {
        **on(
            "comparison",
            lower=np.concatenate([softmax, erf[:-1]]),
            upper=np.concatenate([erf, erf[1:]]),
            error=np.concatenate(
                [np.hypot(error, errors["softmax"]), np.hypot(error[1:], error[:-1])]
            ),
            last=(np.arange(2 * count - 1) == 2 * count - 2).astype(float),
        ),
        **on("shift", softmax=softmax, erf=erf),
        "shift": list(cell.shifts),
        "linear": linear,
        "repetitions": SETS,
    }


@shifted_background.figure
def risk_by_shift(evidence: xr.Dataset) -> Figure:
    title, note = "A background that is not centred", "erf at its best sharpness"
    shown = evidence.isel(cell=0)[["softmax", "erf", "linear"]]
    figure = Figure(shown, title, note, x="shift c of all tokens along the key", y="risk", zero="y")
    figure.lines("shift", {"softmax": "softmax", "erf": "erf"}, points=True)
    return figure.rule(float(shown["linear"]), "the best linear predictor")


@several_locations.claim(
    kind="simulation",
    origin="ours",
    reference="tokens that are correlated",
    statement=r"Any two tokens have the correlation $\rho$ in every direction. A softmax head with"
    r" $k = \lambda k^*$, $v = v^*$ then has the risk"
    r" $(1 - \rho)\,R_0(s/\sqrt{1 - \rho}, \lambda\sqrt{1 - \rho})$ with $R_0(s, \lambda)$ that"
    r" without correlation, and the mean of all values the risk $(1 - \rho)(1 - 1/L)$.",
    words="What tokens have in common cancels in a softmax: correlation acts as less noise. A"
    " linear rule gains from it too.",
    quick=Setting(length=8, signal=3.0, lam=2.0, correlations=(0.0, 0.3, 0.6, 0.9), points=16_384),
    paper=dict(correlations=(0.0, 0.1, 0.3, 0.5, 0.7, 0.9), points=131_072),
    cells=whole,
    budget="points",
    rule=Agreement(),
    control=Control("the formula without the correlation", lambda e: {"predicted": e.independent}),
)
def correlated_tokens(cell: Setting, draws: Draws) -> Values:
    seeds = [draws.integer(f"points {i}") for i in range(2)]
    count, length = len(cell.correlations), cell.length
    laws = [Places(length, cell.signal, correlation=rho) for rho in cell.correlations]
    heads = [Problem(law, ValueSum(), Heads("softmax", cell.lam)) for law in laws]
    means = [Problem(law, ValueSum(), Pooled()) for law in laws]
    less = 1 - np.array(cell.correlations)
    scaled = [
        Problem(Places(length, cell.signal / x), ValueSum(), Heads("softmax", cell.lam * x))
        for x in np.sqrt(less)
    ]
    of_mean = Overlaps(*(x / length**n for n, x in enumerate(oracles(count, 1), 1)))
    softmax = risk(heads, oracles(count), points=cell.points, seed=seeds[0])
    pooled = risk(means, of_mean, points=cell.points, seed=seeds[0])
    alone = risk(scaled, oracles(count), points=cell.points, seed=seeds[1])
    linear = less * (1 - 1 / length)
    return {
        **on(
            "head rho",
            predicted=np.stack([less * alone.mean, linear]),
            measured=np.stack([softmax.mean, pooled.mean]),
            error=np.stack([np.hypot(softmax.error, less * alone.error), pooled.error]),
            independent=np.stack([0 * less + alone.mean[0], 0 * less + 1 - 1 / length]),
        ),
        "head": ["softmax", "mean of all values"],
        "rho": list(cell.correlations),
        "repetitions": SETS,
    }


@correlated_tokens.figure
def risk_by_correlation(evidence: xr.Dataset) -> Figure:
    title, note = "Tokens that are correlated", "points: sampled; lines: formula"
    legend = {"head": None}
    shown = evidence.isel(cell=0)
    figure = Figure(shown, title, note, x="correlation ρ", y="risk", legend=legend, zero="y")
    figure.lines("rho", "predicted", color="head")
    return figure.points("rho", "measured", color="head", error=True)


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="random lengths; lengths other than those of training",
    statement=r"A softmax head with free $k$ and $v$ is trained on sequences of a length uniform"
    r" from $L_0/2$ to $L_0$, at a signal of 2, from eight starts of which the best counts. At"
    r" lengths within and up to four times beyond those of training its risk is within 10 % of"
    r" Bayes'.",
    words="A softmax head that was trained on some lengths is near Bayes' risk at up to four"
    " times as many tokens: its best sharpness is the signal, whatever the length. The best"
    " sharpness of an erf gate falls as sequences grow.",
    quick=Setting(length=10, lengths=(5, 20, 40), signal=2.0, points=2048, starts=8, trips=60),
    paper=dict(lengths=(5, 10, 20, 40), points=16_384, starts=8, trips=200),
    cells=whole,
    budget="points",
    rule=Bound(),
    control=Control("an erf gate, trained alike", lambda e: {"measured": e.of_erf}),
)
def other_lengths(cell: Setting, draws: Draws) -> Values:
    seed, count = draws.integer("points"), len(cell.lengths)
    samples = 64 * cell.points
    losses = [bayes_losses(draws.stream("bayes", n), samples, n, cell.signal) for n in cell.lengths]
    bayes = np.array([x.mean() for x in losses])
    bayes_error = np.array([x.std() for x in losses]) / np.sqrt(samples)
    excess, errors = {}, {}
    for name in ("softmax", "erf"):
        law = Places(cell.length, cell.signal, shortest=cell.length // 2, shuffled=True)
        best = best_overlaps(
            Problem(law, ValueSum(), Heads(name)),
            2,
            directions=2,
            starts=cell.starts,
            points=cell.points,
            trips=cell.trips,
            seed=seed,
        )
        head = Overlaps(best["best_m"].values, best["best_q"].values)
        there = [
            risk(
                Problem(Places(n, cell.signal), ValueSum(), Heads(name)),
                head,
                points=64 * cell.points,
                seed=seed + 1,
            )
            for n in cell.lengths
        ]
        mean, error = (np.array([x[i][0] for x in there]) for i in range(2))
        excess[name] = mean / bayes - 1
        errors[name] = np.hypot(error, mean / bayes * bayes_error) / bayes
    return {
        **on("to", measured=excess["softmax"], of_erf=excess["erf"], error=errors["softmax"]),
        **on("to", bound=np.full(count, 0.1), bayes=bayes),
        "to": list(cell.lengths),
        "repetitions": SETS,
    }


@other_lengths.figure
def excess_at_other_lengths(evidence: xr.Dataset) -> Figure:
    title = "Lengths other than those of training"
    most = int(evidence["length"][0])
    note = f"trained on lengths from {most // 2} to {most}"
    shown = evidence.isel(cell=0)
    y = "risk above Bayes', relative"
    figure = Figure(shown, title, note, x="length", y=y, log="x", zero="y")
    figure.lines("to", {"measured": "softmax", "of_erf": "erf"}, points=True)
    return figure.rule(0.1, "claimed")
