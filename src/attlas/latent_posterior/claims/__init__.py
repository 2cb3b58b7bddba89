"""The claims of attention as inference of a latent (Zhang et al. 2022), by subject."""

from attlas.claims import Map

latent_posterior = Map(
    "latent-posterior",
    source="zhang2022",
    home=__name__,
    subjects=(
        "representation",
        "inference",
        "rates",
        "limits",
        "transfer",
        "learning",
        "excess_risk",
        "lengths",
        "encoders",
        "probes",
        "gaussian_latents",
        "forward_pass",
        "trained_transfer",
        "in_context",
        "order",
    ),
    domain=(
        "noise > 0",
        "scale > 0",
        "temperature > 0",
        "query_norm > 0",
        "kappa >= 1",
        "dim >= 2",
    ),
)
"""What the claims of this map share."""
