"""The claims of single-location regression (Marion et al. 2025), by subject."""

from attlas.claims import Map

single_location = Map(
    "single-location",
    source="marion2025",
    home=__name__,
    subjects=("risk", "manifold", "runs", "swapped", "online", "optimality", "gates", "readings"),
    domain=(
        "dim >= 4",
        "length >= 2",
        "gamma > 0",
        "noise >= 0",
        "lam > 0",
        "ratio > 0",
        "time > 0",
        "step_size > 0",
        "end > 0",
        "rate >= 0",
        "penalty >= 0",
        "largest > 0",
        "spread > 0",
        "reach > 0",
    ),
)
