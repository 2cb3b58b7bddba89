r"""Attention: a mixture of the values of a context, weighted by how well their keys answer a query.

Functions on queries, keys and values, and small modules that compose: heads (general, Transformer,
several), blocks that map sequences to sequences (a head at every token, residual, projected,
stacked) and the scalar read at [CLS]. Sequences are rows, [length, dim]; a matrix of weights acts
as $x \mapsto W^\top x$, [in, out]. Batches are made with `jax.vmap`. Edelman et al. 2022, Section
3.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from attlas.errors import InputError, positive
from attlas.gaussian import Real
from attlas.surface import public

Mask = Bool[Array, "..."]
"""True where a token may be attended to; an axis of queries may come before that of tokens."""
Tokens = Float[Array, "n d"]
Context = Float[Array, " d"]
Scores = Float[Array, " n"]
Output = Float[Array, " o"]


@public
def softmax(scores: Float[Array, "... n"], mask: Mask | None = None) -> Float[Array, "... n"]:
    r"""$e^{s_t} / \sum_\tau e^{s_\tau}$ over the tokens that `mask` admits; all weights are 0
    where it admits none.

    Arguments:
        scores: [..., n]. `mask`: [..., n], true where a token counts.

    >>> import jax.numpy as jnp
    >>> from attlas.attention import softmax
    >>> softmax(jnp.zeros(4), mask=jnp.array([True, True, False, False])).tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    if mask is None:
        return jax.nn.softmax(scores)
    if mask.shape[-1] != scores.shape[-1]:
        raise InputError(
            f"the mask has the shape {mask.shape}: its last axis must be {scores.shape[-1]} long, "
            "one for each token"
        )
    admitted = jnp.where(mask, scores, -jnp.inf)
    top = jnp.max(admitted, -1, keepdims=True)
    powers = jnp.exp(admitted - jnp.where(jnp.isfinite(top), top, 0))
    total = powers.sum(-1, keepdims=True)
    return powers / jnp.where(total > 0, total, 1)


@public
def softmax_attention(
    queries: Float[Array, "*s q d"],
    keys: Float[Array, "*s n d"],
    values: Float[Array, "*s n k"],
    *,
    temperature: Real = 1.0,
    mask: Mask | None = None,
) -> Float[Array, "*s q k"]:
    r"""$V^\top\mathrm{softmax}(Kq/\text{temperature})$ for each query q.

    On the sphere this is the Nadaraya-Watson estimate with the Gaussian kernel of squared bandwidth
    `temperature` (Zhang et al. 2022).

    Arguments:
    - `queries` [*s q d], `keys` [*s n d], `values` [*s n k].
    - `temperature` [*s]: may differ between sequences or heads.
    - `mask` [n] or [*s q n]: one for each sequence is `mask[..., None, :]`. Values that no query
      attends to may be NaN.

    >>> import jax.numpy as jnp
    >>> from attlas.attention import linear_attention, softmax_attention
    >>> keys, values = jnp.eye(3), jnp.array([[1.0], [2.0], [3.0]])
    >>> print(softmax_attention(keys[:1], keys, values, temperature=0.01))
    [[1.]]
    >>> print(linear_attention(keys[:1], keys, values))
    [[1.]]
    """
    scores = queries @ jnp.swapaxes(keys, -1, -2) / _per_sequence(temperature)
    if mask is not None:
        if not isinstance(mask, Tracer) and not np.asarray(mask).any():
            raise InputError("the mask admits no token: it must admit at least one")
        # NaN propagates through 0 * x, so values that no query reads become 0.
        read = jnp.broadcast_to(mask, scores.shape).any(-2)
        values = jnp.where(read[..., None], values, 0)
    return softmax(scores, mask) @ values


def _per_sequence(temperature: Real) -> Array:
    """One temperature for all, or one for each of the leading axes, as [*s 1 1]."""
    return jnp.asarray(positive("temperature", temperature))[..., None, None]


