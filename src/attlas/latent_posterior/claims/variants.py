"""False variants of claims that state several inequalities: each has one of its own."""

import xarray as xr

from attlas.claims import Values


def hardest(
    evidence: xr.Dataset, lower: xr.DataArray | None = None, upper: xr.DataArray | None = None
) -> Values:
    """Of a false variant of each inequality the one that is hardest to tell, and the other
    inequalities as they were: `Order`, where it refutes this, refutes each variant by itself.

    Arguments:
        evidence: with `lower`, `upper` and `error`, and an axis of inequalities.
        lower, upper: those of the variants, where they differ.
    """
    lower = evidence["lower"] if lower is None else lower
    upper = evidence["upper"] if upper is None else upper
    told = (upper - lower) / evidence["error"]
    chosen = told == told.max()
    return {
        "lower": xr.where(chosen, lower, evidence["lower"]),
        "upper": xr.where(chosen, upper, evidence["upper"]),
    }
