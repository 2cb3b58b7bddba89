"""Claims about samples: how many the bounds ask for, and how many any learner needs."""

import math

import numpy as np
import xarray as xr

from attlas.capacity import Capacity, class_of, collapsed_head, occam_samples
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, product, whole
from attlas.claims.rules import Approximation, Bound
from attlas.figure import Figure
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import LENGTH, SPARSE, first_places
from attlas.sparse_variables.task import Batch, SparseBoolean

GAP, DELTA = 0.5, 0.05
"""The excess error and the confidence for which bounds ask for samples."""

HEADS, CONSTANTS = ("threshold", "sink"), ("paper", "sharp")


@sparse_variables.claim(
    kind="two routes",
    reference="Section 4, sample complexity",
    origin="our reading",
    statement=r"The number m of samples that the bound asks for before a head of the norms of the"
    r" construction generalises grows like a power of $\ln T$, up to $T = 10^{100}$:"
    r" $\frac{d\ln m}{d\ln\ln T} \le 3$, one for the points and two for the norm of the scores.",
    words="The samples that the theory asks for grow like a power of the logarithm of the length.",
    hypotheses=(
        Hypothesis("length > sparsity", lambda s: min(s.length) > s.sparsity, defining=True),
        Hypothesis("length has two values or more", lambda s: len(s.length) > 1, defining=True),
        Hypothesis(
            "length >= 50: in short contexts ln ln T says nothing", lambda s: min(s.length) >= 50
        ),
    ),
    quick=Setting(
        length=(50, 200, 800, 10_000, 10**6, 10**12, 10**25, 10**50, 10**100), sparsity=3
    ),
    cells=whole,
    rule=Bound(),
    control=Control("m that grows like the tenth root of T", lambda e: {"measured": e.tenth_root}),
    needs=("complexity-bound", "threshold-margin", "sink-margin"),
)
def implied_samples(cell: Setting, draws: Draws) -> Values:
    """Samples of several bounds; the slopes of the first two, the heads' own, are judged."""
    lengths = np.array([math.log(length) for length in cell.length])
    scale = np.diff(np.log(lengths))
    asked = [log_samples(length, cell.sparsity) for length in cell.length]
    lines = list(asked[0])
    logs = np.array([list(each.values()) for each in asked]).transpose(1, 2, 0)
    return {
        "bound": 3.0,
        "measured": (("head", "constant", "step"), np.diff(logs[: len(HEADS)]) / scale),
        "error": 0.0,
        "tenth_root": ("step", 0.1 * np.diff(lengths) / scale),
        "log_samples": (("line", "constant", "size"), logs),
        "log_tokens": ("size", lengths),
        "head": list(HEADS),
        "constant": list(CONSTANTS),
        "line": lines,
    }


@implied_samples.figure
def samples_asked_for(evidence: xr.Dataset) -> Figure:
    decades = evidence[["log_tokens", "log_samples"]] / math.log(10)
    shown = decades.where(decades["log_samples"] <= 30)
    return Figure(
        shown,
        "Samples for the AND of three bits",
        "until the bound on the excess error is a half; the shape is the theorem, the constants are"
        " not meant to be used",
        x="length T, log10",
        y="samples, log10",
        log="x",
        legend={"line": None, "constant": "constant of softmax"},
        height=340,
    ).lines("log_tokens", "log_samples", color="line", dash="constant", points=True)


def log_samples(length: int, sparsity: int) -> dict[str, list[float]]:
    """Logarithms of the samples for the AND, by each constant of softmax if they depend on it."""
    asked = {}
    for kind in HEADS:
        score, value, margin = closed_norms(kind, length, sparsity)
        asked[f"{kind} head"] = [
            implied(class_of(collapsed_head(score, value, float(length), constant=c)), margin)
            for c in CONSTANTS
        ]
    score, value, margin = closed_norms("threshold", length, sparsity)
    counted = collapsed_head(score, value, float(length), float(length) + 3, "sharp")
    task = SparseBoolean(length, tuple(range(sparsity)), "and")
    others = {
        "threshold head, parameters counted": implied(class_of(counted), margin),
        "linear map of the sequence": concatenated_samples(length, sparsity),
        "Occam, finite class": math.log(occam_samples(task.log_hypotheses, GAP, DELTA)),
        "statistical floor": math.log(task.floor()),
    }
    return asked | {name: [math.nan, value] for name, value in others.items()}