@public
def linear_attention(
    queries: Float[Array, "*s q d"],
    keys: Float[Array, "*s n d"],
    values: Float[Array, "*s n k"],
    *,
    temperature: Real = 1.0,
    mask: Mask | None = None,
) -> Float[Array, "*s q k"]:
    r"""$\sum_t \langle q, k_t\rangle v_t / \text{temperature}$ for each query q.

    The weights are not normalised, so that the sum $\sum_t k_t v_t^\top$ serves any number of
    queries.

    Arguments: as in `softmax_attention`, but all values must be finite.
    """
    scale = _per_sequence(temperature)
    if mask is None or mask.ndim == 1:
        kept = values if mask is None else values * mask[:, None]
        return queries @ (jnp.swapaxes(keys, -1, -2) @ kept) / scale
    return jnp.where(mask, queries @ jnp.swapaxes(keys, -1, -2), 0) @ values / scale


@public
def onto_ball(x: Float[Array, "*s d"]) -> Float[Array, "*s d"]:
    r"""$\Pi(x) = x / \max(1, |x|)$, the projection of each row on the unit ball: what stands for
    layer norm in the theory.

    Arguments:
        x: rows [..., d].

    >>> import jax.numpy as jnp
    >>> from attlas.attention import onto_ball
    >>> print(onto_ball(jnp.array([[3.0, 4.0], [0.3, 0.4]])))
    [[0.6 0.8]
     [0.3 0.4]]
    """
    square = jnp.sum(x**2, -1, keepdims=True)
    return x / jnp.sqrt(jnp.maximum(1, square))


class Head(eqx.Module):
    r"""$\phi_{out}\big(\sum_t \mathrm{Norm}(\mathrm{Score}(x_1, z), \dots, \mathrm{Score}(x_T,
    z))_t\, \phi_{in}(x_t)\big)$ for tokens $x_t$ and a context $z$ (Definition 3.1). Subclasses
    say what the score, the normaliser and the position-wise maps are.

    Arguments:
        scores: of the tokens, [length].
        inner: $\phi_{in}$ of the tokens, [length, k].
        outer: $\phi_{out}$ of their mixture.
    """

    @abstractmethod
    def scores(self, tokens: Tokens, context: Context) -> Scores: ...

    @abstractmethod
    def inner(self, tokens: Tokens) -> Float[Array, "n k"]: ...

    @abstractmethod
    def outer(self, mixture: Float[Array, " k"]) -> Output: ...

    def weights(self, tokens: Tokens, context: Context, mask: Mask | None = None) -> Scores:
        """The share of each token in the attention."""
        return softmax(self.scores(tokens, context), mask)

    def __call__(self, tokens: Tokens, context: Context, mask: Mask | None = None) -> Output:
        return self.outer(self.weights(tokens, context, mask) @ self.inner(tokens))


class GeneralHead(Head):
    """A head of any score(x, z), normaliser(scores, mask) and position-wise maps.

    Arguments:
        score: of a token and the context. `phi_in`, `phi_out`: before and after the mixture.
        normaliser: of the scores, given the mask.

    >>> import jax.numpy as jnp
    >>> from attlas.attention import GeneralHead, identity
    >>> head = GeneralHead(lambda x, z: x @ z, identity, identity)
    >>> print([f"{x:.3f}" for x in head(jnp.eye(2), jnp.array([5.0, 0.0]))])
    ['0.993', '0.007']
    """

    score: Callable[[Array, Array], Array]
    phi_in: Callable[[Array], Array]
    phi_out: Callable[[Array], Array]
    normaliser: Callable[[Array, Mask | None], Array] = softmax

    def scores(self, tokens: Tokens, context: Context) -> Scores:
        return jax.vmap(self.score, (0, None))(tokens, context)

    def weights(self, tokens: Tokens, context: Context, mask: Mask | None = None) -> Scores:
        return self.normaliser(self.scores(tokens, context), mask)

    def inner(self, tokens: Tokens) -> Float[Array, "n k"]:
        return jax.vmap(self.phi_in)(tokens)

    def outer(self, mixture: Float[Array, " k"]) -> Output:
        return self.phi_out(mixture)


