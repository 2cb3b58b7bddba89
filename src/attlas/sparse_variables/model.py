r"""A Transformer of one layer that is read at [CLS], as it is trained on sparse functions.

Bits $b_1, \dots, b_T$ become tokens $x_t = e_{b_t} + p_t$, followed by [CLS], $c = e_2 + p_{T+1}$.
There is one block, without bias in the attention's own maps, and two logits:
$o = c + \sum_h A_h(c) W_O^h + b_O$, $y = o + \mathrm{GELU}(oW_1 + c_1)W_2 + c_2$, logits $yW$. With
`norms` a trained layer norm stands before attention, MLP and read-out. Edelman et al. 2022,
Section 5.

There are three forms of the same map. `logits_full` computes the block at every token and
`logits_query` only at [CLS]. `logits` uses that the layer sees no more than 2T + 1 different
tokens, whatever the number m of sequences: scores and values are tables, and a sequence is a choice
of rows. That costs two products of m x T x (d + h) numbers instead of m T d^2.

Arrays may have leading axes (of trials, say), the same in the parameters and in the bits, or in the
parameters alone. They are written out rather than left to `jax.vmap`, under which both branches of
a `cond` are always computed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from attlas.attention import softmax
from attlas.errors import InputError, whole
from attlas.surface import public

CLASSES = 2


@dataclass(frozen=True)
class Architecture:
    """What is built and how it is initialised, at any length.

    Arguments:
        dim, heads, hidden: width, number of heads, and units of the MLP.
        norms: whether there are the three layer norms.
        mlp: whether there is the two-layer network after attention.
        uniform: whether all attention weights are equal.
        pairs: give the second half of the heads the value maps of the first and minus its output
            maps: attention adds nothing at first, and half of the heads have the useful sign.
        weight_scale, token_scale, position_scale: standard deviations at the start.
    """

    dim: int = 64
    heads: int = 4
    hidden: int = 64
    norms: bool = False
    mlp: bool = True
    uniform: bool = False
    pairs: bool = False
    weight_scale: float = 0.02
    token_scale: float = 0.02
    position_scale: float = 0.02

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "hidden"):
            whole(name, getattr(self, name), 1)
        if self.dim % self.heads:
            raise InputError(f"heads = {self.heads}: they must divide the dimension {self.dim}")
        if self.pairs and self.heads % 2:
            raise InputError(f"heads = {self.heads}: pairs of heads need an even number")
        for name in ("weight_scale", "token_scale", "position_scale"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(
                    f"{name} = {getattr(self, name)!r}: it must be a finite number, at least 0"
                )

    @public
    def initialise(self, length: int, key: Array) -> "Transformer":
        """Independent normal weights; biases 0, gains 1."""
        whole("length", length, 1)
        d, h, k = self.dim, self.heads, self.dim // self.heads
        shapes = {
            "query": (d, h, k),
            "key": (d, h, k),
            "value": (d, h, k),
            "out": (h, k, d),
            "first": (d, self.hidden),
            "second": (self.hidden, d),
            "read": (d, CLASSES),
            "tokens": (3, d),
            "positions": (length + 1, d),
        }
        scales = {"tokens": self.token_scale, "positions": self.position_scale}
        # One draw compiles fast. Positions come last: all else is the same at every length (with
        # JAX's default generator).
        ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
        parts = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
        drawn = {
            name: scales.get(name, self.weight_scale) * part.reshape(shapes[name])
            for name, part in zip(shapes, parts, strict=True)
        }
        first, second = drawn.pop("first"), drawn.pop("second")
        if self.pairs:
            drawn["value"] = jnp.concatenate([drawn["value"][:, : h // 2]] * 2, 1)
            drawn["out"] = jnp.concatenate([drawn["out"][: h // 2], -drawn["out"][: h // 2]])
        mlp = Perceptron(first, jnp.zeros(self.hidden), second, jnp.zeros(d))
        norms = tuple(Norm(jnp.ones(d), jnp.zeros(d)) for _ in range(3))
        return Transformer(
            **drawn,
            out_bias=jnp.zeros(d),
            mlp=mlp if self.mlp else None,
            norms=norms if self.norms else None,
            architecture=self,
        )


class Norm(eqx.Module):
    """Layer norm with a gain and a shift for each coordinate."""

    gain: Float[Array, "*n d"]
    shift: Float[Array, "*n d"]

    def __call__(self, x: Float[Array, "*n m d"]) -> Float[Array, "*n m d"]:
        centred = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred * scale * self.gain[..., None, :] + self.shift[..., None, :]


class Perceptron(eqx.Module):
    """GELU(x W_1 + c_1) W_2 + c_2."""

    first: Float[Array, "*n d hidden"]
    first_bias: Float[Array, "*n hidden"]
    second: Float[Array, "*n hidden o"]
    second_bias: Float[Array, "*n o"]

    def __call__(self, x: Float[Array, "*n m d"]) -> Float[Array, "*n m o"]:
        units = jax.nn.gelu(x @ self.first + self.first_bias[..., None, :])
        return units @ self.second + self.second_bias[..., None, :]


class Transformer(eqx.Module):
    """The parameters; leading axes *n, if any, are the same for all of them."""

    tokens: Float[Array, "*n 3 d"]  # bit 0, bit 1, [CLS]
    positions: Float[Array, "*n places d"]  # T of them and that of [CLS]
    query: Float[Array, "*n d h k"]
    key: Float[Array, "*n d h k"]
    value: Float[Array, "*n d h k"]
    out: Float[Array, "*n h k d"]
    out_bias: Float[Array, "*n d"]
    mlp: Perceptron | None
    norms: tuple[Norm, ...] | None  # before attention, MLP and read-out
    read: Float[Array, "*n d 2"]
    architecture: Architecture = eqx.field(static=True)

    @property
    def length(self) -> int:
        return self.positions.shape[-2] - 1

    def logits(self, bits: ArrayLike, careful: bool = True) -> Float[Array, "*n m 2"]:
        """The table form.

        Arguments:
            bits: of shape [*n, m, T]; one that is neither 0 nor 1 has no token.
            careful: if not, heads whose scores are too far apart for sums (see `mixture` and
                `mixture_of_sums`) give NaN, and steps are faster by a tenth.
        """
        bits = jnp.asarray(bits)
        if self.norms is None:
            cls, maps = _token_maps(self)
            mixed = mixture_of_sums(
                self.tokens @ maps, self.positions @ maps, bits, self.architecture.heads, careful
            )
        else:
            scores, values, cls = tables(self)
            mixed = mixture(scores, values, choose(bits, scores.dtype), careful)
        return self._read_logits(cls[..., None, :], mixed.reshape(*mixed.shape[:-2], -1))

    def _norm(self, i: int, x: Float[Array, "*n m d"]) -> Float[Array, "*n m d"]:
        return x if self.norms is None else self.norms[i](x)

    def _read_logits(
        self, tokens: Float[Array, "*n #m d"], mixed: Float[Array, "*n m d"]
    ) -> Float[Array, "*n m 2"]:
        """From what the heads gathered for each token to its logits."""
        out = self.out.reshape(*self.out.shape[:-3], -1, self.out.shape[-1])
        tokens = tokens + (mixed @ out + self.out_bias[..., None, :])
        if self.mlp is not None:
            tokens = tokens + self.mlp(self._norm(1, tokens))
        return self._norm(2, tokens) @ self.read


def choose(bits: ArrayLike, dtype: jnp.dtype | None = None) -> Float[Array, "*n m rows"]:
    """Which of the 2T + 1 tokens a sequence has, as zeros and ones.

    The rows are bit 0 at each place, bit 1 at each place, [CLS].
    """
    bits = jnp.asarray(bits)
    own = jnp.ones((*bits.shape[:-1], 1), bool)
    return jnp.concatenate([bits == 0, bits == 1, own], -1).astype(dtype or jnp.zeros(()).dtype)


def tables(
    model: Transformer,
) -> tuple[Float[Array, "*n rows h"], Float[Array, "*n rows h k"], Float[Array, "*n d"]]:
    r"""Scores and values of the 2T + 1 tokens, and the token [CLS].

    A score is $\langle W_K^\top x, W_Q^\top c\rangle/\sqrt k$.
    """
    cls, maps = _token_maps(model)
    d, h, k = model.value.shape[-3:]
    found = model._norm(0, _rows(model.tokens, model.positions)) @ maps
    return found[..., d:], found[..., :d].reshape(*found.shape[:-1], h, k), cls


def _token_maps(model: Transformer) -> tuple[Float[Array, "*n d"], Float[Array, "*n d c"]]:
    """The token [CLS], and the map from tokens to values and scores, c = d + h."""
    h, k = model.value.shape[-2:]
    cls = model.tokens[..., 2, :] + model.positions[..., -1, :]
    query = jnp.einsum(
        "...d,...dhk->...hk", model._norm(0, cls[..., None, :])[..., 0, :], model.query
    )
    score = jnp.einsum("...dhk,...hk->...dh", model.key, query) / k**0.5
    if model.architecture.uniform:
        score = jnp.zeros_like(score)
    return cls, jnp.concatenate([model.value.reshape(*model.value.shape[:-2], h * k), score], -1)


def _rows(
    tokens: Float[Array, "*n 3 c"], positions: Float[Array, "*n places c"]
) -> Float[Array, "*n rows c"]:
    """Sums of token and position in the order of `choose`."""
    bits = [positions[..., :-1, :] + tokens[..., i : i + 1, :] for i in range(2)]
    return jnp.concatenate([*bits, positions[..., -1:, :] + tokens[..., 2:, :]], -2)


def mixture(
    scores: Float[Array, "*n rows h"],
    values: Float[Array, "*n rows h k"],
    chosen: Float[Array, "*b m rows"],
    careful: bool = True,
) -> Float[Array, "*n m h k"]:
    r"""Softmax over the chosen rows $C_i$ of each sequence, for each head, by two sums.

    $\sum_{r \in C_i} e^{s_r} v_r / \sum_{r \in C_i} e^{s_r}$ is a quotient of
    $[N, D] = C[e^{s - c}v,\, e^{s - c}]$, sums of nonnegative multiples.

    One offset c has to serve all sequences. The largest score G may be chosen by none of them, but
    every sequence has a score of at least $L = \max(s_{CLS}, \max_t\min_b s_{b,t})$: it contains
    [CLS] and, at each place, one of two tokens. So $c = \max(L, G - 0.72\ln F)$, with F the largest
    number of the precision, keeps every sum in range and loses nothing above rounding as long as
    $G - L \le 1.44\ln F - 8$: 119 in single precision, 1014 in double. Without layer norms $G - L$
    is at most the difference between the scores of the two bits.

    Heads of trials for which it is larger give NaN or, if `careful`, are computed with a softmax
    for each sequence, some five times slower: the result and its gradients are then right for any
    finite scores (and values below a billion). As in any softmax, the error of a gradient in the
    scores is that of rounding relative to the values and to the incoming gradient, not to itself.

    Arguments:
        scores, values: tables, as `tables` gives them.
        chosen: rows of each sequence, as `choose` gives them.
    """
    half = 0.72 * float(np.log(float(jnp.finfo(scores.dtype).max)))
    fixed, length = jax.lax.stop_gradient(scores), scores.shape[-2] // 2
    zero, one, cls = fixed[..., :length, :], fixed[..., length:-1, :], fixed[..., -1, :]
    top, least = fixed.max(-2), jnp.maximum(cls, jnp.minimum(zero, one).max(-2))
    wide = top - least > 2 * half - 8
    safe = jnp.where(wide[..., None, :], 0, scores - jnp.maximum(least, top - half)[..., None, :])
    h, k = values.shape[-2:]
    powers = jnp.exp(safe)
    columns = (powers[..., None] * values).reshape(*powers.shape[:-1], h * k)
    sums = chosen @ jnp.concatenate([columns, powers], -1)
    above, below = sums[..., : h * k].reshape(*sums.shape[:-1], h, k), sums[..., h * k :, None]
    # Brought to size 1 first: the derivative of a quotient has the square of what is below.
    scale = jax.lax.stop_gradient(1 / below)
    mixed = (above * scale) / (below * scale)
    return _replace_wide(wide, mixed, careful, _mix_by_softmax, scores, values, chosen)


def mixture_of_sums(
    tokens: Float[Array, "*n 3 c"],
    positions: Float[Array, "*n places c"],
    bits: Array,
    heads: int,
    careful: bool = True,
) -> Float[Array, "*n m h k"]:
    r"""`mixture` where the d values and h scores of a token are sums over its bit and its position.

    With $S_b = \sum_{t: b_t = b} e^{\beta_t}[w_t, 1]$, sums over T rows instead of 2T, it is
    $\sum_b e^{\alpha_b}(S_b^w + S_b^1u_b)$, with the like for [CLS], divided by
    $\sum_b e^{\alpha_b}S_b^1$.

    Every sequence has all places, so one with the largest $\beta$: what matters in $S_b$ is no more
    than $|\alpha_0 - \alpha_1| + 16$ below it. With a quarter of the range of exponents above it,
    all of that is in range as long as $|\alpha_0 - \alpha_1| \le 0.9\ln F$: 80 in single precision,
    638 in double. Other heads are treated as `mixture` does.
    """
    d = tokens.shape[-1] - heads
    limit = float(np.log(float(jnp.finfo(tokens.dtype).max)))
    values, scores, places = tokens[..., :d], tokens[..., d:], positions[..., :-1, :]
    top = jax.lax.stop_gradient(places[..., d:].max(-2, keepdims=True))
    own = positions[..., -1:, :] + tokens[..., 2:, :]
    alpha = jnp.concatenate([scores[..., :2, :], own[..., d:] - top], -2)
    wide = abs(jax.lax.stop_gradient(scores[..., 0, :] - scores[..., 1, :])) > 0.9 * limit
    if careful:
        alpha = jnp.where(wide[..., None, :], 0, alpha)
    powers = jnp.exp(alpha - jax.lax.stop_gradient(alpha.max(-2, keepdims=True)))
    each = jnp.exp(places[..., d:] - top + limit / 4)
    # What a head has, for each of its values: XLA is faster with a product than with a repetition.
    spread = jnp.repeat(jnp.eye(heads, dtype=tokens.dtype), d // heads, 1)
    rows = jnp.concatenate([(each @ spread) * places[..., :d], each], -1)
    below = math.exp(limit / 4) * powers[..., 2:, :]
    above = (below @ spread) * own[..., :d]
    for b in range(2):
        sums = (bits == b).astype(tokens.dtype) @ rows
        power = powers[..., b : b + 1, :]
        share = sums[..., d:] * power
        above = (
            above + sums[..., :d] * (power @ spread) + (share @ spread) * values[..., b : b + 1, :]
        )
        below = below + share
    scale = jax.lax.stop_gradient(1 / below)  # as in `mixture`
    mixed = above * (scale @ spread) / ((below * scale) @ spread)
    mixed = mixed.reshape(*mixed.shape[:-1], heads, -1)

    def by_softmax(tokens: Array, positions: Array) -> Array:
        found = _rows(tokens, positions)
        values = found[..., :d].reshape(*found.shape[:-1], heads, -1)
        return _mix_by_softmax(found[..., d:], values, choose(bits, found.dtype))

    return _replace_wide(wide, mixed, careful, by_softmax, tokens, positions)


def _replace_wide(
    wide: Bool[Array, "*n h"],
    mixed: Float[Array, "*n m h k"],
    careful: bool,
    by_softmax: Callable[..., Array],
    *tables: Array,
) -> Float[Array, "*n m h k"]:
    """`mixed` with NaN or, if `careful`, `by_softmax(*tables)` in place of its `wide` heads."""
    flags = wide[..., None, :, None]
    if not careful:
        return jnp.where(flags, jnp.nan, mixed)

    def replaced(*tables: Array) -> Array:
        return jnp.where(flags, by_softmax(*tables), mixed)

    return jax.lax.cond(wide.any(), jax.checkpoint(replaced), lambda *_: mixed, *tables)


def _mix_by_softmax(
    scores: Float[Array, "*n rows h"],
    values: Float[Array, "*n rows h k"],
    chosen: Float[Array, "*b m rows"],
) -> Float[Array, "*n m h k"]:
    """The same by a softmax over the chosen rows of each sequence: m x 2T x h numbers."""
    return jnp.einsum("...mhr,...rhk->...mhk", _row_weights(scores, chosen), values)


def _row_weights(
    scores: Float[Array, "*n rows h"], chosen: Float[Array, "*b m rows"]
) -> Float[Array, "*n m h rows"]:
    return softmax(jnp.swapaxes(scores, -1, -2)[..., None, :, :], chosen[..., None, :] > 0)


def logits(model: Transformer, bits: ArrayLike) -> Float[Array, "*n m 2"]:
    """Two logits for each sequence of `bits` [*n, m, T], by the table."""
    return model.logits(_check_bits(model, bits))


def logits_query(model: Transformer, bits: ArrayLike) -> Float[Array, "*n m 2"]:
    """The same with keys and values for every token of every sequence, and the query of [CLS]."""
    tokens = _embed(model, bits)
    return _block_logits(model, tokens[..., -1:, :], tokens)[..., 0, :]


def logits_full(model: Transformer, bits: ArrayLike) -> Float[Array, "*n m 2"]:
    """The same with the whole block computed at every token: the reference."""
    tokens = _embed(model, bits)
    return _block_logits(model, tokens, tokens)[..., -1, :]


def attention_weights(model: Transformer, bits: ArrayLike) -> Float[Array, "*n m h places"]:
    """What share of each head's attention each place has in each sequence, and last [CLS]."""
    bits = _check_bits(model, bits)
    weights = _row_weights(tables(model)[0], choose(bits, model.tokens.dtype))
    length = model.length
    return jnp.concatenate([weights[..., :length] + weights[..., length:-1], weights[..., -1:]], -1)


