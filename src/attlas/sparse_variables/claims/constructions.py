"""Claims about heads that compute sparse functions on every input: their margins and norms."""

from dataclasses import replace

import numpy as np
import xarray as xr

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Agreement, Convergence
from attlas.errors import InputError
from attlas.figure import Figure
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import SIZE, SPARSE
from attlas.sparse_variables.construction import (
    Builder,
    Construction,
    sink_head,
    symmetric_head,
    table_head,
    threshold_head,
)
from attlas.sparse_variables.embedding import Embedding, Orthonormal, RandomDirections
from attlas.sparse_variables.task import SparseBoolean, patterns

SHARP = Hypothesis("sharpness > 1", lambda s: s.sharpness > 1)
STEPS = (
    Hypothesis(
        "sharpness >= 1.1: below it levels are so near that rounding shows",
        lambda s: s.sharpness >= 1.1,
    ),
    Hypothesis("sparsity <= 10: beyond it rounding shows", lambda s: s.sparsity <= 10),
)
SIZES = Setting(length=(20, 100, 500), sparsity=(2, 3, 5), sharpness=2.0)
PAPER_SIZES = {"length": (20, 100, 500, 500, 100_000), "sparsity": (2, 3, 5, 8, 3)}


def random_task(cell: Setting, draws: Draws, function: str) -> SparseBoolean:
    return SparseBoolean.random(draws("support"), cell.length, cell.sparsity, function)


def embeddings(cell: Setting, seed: int) -> dict[str, Embedding]:
    """An orthonormal basis, and random directions of a dimension of order ln T."""
    return {
        "orthonormal": Orthonormal(cell.length),
        "random": RandomDirections(cell.length, int(24 * np.log(cell.length)) + 64, seed),
    }


@sparse_variables.claim(
    kind="two routes",
    reference="Section 4, sparse threshold functions",
    origin="our reading",
    statement=r"One head computes AND, OR and majority of $s$ of $T$ bits:"
    r" $\mathrm{sign}\,v^\top X^\top\mathrm{softmax}(Xu)$ is right on all $2^T$ inputs, with"
    r" the margin $\frac{c-1}{2(sc+1)}$ where $e^\beta = c\sum_{t \notin I}e^{\beta\langle u_0,"
    r" v_t\rangle}$, $u = \beta u_0$; with orthonormal embeddings $\beta = \ln(c(T-s))$,"
    r" whichever $s$ places are relevant.",
    words="A head whose scores favour the relevant places by a little more than the logarithm"
    " of the length computes AND, OR and majority of them.",
    hypotheses=(SPARSE, SHARP),
    quick=SIZES,
    paper=PAPER_SIZES,
    cells=together("length", "sparsity"),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "{size:.2%} of the attention on irrelevant places forgotten",
        lambda e, size: {"predicted": e.predicted * (1 + size / (e.sharpness - 1))},
    ),
)
def threshold_margin(cell: Setting, draws: Draws) -> Values:
    functions, kinds = ["and", "or", "majority"], embeddings(cell, draws.seed)
    tasks = [random_task(cell, draws, function) for function in functions]
    heads = [
        [threshold_head(task, sharpness=cell.sharpness, embedding=kind) for kind in kinds.values()]
        for task in tasks
    ]
    s, c, ones = cell.sparsity, cell.sharpness, patterns(cell.sparsity).sum(1)

    def by_count(values: np.ndarray) -> list[float]:
        return [values[ones == k].mean() if k <= cell.sparsity else np.nan for k in range(9)]

    low, high = heads[0][0].range_of(np.array([1.0, 0.0]))
    return {
        **on(
            "function embedding",
            measured=[[head.worst_margin() for head in row] for row in heads],
        ),
        "predicted": (c - 1) / (2 * (s * c + 1)),
        "error": 0.0,
        **on("ones", lowest=by_count(low), highest=by_count(high)),
        "function": functions,
        "embedding": list(kinds),
    }


@threshold_margin.figure
def threshold_levels(evidence: xr.Dataset) -> Figure:
    """The range of the level at each number of ones, over all fillings of the irrelevant places."""
    return (
        Figure(
            evidence,
            "Levels of the threshold head do not overlap",
            "from the worst to the best filling of all irrelevant places; a threshold between two"
            " levels is a function",
            x="relevant ones",
            y="level that the head reads",
        )
        .spans("ones", "lowest", "highest", width=9)
        .facet(SIZE, columns=5, width=150, height=220)
    )


