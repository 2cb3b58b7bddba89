"""Claims about heads that compute sparse functions: exact on every input, with margins and norms as stated."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from attlas.capacity import head_norms
from attlas.claims.compat import (
    Agreement,
    Control,
    Convergence,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.errors import InputError
from attlas.gaussian import stream
from attlas.sparse_variables.claims.shared import FIGURES, PAPER, SHARP
from attlas.sparse_variables.construction import (
    Construction,
    Embedding,
    Orthonormal,
    RandomDirections,
    sink_head,
    symmetric_head,
    table_head,
    threshold_head,
)
from attlas.sparse_variables.task import SparseBoolean

STEPS = (
    Hypothesis(
        "sharpness >= 1.1: below it levels are so near that rounding shows",
        lambda s: s.sharpness >= 1.1,
    ),
    Hypothesis("sparsity <= 10: beyond it rounding shows", lambda s: s.sparsity <= 10),
)
ROOM = Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True)
GROWTH = {"length": (20, 100, 500, 500, 100_000), "sparsity": (2, 3, 5, 8, 3)}
SIZES = Setting(length=(20, 100, 500), sparsity=(2, 3, 5), sharpness=2.0)
PAPER_SIZES = SIZES.replace(**GROWTH)


def drawn(
    cell: Setting, seed: int, id: str, function: str | tuple[int, ...] | None
) -> SparseBoolean:
    return SparseBoolean.random(key_for(seed, id, "support"), cell.length, cell.sparsity, function)


def embeddings(length: int, seed: int) -> dict[str, Embedding]:
    """An orthonormal basis, and random directions of a dimension that grows like the logarithm of the length."""
    return {
        "orthonormal": Orthonormal(length),
        "random": RandomDirections(length, int(24 * np.log(length)) + 64, seed),
    }


# --- thresholds ----------------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/threshold-margin",
    source=PAPER,
    reference="Section 4, sparse threshold functions",
    statement=r"One head computes AND, OR and majority of s of T bits: $\mathrm{sign}\,v^\top X^\top\mathrm{softmax}(Xu)$ is right on all $2^T$ inputs, with the margin"
    r" $\frac{c-1}{2(sc+1)}$ where $e^\beta = c\sum_{t \notin I}e^{\beta\langle u_0, v_t\rangle}$, $u = \beta u_0$; with orthonormal embeddings $\beta = \ln(c(T-s))$.",
    words="A head that looks at the relevant places, a little harder than the logarithm of the length, computes any threshold of them.",
    hypotheses=(ROOM, SHARP),
    quick=SIZES,
    paper=PAPER_SIZES,
    rule=Agreement(rounding=1e-9),
    control=Control(
        r"attention on irrelevant places forgotten: $\frac{c}{2(sc+1)}$",
        lambda e: e.assign(predicted=e["predicted"] * e["sharpness"] / (e["sharpness"] - 1)),
    ),
    figure=drawn_by(f"{FIGURES}.functions:threshold_levels"),
    cells=together("length", "sparsity"),
    origin="our reading",
)
def threshold_margin(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    functions, kinds = ("and", "or", "majority"), embeddings(cell.length, seed)
    built = [
        [
            threshold_head(
                drawn(cell, seed, "sparse-variables/threshold-margin", f),
                sharpness=cell.sharpness,
                embedding=e,
            )
            for e in kinds.values()
        ]
        for f in functions
    ]
    axes = ("cell", "function", "embedding")
    low, high = built[0][0].range_of(np.array([1.0, 0.0]))
    ones = np.array([bin(code).count("1") for code in range(len(low))])
    counts = range(9)

    def level(values: np.ndarray) -> list[float]:
        return [float(values[ones == k].mean()) if k <= cell.sparsity else np.nan for k in counts]

    return xr.Dataset(
        {
            "measured": (axes, [[[head.worst_margin() for head in row] for row in built]]),
            "predicted": (axes, [[[head.margin for head in row] for row in built]]),
            "error": 0.0,
            "score_norm": (axes, [[[head.score_norm for head in row] for row in built]]),
            "lowest": (("cell", "ones"), [level(low)]),
            "highest": (("cell", "ones"), [level(high)]),
        },
        coords={"function": list(functions), "embedding": list(kinds)},
    )


@claim(
    "sparse-variables/threshold-tight",
    source="attlas",
    reference="how sharp the attention must be",
    statement=r"The head $u = \beta\sum_{i \in I}v_i$ with the best threshold separates 'at least k ones' from 'fewer' if and only if $\beta > \ln(T - s)$.",
    words="The logarithm of the length is exactly what it takes to look away from the rest.",
    hypotheses=(ROOM, SHARP),
    quick=Setting(length=(20, 100, 500, 100_000), sparsity=(2, 3, 5, 3), sharpness=1.01),
    paper=Setting(length=(20, 100, 500, 500, 100_000), sparsity=(2, 3, 5, 8, 3), sharpness=1.001),
    rule=Order(),
    control=Control(
        "just below: c in place of 1/c",
        lambda s: s.replace(sharpness=1 / s.sharpness),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.functions:tight_margins"),
    cells=together("length", "sparsity"),
    needs=("sparse-variables/threshold-margin",),
    origin="ours",
)
def threshold_tight(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = drawn(cell, seed, "sparse-variables/threshold-tight", "majority")
    ladder = np.array([0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 4.0])
    margins = [threshold_head(task, sharpness=c).worst_margin() for c in ladder]
    return xr.Dataset(
        {
            "lower": ("cell", [0.0]),
            "upper": ("cell", [threshold_head(task, sharpness=cell.sharpness).worst_margin()]),
            "error": 0.0,
            "margin": (("cell", "ladder"), [margins]),
        },
        coords={"ladder": ladder},
    )


@claim(
    "sparse-variables/position-free",
    source=PAPER,
    reference="Section 4, any support",
    statement=r"With orthonormal embeddings, permuting the bits and the support together leaves the output of the construction unchanged: it is the same for each of the"
    r" $\binom Ts$ supports.",
    words="No place of the context is easier to look at than another.",
    hypotheses=(ROOM, SHARP),
    quick=SIZES.replace(sparsity=(2, 3, 5)),
    paper=PAPER_SIZES,
    rule=Agreement(rounding=1e-10),
    control=Control(
        "the bits move and the head does not", lambda e: e.assign(measured=e["unmoved"])
    ),
    figure=drawn_by(f"{FIGURES}.functions:permutation_agreement"),
    cells=together("length", "sparsity"),
    needs=("sparse-variables/threshold-margin",),
    origin="our reading",
)
def position_free(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/position-free"
    task = drawn(cell, seed, id, "majority")
    order = stream(key_for(seed, id, "order")).permutation(cell.length)
    bits = stream(key_for(seed, id, "bits")).binomial(1, task.bias, (64, cell.length))
    moved = np.zeros_like(bits)
    moved[:, order] = bits
    elsewhere = replace(task, support=tuple(int(order[i]) for i in task.support))
    head, other = (threshold_head(t, sharpness=cell.sharpness) for t in (task, elsewhere))
    axes = ("cell", "input")
    return xr.Dataset(
        {
            "predicted": (axes, head(bits)[None]),
            "measured": (axes, other(moved)[None]),
            "unmoved": (axes, head(moved)[None]),
            "error": 0.0,
        }
    )


@claim(
    "sparse-variables/random-directions",
    source=PAPER,
    reference="Section 4, embeddings of dimension O(log T)",
    statement=r"With embeddings drawn uniformly from the sphere of dimension $4s\ln T$, s = 3, the threshold head exists, with the same margin, in more than"
    r" 90 % of draws.",
    words="Places need no directions of their own: a dimension that grows with the logarithm of their number suffices.",
    hypotheses=(
        ROOM,
        Hypothesis("ratio > 0", lambda s: s.ratio > 0, defining=True),
        Hypothesis("ratio >= 4", lambda s: s.ratio >= 4),
    ),
    quick=Setting(length=(50, 300, 1000), sparsity=3, ratio=4.0, repeats=200),
    paper=Setting(length=(50, 500, 5000, 30_000), sparsity=3, ratio=4.0, repeats=200),
    rule=Convergence(share=0.9),
    control=Control("a dimension of s ln T", lambda s: s.replace(ratio=s.ratio / 4), on="setting"),
    figure=drawn_by(f"{FIGURES}.functions:random_embeddings"),
    cells=together("length"),
    budget="repeats",
    needs=("sparse-variables/threshold-margin",),
    origin="our reading",
)
def random_directions(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = drawn(cell, seed, "sparse-variables/random-directions", "and")
    dim = round(cell.ratio * cell.sparsity * np.log(cell.length))
    margins, norms = np.full(cell.repeats, -1.0), np.full(cell.repeats, np.nan)
    for r in range(cell.repeats):
        try:
            head = threshold_head(
                task, embedding=RandomDirections(cell.length, dim, seed * 1_000_003 + r)
            )
        except (
            InputError
        ):  # an irrelevant place is nearer than the relevant ones: there is no such head
            continue
        margins[r], norms[r] = head.worst_margin(), head.score_norm
    axes = ("cell", "repeat")
    return xr.Dataset(
        {
            "arrived": (axes, (abs(margins - head_margin(cell.sparsity)) < 1e-9)[None]),
            "score_norm": (axes, norms[None]),
            "dimension": ("cell", [dim]),
            "basis_norm": ("cell", [threshold_head(task).score_norm]),
        }
    )


def head_margin(sparsity: int, sharpness: float = 2.0) -> float:
    return (sharpness - 1) / (2 * (sparsity * sharpness + 1))


@claim(
    "sparse-variables/sink-margin",
    source="attlas",
    reference="a head with a sink at [CLS]",
    statement=r"AND and OR of s of T bits are computed by a head that attends to a relevant bit which decides, and else to [CLS], on all inputs and with the"
    r" margin $\frac{c-1}{c+1}$, whatever s and T; $\beta = 2\ln(cT)$.",
    words="A head that looks for a counterexample has a margin that does not fall with the number of bits.",
    hypotheses=(ROOM, SHARP),
    quick=Setting(length=(20, 100, 500), sparsity=(2, 3, 8), sharpness=4.0),
    paper=Setting(length=(20, 100, 500, 500, 100_000), sparsity=(2, 3, 8, 12, 3), sharpness=4.0),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the margin of the threshold head in its place",
        lambda e: e.assign(predicted=e["threshold"]),
    ),
    figure=drawn_by(f"{FIGURES}.functions:sink_margins"),
    cells=together("length", "sparsity"),
    needs=("sparse-variables/threshold-margin",),
    origin="ours",
)
def sink_margin(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    functions = ("and", "or")
    heads = [
        sink_head(drawn(cell, seed, "sparse-variables/sink-margin", f), sharpness=cell.sharpness)
        for f in functions
    ]
    return xr.Dataset(
        {
            "predicted": (
                ("cell", "function"),
                [[(cell.sharpness - 1) / (cell.sharpness + 1)] * 2],
            ),
            "measured": (("cell", "function"), [[head.worst_margin() for head in heads]]),
            "threshold": ("cell", [head_margin(cell.sparsity, cell.sharpness)]),
            "error": 0.0,
        },
        coords={"function": list(functions)},
    )


# --- staircases ----------------------------------------------------------------------------------------------------


def off_by(head: Construction, share: float) -> Construction:
    """The head with the corners of its staircase moved down by a share of a level."""
    level = head.sharpness / (head.sharpness * np.exp(offsets(head)).sum() + 1)
    mix = head.mix.copy()
    mix[1, 1:] += share * level
    return replace(head, mix=mix)


def offsets(head: Construction) -> np.ndarray:
    """Scores of the relevant places relative to the first."""
    products = head.embedding.products(head.task.support, head.score[:, None])[
        list(head.task.support), 0
    ]
    return products - products[0]


def staircase_evidence(heads: Sequence[Construction]) -> xr.Dataset:
    axes = ("cell", "function")
    return xr.Dataset(
        {
            "predicted": (axes, np.zeros((1, len(heads)))),
            "measured": (axes, [[head.worst_error() for head in heads]]),
            "shifted": (axes, [[off_by(head, 0.05).worst_error() for head in heads]]),
            "error": 0.0,
            "score_norm": (axes, [[head.score_norm for head in heads]]),
            "value_norm": (axes, [[head.value_norms.sum() for head in heads]]),
            "out_norm": (axes, [[head.out_norm for head in heads]]),
        }
    )


@claim(
    "sparse-variables/symmetric-exact",
    source=PAPER,
    reference="Section 4, symmetric functions",
    statement=r"Every function of the number of ones among s of T bits, parity too, is $\pm1$ exactly on all inputs for one head with 2s + 1 ReLU value"
    r" units or fewer, with orthonormal and with random embeddings.",
    words="One head with a few units computes parity, and any other count, of bits that it picks from a long context.",
    hypotheses=(ROOM, *STEPS),
    quick=SIZES,
    paper=PAPER_SIZES,
    rule=Agreement(rounding=1e-9),
    control=Control(
        "corners of the staircase 5 % of a level too low", lambda e: e.assign(measured=e["shifted"])
    ),
    figure=drawn_by(f"{FIGURES}.functions:symmetric_norms"),
    cells=together("length", "sparsity"),
    needs=("sparse-variables/threshold-margin",),
    origin="our reading",
)
def symmetric_exact(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/symmetric-exact"
    parity = drawn(cell, seed, id, "parity")
    coins = stream(key_for(seed, id, "values")).integers(0, 2, cell.sparsity + 1)
    coins[:2] = 0, 1  # so that there is something to compute
    ones = np.array([bin(code).count("1") for code in range(2**cell.sparsity)])
    other = replace(parity, function=tuple(coins[ones].tolist()))
    kinds = embeddings(cell.length, seed).values()
    return staircase_evidence(
        [
            symmetric_head(task, sharpness=cell.sharpness, embedding=e)
            for e in kinds
            for task in (parity, other)
        ]
    )


@claim(
    "sparse-variables/table-exact",
    source=PAPER,
    reference="Section 4, arbitrary functions",
    statement=r"Every function of s of T bits is $\pm1$ exactly on all inputs for one head with fewer than $2^{s+1}$ ReLU value units, whose scores give relevant place j"
    r" attention in proportion to $2^{j-1}$; with orthonormal and with random embeddings.",
    words="Any function of a few bits is within reach of one head, at a price that grows exponentially with their number.",
    hypotheses=(ROOM, *STEPS),
    quick=SIZES,
    paper=PAPER_SIZES.replace(sparsity=(2, 3, 5, 7, 3)),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "corners of the staircase 5 % of a level too low", lambda e: e.assign(measured=e["shifted"])
    ),
    figure=drawn_by(f"{FIGURES}.functions:table_norms"),
    cells=together("length", "sparsity"),
    needs=("sparse-variables/symmetric-exact",),
    origin="our reading",
)
def table_exact(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    tasks = []
    for purpose in ("one", "another"):
        key = key_for(seed, "sparse-variables/table-exact", purpose)
        task = SparseBoolean.random(key, cell.length, cell.sparsity)
        table = (0, 1, *task.table[2:].tolist())
        tasks.append(SparseBoolean(task.length, task.support, table))
    kinds = embeddings(cell.length, seed).values()
    return staircase_evidence(
        [table_head(task, sharpness=cell.sharpness, embedding=e) for e in kinds for task in tasks]
    )


@claim(
    "sparse-variables/construction-norms",
    source=PAPER,
    reference="Section 4, norms of the constructions",
    statement=r"For unit tokens $\|W_{QK}x_{CLS}\|$ is $\sqrt{2s}\ln(c(T-s))$ for thresholds and symmetric functions, $2\ln(cT)\sqrt{2s + 6.5}$ for the sink, and"
    r" $\sqrt2\,|(\ln(c(T-s)) + j\ln2)_{j<s}|$ for tables; parity has $\|W_C\|^2 = 1 + 8s\big(\frac{sc+1}{c-1}\big)^2$.",
    words="Norms grow with the logarithm of the length, and with a power of the number of bits where it alone decides.",
    hypotheses=(ROOM, SHARP),
    quick=Setting(length=(20, 60, 60), sparsity=(2, 3, 5), sharpness=2.0),
    paper=Setting(length=(20, 100, 500, 500), sparsity=(2, 3, 5, 8), sharpness=2.0),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "tokens not scaled to unit length: a root of two in the scores",
        lambda e: e.assign(predicted=e["predicted"] * np.sqrt(2)),
    ),
    figure=drawn_by(f"{FIGURES}.functions:norm_agreement"),
    cells=together("length", "sparsity"),
    needs=(
        "sparse-variables/symmetric-exact",
        "sparse-variables/sink-margin",
        "sparse-variables/table-exact",
    ),
    origin="our reading",
)
def construction_norms(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/construction-norms"
    t, s, c = cell.length, cell.sparsity, cell.sharpness
    heads = {
        "threshold": threshold_head(drawn(cell, seed, id, "and"), sharpness=c),
        "sink": sink_head(drawn(cell, seed, id, "or"), sharpness=c),
        "parity": symmetric_head(drawn(cell, seed, id, "parity"), sharpness=c),
        "table": table_head(drawn(cell, seed, id, "parity"), sharpness=c),
    }
    norms = {
        name: head_norms(m.block.head, m.context)
        for name, m in ((n, h.module()) for n, h in heads.items())
    }  # type: ignore[attr-defined]
    beta = np.log(c * (t - s))
    predicted = {
        "threshold": np.sqrt(2 * s) * beta,
        "sink": 2 * np.log(c * t) * np.sqrt(2 * s + 6.5),
        "parity": np.sqrt(2 * s) * beta,
        "table": np.sqrt(2) * np.linalg.norm(beta + np.arange(s) * np.log(2)),
        "parity, read-out": np.sqrt(1 + 8 * s * ((s * c + 1) / (c - 1)) ** 2),
    }
    measured = {name: n.score for name, n in norms.items()} | {
        "parity, read-out": norms["parity"].out
    }
    axes = ("cell", "norm")
    return xr.Dataset(
        {
            "predicted": (axes, [list(predicted.values())]),
            "measured": (axes, [[measured[name] for name in predicted]]),
            "error": 0.0,
        },
        coords={"norm": list(predicted)},
    )
