"""The claims of the latent posterior (Zhang et al. 2022), by subject."""

from attlas.latent_posterior.claims import inference, rates, representation

__all__ = ["inference", "rates", "representation"]
