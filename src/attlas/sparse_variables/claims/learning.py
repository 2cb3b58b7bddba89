"""Claims about the model that is trained: its table form is the whole Transformer."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims.compat import (
    Agreement,
    Control,
    Hypothesis,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.sparse_variables.claims.shared import FIGURES, TOKENS
from attlas.sparse_variables.model import (
    Architecture,
    Transformer,
    logits_elsewhere,
    logits_full,
    logits_query,
)

DIRECTIONS = 16


@claim(
    "sparse-variables/table-form",
    source="attlas",
    reference="2T + 1 tokens, one query",
    statement=r"One layer read at [CLS] sees 2T + 1 different tokens, whatever the number of sequences: its logits and their gradients are those of two sums over"
    r" rows of a table, $\sum_{r \in C}e^{s_r}v_r / \sum_{r \in C}e^{s_r}$, and equal those of attention at every token.",
    words="What a one-layer Transformer makes of bits can be looked up, and training it so is the same training.",
    hypotheses=(
        TOKENS,
        Hypothesis("dim is a multiple of heads", lambda s: s.dim % s.heads == 0, defining=True),
        Hypothesis("samples >= 2", lambda s: s.samples >= 2, defining=True),
    ),
    quick=Setting(length=(12, 12), norms=(False, True), samples=16, dim=16, heads=4),
    paper=Setting(length=(50, 50), norms=(False, True), samples=64, dim=64, heads=16),
    rule=Agreement(rounding=1e-9),
    control=Control("[CLS] does not attend to itself", lambda e: e.assign(measured=e["without"])),
    figure=drawn_by(f"{FIGURES}.heads:table_agreement"),
    cells=together("length", "norms"),
    origin="ours",
)
def table_form(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/table-form"
    built = Architecture(dim=cell.dim, heads=cell.heads, hidden=cell.dim, norms=cell.norms)
    bits = stream(key_for(seed, id, "bits")).integers(0, 2, (cell.samples, cell.length), np.uint8)
    model = drawn(built, cell.length, key_for(seed, id, "weights"))
    found, gradients = map(np.asarray, looked_at(model, bits))
    directions = stream(key_for(seed, id, "directions")).standard_normal(
        (DIRECTIONS, gradients.shape[1])
    )
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    full, query, table, without = np.concatenate([found, gradients @ directions.T], 1)
    axes = ("form", "cell", "entry")
    return xr.Dataset(
        {
            "predicted": (axes[1:], full[None]),
            "measured": (axes, np.stack([query[None], table[None]])),
            "without": (axes[1:], without[None]),
            "error": 0.0,
        },
        coords={"form": ["query of [CLS] alone", "table"]},
    )


def drawn(built: Architecture, length: int, key: Array) -> Transformer:
    """A model with every weight, gain and bias drawn at random, on the host."""
    draws = stream(key)
    shapes = jax.eval_shape(functools.partial(built.initialise, length), key)
    return jax.tree.map(lambda leaf: 0.4 * draws.standard_normal(leaf.shape), shapes)


@jax.jit
def looked_at(
    model: Transformer, bits: Array
) -> tuple[Float[Array, "form logits"], Float[Array, "form weights"]]:
    """The logits of all sequences, and the gradient of their mean square in the weights: by attention at every token, by the query of [CLS], by
    the table, and by the query where [CLS] does not attend to itself."""

    def of(form: Any) -> tuple[Array, Array]:
        def value(model: Transformer) -> tuple[Array, Array]:
            found = form(model)
            return (found**2).mean(), found.ravel()

        (_, found), gradient = jax.value_and_grad(value, has_aux=True)(model)
        return found, jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(gradient)])

    forms = (logits_full, logits_query, logits_table, logits_elsewhere)
    found, gradient = zip(*(of(functools.partial(form, bits=bits)) for form in forms), strict=True)
    return jnp.stack(found), jnp.stack(gradient)


def logits_table(model: Transformer, bits: Array) -> Float[Array, "m 2"]:
    """As in training, without the branch for heads whose scores are far apart."""
    return model.logits(bits, careful=False)
