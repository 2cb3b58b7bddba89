"""Bounds stand beside each other on the same weights, and pruning makes none of them larger."""

import math

import numpy as np
import pytest
from pytest import approx

from attlas.audit.bounds import head_classes, measure_bounds, model_classes
from attlas.audit.heads import (
    DISTANCE,
    KEPT,
    SAMPLES,
    capacity_by_layer,
    factor,
    measure_weights,
    pruned_norms,
)
from attlas.audit.quantities import BOUNDS
from attlas.capacity.spectra import entries_entropy, log_powers, spectrum_entropy
from tests.audit.conftest import LAYOUTS, model_of


def test_pruned_products_are_those_of_a_dense_decomposition():
    bits = np.random.default_rng(0)
    a, b = bits.standard_normal((3, 9, 4)), bits.standard_normal((3, 7, 4))
    found = pruned_norms(factor(a), factor(b), (1.0, 0.5))
    for head in range(3):
        u, s, v = np.linalg.svd(a[head] @ b[head].T)
        for level, k in enumerate((4, 2)):
            w = (u[:, :k] * s[:k]) @ v[:k]
            expected = {
                "spectral": s[0],
                "columns": np.linalg.norm(w, axis=0).sum(),
                "rows": np.linalg.norm(w, axis=1).sum(),
                "entries": np.abs(w).sum(),
                "energy": (s[:k] ** 2).sum() / (s[:4] ** 2).sum(),
            }
            for name, value in expected.items():
                assert found[name][head, level] == approx(value, rel=1e-5), name
            assert found["powers"][head, level] == approx(log_powers(s[:k]), abs=1e-6)


def test_a_factor_without_full_rank_is_pruned_too():
    a = np.ones((1, 5, 3)) * [1.0, 2.0, 0.0]
    found = pruned_norms(factor(a), factor(np.ones((1, 4, 3))), (1.0,))
    assert found["spectral"] == approx(3 * math.sqrt(20))
    assert found["entries"] == approx(3 * 20, rel=1e-5)


@pytest.mark.parametrize("name", (*LAYOUTS, "mixtral", "falcon", "gemma3"))
def test_every_bound_is_measured_and_pruning_makes_none_larger(name):
    bounds = measure_bounds(measure_weights(model_of(name)))
    assert list(bounds.bound.values) == list(BOUNDS) and list(bounds.kept.values) == list(KEPT)
    assert np.isfinite(bounds.head_nats).all() and np.isfinite(bounds.samples).all()
    for nats in (bounds.head_nats.values, bounds.model_nats.values):
        assert (np.diff(nats, axis=-1) <= 1e-3).all()
    assert (np.diff(bounds.energy.values, axis=-1) <= 1e-9).all()
    by_columns, by_parameters = bounds.head_nats.values[:2]
    assert (by_parameters <= by_columns + 1e-6).all()


def test_the_first_bound_is_that_of_the_layers():
    norms = measure_weights(model_of("bert"))
    bounds = measure_bounds(norms)
    assert bounds.head_nats[0, ..., 0].values == approx(norms.log10_nats.values)
    total = capacity_by_layer(norms).attrs["log10_nats"]
    assert float(bounds.model_nats[0, 0]) == approx(total)


def test_the_nats_of_one_head_by_hand():
    """Sizes by hand, and the best split of the distance by a search over it."""
    norms = measure_weights(model_of("bert"))
    at = {"layer": 1, "head": 2}
    radius, dim = float(norms.attention_radius[1]), norms.attrs["dim"] + 1
    value = float(norms.ov_spectral[at])
    eps = DISTANCE * value * radius
    move = 2 * value * radius**3  # of the output with the query-key product in the operator norm
    one = norms.isel(at)
    splits = np.linspace(0, 1, 4001)[1:-1]
    sizes = {name: float(one[f"{name}_entries"][0]) for name in ("query_key", "output_value")}
    by_entries = entries_entropy(move * sizes["query_key"], eps * splits, dim, dim)
    by_entries += entries_entropy(radius * sizes["output_value"], eps * (1 - splits), dim - 1, dim)
    found = head_classes(norms)
    nats = {name: bound.entropy(eps, SAMPLES)[1, 2] for name, bound in found.items()}
    assert nats["entries"] == approx(by_entries.min(), rel=2e-2)

    model = model_of("bert")
    spectra = _spectra_by_hand(model, 1, 2)
    by_spectrum = [
        spectrum_entropy(spectra[0], eps * share, dim, dim, move)
        + spectrum_entropy(spectra[1], eps * (1 - share), dim - 1, dim, radius)
        for share in splits[::20]
    ]
    assert nats["spectrum"] == approx(min(by_spectrum), rel=2e-2)


def _spectra_by_hand(model, layer, head):
    from attlas.audit.heads import input_norms

    weights = model.layer(layer)
    norm, _ = input_norms(model, weights, model.layer(layer - 1))
    query, constant = norm.fold(weights["query"], weights["query_bias"])
    key, _ = norm.fold(weights["key"])
    value, _ = norm.fold(weights["value"])
    extended = np.concatenate([query[:, head], constant[None, head]])
    products = (
        key[:, head] @ extended.T / model.block.temperature,
        value[:, head] @ weights["out"][head].astype(float),
    )
    return [np.linalg.svd(w, compute_uv=False)[: model.width] for w in products]


def test_a_model_of_more_layers_has_more_nats_and_the_spectrum_has_the_fewest():
    norms = measure_weights(model_of("bert"))
    whole = {name: bound.log_entropy(1.0, SAMPLES) for name, bound in model_classes(norms).items()}
    first = model_classes(norms.isel(layer=[0]))
    assert all(whole[name] > bound.log_entropy(1.0, SAMPLES) for name, bound in first.items())
    assert min(whole, key=whole.get) == "spectrum"
