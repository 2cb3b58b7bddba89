"""Claims about head, layer and read-out, and how much they can change: constants without the length in them."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int
from scipy import special

from attlas import attention
from attlas.attention import Layer, MultiHead, Projected, ReadOut, Residual, Stack, TransformerHead
from attlas.capacity import block_of
from attlas.claims.compat import (
    Agreement,
    Bound,
    Control,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.search import climb
from attlas.sparse_variables.claims.shared import FIGURES, PAPER, SEARCH, TOKENS, unit_tokens


@claim(
    "sparse-variables/definitions",
    source=PAPER,
    reference="Definitions 3.1 to 3.3, Figure 1",
    statement=r"$f(X, z) = W_C^\top\sigma(W_V^\top X^\top\mathrm{softmax}(XW_KW_Q^\top z))$ is the general head with $\mathrm{Score}(x, z) = x^\top W_KW_Q^\top z$,"
    r" $\phi_{in}(x) = W_V^\top x$ and $\phi_{out}(y) = W_C^\top\sigma(y)$; a layer is the head at each of its tokens, and commutes with their"
    r" permutations; the scalar is $w^\top$ times the layer at [CLS].",
    words="Head, layer and read-out are three views of one map: a weighted mean of the context.",
    hypotheses=(TOKENS,),
    quick=Setting(length=12, dim=8, heads=16),
    paper=Setting(length=48, dim=64, heads=64),
    rule=Agreement(rounding=1e-12),
    control=Control(
        "each token has its neighbour for a context", lambda e: e.assign(measured=e["shifted"])
    ),
    figure=drawn_by(f"{FIGURES}.heads:head_layer_scalar"),
    budget="heads",
    origin="our reading",
)
def definitions(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/definitions"
    orders = np.tile(np.arange(cell.length), (cell.heads, 1))
    drawn = (
        2.0 * normal_weights(key_for(seed, id, "heads"), cell.heads, 4, cell.dim),
        unit_tokens(key_for(seed, id, "tokens"), cell.heads, cell.length, cell.dim),
        stream(key_for(seed, id, "orders")).permuted(orders, axis=1),
        unit_tokens(key_for(seed, id, "read-out"), cell.heads, 2, cell.dim),
    )
    parts = jax.tree.map(np.asarray, jax.jit(jax.vmap(views))(*drawn))
    axes = ("cell", "head", "entry")
    return xr.Dataset(
        {
            "predicted": (axes, parts["plain"][None]),
            "measured": (axes, parts["other"][None]),
            "shifted": (axes, parts["shifted"][None]),
            "error": 0.0,
            # One head to draw: what its layer looks at, and what its read-out looks at.
            "weights": (("cell", "context", "token"), parts["weights"][:1]),
            "cls_weights": (("cell", "token"), parts["cls_weights"][:1]),
            "cls_values": (("cell", "token"), parts["cls_values"][:1]),
        }
    )


def normal_weights(key: Array, *shape: int) -> Float[np.ndarray, "..."]:
    r"""Square matrices of independent normal entries of variance $1/d$, with the last of `shape` for d."""
    return stream(key).standard_normal((*shape, shape[-1])) / np.sqrt(shape[-1])


def _head(weights: Float[Array, "4 d d"], **more: bool) -> TransformerHead:
    query, key, value, out = weights
    return TransformerHead(query, key, value, out, jax.nn.relu, **more)


def views(
    weights: Float[Array, "4 d d"],
    tokens: Float[Array, "n d"],
    order: Int[Array, " n"],
    read: Float[Array, "2 d"],
) -> dict[str, Array]:
    """A head's layer and read-out by the module, and by other routes; and what they attend to."""
    head = _head(weights)
    cls, weight = read
    general = attention.GeneralHead(
        score=lambda x, z: x @ head.key @ head.query.T @ z,
        phi_in=lambda x: head.value.T @ x,
        phi_out=lambda y: head.out.T @ jax.nn.relu(y),
    )
    layer = Layer(head)(tokens)
    rows = jax.vmap(general, (None, 0))(tokens, tokens)
    permuted = jnp.zeros_like(layer).at[order].set(Layer(head)(tokens[order]))
    scalar = ReadOut(Layer(head), cls, weight)
    whole = Layer(head)(jnp.concatenate([tokens, cls[None]]))[-1] @ weight
    with_cls = jnp.concatenate([tokens, cls[None]])
    gain = jax.grad(lambda y: head.outer(y) @ weight)(
        head.weights(with_cls, cls) @ head.inner(with_cls)
    )
    return {
        "plain": jnp.concatenate([layer.ravel(), layer.ravel(), whole[None]]),
        "other": jnp.concatenate([rows.ravel(), permuted.ravel(), scalar(tokens)[None]]),
        "shifted": jnp.concatenate(
            [jnp.roll(rows, -1, 0).ravel(), permuted.ravel(), scalar(tokens)[None]]
        ),
        "weights": jax.vmap(head.weights, (None, 0))(tokens, tokens),
        "cls_weights": head.weights(with_cls, cls)[:-1],
        "cls_values": (head.inner(with_cls) @ gain)[:-1],
    }