def _check_bits(model: Transformer, bits: ArrayLike) -> Array:
    bits = jnp.asarray(bits)
    if bits.ndim < 2 or bits.shape[-1] != model.length:
        raise InputError(
            f"bits have the shape {bits.shape}: they must be [sequences, {model.length}]"
        )
    return bits


def _embed(model: Transformer, bits: ArrayLike) -> Float[Array, "*n m places d"]:
    bits = _check_bits(model, bits)
    zero, one, cls = (model.tokens[..., None, None, i, :] for i in range(3))
    drawn = jnp.where(bits[..., None] == 1, one, zero)
    own = jnp.broadcast_to(cls, (*drawn.shape[:-2], 1, drawn.shape[-1]))
    return jnp.concatenate([drawn, own], -2) + model.positions[..., None, :, :]


def _block_logits(
    model: Transformer, contexts: Float[Array, "*n m q d"], tokens: Float[Array, "*n m places d"]
) -> Float[Array, "*n m q 2"]:
    """The logits at `contexts`, tokens of sequences that attend to all `tokens` of theirs."""
    each = jax.tree.map(lambda x: jnp.expand_dims(x, model.tokens.ndim - 2), model)
    queries, keys, values = (
        jnp.einsum("...td,...dhk->...thk", each._norm(0, x), w)
        for x, w in ((contexts, each.query), (tokens, each.key), (tokens, each.value))
    )
    scores = jnp.einsum("...qhk,...thk->...hqt", queries, keys) / queries.shape[-1] ** 0.5
    weights = softmax(jnp.zeros_like(scores) if model.architecture.uniform else scores)
    mixed = jnp.einsum("...hqt,...thk->...qhk", weights, values)
    return each._read_logits(contexts, mixed.reshape(*mixed.shape[:-2], -1))
