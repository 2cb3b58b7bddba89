"""Recorded runs as Datasets."""

from typing import Any

import numpy as np
import xarray as xr

from attlas.scan import Trajectory


def recorded(path: Trajectory, variables: dict[str, Any]) -> xr.Dataset:
    """`variables` of a path, and over repeat the `status`, "completed" or "diverged", with the
    steps that it `survived`."""
    status = np.where(path.survived == path.steps[-1], "completed", "diverged")
    ends = {"status": ("repeat", status), "survived": ("repeat", path.survived)}
    return xr.Dataset({**variables, **ends}, {"step": path.steps})
