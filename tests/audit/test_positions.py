"""Whom a token sees, and what scores gain by position, as the papers define it."""

import numpy as np
import pytest
from pytest import approx

from attlas.audit.architectures import as_model
from attlas.audit.positions import View, admitted_pairs, alibi_slopes, relative_bucket
from tests.audit.conftest import changed, model_of


def test_windows_and_rotations_are_those_of_each_layer():
    gemma, smol = model_of("gemma3"), model_of("smollm3")
    assert [view.window for view in gemma.views] == [3, None, 3]
    local, whole = (gemma.views[i].rotation.frequencies for i in (0, 1))
    assert local[1] == pytest.approx(10000 ** (-2 / 8)) and whole[0] == pytest.approx(1 / 8)
    assert [view.rotation is None for view in smol.views] == [False, True]
    assert [view.window for view in model_of("modernbert").views] == [None, 4, None]
    old = changed("gemma3", {"layer_types": None, "rope_parameters": None})
    assert [view.window for view in as_model(old).views] == [3, None, 3]


def test_a_window_counts_the_token_itself_and_lies_on_both_sides_without_causality():
    mask, places = np.ones((1, 6), bool), np.arange(6)[None]
    back = places[0][:, None] - places[0]
    causal = admitted_pairs(View(3, None), True, mask, places)[0]
    assert (causal == ((back >= 0) & (back < 3))).all()
    both = admitted_pairs(View(4, None), False, mask, places)[0]
    assert (both == (abs(back) <= 2)).all()
    mask[0, 5] = False
    assert not admitted_pairs(View(None, None), False, mask, places)[0, :, 5].any()


def test_slopes_of_alibi_are_those_of_the_paper():
    assert alibi_slopes(8) == approx(0.5 ** np.arange(1, 9))
    assert alibi_slopes(3) == approx([2.0**-4, 2.0**-8, 2.0**-2])


def test_buckets_are_exact_near_by_and_shared_far_away():
    near = relative_bucket(np.arange(-7, 1), 32, 128, False)
    assert near.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert relative_bucket(np.array([1, 5]), 32, 128, False).tolist() == [17, 21]
    assert relative_bucket(np.array([-500, 500]), 32, 128, False).tolist() == [15, 31]
    assert relative_bucket(np.array([-15, 3, -500]), 32, 128, True).tolist() == [15, 0, 31]