@sparse_variables.claim(
    kind="simulation",
    reference="Section 4, embeddings of dimension O(log T)",
    origin="our reading",
    statement=r"With embeddings drawn uniformly from the sphere of dimension $4s\ln T$, $s ="
    r" 3$, the threshold head exists, with the same margin, in more than 90 % of draws.",
    words="Places need no orthogonal embeddings: a dimension that grows like the logarithm of"
    " their number suffices.",
    hypotheses=(SPARSE, Hypothesis("ratio >= 4", lambda s: s.ratio >= 4)),
    quick=Setting(length=(50, 300, 1000), sparsity=3, ratio=4.0, repeats=200),
    paper=dict(length=(50, 500, 5000, 30_000)),
    cells=together("length"),
    budget="repeats",
    rule=Convergence(share=0.9),
    control=Control("a dimension of s ln T", setting=lambda s: {"ratio": s.ratio / 4}),
    needs=("threshold-margin",),
)
def random_directions(cell: Setting, draws: Draws) -> Values:
    task = random_task(cell, draws, "and")
    dim = round(cell.ratio * cell.sparsity * np.log(cell.length))
    arrived, norms = np.zeros(cell.repeats, bool), np.full(cell.repeats, np.nan)
    for r in range(cell.repeats):
        embedding = RandomDirections(cell.length, dim, draws.seed * 1_000_003 + r)
        try:
            head = threshold_head(task, embedding=embedding)
        except InputError:  # an irrelevant place is nearer than the relevant ones: no such head
            continue
        arrived[r] = abs(head.worst_margin() - head.margin) < 1e-9
        norms[r] = head.score_norm
    return {
        **on("repeat", arrived=arrived, score_norm=norms),
        "dimension": dim,
        "basis_norm": threshold_head(task).score_norm,
    }


@random_directions.figure
def random_embeddings(evidence: xr.Dataset) -> Figure:
    label = "T = {length:,}, d = {d}: {share} of {repeats}"
    share = evidence["arrived"].sum("repeat")
    return (
        Figure(
            evidence.assign_coords(share=share, d=evidence["dimension"]),
            "Random directions in place of a basis",
            "points: draws of the embedding in dimension d, and how many of them gave a head;"
            " strokes: orthonormal, dimension T + 3",
            x="norm of the scores, |u|",
            y="",
            log="x",
            height=200,
        )
        .points("score_norm", label, size=12, opacity=0.4)
        .ticks("basis_norm", label, size=34)
    )


@sparse_variables.claim(
    kind="two routes",
    reference="a head with a sink at [CLS]",
    origin="ours",
    statement=r"AND and OR of $s$ of $T$ bits are computed by a head that attends to a relevant"
    r" bit which decides, and else to [CLS], on all inputs and with the margin"
    r" $\frac{c-1}{c+1}$, whatever $s$ and $T$; $\beta = 2\ln(cT)$.",
    words="A head that attends to a deciding bit if there is one, and else to [CLS], has a"
    " margin that does not fall with the number of bits.",
    hypotheses=(SPARSE, SHARP),
    quick=Setting(length=(20, 100, 500), sparsity=(2, 3, 8), sharpness=4.0),
    paper=dict(length=(20, 100, 500, 500, 100_000), sparsity=(2, 3, 8, 12, 3)),
    cells=together("length", "sparsity"),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "a margin that is smaller by {size:.2g} of its value",
        lambda e, size: {"predicted": (1 - size) * e.predicted},
        size=0.01,
    ),
    needs=("threshold-margin",),
)
def sink_margin(cell: Setting, draws: Draws) -> Values:
    c, functions = cell.sharpness, ["and", "or"]
    tasks = [random_task(cell, draws, function) for function in functions]
    margins = [sink_head(task, sharpness=c).worst_margin() for task in tasks]
    return {
        "predicted": (c - 1) / (c + 1),
        **on("function", measured=margins),
        "threshold": (c - 1) / (2 * (cell.sparsity * c + 1)),
        "error": 0.0,
        "function": functions,
    }


@sink_margin.figure
def sink_margins(evidence: xr.Dataset) -> Figure:
    heads = {"measured": "sink at [CLS]", "threshold": "threshold"}
    return (
        Figure(
            evidence,
            "A sink keeps the margin",
            "AND and OR; the threshold head's margin falls with the number of relevant bits",
            x="",
            y="worst margin over all inputs",
            domain={"y": (0, 1)},
        )
        .points(SIZE, heads, shape="function", size=70)
        .rule(float(evidence["predicted"].max()), "(c − 1)/(c + 1)")
    )


