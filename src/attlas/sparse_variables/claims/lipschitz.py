"""Claims about head, layer and read-out, and how much they can change: constants without the length in them."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from attlas import attention
from attlas.attention import Layer, MultiHead, Projected, ReadOut, Residual, Stack, TransformerHead, random_head
from attlas.capacity import block_of
from attlas.claims import Control, Hypothesis, Setting, claim, drawn_by, key_for, together
from attlas.search import climb
from attlas.sparse_variables.claims.shared import FIGURES, PAPER, SEARCH, TOKENS, unit_tokens
from attlas.statistics import Agreement, Bound


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
    control=Control("each token has its neighbour for a context", lambda e: e.assign(measured=e["shifted"])),
    figure=drawn_by(f"{FIGURES}.heads:head_layer_scalar"),
    budget="heads",
    origin="our reading",
)  # fmt: skip
def definitions(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    keys = jax.random.split(key_for(seed, "sparse-variables/definitions", "heads"), cell.heads)
    parts = jax.jit(jax.vmap(lambda key: views(key, cell.length, cell.dim)))(keys)
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


def views(key: Array, length: int, dim: int) -> dict[str, Array]:
    """A random head's layer and read-out by the module, and by other routes; and what they attend to."""
    head_key, token_key, order_key, cls_key = jax.random.split(key, 4)
    head = random_head(head_key, dim, scale=2.0)
    tokens = unit_tokens(token_key, length, dim)
    cls, weight = unit_tokens(cls_key, 2, dim)
    general = attention.GeneralHead(
        score=lambda x, z: x @ head.key @ head.query.T @ z,
        phi_in=lambda x: head.value.T @ x,
        phi_out=lambda y: head.out.T @ jax.nn.relu(y),
    )
    order = jax.random.permutation(order_key, length)
    layer = Layer(head)(tokens)
    rows = jax.vmap(general, (None, 0))(tokens, tokens)
    permuted = jnp.zeros_like(layer).at[order].set(Layer(head)(tokens[order]))
    scalar = ReadOut(Layer(head), cls, weight)
    whole = Layer(head)(jnp.concatenate([tokens, cls[None]]))[-1] @ weight
    with_cls = jnp.concatenate([tokens, cls[None]])
    gain = jax.grad(lambda y: head.outer(y) @ weight)(head.weights(with_cls, cls) @ head.inner(with_cls))
    return {
        "plain": jnp.concatenate([layer.ravel(), layer.ravel(), whole[None]]),
        "other": jnp.concatenate([rows.ravel(), permuted.ravel(), scalar(tokens)[None]]),
        "shifted": jnp.concatenate([jnp.roll(rows, -1, 0).ravel(), permuted.ravel(), scalar(tokens)[None]]),
        "weights": jax.vmap(head.weights, (None, 0))(tokens, tokens),
        "cls_weights": head.weights(with_cls, cls)[:-1],
        "cls_values": (head.inner(with_cls) @ gain)[:-1],
    }


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
)  # fmt: skip
def softmax_jacobian(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "sparse-variables/softmax-jacobian", "scores")
    u = cell.spread * jax.random.normal(key, (cell.points, cell.length))
    p = attention.softmax(u)
    jacobian = jax.lax.map(jax.jacfwd(attention.softmax), u)
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, 2 * (1 - (p**2).sum(-1))[None]),
            "measured": (axes, abs(jacobian).sum((1, 2))[None]),
            "error": 0.0,
            "largest": (axes, p.max(-1)[None]),
        }
    )


def moved_pair(point: Any) -> tuple[Array, Array]:
    """Scores u, and v, which differ from them by a given distance in the maximum."""
    return point["u"], point["u"] + jax.lax.stop_gradient(point["distance"]) * point["direction"]


def softmax_move(point: Any, _: Any) -> Array:
    """How far softmax moves in l_1."""
    u, v = moved_pair(point)
    return abs(attention.softmax(u) - attention.softmax(v)).sum()


def unit_direction(point: Any, _: Any) -> Any:
    return point | {"direction": point["direction"] / jnp.maximum(abs(point["direction"]).max(), 1e-9)}


