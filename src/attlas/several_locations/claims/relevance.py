"""Claims about graded relevance, classification, and a formula that leaves a variance out."""

import numpy as np
import xarray as xr
from scipy import special

from attlas.claims import Control, Draws, Setting, Values, on
from attlas.claims.rules import Agreement, Order, Rate
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.gaussian import Estimate
from attlas.order_parameters import (
    ChosenValue,
    Heads,
    Overlaps,
    Places,
    Problem,
    ValueSum,
    risk,
)
from attlas.several_locations.claims import several_locations
from attlas.several_locations.claims.tokens import SETS, oracles
from attlas.several_locations.task import attention_threshold, linear_threshold


@several_locations.claim(
    kind="simulation",
    origin="our reading",
    reference="linear attention on one place (after Duranthon et al., arXiv 2509.21936)",
    statement=r"Linear attention $c\sum_l\langle X_l, k^*\rangle\langle X_l, v^*\rangle$ on one"
    r" informative token of signal $s$ has at the best $c = s/(s^2 + L)$ the risk"
    r" $L/(s^2 + L)$: it falls like $L/\nu$ in $\nu = s^2$.",
    words="Without a softmax, attention needs a signal that grows like the root of the number"
    " of tokens.",
    quick=Setting(length=8, signals=(1.0, 2.0, 4.0, 8.0, 16.0), points=32_768),
    paper=dict(length=16, signals=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0), points=262_144),
    cells=whole,
    budget="points",
    rule=Agreement(),
    control=Control(
        "a risk larger by {size:.0%}",
        lambda e, size: {"predicted": (1 + size) * e.predicted},
        size=0.2,
    ),
)
def linear_attention_excess(cell: Setting, draws: Draws) -> Values:
    signals, length = np.array(cell.signals), cell.length
    problems = [
        Problem(Places(length, s), ValueSum(), Heads("linear", s / (s**2 + length)))
        for s in signals
    ]
    found = risk(problems, oracles(len(signals)), points=cell.points, seed=draws.integer("points"))
    soft = [Problem(Places(length, s), ValueSum(), Heads("softmax", s)) for s in signals]
    softmax = risk(soft, oracles(len(signals)), points=cell.points, seed=draws.integer("points"))
    return {
        **on("signal", measured=Estimate(*found), softmax=softmax.mean),
        **on("signal", predicted=length / (signals**2 + length)),
        "signal": list(cell.signals),
        "repetitions": SETS,
    }


@linear_attention_excess.figure
def excess_by_signal(evidence: xr.Dataset) -> Figure:
    title, note = "Linear attention and softmax", "line: formula; softmax is Bayes' rule"
    shown = evidence.isel(cell=0)
    shown = shown.assign(softmax=shown["softmax"].clip(min=1e-4))
    figure = Figure(shown, title, note, x="signal s", y="risk", log="xy")
    figure.lines("signal", "predicted", theory="solid")
    names = {"measured": "linear attention", "softmax": "softmax (cut at 1e-4)"}
    return figure.points("signal", names)


@several_locations.claim(
    kind="simulation",
    origin="ours",
    reference="relevance by a softmax (after Duranthon et al., arXiv 2509.21936)",
    statement=r"Tokens are $N(0, I)$, one of them is chosen with probability"
    r" softmax$(\nu\chi)$, $\chi_l = \langle X_l, k^*\rangle$, and $y$ is its value. Bayes' rule is"
    r" the softmax head with $k = \nu k^*$. Its risk falls like $1/\nu$ for large $\nu$, not"
    r" exponentially.",
    words="If relevance is graded by a softmax of Gaussian scores, the two best tokens are near"
    " each other with a probability like one over the sharpness, and no rule tells them apart.",
    quick=Setting(length=6, sharpness=(16.0, 32.0, 64.0, 128.0, 256.0), samples=400_000),
    paper=dict(sharpness=(16.0, 32.0, 64.0, 128.0, 256.0, 512.0), samples=4_000_000),
    cells=whole,
    budget="samples",
    rule=Rate(margin=0.1, along="nu"),
    control=Control(
        "an exponent that is {size:.2g} off",
        lambda e, size: {"exponent": e.exponent - size},
        size=0.3,
    ),
)
def graded_relevance(cell: Setting, draws: Draws) -> Values:
    nus = np.array(cell.sharpness)
    # Given the scores the risk is 1 minus the sum of squared odds: only scores are sampled.
    rng = draws.stream("scores")
    total, squares, count = np.zeros(len(nus)), np.zeros(len(nus)), 0
    while count < cell.samples:
        scores = rng.standard_normal((20_000, cell.length))
        for i, nu in enumerate(nus):
            odds = np.exp(nu * (scores - scores.max(1, keepdims=True)))
            left = 1 - (odds**2).sum(1) / odds.sum(1) ** 2
            total[i] += left.sum()
            squares[i] += (left**2).sum()
        count += 20_000
    mean = total / count
    error = np.sqrt((squares / count - mean**2) / count)
    problems = [
        Problem(Places(cell.length, 0.0), ChosenValue(nu), Heads("softmax", nu)) for nu in nus[:2]
    ]
    whole_risk = risk(problems, oracles(2), points=1 << 14, seed=draws.integer("points"))
    return {
        **on("nu", x=nus, measured=mean, error=error),
        **on("some", fields=whole_risk.mean, fields_error=whole_risk.error, some_nu=nus[:2]),
        "exponent": -1.0,
        "nu": list(cell.sharpness),
    }


