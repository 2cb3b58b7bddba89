"""Latent posterior: exchangeable tokens have a latent, its posterior is what a sequence says, and
attention infers it (Zhang et al. 2022)."""

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
from attlas.latent_posterior.pretraining import LinearGaussian, masked_operator
from attlas.latent_posterior.trained_attention import Ledger, ledger
from attlas.latent_posterior.transfer import ConditionNumber, condition_number, coverage_number
