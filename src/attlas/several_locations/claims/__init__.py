"""The claims about several locations, by subject."""

from attlas.claims import Map

several_locations = Map(
    "several-locations",
    source="marion2025",
    home=__name__,
    subjects=(
        "heads",
        "networks",
        "parting",
        "waiting",
        "tokens",
        "relevance",
        "training",
        "order",
    ),
    domain=("length >= 2", "dim >= 8", "points >= 64", "starts >= 1", "correlation < 1"),
)
"""What the claims of this map share."""
