"""What the claims of this map share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.claims import Hypothesis
from attlas.gaussian import Estimate, stream
from attlas.latent_posterior.models import FiniteLatent
from attlas.latent_posterior.rates import multiplicity, zonal

TOKENS = Hypothesis("length >= 2", lambda s: s.length >= 2, defining=True)
SPHERE = Hypothesis("dim >= 2", lambda s: s.dim >= 2, defining=True)
DRAWS = Hypothesis("draws >= 20", lambda s: s.draws >= 20, defining=True)


def mean_over_draws(values: xr.DataArray) -> Estimate:
    """The mean along `draw`, with its standard error."""
    error = values.std("draw", ddof=1) / np.sqrt(values.sizes["draw"])
    return Estimate(values.mean("draw"), error)


def root_mean_over_draws(squares: xr.DataArray) -> Estimate:
    """The root of the mean along `draw`, with its standard error."""
    mean, error = mean_over_draws(squares)
    root = mean**0.5
    return Estimate(root, error / (2 * root))


def random_laws(key: Array, rows: int, size: int) -> Float[np.ndarray, "rows size"]:
    """Rows of probabilities, uniform on the simplex."""
    return stream(key).dirichlet(np.ones(size), rows)


def random_topics(key: Array, latents: int, vocabulary: int) -> FiniteLatent:
    """Topics with random words, and a prior between a uniform and a random one."""
    rng = stream(key)
    law = (1 / latents + rng.dirichlet(np.ones(latents))) / 2
    return FiniteLatent(law, rng.dirichlet(np.ones(vocabulary), latents))


def on_sphere(key: Array, *shape: int) -> Float[np.ndarray, "..."]:
    """Uniform points of the unit sphere, the last axis their coordinates."""
    x = stream(key).standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def zonal_mean(weights: Sequence[float], x: Float[Any, "*n dim"]) -> Float[Any, "*n 1"]:
    r"""$m(x) = \sum_l w_l P_l(x_1)$, the conditional mean of the claims on the sphere."""
    terms: Any = (w * zonal(l, x.shape[-1], x[..., :1]) for l, w in enumerate(weights))
    return sum(terms)


def powers_of(weights: Sequence[float], dim: int) -> Float[np.ndarray, " degree"]:
    r"""$|m_l|^2 = w_l^2/N_l$ of `zonal_mean`."""
    return np.square(weights) / multiplicity(np.arange(len(weights)), dim)
