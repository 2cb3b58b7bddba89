"""Sparse variables: a head with bounded norms computes a function of a few of many bits (Edelman et
al. 2022)."""

from attlas.sparse_variables.construction import (
    Construction,
    head_for,
    sink_head,
    symmetric_head,
    table_head,
    threshold_head,
)
from attlas.sparse_variables.embedding import Orthonormal, RandomDirections
from attlas.sparse_variables.online import train_online
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.sparse_variables.thresholds import LEARNERS, find_threshold
from attlas.sparse_variables.trained_heads import Heads, certify
from attlas.sparse_variables.training import ADAM, RECIPE_R, Recipe, train
from attlas.sparse_variables.training_sets import draw_sets
