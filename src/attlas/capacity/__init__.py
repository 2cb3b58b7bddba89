"""How large a class of functions is: covers of heads and layers, and what follows for the risk.

A `Capacity` bounds the entropy of a class (see `attlas.covers`) by a sum of terms, one for each
bounded weight. `capacity_of` measures the modules of `attlas.attention`; `blocks` has the parts
from which other networks are put together. Everything broadcasts, so that a grid of settings is one
call. Edelman et al. 2022, Sections 2 and 4, with explicit constants.
"""

from attlas.capacity.blocks import (
    Block,
    HeadNorms,
    PositionNorms,
    collapsed_head,
    head_block,
    multi_head,
    normalised,
    position_wise,
    projected,
    residual,
    stacked,
)
from attlas.capacity.bounds import Capacity, RiskBound, class_of, occam_samples, read_out
from attlas.capacity.modules import block_of, capacity_of, head_norms
