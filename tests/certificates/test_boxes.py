"""On which boxes statements are defined."""

from fractions import Fraction

import pytest

from attlas.certificates import boxes


def box(**sides):
    return {name: tuple(map(Fraction, ends)) for name, ends in sides.items()}


RISK = dict.fromkeys(("kappa", "nu", "theta", "eta", "rho"), (-1, 1)) | {
    "lam": (1, 1),
    "dim": (8, 9),
    "length": (2, 100),
    "gamma": (1, 1),
}


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, ""),
        ({"lam": (1, 2)}, "lam must be a single number"),
        ({"gamma": (0, 0)}, "gamma must be above 0"),
        ({"length": (1, 2)}, "length must be 2 or more"),
        ({"rho": (-1, 2)}, "rho must be from -1 to 1"),
    ],
)
def test_overlaps_and_lengths_are_free_and_the_gate_is_fixed(change, said):
    assert boxes.overlaps_and_points(box(**RISK | change)) == said


def test_one_side_is_free_and_others_are_points():
    defined = boxes.point_sides("t", "spread")
    assert defined(box(t=(-4, 4), spread=(1, 1))) == ""
    assert defined(box(t=(-4, 4), spread=(1, 2))) == "spread must be a single number"
    assert defined(box(t=(-4, 4), spread=(-1, -1))) == "spread must be above 0"


def test_weights_and_heads_have_their_ranges():
    assert boxes.weights_and_moves(box(weight=(0, 1), distance=(1, 2))) == ""
    assert "0 to 1" in boxes.weights_and_moves(box(weight=(0, 2), distance=(1, 2)))
    assert "1 or more" in boxes.sharp_heads("sparsity")(box(sparsity=(0, 2), sharpness=(2, 2)))
    assert "above 1" in boxes.sharp_heads("sparsity")(box(sparsity=(1, 2), sharpness=(1, 2)))
