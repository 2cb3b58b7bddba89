"""Latent posterior: exchangeable tokens have a latent, its posterior is what a sequence says, and attention infers it (Zhang et al. 2022)."""

from attlas.latent_posterior.models import (
    BayesianRegression,
    Contexts,
    FiniteLatent,
    Gaussian,
    GaussianLocation,
    GaussianMixture,
    Mixture,
    Sequences,
)

__all__ = [
    "BayesianRegression",
    "Contexts",
    "FiniteLatent",
    "Gaussian",
    "GaussianLocation",
    "GaussianMixture",
    "Mixture",
    "Sequences",
]