def score_pairs(key: Array, starts: int, length: int) -> dict[str, Array]:
    """Pairs of scores to start from: random ones near and far from each other, and two blocks in balance that part."""
    a, b = jax.random.split(key)
    distance = jnp.geomspace(0.05, 8, starts)
    half = length // 2
    first = jnp.arange(length) < half
    balance = jnp.where(first, 0.0, jnp.log(half / (length - half)))
    # Every other start has the blocks, placed so that the move goes through their balance.
    even = (jnp.arange(starts) % 2 == 0)[:, None]
    sides = jnp.where(first, 1.0, -1.0)
    return {
        "u": jnp.where(even, balance - distance[:, None] / 2 * sides, 2 * jax.random.normal(a, (starts, length))),
        "direction": jnp.where(even, sides, jax.random.normal(b, (starts, length))),
        "distance": distance,
    }


def attacked(cells: Sequence[Setting], seed: int, id: str) -> xr.Dataset:
    """The worst pairs that an ascent finds, at distances from near to far."""
    (cell,) = cells
    start = score_pairs(key_for(seed, id, "scores"), cell.starts, cell.length)
    found = climb(softmax_move, unit_direction, start, None, steps=cell.steps)
    u, v = jax.vmap(moved_pair)(found.point)
    axes = ("cell", "start")
    return xr.Dataset(
        {
            "measured": (axes, found.value[None]),
            "unnormalised": (axes, abs(jnp.exp(u) - jnp.exp(v)).sum(-1)[None]),
            "distance": (axes, found.point["distance"][None]),
            "error": 0.0,
        }
    )


PAIRS = {
    "quick": Setting(length=(2, 7, 64, 1024), starts=32, steps=300),
    "paper": Setting(length=(2, 7, 64, 1024, 8192), starts=64, steps=300),
}


