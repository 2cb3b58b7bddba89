"""What claims about trained networks share: runs, and errors over them."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.latent_posterior.claims.shared import defining

RUNS = defining("runs >= 8: errors are over runs", lambda s: s.runs >= 8)
FAILED = 0.25
"""The share of runs that may become non-finite before the others decide nothing."""


def finite_runs(evidence: xr.Dataset) -> xr.Dataset:
    """The runs that stayed finite: one that failed is NaN in some variable, and left out. If more
    than a quarter failed, all values are NaN, so that nothing is decided."""
    left = evidence.dropna("run")
    enough = left.sizes["run"] >= (1 - FAILED) * evidence.sizes["run"]
    return left if enough else evidence.where(False)


def or_failed(values: Any, finite: Any) -> Float[np.ndarray, "... run"]:
    """Values of runs, NaN where a run became non-finite."""
    return np.where(finite, values, np.nan)


def over_runs(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """The standard error of a mean over runs, and on how many it rests."""
    error = values.std("run", ddof=1) / np.sqrt(values.sizes["run"])
    return {"error": error, "repetitions": xr.full_like(error, values.sizes["run"])}


def sides(*pairs: tuple[str, xr.DataArray, xr.DataArray]) -> dict[str, xr.DataArray]:
    """What `Order` reads of several inequalities, each with its name, the lower and the upper
    side, with an axis of runs."""
    names = xr.Variable("inequality", [name for name, _, _ in pairs])
    lower = xr.concat([low for _, low, _ in pairs], names)
    upper = xr.concat([high for _, _, high in pairs], names)
    return {
        "lower": lower.mean("run"),
        "upper": upper.mean("run"),
        **over_runs(upper - lower),
    }


def slope_over_runs(x: Any, values: Float[np.ndarray, "x run"]) -> tuple[float, float]:
    """The slope of the logarithm of the mean over runs against the logarithm of x, with its
    standard error by leaving out one run after the other (jackknife)."""
    logs = np.log(np.asarray(x, float))
    logs = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    n = values.shape[1]
    left = (values.sum(1, keepdims=True) - values) / (n - 1)
    slopes = logs @ np.log(left)
    error = np.sqrt((n - 1) * slopes.var())
    return float(logs @ np.log(values.mean(1))), float(error)
