"""Latent posterior: exchangeable tokens have a latent, its posterior is what a sequence says, and
attention infers it (Zhang et al. 2022).

>>> import jax
>>> from attlas.latent_posterior import GaussianLocation
>>> model = GaussianLocation(dim=3, noise=1.0, scale=2.0)
>>> drawn = model.sample(jax.random.key(0), samples=2, length=10)
>>> print(drawn.tokens.shape, model.posterior(drawn.tokens).mean.shape)
(2, 10, 3) (2, 3)
>>> exact, found = model.bayes_risk(10), model.sampled_bayes_risk(10, jax.random.key(1), 10_000)
>>> bool(abs(found.mean - exact) < 5 * found.error)
True
>>> from attlas.latent_posterior import BayesianRegression, Contexts, Gaussian
>>> model = BayesianRegression(dim=3, noise=0.3)
>>> drawn = model.sample(jax.random.key(0), samples=2, length=20)
>>> law = model.predictive(drawn.keys, drawn.values, drawn.queries)
>>> print(type(drawn) is Contexts, type(law) is Gaussian, law.mean.shape, f"{model.ridge:.2f}")
True True (2, 1, 1) 0.09
>>> from attlas.latent_posterior import FiniteLatent, Sequences, masked_operator
>>> model = FiniteLatent(prior=[0.5, 0.5], words=[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
>>> drawn = model.sample(jax.random.key(0), samples=4, length=6)
>>> print(type(drawn) is Sequences, model.posterior(drawn.tokens).shape)
True (4, 2)
>>> print(f"{model.bayes_risk(6):.4f}", masked_operator(model).shape)
0.0193 (3, 2)
>>> from attlas.latent_posterior import GaussianMixture, Mixture
>>> model = GaussianMixture(prior=[0.5, 0.5], means=[[1.0, 0.0], [-1.0, 0.0]])
>>> drawn = model.sample(jax.random.key(0), samples=5, length=3)
>>> print(type(model.predictive(drawn.tokens)) is Mixture, f"{model.bayes_risk(3):.3f}")
True 0.062
"""

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
