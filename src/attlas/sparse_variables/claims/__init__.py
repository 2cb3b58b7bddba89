"""The claims of sparse variables (Edelman et al. 2022), by subject."""

from attlas.sparse_variables.claims import (
    complexity,
    constructions,
    covers,
    generalisation,
    learned,
    learning,
    lipschitz,
    parity,
    samples,
    thresholds,
)

__all__ = [
    "complexity",
    "constructions",
    "covers",
    "generalisation",
    "learned",
    "learning",
    "lipschitz",
    "parity",
    "samples",
    "thresholds",
]
