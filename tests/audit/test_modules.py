import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from pytest import approx

from attlas.audit import audit_model
from attlas.audit.architectures import as_model
from attlas.audit.forward import embed, final_states, trace
from attlas.audit.texts import read_tokens
from attlas.errors import InputError
from attlas.sparse_variables.model import Architecture, attention_weights, logits

SMALL = Architecture(
    dim=16,
    heads=4,
    hidden=24,
    norms=True,
    weight_scale=0.3,
    token_scale=0.5,
    position_scale=0.5,
)
LENGTH = 9


def drawn(architecture=SMALL):
    model = architecture.initialise(LENGTH, jax.random.key(0))
    if model.norms is None:
        return model
    gain = 1 + 0.3 * np.random.default_rng(1).normal(size=(3, architecture.dim))
    return eqx.tree_at(
        lambda m: [norm.gain for norm in m.norms], model, [np.float32(x) for x in gain]
    )


def test_the_forward_pass_of_the_audit_is_that_of_the_module():
    model, bits = drawn(), np.random.default_rng(0).integers(0, 2, (5, LENGTH))
    read, ids = as_model(model), np.concatenate([bits, np.full((5, 1), 2)], 1)
    tokens, _ = read_tokens(read, None, ids.tolist())
    (step,) = trace(read, [embed(read, tokens)])
    weights = np.asarray(step.attention)[:, :, LENGTH, : LENGTH + 1]
    np.testing.assert_allclose(weights, attention_weights(model, bits), atol=1e-5)
    states = np.asarray(final_states(read, step.after))[:, LENGTH]
    np.testing.assert_allclose(states @ model.read, logits(model, bits), atol=1e-4)


def test_an_audit_of_a_module_has_the_norms_of_its_matrices():
    model = drawn()
    ids = [[0, 1, 1, 0, 1, 0, 0, 1, 1, 2], [1, 0, 0, 0, 1, 1, 0, 1, 0, 2]]
    audit = audit_model(model, tokens=ids, probes="none")
    query, key = (np.asarray(x)[:, 1] for x in (model.query, model.key))
    # A layer norm takes the mean away and multiplies by its gain; below is the root of the width.
    norm = (np.eye(16) - 1 / 16) * np.asarray(model.norms[0].gain)
    product = np.linalg.norm(norm @ query @ (norm @ key).T / 2, 2)
    assert float(audit.heads.qk_spectral[0, 1]) == approx(product, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"norms": False}, "the module has no layer norms"), ({"mlp": False}, "has no MLP")],
)
def test_what_an_audit_cannot_read_is_said(change, says):
    with pytest.raises(InputError, match=says):
        as_model(drawn(dataclasses.replace(SMALL, **change)))


def test_several_trials_are_not_one_model():
    keys = jax.random.split(jax.random.key(0), 3)
    many = jax.vmap(lambda key: SMALL.initialise(LENGTH, key))(keys)
    with pytest.raises(InputError, match="without an axis of trials"):
        as_model(many)
