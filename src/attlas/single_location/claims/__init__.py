"""The claims of single-location regression (Marion et al. 2025), by subject."""

from attlas.single_location.claims import bayes, dynamics, landscape, optimality, risk, runs, zeta

__all__ = ["bayes", "dynamics", "landscape", "optimality", "risk", "runs", "zeta"]