def room(length: int) -> int:
    """Tokens that sequences of so many are padded to, so that those of several lengths share a compiled program: a power of 16."""
    return 16 ** max(2, math.ceil(math.log(length, 16)))


# --- softmax -------------------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/softmax-jacobian",
    source=PAPER,
    reference="Section 4, the Jacobian of softmax",
    statement=r"With $p = \mathrm{softmax}(u)$ and $J = \mathrm{diag}(p) - pp^\top$: $\sum_{ij}|J_{ij}| = 2\big(1 - \sum_t p_t^2\big)$, which is at most 2.",
    words="The entries of the derivative of softmax add up to less than two, however long the context.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(2, 8, 64), points=32, spread=2.0),
    paper=Setting(length=(2, 8, 64, 512), points=64, spread=2.0),
    rule=Agreement(rounding=1e-13),
    control=Control(
        r"2(1 - max p) in its place", lambda e: e.assign(predicted=2 * (1 - e["largest"]))
    ),
    figure=drawn_by(f"{FIGURES}.heads:jacobian_agreement"),
    cells=together("length"),
    budget="points",
    origin="our reading",
)
def softmax_jacobian(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "sparse-variables/softmax-jacobian", "scores")
    u = cell.spread * stream(key).standard_normal((cell.points, cell.length))
    p = special.softmax(u, axis=-1)
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, 2 * (1 - (p**2).sum(-1))[None]),
            "measured": (axes, np.asarray(added_up(u))[None]),
            "error": 0.0,
            "largest": (axes, p.max(-1)[None]),
        }
    )


@jax.jit
def added_up(u: Float[Array, "point n"]) -> Float[Array, " point"]:
    """The entries of the Jacobian of softmax, without their signs."""
    return jax.lax.map(lambda scores: abs(jax.jacfwd(attention.softmax)(scores)).sum(), u)


def softmax_move(point: Any, mask: Any) -> Array:
    """How far softmax moves in l_1 between scores u and others, which differ from them by a given distance in the maximum."""
    moved = point["u"] + jax.lax.stop_gradient(point["distance"]) * point["direction"]
    return abs(attention.softmax(point["u"], mask) - attention.softmax(moved, mask)).sum()


def unit_direction(point: Any, _: Any) -> Any:
    return point | {
        "direction": point["direction"] / jnp.maximum(abs(point["direction"]).max(), 1e-9)
    }


def score_pairs(key: Array, starts: int, length: int) -> dict[str, np.ndarray]:
    """Pairs of scores to start from: random ones near and far from each other, and two blocks in balance that part."""
    scores, direction = stream(key).standard_normal((2, starts, length))
    distance = np.geomspace(0.05, 8, starts)
    half = length // 2
    first = np.arange(length) < half
    balance = np.where(first, 0.0, np.log(half / (length - half)))
    # Every other start has the blocks, placed so that the move goes through their balance.
    even = (np.arange(starts) % 2 == 0)[:, None]
    sides = np.where(first, 1.0, -1.0)
    return {
        "u": np.where(even, balance - distance[:, None] / 2 * sides, 2 * scores),
        "direction": np.where(even, sides, direction),
        "distance": distance,
    }


