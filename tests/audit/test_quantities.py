"""Every quantity is in one group and explained; hypotheses and columns name known ones."""

import numpy as np

from attlas.audit.quantities import (
    COLUMNS,
    FROM_TEXT,
    FROM_WEIGHTS,
    GROUPS,
    HYPOTHESES,
    OF_TOKENS,
    SHARES,
    describe,
    stack_layers,
)
from tests.audit.conftest import model_of


def test_every_quantity_is_offered_and_explained():
    words = FROM_TEXT | FROM_WEIGHTS
    assert [name for names in GROUPS.values() for name in names] == list(words)
    assert set(words) >= {*SHARES, *COLUMNS}
    assert all(words.values()) and not set(words) & set(OF_TOKENS)


def test_every_hypothesis_is_measured_by_a_known_quantity():
    known = {*FROM_TEXT, *FROM_WEIGHTS, *OF_TOKENS, "together", "apart"}
    assert {hypothesis["variable"] for hypothesis in HYPOTHESES} <= known


def test_layers_are_stacked_and_described():
    model = model_of("bert")
    layer = {"first": np.zeros(model.heads), "token_spread": np.asarray(1)}
    found = describe(stack_layers(model, [layer] * model.layers, length=5))
    assert found["first"].dims == ("layer", "head") and found.token_spread.dims == ("layer",)
    assert found.token_spread.dtype == float and found.attrs == {"model": "bert", "length": 5}
    assert found["first"].attrs["words"] == "share of attention on the first token"
