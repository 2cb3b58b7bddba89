"""Benchmarks of searches for a violation, and of certificates."""

import itertools

from attlas.certificates import make_certificate
from attlas.claims import find_claim
from attlas.lab.refute import find_violation
from attlas.lab.runner import run
from bench.timing import Row, seconds, temporary_store


def searched_settings() -> Row:
    """Two hundred settings of a cheap claim, each measured, stored and judged."""
    claim, count = find_claim("single-location/zeta"), 200
    with temporary_store() as store:
        run(claim, store=store)
        took = seconds(lambda: find_violation(claim, minutes=60, most=count, store=store))
        seeds = itertools.count(1)
        alone = seconds(
            lambda: [
                run(claim, store=store, seed=next(seeds), settings={"spread": (0.5,)})
                for _ in range(20)
            ]
        )
    what = f"{count:,} settings of zeta by refute, against as many runs"
    return Row(what, took, alone * count / 20, "1 or more")


def five_fixed_points() -> Row:
    """The five fixed points certified on a box of the paper's parameters."""
    box = {"lam": ("0.05", "0.5"), "dim": ("400", "400"), "length": ("10", "10")}
    sides = {name: list(ends) for name, ends in {**box, "gamma": ("0.7", "0.715")}.items()}
    claim = "single-location/manifold-fixed-points"
    took = seconds(lambda: make_certificate(claim, sides))
    return Row("five fixed points certified on a box, against a minute", took, 60.0, "1 or more")


BENCHMARKS = (searched_settings, five_fixed_points)