OFF = Control("corners of the staircase 5 % of a level too low", lambda e: {"measured": e.shifted})


@sparse_variables.claim(
    kind="two routes",
    reference="Section 4, symmetric functions",
    origin="our reading",
    statement=r"Every function of the number of ones among $s$ of $T$ bits, parity too, is"
    r" $\pm1$ exactly on all inputs for one head with $2s + 1$ ReLU value units or fewer, with"
    r" orthonormal and with random embeddings.",
    words="One head with a few units computes parity, or any other function of the number of"
    " ones, of bits that it picks from a long context.",
    hypotheses=(SPARSE, *STEPS),
    quick=SIZES,
    paper=PAPER_SIZES,
    cells=together("length", "sparsity"),
    rule=Agreement(rounding=1e-9),
    control=OFF,
    needs=("threshold-margin",),
)
def symmetric_exact(cell: Setting, draws: Draws) -> Values:
    parity = random_task(cell, draws, "parity")
    coins = draws.stream("values").integers(0, 2, cell.sparsity + 1)
    coins[:2] = 0, 1  # so that there is something to compute
    table = coins[patterns(cell.sparsity).sum(1)].tolist()
    tasks = {"parity": parity, "another": replace(parity, function=tuple(table))}
    return staircases(symmetric_head, tasks, 2 * cell.sparsity + 1, cell, draws.seed)


@sparse_variables.claim(
    kind="two routes",
    reference="Section 4, arbitrary functions",
    origin="our reading",
    statement=r"Every function of $s$ of $T$ bits is $\pm1$ exactly on all inputs for one head"
    r" with fewer than $2^{s+1}$ ReLU value units, with orthonormal and with random embeddings.",
    words="One head computes any function of a few bits, with a number of units that grows"
    " exponentially with the number of bits.",
    hypotheses=(SPARSE, *STEPS),
    quick=SIZES,
    paper=dict(PAPER_SIZES, sparsity=(2, 3, 5, 7, 3)),
    cells=together("length", "sparsity"),
    rule=Agreement(rounding=1e-9),
    control=OFF,
    needs=("symmetric-exact",),
)
def table_exact(cell: Setting, draws: Draws) -> Values:
    tasks = {}
    for purpose in ("one", "another"):
        task = SparseBoolean.random(draws(purpose), cell.length, cell.sparsity)
        tasks[f"{purpose} table"] = replace(task, function=(0, 1, *task.table[2:].tolist()))
    return staircases(table_head, tasks, 2 ** (cell.sparsity + 1) - 1, cell, draws.seed)


@symmetric_exact.figure
@table_exact.figure
def staircase_norms(evidence: xr.Dataset) -> Figure:
    worst = float(evidence["measured"].max())
    norms = {"score_norm": "scores", "value_norm": "values, 2,1-norm", "out_norm": "read-out"}
    return Figure(
        evidence,
        "What exact functions of a few bits cost",
        f"outputs are ±1 on every input; the worst is off by {worst:.1e}",
        x="",
        y="norm, unit tokens",
        log="y",
        legend={"series": "weights"},
    ).points(SIZE, norms, shape="function", size=60)


def staircases(
    build: Builder, tasks: dict[str, SparseBoolean], most: int, cell: Setting, seed: int
) -> Values:
    """The worst error of heads on all inputs, with each unit beyond the `most` that are claimed."""
    heads = {
        f"{name}, {kind}": build(task, sharpness=cell.sharpness, embedding=embedding)
        for kind, embedding in embeddings(cell, seed).items()
        for name, task in tasks.items()
    }
    built = heads.values()
    return {
        "predicted": 0.0,
        **on(
            "function",
            measured=[head.worst_error() + max(0, len(head.out) - most) for head in built],
            units=[len(head.out) for head in built],
            shifted=[shifted_corners(head, 0.05).worst_error() for head in built],
            score_norm=[head.score_norm for head in built],
            value_norm=[head.value_norms.sum() for head in built],
            out_norm=[head.out_norm for head in built],
        ),
        "error": 0.0,
        "function": list(heads),
    }


def shifted_corners(head: Construction, share: float) -> Construction:
    """The head with the corners of its staircase moved down by a share of a level."""
    support = head.task.support
    scores = head.embedding.products(support, head.score[:, None])[list(support), 0]
    level = head.sharpness / (head.sharpness * np.exp(scores - scores[0]).sum() + 1)
    mix = head.mix.copy()
    mix[1, 1:] += share * level
    return replace(head, mix=mix)
