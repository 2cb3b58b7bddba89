"""What the claims of this map share."""

import jax
import numpy as np
from jaxtyping import Array, Float

from attlas.claims import Hypothesis
from attlas.latent_posterior.models import FiniteLatent

PAPER = "zhang2022"
FIGURES = "attlas.latent_posterior.figures"

TOKENS = Hypothesis("length >= 2", lambda s: s.length >= 2, defining=True)


def random_laws(key: Array, rows: int, size: int) -> Float[np.ndarray, "rows size"]:
    """Rows of probabilities, uniform on the simplex."""
    drawn = np.asarray(jax.random.exponential(key, (rows, size)))
    return drawn / drawn.sum(1, keepdims=True)


def random_topics(key: Array, latents: int, vocabulary: int) -> FiniteLatent:
    """Topics with random words, and a prior between a uniform and a random one."""
    law, words = jax.random.split(key)
    return FiniteLatent((1 / latents + random_laws(law, 1, latents)[0]) / 2, random_laws(words, latents, vocabulary))
