"""The claims of attention as inference of a latent (Zhang et al. 2022), by subject."""

from attlas.claims import Map

latent_posterior = Map(
    "latent-posterior",
    source="zhang2022",
    home=__name__,
    subjects=(
        "representation",
        "inference",
        "laws",
        "rates",
        "limits",
        "transfer",
        "learning",
        "lengths",
    ),
    domain=("length >= 2", "dim >= 2", "temperature > 0"),
)
