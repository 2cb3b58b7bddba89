"""The claims of the latent posterior (Zhang et al. 2022), by subject."""

from attlas.latent_posterior.claims import (
    inference,
    laws,
    learning,
    rates,
    representation,
    transfer,
)

__all__ = ["inference", "laws", "learning", "rates", "representation", "transfer"]
