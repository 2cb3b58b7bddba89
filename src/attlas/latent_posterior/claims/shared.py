"""What the claims of this map share."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attlas.claims import Hypothesis
from attlas.latent_posterior.models import FiniteLatent

PAPER = "zhang2022"
FIGURES = "attlas.latent_posterior.figures"

TOKENS = Hypothesis("length >= 2", lambda s: s.length >= 2, defining=True)


def random_topics(key: Array, latents: int, vocabulary: int) -> FiniteLatent:
    """Topics with words uniform on the simplex, and a prior that leaves none out."""
    law, words = jax.random.split(key)
    prior = jax.random.dirichlet(law, jnp.full(latents, 4.0))
    return FiniteLatent(np.asarray(prior), np.asarray(jax.random.dirichlet(words, jnp.ones(vocabulary), (latents,))))
