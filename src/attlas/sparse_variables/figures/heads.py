"""Figures of the table form."""

from typing import Any

import xarray as xr

from attlas.drawing import agreement


def table_agreement(evidence: xr.Dataset) -> Any:
    what = "logit, or derivative in a direction"
    return agreement(
        evidence, "The table form is the whole Transformer", by="form", by_title="", what=what
    )
