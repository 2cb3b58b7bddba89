"""Claims about attention as an estimate of a whole conditional law."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from attlas.attention import softmax
from attlas.claims import Control, Hypothesis, Setting, claim, drawn_by, key_for, together
from attlas.gaussian import stream
from attlas.kernels import Exponential, cme_weights
from attlas.latent_posterior.claims.rates import DRAWS, RATE, mean_of, ordered, root_of
from attlas.latent_posterior.claims.shared import FIGURES
from attlas.latent_posterior.rates import optimal_temperature, softmax_bias, softmax_error
from attlas.statistics import Agreement, Approximation, Order

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


@eqx.filter_jit
def law_distances(
    contexts: Float[Any, "draw token 4"],
    queries: int,
    ridge: Float[Any, ""],
    temperatures: Float[Any, " 2"],
    kernel: Exponential,
) -> tuple[Float[Array, "draw law"], Float[Array, "draw law"], Float[Array, "draw law"]]:
    """Of each law to the true one, means over queries: excess CRPS and L1 distance; and the worst failure to be a law. Contexts are normal
    numbers, four for each of the `queries` and tokens."""

    def one(drawn: Array) -> tuple[Array, Array, Array]:
        points = drawn[:, :3] / jnp.linalg.norm(drawn[:, :3], axis=1, keepdims=True)
        asked, context = points[:queries], points[queries:]
        truth, given = (1 / len(LETTERS) + TILT * x @ LETTERS.T for x in (asked, context))
        place = jax.scipy.special.ndtr(drawn[queries:, 3:])
        letters = jnp.diff((place < jnp.cumsum(given, 1)).at[:, -1].set(True).astype(float), axis=1, prepend=0.0)
        best, fixed = (softmax(asked @ context.T / t) @ letters for t in temperatures)
        signed = cme_weights(asked, context, ridge=ridge, kernel=kernel) @ letters
        kept = jnp.maximum(signed, 0)
        laws = jnp.stack([best, signed, kept / kept.sum(1, keepdims=True), fixed])
        off = laws - truth
        crps = (jnp.cumsum(off, -1)[..., :-1] ** 2).sum(-1).mean(-1)
        broken = jnp.maximum(-laws.min((1, 2)), abs(laws.sum(-1) - 1).max(-1))
        return crps, abs(off).sum(-1).mean(-1), jnp.maximum(broken, 0)

    return jax.lax.map(one, contexts)


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
    found = law_distances(drawn, cell.queries, np.asarray(ridge), temperatures, Exponential(0.5))
    crps, apart, broken = (np.asarray(part)[None] for part in found)
    formula = [softmax_error(cell.length, temperature=t, dim=3, powers=total, noise=noise) for t in temperatures]
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
    needs=(RATE,),
    origin="ours",
    **LETTERED,
)(conditional_laws)  # fmt: skip


def laws_fallen(evidence: xr.Dataset, *laws: str) -> xr.Dataset:
    distances = evidence["apart"].sel(law=list(laws)).drop_vars("law").rename(law="falling")
    (first, before), (last, after) = (mean_of(distances.isel(cell=end, drop=True)) for end in (0, -1))
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
)(conditional_laws)  # fmt: skip

claim(
    "latent-posterior/law-clipped",
    source="attlas",
    reference="signed weights as a law",
    statement=r"Softmax attention gives a probability to every letter, not negative and with sum 1, and so does CME attention once negative ones are set to 0 and the rest is scaled to sum to 1.",
    words="Signed weights are no law until they are clipped.",
    rule=Agreement(rounding=1e-9),
    fit=lambda e: e.assign(measured=e["broken"].sel(law=[SOFT, CLIPPED]).drop_vars("law").rename(law="proper"), predicted=0.0, error=0.0),
    control=Control("CME attention as it is", lambda e: e.assign(measured=e["broken"].sel(law=SIGNED, drop=True))),
    figure=drawn_by(f"{FIGURES}.rates:broken_laws"),
    needs=(LAW,),
    origin="ours",
    **LETTERED,
)(conditional_laws)  # fmt: skip
