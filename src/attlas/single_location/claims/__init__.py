"""The claims of single-location regression (Marion et al. 2025), by subject."""

from attlas.single_location.claims import dynamics, landscape, optimality, risk, runs, zeta

__all__ = ["dynamics", "landscape", "optimality", "risk", "runs", "zeta"]
