"""Order parameters: attention on Gaussian tokens, reduced exactly to two small matrices."""

from attlas.order_parameters.descent import descend, descend_online, descend_online_vectors
from attlas.order_parameters.equilibria import fixed_points, stability
from attlas.order_parameters.gates import gate_weights
from attlas.order_parameters.pieces import (
    WEIGHTS,
    ChosenValue,
    Heads,
    Network,
    Places,
    Pooled,
    Readout,
    SignedPlace,
    ValueSum,
    label,
    logistic,
)
from attlas.order_parameters.population import best_overlaps, gradient, risk
from attlas.order_parameters.problem import (
    Overlaps,
    Problem,
    Tokens,
    covariance_root,
    fields,
    squared,
)
