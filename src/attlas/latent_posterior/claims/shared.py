"""What the claims of this map share."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims import Hypothesis, Setting
from attlas.figure import Figure
from attlas.gaussian import Estimate
from attlas.latent_posterior.models import FiniteLatent


def defining(words: str, holds: Callable[[Setting], bool]) -> Hypothesis:
    """A condition without which nothing is defined."""
    return Hypothesis(words, holds, defining=True)


TOKENS = defining("length >= 2", lambda s: s.length >= 2)
DRAWS = defining("draws >= 20", lambda s: s.draws >= 20)

FLOOR = 1e-18
"""Where an exact 0 is drawn on a logarithmic axis."""

LEGENDS: dict[str, str | None] = {
    "length": "tokens L",
    "dim": "dimension p",
    "norm": "query norm",
    "risk": "excess of",
    "size": "contexts n",
    **dict.fromkeys(("attention", "law", "learner", "mechanism", "way")),
}
"""Titles of the legends of this map's figures; words that explain themselves have none."""


def log_figure(
    evidence: xr.Dataset,
    title: str,
    note: str = "",
    *,
    x: str = "tokens L",
    legend: Mapping[str, str | None] = LEGENDS,
    **options: Any,
) -> Figure:
    """A figure with two logarithmic axes, over the number of tokens unless `x` says otherwise."""
    return Figure(evidence, title, note, x=x, log="xy", legend=legend, **options)


def mean_over_draws(values: xr.DataArray) -> Estimate:
    """The mean along `draw`, with its standard error."""
    error = values.std("draw", ddof=1) / np.sqrt(values.sizes["draw"])
    return Estimate(values.mean("draw"), error)


def root(square: Estimate) -> Estimate:
    """The root of an estimate, with its standard error."""
    value = square.mean**0.5
    return Estimate(value, square.error / (2 * value))


def random_topics(rng: np.random.Generator, latents: int, vocabulary: int) -> FiniteLatent:
    """Topics with random words, and a prior between a uniform and a random one."""
    law = (1 / latents + rng.dirichlet(np.ones(latents))) / 2
    return FiniteLatent(law, rng.dirichlet(np.ones(vocabulary), latents))


def on_sphere(rng: np.random.Generator, *shape: int) -> Float[np.ndarray, "..."]:
    """Uniform points of the unit sphere, the last axis their coordinates."""
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
