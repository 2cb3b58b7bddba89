import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx

from attlas import rademacher
from attlas.errors import InputError
from attlas.rademacher import (
    concatenated_complexity,
    correlation,
    draw_signs,
    head_complexity,
    mean_of,
    planar_complexity,
)
from tests.defaults import numbers_by_default


@pytest.fixture
def plane(float64):
    x = jax.random.normal(jax.random.key(0), (24, 5, 2))
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True), draw_signs(jax.random.key(1), 6, 24)


def test_without_scores_the_supremum_is_the_length_of_a_mean(plane):
    tokens, signs = plane
    by_hand = np.linalg.norm(np.asarray(signs @ tokens.mean(1)), axis=1) / 24
    found = planar_complexity(tokens, signs, query_norm=1e-9, value_norm=2.0, rings=2)
    assert found.lower == approx(2 * by_hand) and found.upper == approx(2 * by_hand)
    assert head_complexity(
        tokens, signs, query_norm=1e-9, key=jax.random.key(2), steps=2
    ) == approx(by_hand)


def test_ascent_lies_in_the_enclosure_and_a_finer_grid_narrows_it(plane):
    tokens, signs = plane
    coarse, fine = (
        planar_complexity(tokens, signs, query_norm=3.0, rings=rings) for rings in (16, 128)
    )
    ascent = head_complexity(tokens, signs, query_norm=3.0, key=jax.random.key(3), starts=12)
    assert (ascent <= fine.upper).all() and ascent.mean() == approx(fine.lower.mean(), rel=0.01)
    assert (fine.lower <= coarse.upper).all() and (
        (fine.upper - fine.lower) < (coarse.upper - coarse.lower) / 7
    ).all()


def test_the_enclosure_holds_between_the_nodes(plane):
    """A coarse grid's upper limits against the best of many points of the disc, and how far they
    may be from its nodes."""
    tokens, signs = plane
    coarse, fine = (
        planar_complexity(tokens, signs, query_norm=20.0, rings=rings) for rings in (2, 200)
    )
    assert (fine.lower <= coarse.upper).all() and (fine.lower > coarse.lower).any()
    gap = coarse.upper - coarse.lower
    assert gap == approx(np.hypot(20 / 2 / 2, 20 * np.pi / 13)), (
        "the nearest node is half a ring and half a spoke away"
    )


def test_the_enclosure_of_longer_tokens_is_wider_by_the_square_of_their_length(plane):
    tokens, signs = plane
    found = planar_complexity(3 * tokens, signs, query_norm=0.7, value_norm=2.5, rings=4)
    spokes = np.ceil(2 * np.pi * 4)
    nearest = 0.7 * np.hypot(1 / 8, np.pi / spokes)
    assert found.upper - found.lower == approx(2.5 * 9 * nearest)
    # (t X)u = X(t u): longer tokens are a larger ball and a larger value.
    same = planar_complexity(tokens, signs, query_norm=2.1, value_norm=7.5, rings=4)
    assert found.lower == approx(same.lower) and found.upper == approx(same.upper)


def test_the_nodes_lie_in_the_middle_of_rings_and_at_equal_angles(plane):
    tokens, signs = plane
    found = planar_complexity(tokens, signs, query_norm=6.0, value_norm=2.0, rings=2)
    best = np.zeros(len(signs))
    for radius in (1.5, 4.5):
        for angle in 2 * np.pi * np.arange(13) / 13:
            u = radius * np.array([np.cos(angle), np.sin(angle)])
            powers = np.exp(np.asarray(tokens) @ u)
            mixture = np.einsum("mn,mnd->md", powers / powers.sum(1, keepdims=True), tokens)
            best = np.maximum(best, np.linalg.norm(signs @ mixture / 24, axis=1))
            assert correlation(jnp.asarray(u), tokens, jnp.asarray(signs[0])) == approx(
                np.linalg.norm(signs[0] @ mixture / 24)
            )
    assert found.lower == approx(2 * best)


def test_ascent_stays_in_its_ball_and_scales_with_the_value(plane):
    tokens, signs = plane
    one, three = (
        head_complexity(
            tokens, signs, query_norm=0.4, value_norm=b, key=jax.random.key(5), starts=3, steps=60
        )
        for b in (1.0, 3.0)
    )
    assert three == approx(3 * one, rel=1e-12)
    enclosure = planar_complexity(tokens, signs, query_norm=0.4, rings=64)
    assert (one <= enclosure.upper).all() and one == approx(enclosure.lower, rel=0.01)


def test_signs_are_fair_coins():
    signs = draw_signs(jax.random.key(1), 400, 25)
    assert set(signs.ravel()) == {-1.0, 1.0} and signs.shape == (400, 25)
    assert abs(signs.mean()) < 0.05


def test_a_larger_ball_has_a_larger_supremum(plane):
    tokens, signs = plane
    sizes = [planar_complexity(tokens, signs, query_norm=b, rings=64) for b in (0.5, 2.0, 8.0)]
    assert (sizes[0].lower < sizes[1].upper).all() and (sizes[1].lower < sizes[2].upper).all()
    assert sizes[2].lower.mean() > 1.5 * sizes[0].upper.mean(), "sharper heads fit more signs"


def test_the_linear_map_grows_like_the_root_of_the_length(float64):
    rng = np.random.default_rng(0)
    signs = np.asarray(draw_signs(jax.random.key(1), 50, 64))
    short, long = (
        concatenated_complexity(rng.choice([-1.0, 1.0], (64, t, 1)), signs).mean()
        for t in (16, 1024)
    )
    assert long / short == approx(8, rel=0.1) and short == approx(np.sqrt(16 / 64), rel=0.1)


def test_the_linear_map_is_the_norm_of_the_signed_mean():
    rng = np.random.default_rng(2)
    tokens, signs = rng.normal(size=(5, 3, 2)), draw_signs(jax.random.key(4), 4, 5)
    by_hand = [np.sqrt(((s[:, None, None] * tokens).sum(0) ** 2).sum()) / 5 for s in signs]
    assert concatenated_complexity(tokens, signs) == approx(by_hand)
    assert concatenated_complexity(tokens, signs, norm=3.0) == approx(3 * np.array(by_hand))


def test_mean_over_signs():
    estimate = mean_of([[1.0, 2.0, 3.0], [0.0, 2.0, 10.0]])
    assert estimate.mean == approx([2.0, 4.0])
    assert estimate.error == approx([1 / np.sqrt(3), np.sqrt((16 + 4 + 36) / 2 / 3)])


def test_the_certificate_is_for_the_plane(float64):
    with pytest.raises(InputError, match="the certificate is for the plane"):
        planar_complexity(np.ones((2, 3, 3)), np.ones((1, 2)), query_norm=1.0)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(rademacher) == [
        "head_complexity value_norm=1 starts=8 steps=150",
        "planar_complexity value_norm=1 rings=64",
        "concatenated_complexity norm=1",
    ]
