"""Claims about Lipschitz constants of softmax, heads and layers, which are free of the length."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas import attention
from attlas.attention import Layer, MultiHead, Projected, Residual, Stack, TransformerHead
from attlas.capacity import block_of
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Bound
from attlas.figure import Figure
from attlas.gaussian import stream
from attlas.padding import bucket, pad_axis
from attlas.search import climb
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import LENGTH, one_of, unit_tokens

SHARED_LENGTH = 256
"""Shorter sequences are padded to it, and share a compiled program."""


SMALLER = Control(
    "a constant smaller by {size:.2g} of it",
    lambda e, size: {"bound": (1 - size) * e.bound},
    size=0.01,
)


@sparse_variables.measurement(
    "softmax-lipschitz",
    quick=Setting(length=(2, 7, 256), starts=32, steps=300),
    paper=dict(length=(2, 7, 64, 1024, 8192), starts=64),
    cells=together("length"),
    budget="starts",
)
def worst_pairs(cell: Setting, draws: Draws) -> Values:
    """The worst pairs of scores that an ascent finds, at distances from near to far."""
    wide = bucket(cell.length, SHARED_LENGTH)
    start = score_pairs(draws("scores"), cell.starts, cell.length)
    start |= {name: pad_axis(start[name], wide, 1) for name in ("u", "direction")}
    mask = np.arange(wide) < cell.length
    found = climb(softmax_move, unit_direction, start, mask, steps=cell.steps)
    return {**on("start", measured=found.value, distance=found.point["distance"]), "error": 0.0}


@sparse_variables.claim(
    kind="simulation",
    measured_by=worst_pairs,
    reference="Corollary A.7",
    statement=r"$\|\mathrm{softmax}(u) - \mathrm{softmax}(v)\|_1 \le 2\,\|u - v\|_\infty$.",
    words="If no score changes by more than some amount, the attention weights change by at"
    " most twice that amount in sum.",
    rule=Bound(),
    ranges={"length": (2, SHARED_LENGTH)},
    control=Control(
        "a constant that is {size:.2f} smaller than 2",
        lambda e, size: {"bound": (1 - size / 2) * e.bound},
        size=1.01,
    ),
)
def softmax_lipschitz(evidence: xr.Dataset) -> Values:
    return {"bound": 2 * evidence.distance}


@sparse_variables.claim(
    kind="simulation",
    measured_by=worst_pairs,
    reference="the sharp constant of softmax",
    origin="ours",
    statement=r"$\|\mathrm{softmax}(u) - \mathrm{softmax}(v)\|_1 \le"
    r" 2\tanh\big(\frac12\|u - v\|_\infty\big) \le \|u - v\|_\infty$, with equality on the left for"
    r" two balanced blocks that move apart.",
    words="The least constant between the largest change of a score and the summed change of"
    " the attention weights is 1, half of the paper's.",
    rule=Bound(),
    ranges={"length": (2, SHARED_LENGTH)},
    control=SMALLER,
    needs=("softmax-lipschitz",),
)
def softmax_sharp(evidence: xr.Dataset) -> Values:
    return {"bound": 2 * np.tanh(evidence.distance / 2)}


@softmax_lipschitz.figure
@softmax_sharp.figure
def softmax_moves(evidence: xr.Dataset) -> Figure:
    d = xr.DataArray(np.linspace(0, 8, 161), dims="d")
    curves = xr.Dataset({"paper": 2 * d, "linear": d, "sharp": 2 * np.tanh(d / 2)})
    curves = curves.where(curves < 2.2).assign(distance=d)
    names = {"paper": "2 d (paper)", "linear": "d", "sharp": "2 tanh(d/2)"}
    return (
        Figure(
            evidence,
            "How far softmax can move",
            "each point is the worst pair that an ascent found",
            x="largest move of a score, d",
            y="move of the attention, sum over tokens",
            legend={"length": LENGTH, "series": "bound"},
        )
        .lines("distance", names, dash="series", color="", theory="solid", data=curves)
        .points("distance", "measured", color="length", opacity=0.8)
    )


def softmax_move(point: Any, mask: Any) -> Array:
    """How far softmax moves in l_1 from u, by a given distance in the maximum norm."""
    moved = point["u"] + jax.lax.stop_gradient(point["distance"]) * point["direction"]
    return abs(attention.softmax(point["u"], mask) - attention.softmax(moved, mask)).sum()


def unit_direction(point: Any, _: Any) -> Any:
    largest = jnp.maximum(abs(point["direction"]).max(), 1e-9)
    return point | {"direction": point["direction"] / largest}


def score_pairs(key: Array, starts: int, length: int) -> dict[str, np.ndarray]:
    """Pairs to start from: every other one random, the others two balanced blocks that part."""
    scores, direction = stream(key).standard_normal((2, starts, length))
    distance = np.geomspace(0.05, 8, starts)
    half = length // 2
    first = np.arange(length) < half
    balance = np.where(first, 0.0, np.log(half / (length - half)))
    sides = np.where(first, 1.0, -1.0)
    # Blocks are placed so that the move goes through their balance.
    blocks = (np.arange(starts) % 2 == 0)[:, None]
    return {
        "u": np.where(blocks, balance - distance[:, None] / 2 * sides, 2 * scores),
        "direction": np.where(blocks, sides, direction),
        "distance": distance,
    }


@sparse_variables.claim(
    kind="simulation",
    reference="Lemma 4.3, with the sharp constant",
    origin="ours",
    statement=r"For heads with the same $\phi_{out}$, $L_{out}$-Lipschitz, and $|\phi_{in}(x)|"
    r" \le B_{in}|x|$: $|f - f'| \le L_{out}\big(C B_{in} B_X\max_t|\mathrm{Score}_t -"
    r" \mathrm{Score}'_t| + \max_t|\phi_{in}(x_t) - \phi_{in}'(x_t)|\big)$, with $C = 1$ for"
    r" softmax (the paper: 2): no $T$ appears.",
    words="The change of a head's output is bounded by the largest change of a score and of a"
    " value, whatever the number of tokens.",
    hypotheses=(Hypothesis("dim >= 2", lambda s: s.dim >= 2, defining=True),),
    quick=Setting(length=(2, 16, 256), dim=3, starts=24, steps=300),
    paper=dict(length=(2, 16, 256, 4096), dim=4, starts=32),
    cells=together("length"),
    budget="starts",
    rule=Bound(),
    control=SMALLER,
    needs=("softmax-sharp",),
)
def head_lipschitz(cell: Setting, draws: Draws) -> Values:
    n, d, wide = cell.starts, cell.dim, bucket(cell.length, SHARED_LENGTH)
    apart = np.geomspace(0.02, 2, n)
    u, u_move = draws.stream("scores").standard_normal((2, n, d))
    value, value_move = draws.stream("values").standard_normal((2, n, d, 2))
    start = {
        "x": pad_axis(unit_tokens(draws("tokens"), n, cell.length, d), wide, 1),
        "u": u,
        "u2": u + apart[:, None] * u_move,
        "v": value,
        "v2": value + 0.1 * apart[:, None, None] * value_move,
    }
    mask = np.arange(wide) < cell.length
    found = climb(head_ratio, tokens_in_ball, start, mask, steps=cell.steps)
    moved, bound, unnormalised = head_moves(found.point, mask)
    sides = on("start", bound=bound, measured=moved, unnormalised=unnormalised)
    return {**sides, "error": 0.0}


@head_lipschitz.figure
def head_moves_over_bound(evidence: xr.Dataset) -> Figure:
    return ratios_to_bound(evidence, "A head's move, over its bound", LENGTH, "{length}")


def ratios_to_bound(evidence: xr.Dataset, title: str, x: str, label: str) -> Figure:
    """Moves over their bound, with softmax and with weights that are not normalised."""
    ratios = evidence[["measured", "unnormalised"]] / evidence["bound"]
    return (
        Figure(
            ratios.where(ratios > 1e-9),
            title,
            "each point is the worst case that an ascent found for softmax, and the same input"
            " without a normaliser",
            x=x,
            y="measured / bound",
            log="y",
        )
        .points(label, {"measured": "softmax", "unnormalised": "linear attention"}, opacity=0.7)
        .rule(1, "bound")
    )


def head_sides(point: Any, mask: attention.Mask | None = None) -> tuple[Array, Array, Array]:
    """The move of a head when scores and values change, Lemma 4.3's bound on it, and the move
    without a normaliser.

    The constant is 1, and the bound is taken with the smaller of the two value maps' norms. Tokens
    that `mask` does not admit are 0.
    """
    tokens = point["x"]
    u, u2, value, value2 = point["u"], point["u2"], point["v"], point["v2"]
    s, s2 = tokens @ u, tokens @ u2
    inner, inner2 = tokens @ value, tokens @ value2
    change = attention.softmax(s, mask) @ inner - attention.softmax(s2, mask) @ inner2
    radius = jnp.sqrt((tokens**2).sum(-1).max())
    least = jnp.minimum(jnp.linalg.norm(value, 2), jnp.linalg.norm(value2, 2))
    bound = least * radius * abs(s - s2).max() + jnp.sqrt(((inner - inner2) ** 2).sum(-1).max())
    return jnp.linalg.norm(change), bound, jnp.linalg.norm(s @ inner - s2 @ inner2)


head_moves = jax.jit(jax.vmap(head_sides, (0, None)))


def head_ratio(point: Any, mask: Any) -> Array:
    moved, bound, _ = head_sides(point, mask)
    return moved / jnp.maximum(bound, 1e-9)


def tokens_in_ball(point: Any, _: Any) -> Any:
    return point | {"x": attention.onto_ball(point["x"])}


KINDS = ("plain", "two heads", "residual", "projected")


@sparse_variables.claim(
    kind="simulation",
    reference="Theorem 4.7, the constant of a layer",
    origin="our reading",
    statement=r"On tokens in a ball of radius $B$ a layer is Lipschitz in $\max_t|x_t|$ with"
    r" $L_\sigma B_CB_V(1 + 2CB_{QK}B^2)$, $C = 1$ for softmax; heads add, a residual adds 1, a"
    r" projection on the ball nothing, and constants multiply with depth; sought among weights"
    r" of spectral norm 1.",
    words="The Lipschitz constant of a stack of layers is bounded by a product of norms,"
    " without the length. A search reaches three quarters of the bound for one layer and about"
    " three tenths for two.",
    hypotheses=(one_of("kind", KINDS),),
    quick=Setting(kind=("plain", "residual"), depth=(1, 2), length=24, dim=6, starts=16, steps=100),
    paper=dict(
        kind=(*KINDS, "residual"), depth=(1, 1, 1, 1, 2), length=64, dim=16, starts=32, steps=300
    ),
    cells=together("kind", "depth"),
    budget="starts",
    rule=Bound(),
    control=dataclasses.replace(SMALLER, size=0.4),
    needs=("head-lipschitz",),
)
def layer_lipschitz(cell: Setting, draws: Draws) -> Values:
    shape = (cell.starts, cell.depth, 2, 4, cell.dim, cell.dim)
    weights = draws.stream("layers").standard_normal(shape) / np.sqrt(cell.dim)
    x, near = (
        unit_tokens(draws(name), cell.starts, cell.length, cell.dim) for name in ("tokens", "near")
    )
    apart = np.geomspace(0.01, 1, cell.starts)[:, None, None]
    # Every other start is the worst case of a head by itself, with all matrices the identity: the
    # first token looks across at others that are e or -e, which move along e and apart.
    signs = np.resize([-1.0, 1.0], (cell.length, 1))
    e, across = np.eye(cell.dim)[:2]
    weights[::2] = np.eye(cell.dim)
    x[::2], near[::2] = (1 - apart[::2]) * signs * e, (e + signs * across) / np.sqrt(2)
    x[::2, 0], near[::2, 0] = (1 - apart[::2, 0]) * across, e
    blocks = jax.jit(jax.vmap(functools.partial(stack_of, cell.kind)))(weights)
    start = {"x": x, "y": x + apart * near, "block": blocks}
    found = climb(log_move, pairs_in_ball, start, None, steps=cell.steps, largest=0.1).point
    moved, unnormalised = both_moves(found)
    bounds = [
        np.exp(block_of(block, cell.length, constant="sharp")(0.0).log_lipschitz)
        for block in (jax.tree.map(lambda w, i=i: w[i], found["block"]) for i in range(cell.starts))
    ]
    sides = on("start", bound=bounds, measured=moved, unnormalised=unnormalised)
    return {**sides, "error": 0.0}


@layer_lipschitz.figure
def stack_moves_over_bound(evidence: xr.Dataset) -> Figure:
    title = "A stack's move, over its Lipschitz constant"
    return ratios_to_bound(evidence, title, "layers and their number", "{kind}, {depth}")


def stack_of(kind: str, weights: Float[Array, "depth 2 4 d d"]) -> attention.Block:
    """A stack of layers with these weights: plain, with two heads each, residual, or projected."""

    def layer(pair: Float[Array, "2 4 d d"]) -> attention.Block:
        options: dict[str, Any] = {"activation": jax.nn.relu, "project": kind == "projected"}
        heads = tuple(TransformerHead(*each, **options) for each in pair)
        made = Layer(MultiHead(heads) if kind == "two heads" else heads[0])
        around = {"residual": Residual, "projected": Projected}.get(kind)
        return around(made) if around else made

    return Stack(tuple(layer(pair) for pair in weights))


def row_move(block: attention.Block, point: Any) -> Array:
    r"""The move of the output over that of the input, both in $\|\cdot\|_{2,\infty}$."""
    x, y = point["x"], point["y"]
    moved = jnp.sqrt(((block(x) - block(y)) ** 2).sum(-1).max())
    return moved / jnp.maximum(jnp.sqrt(((x - y) ** 2).sum(-1).max()), 1e-6)


class LinearHead(TransformerHead):
    """A head that does not normalise its weights."""

    def normalise(self, scores: Array, mask: attention.Mask | None = None) -> Array:
        return scores


@jax.jit
@jax.vmap
def both_moves(point: Any) -> tuple[Array, Array]:
    """How far a block moves, and how far with heads that do not normalise their weights."""
    linear = map_heads(lambda head: LinearHead(**vars(head)), point["block"])
    return row_move(point["block"], point), row_move(linear, point)


def log_move(point: Any, _: Any) -> Array:
    """The logarithm of how far a block moves: that of a product of layers is a sum."""
    return jnp.log(row_move(point["block"], point) + 1e-12)


def pairs_in_ball(point: Any, _: Any) -> Any:
    return {
        "x": attention.onto_ball(point["x"]),
        "y": attention.onto_ball(point["y"]),
        "block": unit_norms(point["block"]),
    }


def unit_norms(block: attention.Block) -> attention.Block:
    """The block with every spectral norm, that of query times key among them, brought to 1."""

    def scaled(head: TransformerHead) -> TransformerHead:
        return dataclasses.replace(
            head,
            key=head.key / jnp.linalg.norm(head.key @ head.query.T, 2),
            value=head.value / jnp.linalg.norm(head.value, 2),
            out=head.out / jnp.linalg.norm(head.out, 2),
        )

    return map_heads(scaled, block)


def map_heads(change: Callable[[TransformerHead], Any], block: attention.Block) -> Any:
    def is_head(part: Any) -> bool:
        return isinstance(part, TransformerHead)

    return jax.tree.map(
        lambda part: change(part) if is_head(part) else part, block, is_leaf=is_head
    )
