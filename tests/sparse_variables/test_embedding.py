import numpy as np
from pytest import approx

from attlas.sparse_variables import embedding
from attlas.sparse_variables.embedding import Orthonormal, RandomDirections, _directions
from tests.defaults import numbers_by_default


def test_random_directions_are_the_same_however_they_are_looked_at():
    embedding = RandomDirections(9000, 20, 3)
    whole = embedding.places(0, 9000)
    _directions.cache_clear()
    again = RandomDirections(9000, 20, 3)
    assert (again.places(4000, 4200) == whole[4000:4200]).all() and (
        again.places(8999, 9000) == whole[8999:]
    ).all()
    assert np.linalg.norm(whole, axis=1) == approx(np.ones(9000))
    assert (again.places(4000, 8200) == whole[4000:8200]).all()
    support, coefficients = (3, 8000), np.arange(10.0).reshape(5, 2)
    assert again.products(support, coefficients) == approx(
        embedding.products(support, coefficients)
    )


def test_orthonormal_products_need_no_vectors():
    embedding = Orthonormal(6)
    coefficients = np.arange(10.0).reshape(5, 2)
    by_hand = (
        np.concatenate([embedding.places(0, 6), embedding.special()])
        @ embedding.anchors((4, 1)).T
        @ coefficients
    )
    assert embedding.products((4, 1), coefficients) == approx(by_hand)
    assert embedding.gram((4, 1)) == approx(embedding.anchors((4, 1)) @ embedding.anchors((4, 1)).T)


def test_numbers_that_need_not_be_given():
    assert numbers_by_default(embedding) == ["RandomDirections seed=0"]
