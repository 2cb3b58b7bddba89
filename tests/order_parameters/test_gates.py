import numpy as np
import pytest
from scipy import special

from attlas.order_parameters.gates import ACTIVATIONS, gate_weights

FORMULAS = {
    "erf": special.erf,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "relu": lambda x: np.maximum(x, 0),
    "step": lambda x: 1.0 * (x > 0),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_are_their_formulas_on_present_tokens_and_nothing_on_others(name):
    scores = np.random.default_rng(0).normal(size=(5, 2, 3))
    present = np.ones((5, 3))
    present[3:, 1] = 0
    found, total = gate_weights(ACTIVATIONS[name])(scores, present)
    wanted = FORMULAS[name](scores)
    wanted[3:, :, 1] = 0
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert total == 1
