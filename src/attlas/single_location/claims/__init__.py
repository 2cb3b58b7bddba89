"""The claims of single-location regression (Marion et al. 2025), by subject."""

from attlas.single_location.claims import dynamics, optimality, risk, zeta

__all__ = ["dynamics", "optimality", "risk", "zeta"]
