"""False variants of claims that state several things: each has one of its own, or several."""

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


def nearest(evidence: xr.Dataset, size: float) -> Values:
    """Of all false variants the one that is nearest to what is predicted, `size` of the way there,
    and the other comparisons as they were: `Approximation`, where it refutes this, refutes each.

    Arguments:
        evidence: with `predicted` and `measured`, and `wrong` and `error_of_wrong` along `variant`,
            NaN where there is none.
    """
    wrong = evidence["wrong"]
    off = abs(wrong / evidence["predicted"] - 1)
    chosen = off == off.min()
    there, error = (
        x.where(chosen).max("variant") for x in (wrong, evidence["error_of_wrong"].fillna(0))
    )
    here = chosen.any("variant")
    moved = evidence["measured"] + size * (there - evidence["measured"])
    return {
        "measured": xr.where(here, moved, evidence["measured"]),
        "error": xr.where(here, error, evidence["error"]),
    }
