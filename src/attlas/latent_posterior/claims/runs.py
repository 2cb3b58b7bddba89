"""What claims about trained networks share: runs, and errors over them."""

import numpy as np
import xarray as xr

from attlas.latent_posterior.claims.shared import defining

RUNS = defining("runs >= 8: errors are over runs", lambda s: s.runs >= 8)


def over_runs(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """The standard error of a mean over runs, and on how many it rests."""
    error = values.std("run", ddof=1) / np.sqrt(values.sizes["run"])
    return {"error": error, "repetitions": xr.full_like(error, values.sizes["run"])}
