"""A transformer of rows works on bags of every form, in pipelines and searches."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attlas.estimators import InstanceTransformer, SingleLocationClassifier
from tests.conftest import SEED


def drawn(count=60):
    rng = np.random.default_rng(SEED)
    bags = [3 + 2 * rng.normal(size=(rng.integers(2, 9), 3)) for _ in range(count)]
    return bags, np.array([int(bag[:, 0].max() > 5) for bag in bags])


def test_instances_of_lists_and_arrays_are_scaled_together():
    bags, _ = drawn()
    expected = StandardScaler().fit_transform(np.concatenate(bags))
    found = InstanceTransformer().fit_transform(bags)
    assert [len(x) for x in found] == [len(x) for x in bags]
    np.testing.assert_allclose(np.concatenate(found), expected)
    cube = np.random.default_rng(SEED).normal(size=(7, 4, 3))
    said = InstanceTransformer(PCA(2)).fit_transform(cube)
    assert said.shape == (7, 4, 2)
    flat = PCA(2).fit_transform(cube.reshape(-1, 3))
    np.testing.assert_allclose(said.reshape(-1, 2), flat)
    np.testing.assert_allclose(
        InstanceTransformer(PCA(2)).fit_transform(cube[0]), PCA(2).fit_transform(cube[0])
    )


@pytest.mark.parametrize("form", ["list", "array"])
def test_a_search_over_its_parameters(form):
    bags, y = drawn()
    if form == "array":
        bags = np.stack([np.resize(bag, (9, 3)) for bag in bags])  # with repeated instances
    quick = SingleLocationClassifier(penalty=0.01, n_heads=1, features="linear", whole=False)
    model = make_pipeline(InstanceTransformer(PCA()), quick)
    name = "instancetransformer__transformer__n_components"
    search = GridSearchCV(model, {name: [1, 3]}, cv=3).fit(bags, y)
    assert search.best_params_ == {name: 3} and search.score(bags, y) > 0.8
    assert model[0].transformer.n_components is None, "the parameter is left as it was"


def test_unfitted_use_and_what_is_no_transformer():
    with pytest.raises(NotFittedError):
        InstanceTransformer().transform(drawn()[0])
    with pytest.raises(ValueError, match="'transformer' parameter"):
        InstanceTransformer("scale").fit(drawn()[0])