def identity(x: Array) -> Array:
    """What comes in, the activation of a linear head.

    Arguments:
        x: any array.
    """
    return x


class TransformerHead(Head):
    r"""$W_C^\top\sigma\big(W_V^\top X^\top \mathrm{softmax}(X W_K W_Q^\top z)\big)$, with $W_K,
    W_Q$ [d, r], $W_V$ [d, k], $W_C$ [k, o].

    The factor $1/\sqrt r$ of common code is part of $W_Q$ here. `activation` acts on each entry and
    vanishes at 0; `lipschitz` is its constant. With `project`, $\sigma$ sees the mixture's
    projection on the unit ball.

    Arguments:
        key, query: $W_K$ and $W_Q$. `value`: $W_V$. `out`: $W_C$.
    """

    key: Array
    query: Array
    value: Array
    out: Array
    activation: Callable[[Array], Array] = eqx.field(static=True, default=identity)
    lipschitz: float = eqx.field(static=True, default=1.0)
    project: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        shapes = {name: jnp.shape(getattr(self, name)) for name in ("key", "query", "value", "out")}
        for name, shape in shapes.items():
            if len(shape) != 2:
                raise InputError(f"{name} has the shape {shape}: it must be a matrix")
        if shapes["key"] != shapes["query"] or shapes["key"][0] != shapes["value"][0]:
            raise InputError(
                f"key {shapes['key']}, query {shapes['query']} and value {shapes['value']} do not "
                "fit: key and query have one"
                " shape, and value as many rows"
            )
        if shapes["value"][1] != shapes["out"][0]:
            raise InputError(
                f"value {shapes['value']} and out {shapes['out']} do not fit: out has a row for "
                "each value"
            )

    def scores(self, tokens: Tokens, context: Context) -> Scores:
        if tokens.shape[-1] != self.key.shape[0]:
            raise InputError(
                f"tokens have the dimension {tokens.shape[-1]}: this head takes {self.key.shape[0]}"
            )
        return tokens @ (self.key @ (self.query.T @ context))

    def inner(self, tokens: Tokens) -> Float[Array, "n k"]:
        return tokens @ self.value

    def outer(self, mixture: Float[Array, " k"]) -> Output:
        return self.activation(onto_ball(mixture) if self.project else mixture) @ self.out


class MultiHead(eqx.Module):
    """The sum of several heads on the same tokens and context; itself a head.

    Arguments:
        heads: the heads, which agree in the shapes of tokens and outputs.
    """

    heads: tuple[Head, ...] = eqx.field(converter=tuple)

    def __check_init__(self) -> None:
        if not self.heads:
            raise InputError("heads is empty: there must be at least one")

    def __call__(self, tokens: Tokens, context: Context, mask: Mask | None = None) -> Output:
        return jnp.stack([head(tokens, context, mask) for head in self.heads]).sum(0)


class Block(eqx.Module):
    """A map from sequences to sequences."""

    @abstractmethod
    def __call__(self, tokens: Tokens, mask: Mask | None = None) -> Float[Array, "n o"]: ...


class Layer(Block):
    """The head at every token, each being its own context (Definition 3.2). `mask` is [length],
    or [length, length] with a row for each context, as a causal mask is.

    Arguments:
        head: one, or several that are added.
    """

    head: Head | MultiHead

    def __call__(self, tokens: Tokens, mask: Mask | None = None) -> Float[Array, "n o"]:
        rows = 0 if mask is not None and mask.ndim == 2 else None
        return jax.vmap(self.head, (None, 0, rows))(tokens, tokens, mask)


class Residual(Block):
    """$X + f(X)$.

    Arguments:
        block: $f$.
    """

    block: Block

    def __call__(self, tokens: Tokens, mask: Mask | None = None) -> Tokens:
        return tokens + self.block(tokens, mask)