def attacked(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """The worst pairs that an ascent finds, at distances from near to far."""
    (cell,) = cells
    start = score_pairs(
        key_for(seed, "sparse-variables/softmax-lipschitz", "scores"), cell.starts, cell.length
    )
    wide = room(cell.length)
    start |= {
        name: np.pad(start[name], ((0, 0), (0, wide - cell.length))) for name in ("u", "direction")
    }
    found = climb(
        softmax_move, unit_direction, start, np.arange(wide) < cell.length, steps=cell.steps
    )
    u, direction = (found.point[name][:, : cell.length] for name in ("u", "direction"))
    distance = found.point["distance"]
    v = u + distance[:, None] * direction
    axes = ("cell", "start")
    return xr.Dataset(
        {
            "measured": (axes, found.value[None]),
            "unnormalised": (axes, abs(np.exp(u) - np.exp(v)).sum(-1)[None]),
            "distance": (axes, distance[None]),
            "error": 0.0,
        }
    )


PAIRS = {
    "quick": Setting(length=(2, 7, 256), starts=32, steps=300),
    "paper": Setting(length=(2, 7, 64, 1024, 8192), starts=64, steps=300),
}


softmax_lipschitz = claim(
    "sparse-variables/softmax-lipschitz",
    source=PAPER,
    reference="Section 4, softmax from l_inf to l_1",
    statement=r"$\|\mathrm{softmax}(u) - \mathrm{softmax}(v)\|_1 \le 2\,\|u - v\|_\infty$.",
    words="If no score moves by more than a little, the attention as a whole moves by no more than twice that.",
    hypotheses=(TOKENS, SEARCH),
    quick=PAIRS["quick"],
    paper=PAIRS["paper"],
    rule=Bound(),
    control=Control(
        "a constant of 0.99 in place of 2", lambda e: e.assign(bound=0.99 / 2 * e["bound"])
    ),
    figure=drawn_by(f"{FIGURES}.heads:softmax_moves"),
    cells=together("length"),
    budget="starts",
    fit=lambda e: e.assign(bound=2 * e["distance"]),
    needs=("sparse-variables/softmax-jacobian",),
    origin="our reading",
)(attacked)


softmax_sharp = claim(
    "sparse-variables/softmax-sharp",
    source="attlas",
    reference="the sharp constant of softmax",
    statement=r"$\|\mathrm{softmax}(u) - \mathrm{softmax}(v)\|_1 \le 2\tanh\big(\frac12\|u - v\|_\infty\big) \le \|u - v\|_\infty$, with equality on the left for two"
    r" balanced blocks that move apart.",
    words="The least constant is one, half of the paper's, and it is attained.",
    hypotheses=(TOKENS, SEARCH),
    quick=PAIRS["quick"],
    paper=PAIRS["paper"],
    rule=Bound(),
    control=Control("a constant 1 % smaller", lambda e: e.assign(bound=0.99 * e["bound"])),
    figure=drawn_by(f"{FIGURES}.heads:softmax_moves"),
    cells=together("length"),
    budget="starts",
    fit=lambda e: e.assign(bound=2 * np.tanh(e["distance"] / 2)),
    needs=("sparse-variables/softmax-lipschitz",),
    origin="ours",
)(attacked)


# --- the head ------------------------------------------------------------------------------------------------------


def head_sides(point: Any, mask: attention.Mask | None = None) -> tuple[Array, Array, Array]:
    r"""The move of a head's output when scores and values change, the bound of Lemma 4.3 with constant 1, and the same move
    without a normaliser. The bound is taken with the smaller of the two value maps' norms. Tokens that `mask` does not admit are 0."""
    tokens = point["x"]
    u, u2, value, value2 = point["u"], point["u2"], point["v"], point["v2"]
    s, s2 = tokens @ u, tokens @ u2
    inner, inner2 = tokens @ value, tokens @ value2
    change = attention.softmax(s, mask) @ inner - attention.softmax(s2, mask) @ inner2
    radius = jnp.sqrt((tokens**2).sum(-1).max())
    least = jnp.minimum(jnp.linalg.norm(value, 2), jnp.linalg.norm(value2, 2))
    bound = least * radius * abs(s - s2).max() + jnp.sqrt(((inner - inner2) ** 2).sum(-1).max())
    return jnp.linalg.norm(change), bound, jnp.linalg.norm(s @ inner - s2 @ inner2)


all_sides = jax.jit(jax.vmap(head_sides, (0, None)))


def head_ratio(point: Any, mask: Any) -> Array:
    moved, bound, _ = head_sides(point, mask)
    return moved / jnp.maximum(bound, 1e-9)


def into_balls(point: Any, _: Any) -> Any:
    """Tokens in the unit ball."""
    return point | {"x": attention.onto_ball(point["x"])}


@claim(
    "sparse-variables/head-lipschitz",
    source=PAPER,
    reference="Lemma 4.3",
    statement=r"For heads with the same $\phi_{out}$, $L_{out}$-Lipschitz, and $|\phi_{in}(x)| \le B_{in}|x|$:"
    r" $|f - f'| \le L_{out}\big(C B_{in} B_X \max_t|\mathrm{Score}_t - \mathrm{Score}'_t| + \max_t|\phi_{in}(x_t) - \phi_{in}'(x_t)|\big)$, with C = 1 for"
    r" softmax: no T appears.",
    words="A head changes by no more than its worst score and its worst value do, however many tokens there are.",
    hypotheses=(TOKENS, SEARCH, Hypothesis("dim >= 2", lambda s: s.dim >= 2, defining=True)),
    quick=Setting(length=(2, 16, 256), dim=3, starts=24, steps=300),
    paper=Setting(length=(2, 16, 256, 4096), dim=4, starts=32, steps=300),
    rule=Bound(),
    control=Control("a bound 1 % smaller", lambda e: e.assign(bound=0.99 * e["bound"])),
    figure=drawn_by(f"{FIGURES}.heads:length_free"),
    cells=together("length"),
    budget="starts",
    needs=("sparse-variables/softmax-sharp",),
    origin="our reading",
)
def head_lipschitz(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/head-lipschitz"
    n, t, d = cell.starts, cell.length, cell.dim
    apart = np.geomspace(0.02, 2, n)
    u, u_move = stream(key_for(seed, id, "scores")).standard_normal((2, n, d))
    value, value_move = stream(key_for(seed, id, "values")).standard_normal((2, n, d, 2))
    start = {
        "x": np.pad(
            unit_tokens(key_for(seed, id, "tokens"), n, t, d), ((0, 0), (0, room(t) - t), (0, 0))
        ),
        "u": u,
        "u2": u + apart[:, None] * u_move,
        "v": value,
        "v2": value + 0.1 * apart[:, None, None] * value_move,
    }
    mask = np.arange(room(t)) < t
    found = climb(head_ratio, into_balls, start, mask, steps=cell.steps)
    moved, bound, without = map(np.asarray, all_sides(found.point, mask))
    axes = ("cell", "start")
    return xr.Dataset(
        {
            "bound": (axes, bound[None]),
            "measured": (axes, moved[None]),
            "unnormalised": (axes, without[None]),
            "error": 0.0,
        }
    )


# --- layers --------------------------------------------------------------------------------------------------------


KINDS = ("plain", "two heads", "residual", "projected")


def built(kind: str, weights: Float[Array, "depth 2 4 d d"]) -> attention.Block:
    """A stack of layers with these weights: plain, with two heads each, residual, or projected."""

    def layer(first: Array, second: Array) -> attention.Block:
        head = _head(first, project=kind == "projected")
        if kind == "two heads":
            return Layer(MultiHead((head, _head(second))))
        if kind == "residual":
            return Residual(Layer(head))
        return Projected(Layer(head)) if kind == "projected" else Layer(head)

    return Stack(tuple(layer(*pair) for pair in weights))


def row_move(block: attention.Block, point: Any) -> Array:
    r"""How far the rows of the output move, in units of how far those of the input do, both in $\|\cdot\|_{2,\infty}$."""
    x, y = point["x"], point["y"]
    moved = jnp.sqrt(((block(x) - block(y)) ** 2).sum(-1).max())
    return moved / jnp.maximum(jnp.sqrt(((x - y) ** 2).sum(-1).max()), 1e-6)


@jax.jit
@jax.vmap
def both_moves(point: Any) -> tuple[Array, Array]:
    """How far a block moves, and how far with heads that do not normalise their weights."""
    return row_move(point["block"], point), row_move(adding(point["block"]), point)


def log_move(point: Any, _: Any) -> Array:
    """The logarithm of how far a block moves: that of a product of layers is a sum."""
    return jnp.log(row_move(point["block"], point) + 1e-12)


def unit_norms(block: Any) -> Any:
    """The block with every spectral norm, that of query times key among them, brought to 1: its constant is then given."""

    def scaled(head: Any) -> Any:
        if not isinstance(head, TransformerHead):
            return head
        weights = (
            head.key / jnp.linalg.norm(head.key @ head.query.T, 2),
            head.value / jnp.linalg.norm(head.value, 2),
            head.out / jnp.linalg.norm(head.out, 2),
        )
        return eqx.tree_at(lambda h: (h.key, h.value, h.out), head, weights)

    return jax.tree.map(scaled, block, is_leaf=lambda x: isinstance(x, TransformerHead))


def in_balls(point: Any, _: Any) -> Any:
    return {
        "x": attention.onto_ball(point["x"]),
        "y": attention.onto_ball(point["y"]),
        "block": unit_norms(point["block"]),
    }


def adding(block: Any) -> Any:
    """The same block with heads that do not normalise their weights."""
    match block:
        case TransformerHead():
            return attention.GeneralHead(
                score=lambda x, z: x @ (block.key @ (block.query.T @ z)),
                phi_in=lambda x: x @ block.value,
                phi_out=block.outer,
                normaliser=lambda scores, mask: scores,
            )
        case MultiHead():
            return MultiHead(tuple(adding(head) for head in block.heads))
        case Layer():
            return Layer(adding(block.head))
        case Residual():
            return Residual(adding(block.block))
        case Projected():
            return Projected(adding(block.block))
    return Stack(tuple(adding(inner) for inner in block.blocks))


@claim(
    "sparse-variables/layer-lipschitz",
    source=PAPER,
    reference="Theorem 4.7, the constant of a layer",
    statement=r"On tokens in a ball of radius B a layer is Lipschitz in $\max_t|x_t|$ with $L_\sigma B_CB_V(1 + 2CB_{QK}B^2)$, C = 1 for softmax; heads add,"
    r" a residual adds 1, a projection on the ball nothing, and constants multiply with depth; sought among weights of spectral norm 1.",
    words="What a stack of layers can do to a small change is a product of norms, and the length is not among them. One layer comes to some half of it, two to a tenth.",
    hypotheses=(
        TOKENS,
        SEARCH,
        Hypothesis(f"kind is one of {', '.join(KINDS)}", lambda s: s.kind in KINDS, defining=True),
    ),
    quick=Setting(kind=("plain", "residual"), depth=(1, 2), length=24, dim=6, starts=16, steps=150),
    paper=Setting(
        kind=(*KINDS, "residual"), depth=(1, 1, 1, 1, 2), length=64, dim=16, starts=32, steps=300
    ),
    rule=Bound(),
    control=Control(
        "heads that add up instead of averaging", lambda e: e.assign(measured=e["unnormalised"])
    ),
    figure=drawn_by(f"{FIGURES}.heads:depth_constants"),
    cells=together("kind", "depth"),
    budget="starts",
    needs=("sparse-variables/head-lipschitz",),
    origin="our reading",
)
def layer_lipschitz(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/layer-lipschitz"
    weights = normal_weights(key_for(seed, id, "layers"), cell.starts, cell.depth, 2, 4, cell.dim)
    blocks = jax.jit(jax.vmap(functools.partial(built, cell.kind)))(weights)
    x, near = (
        unit_tokens(key_for(seed, id, name), cell.starts, cell.length, cell.dim)
        for name in ("tokens", "near")
    )
    y = x + np.geomspace(0.01, 1, cell.starts)[:, None, None] * near
    found = climb(
        log_move, in_balls, {"x": x, "y": y, "block": blocks}, None, steps=cell.steps, largest=0.1
    ).point
    moved, without = map(np.asarray, both_moves(found))
    bounds = [
        np.exp(
            block_of(
                jax.tree.map(lambda w, i=i: w[i], found["block"]), cell.length, constant="sharp"
            )(0.0).log_lipschitz
        )
        for i in range(cell.starts)
    ]
    axes = ("cell", "start")
    return xr.Dataset(
        {
            "bound": (axes, [bounds]),
            "measured": (axes, moved[None]),
            "unnormalised": (axes, without[None]),
            "error": 0.0,
        }
    )
