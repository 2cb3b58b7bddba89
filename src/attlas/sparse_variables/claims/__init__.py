"""The claims of sparse variable creation (Edelman et al. 2022), by subject."""

from attlas.claims import Map

sparse_variables = Map(
    "sparse-variables",
    source="edelman2022",
    home=__name__,
    subjects=(
        "lipschitz",
        "complexity",
        "generalisation",
        "constructions",
        "thresholds",
        "trained_heads",
        "parity",
    ),
    domain=("length >= 2", "starts >= 2", "query_norm > 0", "ratio > 0"),
)
