"""Several locations: what readers of single-location regression asked next, answered on overlaps
(`attlas.order_parameters`)."""

from attlas.several_locations.task import (
    attention_threshold,
    bayes_losses,
    heads_problem,
    linear_threshold,
    random_starts,
)
