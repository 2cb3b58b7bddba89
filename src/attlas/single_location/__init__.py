"""Single-location regression: one token decides, and its place is latent (Marion et al. 2025)."""

from attlas.gaussian import Estimate
from attlas.schedules import Constant, GeometricDecay, InverseDecay
from attlas.single_location.descent import descend, descend_vectors, manifold_start, sphere_start
from attlas.single_location.gates import Gate, predict
from attlas.single_location.online import descend_online, descend_online_vectors
from attlas.single_location.population import (
    ORACLE,
    Overlaps,
    RiskTerms,
    risk,
    risk_gradient,
    risk_quadrature,
    risk_terms,
    sampled_risk,
)
from attlas.single_location.task import Batch, SingleLocation
