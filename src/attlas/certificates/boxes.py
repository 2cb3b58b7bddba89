"""Boxes of parameters with exact ends, and on which of them a statement is defined."""

from collections.abc import Callable
from fractions import Fraction

Box = dict[str, tuple[Fraction, Fraction]]
"""Ends of each side, by the parameter's name."""


def positive_sides(*names: str) -> Callable[[Box], str]:
    """These are above 0, and there are two tokens or more where there is a length."""

    def defined(box: Box) -> str:
        wrong = [name for name in names if box[name][0] <= 0]
        if wrong:
            return f"{wrong[0]} must be above 0"
        few = "length" in box and box["length"][0] < 2
        return "length must be 2 or more" if few else ""

    return defined


def point_sides(free: str, *names: str) -> Callable[[Box], str]:
    """All sides but one are single numbers, and the named ones above 0."""

    def defined(box: Box) -> str:
        wide = [name for name, (low, high) in box.items() if name != free and low < high]
        return f"{wide[0]} must be a single number" if wide else positive_sides(*names)(box)

    return defined


def overlaps_and_points(box: Box) -> str:
    """Overlaps are from -1 to 1; the sharpness and the spread are single numbers."""
    wide = [name for name in ("lam", "gamma") if box[name][0] < box[name][1]]
    wrong = f"{wide[0]} must be a single number" if wide else ""
    wrong = wrong or positive_sides("lam", "dim", "gamma")(box)
    names = ("kappa", "nu", "theta", "eta", "rho")
    large = [name for name in names if box[name][0] < -1 or box[name][1] > 1]
    return wrong or (f"{large[0]} must be from -1 to 1" if large else "")


def weights_and_moves(box: Box) -> str:
    """Weights are shares, and the distance is above 0."""
    low, high = box["weight"]
    wrong = "" if low >= 0 and high <= 1 else "weight must be from 0 to 1"
    return wrong or positive_sides("distance")(box)


def sharp_heads(count: str) -> Callable[[Box], str]:
    """One or more of what is counted, and a sharpness with which a head tells levels apart."""

    def defined(box: Box) -> str:
        if box[count][0] < 1:
            return f"{count} must be 1 or more"
        return "" if box["sharpness"][0] > 1 else "sharpness must be above 1"

    return defined