@claim(
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
        "exponentials that are not normalised", lambda e: e.assign(measured=e["unnormalised"])
    ),
    figure=drawn_by(f"{FIGURES}.heads:softmax_moves"),
    cells=together("length"),
    budget="starts",
    needs=("sparse-variables/softmax-jacobian",),
    origin="our reading",
)  # fmt: skip
def softmax_lipschitz(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    found = attacked(cells, seed, "sparse-variables/softmax-lipschitz")
    return found.assign(bound=2 * found["distance"])


@claim(
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
    needs=("sparse-variables/softmax-lipschitz",),
    origin="ours",
)  # fmt: skip
def softmax_sharp(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    found = attacked(cells, seed, "sparse-variables/softmax-sharp")
    return found.assign(bound=2 * np.tanh(found["distance"] / 2))


# --- the head ------------------------------------------------------------------------------------------------------


def head_sides(point: Any) -> tuple[Array, Array, Array]:
    r"""The move of a head's output when scores and values change, the bound of Lemma 4.3 with constant 1, and the same move
    without a normaliser. The bound is taken with the smaller of the two value maps' norms."""
    tokens = point["x"]
    u, u2, value, value2 = point["u"], point["u2"], point["v"], point["v2"]
    s, s2 = tokens @ u, tokens @ u2
    inner, inner2 = tokens @ value, tokens @ value2
    change = attention.softmax(s) @ inner - attention.softmax(s2) @ inner2
    radius = jnp.sqrt((tokens**2).sum(-1).max())
    least = jnp.minimum(jnp.linalg.norm(value, 2), jnp.linalg.norm(value2, 2))
    bound = least * radius * abs(s - s2).max() + jnp.sqrt(((inner - inner2) ** 2).sum(-1).max())
    return jnp.linalg.norm(change), bound, jnp.linalg.norm(s @ inner - s2 @ inner2)


def head_ratio(point: Any, _: Any) -> Array:
    moved, bound, _without = head_sides(point)
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
    control=Control(
        "a head that adds up instead of averaging (linear attention)", lambda e: e.assign(measured=e["unnormalised"])
    ),
    figure=drawn_by(f"{FIGURES}.heads:length_free"),
    cells=together("length"),
    budget="starts",
    needs=("sparse-variables/softmax-sharp",),
    origin="our reading",
)  # fmt: skip
def head_lipschitz(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    keys = jax.random.split(key_for(seed, "sparse-variables/head-lipschitz", "heads"), 5)
    n, t, d = cell.starts, cell.length, cell.dim
    apart = jnp.geomspace(0.02, 2, n)
    u = jax.random.normal(keys[1], (n, d))
    value = jax.random.normal(keys[2], (n, d, 2))
    start = {
        "x": unit_tokens(keys[0], n, t, d),
        "u": u,
        "u2": u + apart[:, None] * jax.random.normal(keys[3], (n, d)),
        "v": value,
        "v2": value + 0.1 * apart[:, None, None] * jax.random.normal(keys[4], (n, d, 2)),
    }
    found = climb(head_ratio, into_balls, start, None, steps=cell.steps)
    moved, bound, without = (np.asarray(x) for x in jax.vmap(head_sides)(found.point))
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


def built(kind: str, key: Array, depth: int, dim: int) -> attention.Block:
    """A random stack of so many layers: plain, with two heads each, residual, or projected."""

    def layer(key: Array) -> attention.Block:
        a, b = jax.random.split(key)
        head = random_head(a, dim, scale=1.0)
        if kind == "two heads":
            return Layer(MultiHead((head, random_head(b, dim, scale=1.0))))
        if kind == "residual":
            return Residual(Layer(head))
        if kind == "projected":
            return Projected(
                Layer(TransformerHead(head.key, head.query, head.value, head.out, jax.nn.relu, project=True))
            )
        return Layer(head)

    return Stack(tuple(layer(k) for k in jax.random.split(key, depth)))


def row_move(block: attention.Block, point: Any) -> Array:
    r"""How far the rows of the output move, in units of how far those of the input do, both in $\|\cdot\|_{2,\infty}$."""
    x, y = point["x"], point["y"]
    moved = jnp.sqrt(((block(x) - block(y)) ** 2).sum(-1).max())
    return moved / jnp.maximum(jnp.sqrt(((x - y) ** 2).sum(-1).max()), 1e-6)


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
    words="What a stack of layers can do to a small change is a product of norms, and the length is not among them.",
    hypotheses=(TOKENS, SEARCH, Hypothesis(f"kind is one of {', '.join(KINDS)}", lambda s: s.kind in KINDS, defining=True)),
    quick=Setting(kind=("plain", "residual", "plain"), depth=(1, 1, 2), length=24, dim=6, starts=16, steps=150),
    paper=Setting(kind=(*KINDS, "residual"), depth=(1, 1, 1, 1, 2), length=64, dim=16, starts=32, steps=300),
    rule=Bound(),
    control=Control("heads that add up instead of averaging", lambda e: e.assign(measured=e["unnormalised"])),
    figure=drawn_by(f"{FIGURES}.heads:depth_constants"),
    cells=together("kind", "depth"),
    budget="starts",
    needs=("sparse-variables/head-lipschitz",),
    origin="our reading",
)  # fmt: skip
def layer_lipschitz(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key, tokens, near = jax.random.split(key_for(seed, "sparse-variables/layer-lipschitz", "layers"), 3)
    blocks = jax.vmap(lambda key: built(cell.kind, key, cell.depth, cell.dim))(jax.random.split(key, cell.starts))
    x = unit_tokens(tokens, cell.starts, cell.length, cell.dim)
    y = x + jnp.geomspace(0.01, 1, cell.starts)[:, None, None] * unit_tokens(near, *x.shape)
    found = climb(log_move, in_balls, {"x": x, "y": y, "block": blocks}, None, steps=cell.steps, largest=0.1).point
    moved, without = jax.vmap(lambda p: (row_move(p["block"], p), row_move(adding(p["block"]), p)))(found)
    bounds = [
        np.exp(
            block_of(jax.tree.map(lambda w, i=i: w[i], found["block"]), cell.length, constant="sharp")(
                0.0
            ).log_lipschitz
        )
        for i in range(cell.starts)
    ]
    axes = ("cell", "start")
    return xr.Dataset(
        {
            "bound": (axes, [bounds]),
            "measured": (axes, np.asarray(moved)[None]),
            "unnormalised": (axes, np.asarray(without)[None]),
            "error": 0.0,
        }
    )
