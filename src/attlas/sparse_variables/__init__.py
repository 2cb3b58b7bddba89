"""Sparse variables: a head with bounded norms computes a function of a few of many bits (Edelman et al. 2022)."""

from attlas.sparse_variables.construction import (
    Construction,
    Orthonormal,
    RandomDirections,
    head_for,
    sink_head,
    symmetric_head,
    table_head,
    threshold_head,
)
from attlas.sparse_variables.task import Batch, SparseBoolean

__all__ = [
    "Batch",
    "Construction",
    "Orthonormal",
    "RandomDirections",
    "SparseBoolean",
    "head_for",
    "sink_head",
    "symmetric_head",
    "table_head",
    "threshold_head",
]
