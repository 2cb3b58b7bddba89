"""Claims about samples: how many a bound asks for, how many any learner needs, and how loose each bound is."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import xarray as xr
from scipy import special

from attlas.capacity import Capacity, class_of, collapsed_head, occam_samples
from attlas.claims.compat import (
    Approximation,
    Bound,
    Control,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    product,
)
from attlas.covers import linear_entropy, matrix_entropy
from attlas.gaussian import stream
from attlas.rademacher import draw_signs, planar_complexity
from attlas.sparse_variables.claims.complexity import planar_bound
from attlas.sparse_variables.claims.covers import sparse_packing
from attlas.sparse_variables.claims.lipschitz import head_moves, padded_length
from attlas.sparse_variables.claims.shared import FIGURES, PAPER, unit_tokens
from attlas.sparse_variables.construction import threshold_head
from attlas.sparse_variables.task import Batch, SparseBoolean

GAP, DELTA = 0.5, 0.05


def implied(capacity: Capacity, margin: float) -> float:
    return float(capacity.log_samples_for(GAP, margin=margin, delta=DELTA))


def closed_norms(kind: str, length: int, sparsity: int) -> tuple[float, float, float]:
    """Norms of scores and values, for unit tokens, and the margin of the head that computes and, in closed form: for lengths at which
    no head can be written down."""
    if kind == "sink":
        return 2 * math.log(4 * length) * math.sqrt(2 * sparsity + 6.5), math.sqrt(6), 0.6
    margin = 1 / (2 * (2 * sparsity + 1))
    middle = (2 * (sparsity - 1) + 1.5) / (2 * sparsity + 1)
    return (
        math.sqrt(2 * sparsity) * math.log(2 * (length - sparsity)),
        math.sqrt(2) * math.hypot(1 - middle, middle),
        margin,
    )


def concatenated_samples(length: int, sparsity: int) -> float:
    r"""Logarithm of the samples that a linear map of the concatenated sequence needs for the same complexity. And is $\mathrm{sign}(\sum_{i \in I}b_i - s + \frac12)$: with unit
    tokens a map of norm $\sqrt{2s}$ and margin 1/2, whose complexity is $\sqrt{2s}\sqrt{T/m}$."""
    return math.log(2 * math.sqrt(2 * sparsity * length) / (0.5 * GAP)) * 2


@claim(
    "sparse-variables/implied-samples",
    source=PAPER,
    reference="Section 4, sample complexity",
    statement=r"The number m of samples that the bound asks for before a head of the norms of the construction generalises grows like a power of"
    r" $\ln T$, up to $T = 10^{100}$: $\frac{d\ln m}{d\ln\ln T} \le 3$, one for the points and two for the norm of the scores.",
    words="Doubling a long context adds a fraction to the samples that the theory asks for, ever less of one.",
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
    paper=Setting(
        length=(50, 200, 800, 10_000, 10**6, 10**12, 10**25, 10**50, 10**100), sparsity=3
    ),
    rule=Bound(),
    control=Control(
        "m that grows like the tenth root of T", lambda e: e.assign(measured=e["tenth_root"])
    ),
    figure=drawn_by(f"{FIGURES}.bounds:samples_asked_for"),
    needs=(
        "sparse-variables/complexity-bound",
        "sparse-variables/threshold-margin",
        "sparse-variables/sink-margin",
    ),
    origin="our reading",
)
def implied_samples(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    kinds, constants = ("threshold", "sink"), ("paper", "sharp")
    logs = np.zeros((len(kinds), len(constants), len(cell.length)))
    parameters, occam, floor = np.zeros((3, len(cell.length)))
    for t, length in enumerate(cell.length):
        for k, kind in enumerate(kinds):
            score, value, margin = closed_norms(kind, length, cell.sparsity)
            for c, constant in enumerate(constants):
                logs[k, c, t] = implied(
                    class_of(collapsed_head(score, value, float(length), constant=constant)), margin
                )
            if kind == "threshold":
                counted = collapsed_head(score, value, float(length), float(length) + 3, "sharp")
                parameters[t] = implied(class_of(counted), margin)
        task = SparseBoolean(length, tuple(range(cell.sparsity)), "and")
        occam[t], floor[t] = (
            math.log(occam_samples(task.log_hypotheses, GAP, DELTA)),
            math.log(task.floor()),
        )
    linear = np.array([concatenated_samples(length, cell.sparsity) for length in cell.length])
    lengths = np.array([math.log(length) for length in cell.length])
    scale = np.diff(np.log(lengths))
    axes = ("cell", "head", "constant", "step")
    sizes = ("cell", "size")
    return xr.Dataset(
        {
            "bound": ("cell", [3.0]),
            "measured": (axes, (np.diff(logs) / scale)[None]),
            "error": 0.0,
            "tenth_root": (("cell", "step"), (0.1 * np.diff(lengths) / scale)[None]),
            "log_samples": (("cell", "head", "constant", "size"), logs[None]),
            "log_parameters": (sizes, parameters[None]),
            "log_concatenated": (sizes, linear[None]),
            "log_occam": (sizes, occam[None]),
            "log_floor": (sizes, floor[None]),
            "log_tokens": (sizes, lengths[None]),
        },
        coords={"head": list(kinds), "constant": list(constants)},
    )


def any_support(cell: Setting) -> SparseBoolean:
    return SparseBoolean(cell.length, tuple(range(cell.sparsity)), "and")


@claim(
    "sparse-variables/statistical-floor",
    source=PAPER,
    reference="Section 5, unique consistent hypothesis",
    statement=r"The support of an AND of s of T bits is the only one consistent with m balanced samples with probability"
    r" $E\exp(-\sum_r n_r\prod_{i \le m} a_r(x_i))$, to 0.1: $n_r$ rivals of kind r agree with a sample whose relevant bits are $x_i$ with probability $a_r(x_i)$; where that is a half or more.",
    words="Before the data single out the support, which takes a logarithm of the length, no learner can be sure of it.",
    hypotheses=(
        Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True),
        Hypothesis(
            "samples make it a half or more",
            lambda s: any_support(s).unique_probability(s.samples) >= 0.5,
        ),
    ),
    quick=Setting(length=(50, 300), samples=(34, 44), sparsity=3, repeats=1200),
    paper=Setting(length=(50, 300, 800), samples=(34, 38, 42, 50), sparsity=3, repeats=2000),
    rule=Approximation(margin=0.1, relative=False),
    control=Control("bits that are fair coins", lambda e: e.assign(predicted=e["fair"])),
    figure=drawn_by(f"{FIGURES}.bounds:unique_support"),
    cells=product("length", "samples"),
    budget="repeats",
    origin="ours",
)
def statistical_floor(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/statistical-floor"
    task = SparseBoolean.random(key_for(seed, id, "support"), cell.length, cell.sparsity, "and")
    fair = SparseBoolean(task.length, task.support, "and", bias=0.5)
    draws, unique = stream(key_for(seed, id, "bits")), np.empty(cell.repeats)
    for r in range(cell.repeats):
        bits = (draws.random((cell.samples, cell.length), np.float32) < task.bias).astype(np.uint8)
        unique[r] = task.consistent(Batch(bits, bits[:, list(task.support)].min(1)), most=2) == 1
    share = unique.mean()
    return xr.Dataset(
        {
            "predicted": ("cell", [task.unique_probability(cell.samples)]),
            "fair": ("cell", [fair.unique_probability(cell.samples)]),
            "measured": ("cell", [share]),
            # With a share of 0 or 1 the error is that of the least that could have been seen.
            "error": (
                "cell",
                [math.sqrt(max(share * (1 - share), 1 / cell.repeats) / cell.repeats)],
            ),
            "independent": ("cell", [math.exp(-math.exp(task.log_rivals(cell.samples)))]),
            "floor": ("cell", [task.floor()]),
        }
    )


# --- the ledger ----------------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/tightness",
    source="attlas",
    reference="a ledger of the bounds",
    statement=r"Over a grid of lengths, samples and norms every bound of this map holds: the softmax constant, the Lipschitz constant of a head, the entropy of its linear"
    r" parts, its Rademacher complexity; and more samples are asked for than by Occam's bound for the finite class, at the same gap and confidence.",
    words="Each bound beside what it bounds: the constants of the Lipschitz steps are nearly attained, those of the covers are loose.",
    hypotheses=(
        Hypothesis("length >= 4", lambda s: s.length >= 4, defining=True),
        Hypothesis("norm > 0", lambda s: s.norm > 0, defining=True),
    ),
    quick=Setting(length=(4, 32, 256), samples=(1024, 4096), norm=(0.5, 4.0), draws=4, rings=2),
    paper=Setting(
        length=(4, 64, 2048), samples=(1024, 4096), norm=(0.5, 1.0, 4.0), draws=8, rings=2
    ),
    rule=Bound(),
    control=Control("bounds 5 % smaller", lambda e: e.assign(bound=0.95 * e["bound"])),
    figure=drawn_by(f"{FIGURES}.bounds:tightness_ledger"),
    cells=product("length", "samples", "norm"),
    budget="draws",
    needs=(
        "sparse-variables/softmax-sharp",
        "sparse-variables/head-lipschitz",
        "sparse-variables/linear-cover",
        "sparse-variables/complexity-bound",
        "sparse-variables/implied-samples",
    ),
    origin="ours",
)
def tightness(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    rows = ledger(cell, seed)
    bound, measured = np.array(list(rows.values())).T
    axes = ("cell", "quantity")
    return xr.Dataset(
        {"bound": (axes, bound[None]), "measured": (axes, measured[None]), "error": 0.0},
        coords={"quantity": list(rows)},
    )


def ledger(cell: Setting, seed: int) -> dict[str, tuple[float, float]]:
    """Each quantity with its bound and its measured value."""
    found: dict[str, tuple[float, float]] = {}
    moved = blocks_apart(cell.length, cell.norm)
    found["softmax, paper's constant"] = (2 * cell.norm, moved)
    found["softmax, sharp constant"] = (cell.norm, moved)
    found["head, Lemma 4.3"] = opposite_tokens(cell.length, cell.norm)
    eps, points = 0.1 * cell.norm, cell.samples * cell.length
    packed = sparse_packing(cell.norm, eps, points)
    found["entropy of the scores at a tenth"] = (
        float(linear_entropy(cell.norm, eps, points)),
        packed,
    )
    rows = packed + math.log(16)  # any one of the columns may be the one that is not 0
    found["entropy of a matrix with 16 columns"] = (
        float(matrix_entropy(cell.norm, eps, points, 16)),
        rows,
    )
    tokens, signs = ledger_data(cell.length, cell.samples, cell.draws, seed)
    complexity = planar_complexity(
        tokens, signs, query_norm=cell.norm, rings=cell.rings
    ).lower.mean()
    free = class_of(collapsed_head(cell.norm, 1.0, cell.length, constant="sharp"))
    found["complexity, dimension free"] = (float(free.rademacher(cell.samples)), complexity)
    found["complexity, parameters counted"] = (
        planar_bound(Setting(query_norm=cell.norm, length=cell.length, samples=cell.samples)),
        complexity,
    )
    task = SparseBoolean(cell.length, (0, 1, 2), "and")
    head = threshold_head(task)
    finite = float(occam_samples(task.log_hypotheses, GAP, DELTA))
    for name, capacity in (
        ("samples, dimension free, over Occam's", head.capacity("sharp", count_parameters=False)),
        ("samples, parameters counted, over Occam's", head.capacity("sharp")),
    ):
        found[name] = (math.exp(implied(capacity, head.margin)), finite)
    return found


def opposite_tokens(length: int, norm: float) -> tuple[float, float]:
    """Bound and move of a head on two opposite tokens, T/2 times each, whose scores turn round."""
    places = np.arange(padded_length(length))[None, :, None]
    tokens = np.where(places < length // 2, 1.0, -1.0) * (places < length)
    one = np.ones((1, 1, 1))
    point = {"x": tokens, "u": norm / 2 * one[0], "u2": -norm / 2 * one[0], "v": one, "v2": one}
    moved, bound, _ = head_moves(point, places[0, :, 0] < length)
    return float(bound[0]), float(moved[0])


def blocks_apart(length: int, distance: float) -> float:
    """How far softmax moves in l_1 when two equal blocks of scores part by `distance` in all."""
    u = np.where(np.arange(length) < length // 2, distance / 2, -distance / 2)
    return float(abs(special.softmax(u) - special.softmax(-u)).sum())


@functools.lru_cache(maxsize=2)
def ledger_data(length: int, samples: int, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    id = "sparse-variables/tightness"
    tokens = unit_tokens(key_for(seed, id, "tokens"), samples, length, 2)
    return tokens, draw_signs(key_for(seed, id, "signs"), draws, samples)
