"""The capacity of modules of `attlas.attention`, by the norms of their weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from attlas import attention
from attlas.capacity.blocks import (
    Block,
    HeadNorms,
    collapsed_head,
    head_block,
    multi_head,
    projected,
    residual,
    softmax_constant,
    stacked,
)
from attlas.capacity.bounds import Capacity, class_of, read_out
from attlas.covers import as_matrix, column_norm, spectral_norm
from attlas.errors import InputError, positive, whole
from attlas.surface import public


@public
def head_norms(
    head: attention.TransformerHead, context: Float[ArrayLike, " dim"] | None = None
) -> HeadNorms:
    """The norms of a head's weights, at a fixed `context` [dim] if there is one.

    The product of query and key [dim, dim] is never formed: its norms are those of triangular
    factors.

    Arguments:
        head: with its weights.
    """
    _check_activation(head)
    key, query, value, out = (as_matrix(w) for w in (head.key, head.query, head.value, head.out))
    by_key, by_query = np.linalg.qr(key)[1], np.linalg.qr(query)[1]
    columns = float(np.linalg.norm(by_key @ query.T, axis=0).sum())
    rows = float(np.linalg.norm(by_query @ key.T, axis=0).sum())
    score = None
    if context is not None:
        score = float(np.linalg.norm(key @ (query.T @ np.asarray(context, float))))
    return HeadNorms(
        value=spectral_norm(value),
        value_21=column_norm(value),
        query_key=spectral_norm(by_key @ by_query.T),
        query_key_21=min(columns, rows),
        out=spectral_norm(out),
        out_21=column_norm(out),
        dim=key.shape[0],
        width=value.shape[1],
        out_dim=out.shape[1],
        lipschitz=head.lipschitz,
        score=score,
        project=head.project,
    )


def _check_activation(head: attention.TransformerHead) -> None:
    """The bounds hold for an activation that vanishes at 0 and has the Lipschitz constant that
    the head says."""
    x = np.linspace(-8, 8, 3201)
    y = np.asarray(head.activation(jnp.asarray(x)), float)
    if abs(y[1600]) > 1e-6:
        raise InputError(
            f"activation is {y[1600]:g} at 0: the bounds are for one that vanishes there"
        )
    steepest = float(abs(np.diff(y) / np.diff(x)).max())
    if steepest > 1.001 * head.lipschitz:
        raise InputError(
            f"lipschitz = {head.lipschitz:g}: the activation has a slope of {steepest:.4g}; say so "
            "with lipschitz="
        )


def block_of(module: Any, length: int, *, constant: str = "paper") -> Block:
    """The block that a module of `attlas.attention` is, with the norms of its weights.

    Arguments: as for `capacity_of`; any module but a `ReadOut`.
    """
    match module:
        case attention.TransformerHead():
            return head_block(head_norms(module), length, constant)
        case attention.MultiHead():
            return multi_head(*(block_of(head, length, constant=constant) for head in module.heads))
        case attention.Layer():
            return block_of(module.head, length, constant=constant)
        case attention.Residual():
            return residual(block_of(module.block, length, constant=constant))
        case attention.Projected():
            return projected(block_of(module.block, length, constant=constant))
        case attention.Stack():
            return stacked(*(block_of(block, length, constant=constant) for block in module.blocks))
    raise _unknown(module)


def _unknown(module: Any) -> InputError:
    return InputError(
        f"{type(module).__name__} has no known norms: a bound is known for TransformerHead, "
        "MultiHead, Layer, Residual, Projected, Stack and ReadOut"
    )


def capacity_of(
    module: Any,
    length: int,
    *,
    radius: float = 1.0,
    constant: str = "paper",
    count_parameters: bool = True,
) -> Capacity:
    r"""The capacity of all modules built like this one whose weights have at most its norms.

    Arguments:
    - `module`: of `attlas.attention`. A `ReadOut` of one layer has a fixed context, so that its
      score is linear in the tokens; with linear heads without projection, $W_V$, $W_C$ and $w$ are
      one vector.
    - `length`: tokens of a sequence. `radius`: bounds their norms; `token_radius` of your data,
      [CLS] included.
    - `constant`: "paper" or "sharp", the Lipschitz constant of softmax.
    - `count_parameters`: without it, covers depend on norms and the number of points only, as in
      the paper: larger in most models, and growing with the length.

    >>> import jax
    >>> from attlas.attention import Layer, Residual, random_head
    >>> from attlas.capacity import block_of, capacity_of, class_of, head_norms
    >>> head = random_head(jax.random.key(0), dim=8)
    >>> capacity = capacity_of(Residual(Layer(head)), length=100)
    >>> print(f"{capacity.entropy(1.0, samples=1000):.0f} nats")
    941 nats
    >>> norms, block = head_norms(head), block_of(Layer(head), length=100)
    >>> print(norms.dim, class_of(block).constant)
    8 paper
    """
    whole("length", length, 1), softmax_constant(constant)
    _check_fit(module, positive("radius", radius))
    if isinstance(module, attention.ReadOut):
        capacity = _read_capacity(module, length, radius, constant)
    else:
        capacity = class_of(block_of(module, length, constant=constant), radius)
    return capacity if count_parameters else capacity.dimension_free()


def _check_fit(module: Any, radius: float) -> None:
    """Shapes fit, and [CLS] lies in the ball of the tokens where it is one of them."""
    one_context = isinstance(module, attention.Head | attention.MultiHead)
    if isinstance(module, attention.ReadOut):
        dim = len(module.context)
        size = float(np.linalg.norm(np.asarray(module.context, float)))
        attended = module.attend or not isinstance(module.block, attention.Layer)
        if attended and size > (1 + 1e-6) * radius:
            raise InputError(
                f"radius = {radius:g}: [CLS] is a token too, and has the length {size:.4g}"
            )
    elif one_context or isinstance(module, attention.Block):
        parts = jax.tree.leaves(module, is_leaf=lambda x: isinstance(x, attention.TransformerHead))
        heads = (x for x in parts if isinstance(x, attention.TransformerHead))
        dim = next((head.key.shape[0] for head in heads), 1)
    else:
        raise _unknown(module)
    arguments = [jnp.zeros((2, dim)), jnp.zeros(dim)][: 1 + one_context]
    try:
        with jax.enable_x64(True):  # weights may be in double precision
            jax.eval_shape(module, *arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the weights of this {type(module).__name__} do not fit each other: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _read_capacity(
    module: attention.ReadOut, length: int, radius: float, constant: str
) -> Capacity:
    weight = np.asarray(module.weight, float)
    if isinstance(module.block, attention.Layer):
        inner, tokens = module.block.head, length + module.attend
        heads: Any = inner.heads if isinstance(inner, attention.MultiHead) else (inner,)
        for head in heads:
            if not isinstance(head, attention.TransformerHead):
                raise _unknown(head)
        norms = [head_norms(head, np.asarray(module.context, float)) for head in heads]
        if all(head.activation is attention.identity and not head.project for head in heads):
            values = [
                float(np.linalg.norm(as_matrix(head.value) @ (as_matrix(head.out) @ weight)))
                for head in heads
            ]
            each = [
                collapsed_head(n.score, v, tokens, n.dim, constant)
                for n, v in zip(norms, values, strict=True)
            ]
            return class_of(multi_head(*each), radius)
        block = multi_head(*(head_block(n, tokens, constant) for n in norms))
    else:
        block = block_of(module.block, length + 1, constant=constant)
    return read_out(block, float(np.linalg.norm(weight)), radius, out_dim=weight.size)
