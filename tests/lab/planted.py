"""Claims that are true, and false variants of them, of every rule: what a search must find.

Of each rule there is a true claim, one whose constant is 2 % off (or 2 % beyond its margin), one
that lacks the hypothesis x <= 0.7, and one that fails in a corner of 1 % of the region only.
"""

import numpy as np

from attlas.claims import (
    Agreement,
    Approximation,
    Bound,
    Control,
    Convergence,
    Map,
    Order,
    Rate,
    SameLaw,
    Setting,
    on,
)

KINDS = ("true", "constant", "hypothesis", "corner")
planted = Map("planted", source="attlas")


def off(kind, cell):
    """By how much the statement is off in a cell."""
    return {
        "true": 0.0,
        "constant": 0.02,
        "hypothesis": 0.1 * (cell.x > 0.7),
        "corner": 0.2 * (cell.x > 0.9 and cell.y > 0.9),
    }[kind]


def noisy(mean, size, cell, draws):
    """A mean of `samples` draws of standard deviation `size`, and its error."""
    error = size / cell.samples**0.5
    return mean + error * draws.stream("noise").standard_normal(), error


def agreement(kind, cell, draws):
    measured, error = noisy(1 + cell.x * (1 + off(kind, cell)), 0.2 + cell.y, cell, draws)
    return {"predicted": 1 + cell.x, "measured": measured, "error": error}


def approximation(kind, cell, draws):
    truth = 1 + 0.04 * np.cos(3 * cell.x) + 1.5 * off(kind, cell)
    measured, error = noisy(truth, 0.2, cell, draws)
    return {"predicted": 1.0, "measured": measured, "error": error}


def bound(kind, cell, draws):
    reached = (1 - (cell.x - 0.3) ** 2) * (1 + off(kind, cell))
    if kind in ("hypothesis", "corner"):
        reached = 0.95 + off(kind, cell)
    measured, error = noisy(reached - 2e-3, 0.02, cell, draws)
    return {"bound": 1.0, "measured": measured, "error": error}


def rate(kind, cell, draws):
    sizes = np.geomspace(10, 1000, 6)
    exponent = 0.5 + 0.09 * np.cos(3 * cell.x) + 2 * off(kind, cell)
    error = 0.02 * sizes**exponent / cell.samples**0.25
    measured = sizes**exponent + error * draws.stream("noise").standard_normal(6)
    return on("size", x=sizes, measured=measured, error=error) | {"exponent": 0.5}


def convergence(kind, cell, draws):
    share = 0.92 + 0.02 * np.cos(3 * cell.x) - 2 * off(kind, cell)
    return on("repeat", arrived=draws.stream("runs").random(cell.samples) < share)


def order(kind, cell, draws):
    gap = 0.015 + 0.03 * (cell.x - 0.5) ** 2 - off(kind, cell)
    measured, error = noisy(1 + gap, 0.1, cell, draws)
    return {"lower": 1.0, "upper": measured, "error": error}


def same_law(kind, cell, draws):
    mean = 5 * (1 + cell.x)
    a, b = draws.stream("samples").standard_normal((2, cell.samples))
    return on("draw", sample_a=mean + a, sample_b=mean * (1 + off(kind, cell)) + b)


RULES = {
    "agreement": (agreement, Agreement(), 10_000),
    "approximation": (approximation, Approximation(margin=0.05), 10_000),
    "bound": (bound, Bound(), 10_000),
    "rate": (rate, Rate(margin=0.1, along="size"), 10_000),
    "convergence": (convergence, Convergence(share=0.9), 4000),
    "order": (order, Order(), 10_000),
    "same-law": (same_law, SameLaw(), 2000),
}


def claim(rule, kind, **parts):
    """The planted claim of a rule and a kind."""
    measure, judged, samples = RULES[rule]

    def function(cell, draws):
        return measure(kind, cell, draws)

    function.__name__ = f"{rule}_{kind}_{len(planted_names)}".replace("-", "_")
    planted_names.append(function.__name__)
    return planted.claim(
        kind="simulation",
        origin="ours",
        reference="a test",
        statement="planted",
        words="planted",
        quick=Setting(x=0.3, y=0.5, z=0.5, samples=samples),
        budget="samples",
        ranges={"x": (0.0, 1.0), "y": (0.0, 1.0), "z": (0.0, 1.0)},
        rule=judged,
        control=Control("nothing", lambda e: e),
        **parts,
    )(function)


planted_names: list[str] = []