@graded_relevance.figure
def bayes_by_sharpness(evidence: xr.Dataset) -> Figure:
    title = "Relevance graded by a softmax"
    note = "points: from scores; large: the head on fields; dashed: slope -1"
    shown = evidence.isel(cell=0)
    line = float(shown["measured"][-1] * shown["x"][-1])
    shown = shown.assign(slope=line / shown["x"])
    figure = Figure(shown, title, note, x="sharpness ν", y="Bayes' risk", log="xy")
    figure.lines("x", "slope", theory=True).points("x", "measured", size=50)
    return figure.points("some_nu", "fields", size=110, ink="#D55E00", opacity=0.6)


@several_locations.claim(
    kind="simulation",
    origin="our reading",
    reference="sparse-token classification (after Barnfield, Cui, Lu, arXiv 2509.25153)",
    statement=r"A label $y = \pm1$ moves one token of $L$ by $ys\xi$. The signal at which the token"
    r" with the largest field $\langle X_l, \xi\rangle$ decides wrongly in one case of ten grows"
    r" with $L$ as its exact formula, like $\sqrt{2\ln L}$; the sum of all fields needs"
    r" $1.28\sqrt L$.",
    words="Attention in its sharp limit needs a signal like the root of a logarithm, a linear"
    " rule one like the root of the length. The note on the paper that we have gives the order"
    " log L, which is that of the squared signal here.",
    quick=Setting(lengths=(8, 32, 128, 512, 2048), samples=10_000),
    paper=dict(lengths=(8, 32, 128, 512, 2048, 8192), samples=40_000),
    cells=whole,
    budget="samples",
    rule=Rate(margin=0.02, along="L"),
    control=Control(
        "a signal that grows with the power {size:.2g} of L",
        lambda e, size: {"predicted": e.predicted * e.x**size},
        size=0.1,
    ),
)
def classification_threshold(cell: Setting, draws: Draws) -> Values:
    lengths = np.array(cell.lengths)
    exact = np.array([attention_threshold(int(length)) for length in lengths])
    groups = np.array(
        [[sampled_threshold(draws, int(n), cell.samples, g) for g in range(16)] for n in lengths]
    )
    return {
        **on("L", x=lengths.astype(float), predicted=exact, measured=groups.mean(1)),
        **on("L", error=groups.std(1, ddof=1) / 4),
        **on("L", linear=[linear_threshold(int(length)) for length in lengths]),
        "L": lengths.tolist(),
        "repetitions": 16,
    }


