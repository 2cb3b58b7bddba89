"""Claims about attention as an estimate of a whole conditional law."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.linalg import solve
from scipy.special import ndtr, softmax

from attlas.claims.compat import (
    Agreement,
    Approximation,
    Control,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.latent_posterior.claims.rates import DRAWS, mean_of, ordered, root_of
from attlas.latent_posterior.claims.shared import FIGURES
from attlas.latent_posterior.rates import optimal_temperature, softmax_bias, softmax_error

LETTERS = np.array([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
TILT = 0.9 / len(LETTERS)
"""Letter j has the probability 1/4 + TILT <k, LETTERS_j> at the key k: the cumulative ones are linear in k as well."""
SOFT, SIGNED, CLIPPED, WARM = LAWS = ("softmax", "CME, signed", "CME, clipped", "softmax, fixed γ")
LAW = "latent-posterior/law-crps"


def cumulative_powers() -> tuple[Float[np.ndarray, "letter degree"], Float[np.ndarray, " letter"]]:
    """Powers of the cumulative probabilities, and their mean noise."""
    height = np.arange(1, len(LETTERS) + 1) / len(LETTERS)
    tilts = TILT**2 * (np.cumsum(LETTERS, 0) ** 2).sum(1) / 3
    return np.stack([height**2, tilts], 1)[:-1], np.sqrt(height - height**2 - tilts)[:-1]


def law_distances(
    drawn: Float[np.ndarray, "token 4"],
    queries: int,
    ridge: float,
    temperatures: Float[np.ndarray, " 2"],
    kernel: float,
) -> tuple[Float[np.ndarray, " law"], Float[np.ndarray, " law"], Float[np.ndarray, " law"]]:
    """Of each law to the true one, means over queries: excess CRPS and L1 distance; and the worst failure to be a law. A context is drawn as normal
    numbers, four for each of the `queries` and tokens."""
    points = drawn[:, :3] / np.linalg.norm(drawn[:, :3], axis=1, keepdims=True)
    truth, given = np.split(1 / len(LETTERS) + TILT * points @ LETTERS.T, [queries])
    heights = np.cumsum(given, 1)[:, :-1]
    letters = np.eye(len(LETTERS))[(ndtr(drawn[queries:, 3:]) >= heights).sum(1)]
    products = points @ points[queries:].T
    best, fixed = (softmax(products[:queries] / t, axis=1) @ letters for t in temperatures)
    cross, gram = np.split(np.exp((products - 1) / kernel), [queries])
    gram[np.diag_indices(len(gram))] += ridge
    signed = cross @ solve(gram, letters, assume_a="pos", check_finite=False)
    kept = np.maximum(signed, 0)
    laws = np.stack([best, signed, kept / kept.sum(1, keepdims=True), fixed])
    off = laws - truth
    crps = (np.cumsum(off, -1)[..., :-1] ** 2).sum(-1).mean(-1)
    broken = np.maximum(-laws.min((1, 2)), abs(laws.sum(-1) - 1).max(-1))
    return crps, abs(off).sum(-1).mean(-1), np.maximum(broken, 0)


def conditional_laws(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    """Attention to the letters of tokens as an estimate of the law of a letter at a query."""
    (cell,) = cells
    powers, noises = cumulative_powers()
    total, noise = powers.sum(0), float(np.sqrt((noises**2).sum()))
    best = float(optimal_temperature(cell.length, dim=3, powers=total, noise=noise))
    # The ridge of a Gaussian process with this much variation: noise over the variance of the tilts.
    ridge = noise**2 / total[1]
    shape = (cell.draws, cell.queries + cell.length, 4)
    drawn = stream(key_for(seed, LAW, "contexts")).standard_normal(shape)
    temperatures = np.array([best, cell.fixed])
    found = [law_distances(one, cell.queries, ridge, temperatures, 0.5) for one in drawn]
    crps, apart, broken = (np.array(part)[None] for part in zip(*found, strict=True))
    formula = [
        softmax_error(cell.length, temperature=t, dim=3, powers=total, noise=noise)
        for t in temperatures
    ]
    axes = ("cell", "draw", "law")
    return xr.Dataset(
        {
            "crps": (axes, crps),
            "apart": (axes, apart),
            "broken": (axes, broken),
            "formula": ("cell", formula[:1]),
            "bias": ("cell", [softmax_bias(best, 3, total) ** 2]),
        },
        coords={"law": list(LAWS)},
    )


LETTERED: dict[str, Any] = {
    "quick": Setting(length=(64, 256), fixed=2.0, draws=400, queries=32),
    "paper": Setting(length=(64, 256, 1024), fixed=2.0, draws=400, queries=32),
    "hypotheses": (DRAWS, Hypothesis("length >= 64", lambda s: s.length >= 64)),
    "cells": together("length"),
    "budget": "draws",
}


def crps_of(evidence: xr.Dataset) -> xr.Dataset:
    measured, error = root_of(evidence["crps"].sel(law=SOFT, drop=True))
    return evidence.assign(measured=measured, error=error, predicted=np.sqrt(evidence["formula"]))


claim(
    LAW,
    source="attlas",
    reference="softmax attention as a conditional law",
    statement=r"Softmax weights are an estimate $\hat P(v \mid q) = \sum_i w_i\delta_{v_i}$ of the conditional law; the expected excess of its CRPS, $\sum_j(\hat F_j - F_j)^2$, is the sum of the"
    r" finite-length errors of the cumulative probabilities, to 10 % of its root.",
    words="Attention to tokens is also a forecast of the whole law of the next value, and how good it is can be said.",
    rule=Approximation(margin=0.1),
    fit=crps_of,
    control=Control("the bias alone", lambda e: e.assign(predicted=np.sqrt(e["bias"]))),
    figure=drawn_by(f"{FIGURES}.rates:laws"),
    needs=("latent-posterior/softmax-rate",),
    origin="ours",
    **LETTERED,
)(conditional_laws)


def laws_fallen(evidence: xr.Dataset, *laws: str) -> xr.Dataset:
    distances = evidence["apart"].sel(law=list(laws)).drop_vars("law").rename(law="falling")
    (first, before), (last, after) = (
        mean_of(distances.isel(cell=end, drop=True)) for end in (0, -1)
    )
    return ordered(evidence, last, 0.75 * first, np.hypot(0.75 * before, after))


claim(
    "latent-posterior/law-distance",
    source="attlas",
    reference="attention as a conditional law",
    statement=r"The $L_1$ distance of $\hat P(\cdot \mid q)$ to the true law falls by more than a quarter from the shortest context to the longest, four times as long or more, for softmax attention at"
    r" the best temperature and for clipped CME attention.",
    words="With more tokens the forecast of the law gets nearer to the truth.",
    rule=Order(),
    fit=lambda e: laws_fallen(e, SOFT, CLIPPED),
    control=Control("at a fixed temperature, too", lambda e: laws_fallen(e, WARM)),
    figure=drawn_by(f"{FIGURES}.rates:law_distances"),
    needs=(LAW,),
    origin="ours",
    **LETTERED,
)(conditional_laws)

claim(
    "latent-posterior/law-clipped",
    source="attlas",
    reference="signed weights as a law",
    statement=r"Softmax attention gives a probability to every letter, not negative and with sum 1, and so does CME attention once negative ones are set to 0 and the rest is scaled to sum to 1.",
    words="Signed weights are no law until they are clipped.",
    rule=Agreement(rounding=1e-9),
    fit=lambda e: e.assign(
        measured=e["broken"].sel(law=[SOFT, CLIPPED]).drop_vars("law").rename(law="proper"),
        predicted=0.0,
        error=0.0,
    ),
    control=Control(
        "CME attention as it is",
        lambda e: e.assign(measured=e["broken"].sel(law=SIGNED, drop=True)),
    ),
    figure=drawn_by(f"{FIGURES}.rates:broken_laws"),
    needs=(LAW,),
    origin="ours",
    **LETTERED,
)(conditional_laws)