def implied(capacity: Capacity, margin: float) -> float:
    """Logarithm of the samples that the bound asks for."""
    return float(capacity.log_samples_for(GAP, margin=margin, delta=DELTA))


def closed_norms(kind: str, length: int, sparsity: int) -> tuple[float, float, float]:
    """Norms of scores and values, and the margin, of the head that computes the AND.

    In closed form and for unit tokens: for lengths at which no head can be written down.
    """
    if kind == "sink":
        return 2 * math.log(4 * length) * math.sqrt(2 * sparsity + 6.5), math.sqrt(6), 0.6
    middle = (2 * (sparsity - 1) + 1.5) / (2 * sparsity + 1)
    return (
        math.sqrt(2 * sparsity) * math.log(2 * (length - sparsity)),
        math.sqrt(2) * math.hypot(1 - middle, middle),
        1 / (2 * (2 * sparsity + 1)),
    )


def concatenated_samples(length: int, sparsity: int) -> float:
    r"""Logarithm of the samples for a linear map of the concatenated sequence.

    AND is $\mathrm{sign}(\sum_{i \in I}b_i - s + \frac12)$: with unit tokens a map of norm
    $\sqrt{2s}$ and margin 1/2, whose complexity is $\sqrt{2s}\sqrt{T/m}$.
    """
    return math.log(2 * math.sqrt(2 * sparsity * length) / (0.5 * GAP)) * 2


@sparse_variables.claim(
    kind="simulation",
    reference="Section 5, unique consistent hypothesis",
    origin="ours",
    source="edelman2022",
    statement=r"The support of an AND of s of T bits is the only one consistent with m balanced"
    r" samples with probability $E\exp(-\sum_r n_r\prod_{i \le m} a_r(x_i))$, to 0.1: $n_r$ rivals"
    r" of kind r agree with a sample whose relevant bits are $x_i$ with probability $a_r(x_i)$;"
    r" where that is a half or more.",
    words="Before the data single out the support, which takes a logarithm of the length, no"
    " learner can be sure of it.",
    hypotheses=(
        SPARSE,
        Hypothesis(
            "samples make it a half or more",
            lambda s: first_places(s).unique_probability(s.samples) >= 0.5,
        ),
    ),
    quick=Setting(length=(50, 300), samples=(34, 44), sparsity=3, repeats=1200),
    paper=dict(length=(50, 300, 800), samples=(34, 38, 42, 50), repeats=2000),
    cells=product("length", "samples"),
    budget="repeats",
    rule=Approximation(margin=0.1, relative=False),
    control=Control("bits that are fair coins", lambda e: {"predicted": e.fair}),
)
def statistical_floor(cell: Setting, draws: Draws) -> Values:
    task = SparseBoolean.random(draws("support"), cell.length, cell.sparsity, "and")
    fair = SparseBoolean(task.length, task.support, "and", bias=0.5)
    source, unique = draws.stream("bits"), np.empty(cell.repeats)
    for r in range(cell.repeats):
        bits = (source.random((cell.samples, cell.length), np.float32) < task.bias).astype(np.uint8)
        unique[r] = task.consistent(Batch(bits, bits[:, list(task.support)].min(1)), most=2) == 1
    share = unique.mean()
    return {
        "predicted": task.unique_probability(cell.samples),
        "fair": fair.unique_probability(cell.samples),
        "measured": share,
        # With a share of 0 or 1 the error is that of the least that could have been seen.
        "error": math.sqrt(max(share * (1 - share), 1 / cell.repeats) / cell.repeats),
        "independent": math.exp(-math.exp(task.log_rivals(cell.samples))),
    }


@statistical_floor.figure
def unique_support(evidence: xr.Dataset) -> Figure:
    formulas = {"predicted": "given the relevant bits", "independent": "rivals independent"}
    return (
        Figure(
            evidence,
            "When the data single out the support",
            "AND of three bits; points: simulated, two standard errors",
            x="samples m",
            y="probability of a unique support",
            zero="-x-y",
            legend={"length": LENGTH, "series": "formula"},
        )
        .lines("samples", formulas, color="length")
        .points("samples", "measured", error="error", color="length", size=50)
    )