def sampled_threshold(draws: Draws, length: int, samples: int, group: int) -> float:
    """The signal at which the largest field errs in a tenth of sampled sequences, at the best
    bound."""
    rng = draws.stream("fields", group)
    size = max(500, samples // 16)
    # The largest of n normals, by its distribution function.
    others = special.ndtri(rng.uniform(size=size) ** (1 / (length - 1)))
    own, labels = rng.standard_normal(size), np.where(np.arange(size) % 2, 1, -1)
    low, high = 0.0, 12.0
    for _ in range(30):
        signal = (low + high) / 2
        top = np.maximum(others, own + labels * signal)
        order = np.argsort(top)
        wrong = np.cumsum(np.where(labels[order] > 0, 1, -1)) + (labels < 0).sum()
        error = min(wrong.min(), (labels < 0).sum()) / size
        low, high = (signal, high) if error > 0.1 else (low, signal)
    return (low + high) / 2


@classification_threshold.figure
def thresholds_by_length(evidence: xr.Dataset) -> Figure:
    title = "The signal that classification needs"
    note = "an error of one in ten; points: sampled, the bound fitted to each sample; dashed: exact"
    shown = evidence.isel(cell=0)
    figure = Figure(shown, title, note, x="tokens L", y="signal s", log="xy")
    figure.lines("x", "predicted", theory=True)
    return figure.points("x", {"measured": "largest field", "linear": "sum of fields"}, size=60)


@several_locations.claim(
    kind="two routes",
    origin="ours",
    reference="sparse-token classification (after Barnfield, Cui, Lu, arXiv 2509.25153)",
    statement="In the task of `classification-threshold`, for an error of one in ten, the"
    " largest field needs a smaller signal than the sum of all fields from $L = 8$ on, and the"
    " ratio of the two signals falls with $L$.",
    words="From eight tokens on attention in its sharp limit needs a smaller signal than a"
    " linear rule, and the ratio of the two signals falls with the length.",
    quick=Setting(lengths=(8, 32, 128, 512, 2048)),
    paper=dict(lengths=(8, 32, 128, 512, 2048, 8192, 32_768)),
    cells=whole,
    rule=Order(),
    control=Control("the order turned round", lambda e: {"lower": e.upper, "upper": e.lower}),
    needs=("classification-threshold",),
)
def attention_ahead(cell: Setting, draws: Draws) -> Values:
    attention = np.array([attention_threshold(int(n)) for n in cell.lengths])
    linear = np.array([linear_threshold(int(n)) for n in cell.lengths])
    ratio = attention / linear
    lower, upper = np.concatenate([attention, ratio[1:]]), np.concatenate([linear, ratio[:-1]])
    return {
        **on("comparison", lower=lower, upper=upper),
        **on("L", ratio=ratio, bound=np.sqrt(2 * np.log(cell.lengths)) / linear),
        "L": list(cell.lengths),
        "error": 0.0,
    }


@attention_ahead.figure
def ratio_of_thresholds(evidence: xr.Dataset) -> Figure:
    title, note = (
        "How far attention is ahead",
        "signal of attention by that of the sum; dashed: √(2 ln L)",
    )
    figure = Figure(evidence.isel(cell=0), title, note, x="tokens L", y="ratio", log="xy")
    figure.lines("L", "bound", theory=True)
    return figure.lines("L", "ratio", points=True)


@several_locations.claim(
    kind="simulation",
    origin="our reading",
    reference="a mean-field formula of a softmax follow-up, as recovered",
    statement=r"On the manifold ($k = \beta(\mu k^* + \dots)$, $v = \nu v^* + \dots$) a softmax"
    r" head with weights $w$ has the risk $\gamma^2E[(1 - \nu w_J)^2 + (1 - \nu^2)w_J^2] +"
    r" E\sum_{l \ne J}w_l^2$. The last term, the variance of a wrongly chosen token's value, is"
    r" missing from a mean-field formula that we know through third parties only.",
    words="A head that looks at the wrong token does not predict 0: it predicts that token's"
    " value. Where the key is not yet learnt this is most of the risk.",
    quick=Setting(
        dim=400, length=10, gamma=0.5**0.5, nu=0.8, overlaps=(0.05, 0.2, 0.5), points=16_384
    ),
    paper=dict(overlaps=(0.05, 0.1, 0.2, 0.35, 0.5, 0.8), points=131_072),
    cells=whole,
    budget="points",
    rule=Agreement(),
    control=Control(
        "{size:.0%} of the variance of wrongly chosen tokens left out",
        lambda e, size: {"predicted": e.predicted - size * e.wrong},
        size=0.5,
    ),
)
def wrong_choice_variance(cell: Setting, draws: Draws) -> Values:
    signal = (cell.dim / 2) ** 0.5
    law = Places(cell.length, signal, spread=cell.gamma)
    problem = Problem(law, ValueSum(), Heads("softmax", signal))
    kappas = np.array(cell.overlaps)
    m = np.zeros((len(kappas), 2, 2))
    m[:, 0, 0], m[:, 1, 1] = kappas, cell.nu
    whole_risk = risk(
        problem,
        Overlaps(m, np.tile(np.eye(2), (len(kappas), 1, 1))),
        points=cell.points,
        seed=draws.integer("points"),
    )
    rng, size = draws.stream("weights"), 100_000
    noise = rng.standard_normal((size, cell.length))
    parts, error = np.zeros((2, len(kappas))), np.zeros(len(kappas))
    for i, kappa in enumerate(kappas):
        scores = noise.copy()
        scores[:, 0] = signal * kappa + cell.gamma * noise[:, 0]
        w = np.exp(signal * (scores - scores.max(1, keepdims=True)))
        w /= w.sum(1, keepdims=True)
        right = (1 - cell.nu * w[:, 0]) ** 2 + (1 - cell.nu**2) * w[:, 0] ** 2
        both = np.stack([cell.gamma**2 * right, (w[:, 1:] ** 2).sum(1)])
        parts[:, i], error[i] = both.mean(1), both.sum(0).std() / np.sqrt(size)
    return {
        **on("overlap", predicted=parts.sum(0), measured=whole_risk.mean),
        **on("overlap", error=np.hypot(error, whole_risk.error), wrong=parts[1], right=parts[0]),
        "overlap": list(cell.overlaps),
        "repetitions": SETS,
    }


@wrong_choice_variance.figure
def parts_of_the_risk(evidence: xr.Dataset) -> Figure:
    title = "A formula that leaves a variance out"
    note = "points: sampled on whole fields; lines: with and without wrongly chosen tokens"
    shown = evidence.isel(cell=0)
    figure = Figure(shown, title, note, x="overlap μ of the key", y="risk", zero="y")
    figure.lines("overlap", {"predicted": "all terms", "right": "formula as recovered"})
    return figure.points("overlap", "measured", error=True, size=60)
