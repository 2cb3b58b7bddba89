"""What claims about trained networks share: runs, and errors over them."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.latent_posterior.claims.shared import defining

RUNS = defining("runs >= 8: errors are over runs", lambda s: s.runs >= 8)
FAILED = 0.25
"""The share of runs that may become non-finite before nothing is decided by the others."""


def over_runs(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """The standard error of a mean over the runs that stayed finite, and on how many it rests;
    there is none if more than a quarter failed."""
    left = values.count("run").astype(float)
    error = values.std("run", ddof=1) / np.sqrt(left)
    error = error.where(left >= (1 - FAILED) * values.sizes["run"])
    return {"error": error, "repetitions": left}


def sides(*pairs: tuple[str, xr.DataArray, xr.DataArray]) -> dict[str, xr.DataArray]:
    """What `Order` reads of several inequalities, each with its name, the lower and the upper
    side, with an axis of runs."""
    names = xr.Variable("inequality", [name for name, _, _ in pairs])
    lower = xr.concat([low for _, low, _ in pairs], names)
    upper = xr.concat([high for _, _, high in pairs], names)
    apart = upper - lower
    here = apart.notnull()  # where one side failed the other is left out too
    return {
        "lower": lower.where(here).mean("run"),
        "upper": upper.where(here).mean("run"),
        **over_runs(apart),
    }


def slope_over_runs(x: Any, values: Float[np.ndarray, "x run"]) -> tuple[float, float]:
    """The slope of the logarithm of the mean over runs against the logarithm of x, with its
    standard error by leaving out one run after the other (jackknife); runs that failed are NaN."""
    values = values[:, np.isfinite(values).all(0)]
    logs = np.log(np.asarray(x, float))
    logs = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    n = values.shape[1]
    left = (values.sum(1, keepdims=True) - values) / (n - 1)
    slopes = logs @ np.log(left)
    error = np.sqrt((n - 1) * slopes.var())
    return float(logs @ np.log(values.mean(1))), float(error)
