"""The claims of single-location regression (Marion et al. 2025), by subject."""

from attlas.single_location.claims import (
    basins,
    bayes,
    dynamics,
    gates,
    heads,
    manifold,
    online,
    optimality,
    risk,
    runs,
    speed,
    swapped,
    zeta,
)

__all__ = [
    "basins",
    "bayes",
    "dynamics",
    "gates",
    "heads",
    "manifold",
    "online",
    "optimality",
    "risk",
    "runs",
    "speed",
    "swapped",
    "zeta",
]