class Projected(Block):
    r"""$\Pi f(X)$, each row on the unit ball.

    Arguments:
        block: $f$.
    """

    block: Block

    def __call__(self, tokens: Tokens, mask: Mask | None = None) -> Float[Array, "n o"]:
        return onto_ball(self.block(tokens, mask))


class Stack(Block):
    """One block after the other.

    Arguments:
        blocks: in the order in which they act.
    """

    blocks: tuple[Block, ...] = eqx.field(converter=tuple)

    def __check_init__(self) -> None:
        if not self.blocks:
            raise InputError("blocks is empty: there must be at least one")

    def __call__(self, tokens: Tokens, mask: Mask | None = None) -> Float[Array, "n o"]:
        for block in self.blocks:
            tokens = block(tokens, mask)
        return tokens


class ReadOut(eqx.Module):
    r"""$w^\top [f([X; x_{CLS}])]_{CLS}$, a number for a sequence (Figure 1); $x_{CLS}$ is
    `context`. With `attend` off, [CLS] is a context and no key; the bounds are the same.

    Arguments:
        block: $f$. `weight`: $w$ [d].
    """

    block: Block
    context: Array
    weight: Array
    attend: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        for name in ("context", "weight"):
            shape = jnp.shape(getattr(self, name))
            if len(shape) != 1:
                raise InputError(f"{name} has the shape {shape}: it must be a vector")

    def __call__(self, tokens: Tokens, mask: Mask | None = None) -> Float[Array, ""]:
        if tokens.shape[-1] != len(self.context):
            raise InputError(
                f"tokens have the dimension {tokens.shape[-1]}: the context has {len(self.context)}"
            )
        sequence = jnp.concatenate([tokens, self.context[None]])
        if mask is not None or not self.attend:
            given = jnp.ones(len(tokens), bool) if mask is None else mask
            if given.ndim == 2:  # a row for each context, and one for [CLS], which sees all
                given = jnp.concatenate([given, jnp.ones((1, len(tokens)), bool)])
            mask = jnp.concatenate([given, jnp.full((*given.shape[:-1], 1), self.attend)], -1)
        if isinstance(self.block, Layer):  # one layer: only the context [CLS] is read
            seen = mask if mask is None else mask.reshape(-1, len(sequence))[-1]
            return self.block.head(sequence, self.context, seen) @ self.weight
        return self.block(sequence, mask)[-1] @ self.weight


@public
def random_head(
    key: Array,
    dim: int,
    width: int | None = None,
    *,
    scale: float = 1.0,
    activation: Callable[[Array], Array] = jax.nn.relu,
    **options: Any,
) -> TransformerHead:
    r"""A Transformer head with independent normal weights of variance $\text{scale}^2/d$.

    Arguments:
    - `dim`, `width`: the head maps `dim` to `dim` through `width`, `dim` unless given.
    - `scale`: of the weights.
    - `activation`, `options`: of `TransformerHead`; options are `lipschitz` and `project`.
    - `key`: of JAX.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from attlas.attention import (
    ...     Block, Head, Layer, MultiHead, Projected, ReadOut, Residual, Stack, random_head)
    >>> heads = MultiHead([random_head(key, dim=4) for key in jax.random.split(jax.random.key(0))])
    >>> block = Residual(Projected(Layer(heads)))
    >>> network = ReadOut(Stack([block, block]), context=jnp.ones(4), weight=jnp.ones(4))
    >>> print(isinstance(block, Block), isinstance(heads.heads[0], Head))
    True True
    >>> network(jnp.ones((3, 4))).shape
    ()
    """
    width = dim if width is None else width
    shapes = (dim, width), (dim, width), (dim, width), (width, dim)
    w_key, w_query, w_value, w_out = (
        scale / jnp.sqrt(dim) * jax.random.normal(one, shape)
        for one, shape in zip(jax.random.split(key, 4), shapes, strict=True)
    )
    return TransformerHead(w_key, w_query, w_value, w_out, activation, **options)
