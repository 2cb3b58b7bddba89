"""What the claims of this map share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from attlas.claims.compat import Hypothesis
from attlas.gaussian import stream
from attlas.latent_posterior.models import FiniteLatent
from attlas.latent_posterior.rates import multiplicity, zonal

PAPER = "zhang2022"
FIGURES = "attlas.latent_posterior.figures"

TOKENS = Hypothesis("length >= 2", lambda s: s.length >= 2, defining=True)
SPHERE = Hypothesis("dim >= 2", lambda s: s.dim >= 2, defining=True)


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
