"""One call that tests a formula of one's own: `attlas.check` and its relatives.

    attlas.check(lambda length: 1 / length, first_weight, grid={"length": [4, 16, 64]})

A formula is compared with samples at every point of a grid, by the rules that claims have. The
sample grows fourfold, with fresh random numbers, until the rule decides or the time is over; each
look has half of the level of the look before, so that all of them together keep it.
"""

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import xarray as xr

from attlas.claims import check_forms as forms
from attlas.claims.claim import Control, find_resolution
from attlas.claims.evidence import CELL, Values, as_evidence
from attlas.claims.rules import (
    LEVEL,
    Agreement,
    Approximation,
    Bound,
    Convergence,
    Order,
    Rate,
    Rule,
    SameLaw,
)
from attlas.claims.setting import Setting
from attlas.claims.strength import counted
from attlas.claims.verdict import Verdict
from attlas.draws import Draws
from attlas.errors import InputError, whole

MAX_SAMPLES = 10**9
"""At one point, in one look."""
REPORT_EVERY = 4.5
"""Seconds between two reports of progress."""

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Form:
    """A kind of comparison.

    Arguments:
        functions: what the user gave. arguments: further ones of `measure_cell`.
        measure_cell: `measure_cell(*functions, cell, draws, **arguments)`, the evidence of one
            point of the grid.
        rule: how it is judged. variant: from a size to the false variant that must be refuted.
        words: the statement, with `{0}` for the first function's name.
    """

    functions: tuple[Callable[..., Any], ...]
    measure_cell: Callable[..., Values]
    rule: Rule
    variant: Callable[..., Control]
    words: str
    arguments: dict[str, Any] = field(default_factory=dict)
    along: str = ""

    @property
    def control(self) -> Control:
        return self.variant()

    def measure(self, cell: Setting, draws: Draws) -> Values:
        return self.measure_cell(*self.functions, cell, draws, **self.arguments)


@dataclass(frozen=True)
class Check:
    """What a check found: prints as a sentence, displays as a table and a figure in a notebook.

    Arguments:
        verdict: of the last look, as a claim has it. `first`: of the look before a refutation was
            repeated with fresh random numbers.
        evidence: a Dataset over `cell`, with the grid's names as coordinates.
        grid: as it was given. `samples`: at each point, in the last look. `seed`: of the call.
        seconds: what it took. `form`: the kind of comparison, with the functions.
        resolution: the smallest deviation that would have been refuted, of the kind that `control`
            says; None if none would have been.
    """

    form: Form
    grid: dict[str, tuple[Any, ...]]
    verdict: Verdict
    evidence: xr.Dataset
    samples: int
    seconds: float
    seed: int
    first: Verdict | None = None

    @functools.cached_property
    def resolution(self) -> float | None:
        """The smallest deviation that would have been refuted; None if none would have been."""
        return find_resolution(self.form.rule, self.form.control, self.evidence)

    @property
    def worst(self) -> str:
        """The cell that is nearest to a refutation, or the furthest beyond it."""
        distance = _distances(self.form, self.evidence)
        most = distance.max([axis for axis in distance.dims if axis != CELL])
        cell = self.evidence.isel({CELL: int(np.argmax(most.values))})
        return ", ".join(f"{name} = {cell[name].item()}" for name in self.grid)

    @property
    def sentence(self) -> str:
        """The verdict, the worst cell, the resolution and the cost."""
        control = self.form.control
        seen = "No variant was refuted."
        if self.resolution is not None:
            seen = f"Would have been refuted: {control.said(self.resolution)}."
        again = f" At first sight refuted: {self.first.reason}" if self.first else ""
        cells = self.evidence.sizes[CELL]
        worst = f" Worst at {self.worst}." if cells > 1 else ""
        return (
            f"{self.verdict.word}: {self.verdict.reason}{worst} {seen}{again}"
            f" {counted(cells, 'cell')}, {counted(self.samples, 'sample')} each,"
            f" {self.seconds:.2g} s."
        )

    def __repr__(self) -> str:
        return self.sentence

    def table(self) -> Any:
        """One row a compared value, as a pandas frame."""
        names = [name for name in self.form.rule.variables(self.evidence) if name in self.evidence]
        kept = self.evidence[names]
        if isinstance(self.form.rule, SameLaw | Convergence):
            kept = kept.mean(set(kept.dims) & {"draw", "repeat"})
        frame = kept.to_dataframe().reset_index()
        return frame[[*(name for name in self.grid if name in frame), *names]]

    def figure(self) -> Any:
        """An Altair chart of the evidence."""
        from attlas.claims.check_figures import draw_check

        return draw_check(self).chart()

    def plot(self) -> Any:
        """`figure()`, by the name that a notebook's user tries first."""
        return self.figure()

    def _repr_html_(self) -> str:
        from attlas.claims.check_figures import check_html

        return check_html(self)

    def to_claim(self, path: Any) -> Any:
        """Write the claim file that says the same, and return its path: `attlas run --claims`."""
        from attlas.claims.check_files import write_claim

        return write_claim(self, path)

    def to_latex(self) -> str:
        """A sentence and a table for a paper."""
        from attlas.claims.latex import escape, tabular

        return f"{escape(self.sentence)}\n\n{tabular(self.table())}\n"


# --- what is compared -----------------------------------------------------------------------------


def check(
    formula: Callable[..., Any],
    simulate: Callable[..., Any],
    *,
    grid: Grid,
    samples: int = 10_000,
    seed: int = 0,
    margin: float | None = None,
    resolution: float | None = None,
    seconds: float = 60.0,
    quiet: bool = False,
) -> Check:
    """Whether a formula is the mean of what a simulation gives, at every point of a grid.

        check(lambda length, lam: lam / length, draw, grid={"length": [4, 16], "lam": [.1, .5]})

    Arguments:
        formula: `formula(**cell)`, a number or an array, or an `Estimate` (mean and error).
        simulate: `simulate(rng, n, **cell)`, n samples of it, [n, ...]; a first argument that is
            called `key` gets a JAX key, any other a NumPy generator.
        grid: values by name; all combinations are checked.
        samples: at each point, in the first look.
        seed: of the random numbers.
        margin: how far the formula may be off, relative to it; without one it must be exact.
        resolution: look again with more samples until a formula off by so much would be refuted.
        seconds: after which no further look is begun.
        quiet: report no progress.

    >>> import attlas
    >>> import numpy as np
    >>> def first_weight(rng, n, length):
    ...     return rng.dirichlet(np.ones(length), size=n)[:, 0]
    >>> found = attlas.check(lambda length: 1 / length, first_weight, grid={"length": [2, 5, 20]})
    >>> print(found.verdict.word, found.resolution < 0.1)
    confirmed True
    >>> attlas.check(lambda length: 1.1 / length, first_weight, grid={"length": [5]}).verdict.word
    'refuted'
    >>> attlas.check(lambda length: 1 / length, first_weight, grid={})
    Traceback (most recent call last):
    attlas.errors.InputError: the grid is empty: it takes values by name, as in {'length': [4, 16]}
    """
    rule: Rule = Agreement(level=LEVEL) if margin is None else Approximation(margin=margin)
    words = "The formula {0} is the mean of the simulation {1}."
    form = Form((formula, simulate), forms.compare, rule, forms.formula_off, words)
    return _look(form, grid, samples, seed, resolution, seconds, quiet)


def check_bound(
    bound: Callable[..., Any],
    simulate: Callable[..., Any],
    *,
    grid: Grid,
    free: Mapping[str, Sequence[float]] | None = None,
    samples: int = 1000,
    seed: int = 0,
    seconds: float = 60.0,
    quiet: bool = False,
) -> Check:
    """Whether the mean of a simulation stays below a bound, also at the worst of `free` arguments.

    Arguments:
        bound: `bound(**cell, **free)`, a number.
        simulate: `simulate(rng, n, **cell, **free)`, [n].
        free: ranges (low, high) of further arguments, which are searched for the values at which
            the bound is nearest to being broken (differential evolution, with common random
            numbers); there the mean is then measured with fresh ones.
        others: as in `check`.

    >>> import attlas
    >>> def squares(rng, n, scale, shift):
    ...     return scale * (rng.normal(size=n) - shift) ** 2
    >>> attlas.check_bound(lambda scale, shift: 2 * scale, squares, grid={"scale": [1.0, 3.0]},
    ...                    free={"shift": (-0.9, 0.9)}, samples=2000).verdict.word
    'confirmed'
    """
    ranges = {str(name): tuple(map(float, ends)) for name, ends in (free or {}).items()}
    for name, ends in ranges.items():
        if len(ends) != 2 or not ends[0] < ends[1] or not np.isfinite(ends).all():
            raise InputError(f"free: {name} has the range {ends}: it takes (low, high), low < high")
    words, given = "The mean of the simulation {1} is at most {0}.", {"free": ranges}
    sides = (bound, simulate)
    form = Form(sides, forms.stay_below, Bound(), forms.smaller_bound, words, given)
    return _look(form, grid, samples, seed, None, seconds, quiet)


def check_rate(
    simulate: Callable[..., Any],
    *,
    along: str,
    exponent: float,
    grid: Grid,
    margin: float = 0.05,
    samples: int = 10_000,
    seed: int = 0,
    seconds: float = 60.0,
    quiet: bool = False,
) -> Check:
    """Whether the mean of a simulation grows like a power of one axis of the grid.

    Arguments:
        simulate: as in `check`.
        along: the name of the axis, with at least two values in the grid.
        exponent: that of the power. `margin`: how far the fitted one may be off.
        others: as in `check`.

    >>> import attlas
    >>> def mean_square(rng, n, size):
    ...     return (rng.normal(size=(n, size)).mean(-1)) ** 2
    >>> attlas.check_rate(mean_square, along="size", exponent=-1.0,
    ...                   grid={"size": [4, 8, 16, 32, 64]}).verdict.word
    'confirmed'
    """
    values = tuple(grid.get(along, ()))
    if len(set(values)) < 2:
        raise InputError(
            f"along = {along!r}: the grid has {len(values)} values of it: a rate needs two or more"
        )
    others = {name: each for name, each in grid.items() if name != along}
    arguments = {"along": along, "values": values, "exponent": float(exponent)}
    form = Form(
        (simulate,),
        forms.scale,
        Rate(margin=margin, along=along),
        forms.exponent_off,
        f"The mean of the simulation {{0}} grows like a power of {along}.",
        arguments,
        along,
    )
    return _look(form, others, samples, seed, None, seconds, quiet)


def check_order(
    lower: Callable[..., Any],
    upper: Callable[..., Any],
    *,
    grid: Grid,
    samples: int = 10_000,
    seed: int = 0,
    seconds: float = 60.0,
    quiet: bool = False,
) -> Check:
    """Whether the mean of one simulation is below that of another, both with the same random
    numbers.

    Arguments:
        lower, upper: simulations, as in `check`.
        others: as in `check`.

    >>> import attlas
    >>> def smaller(rng, n, scale):
    ...     return rng.random(n) ** 2 * scale
    >>> def larger(rng, n, scale):
    ...     return rng.random(n) * scale
    >>> attlas.check_order(smaller, larger, grid={"scale": [1.0, 2.0]}).verdict.word
    'confirmed'
    """
    words = "The mean of {0} is below that of {1}."
    form = Form((lower, upper), forms.put_in_order, Order(), forms.smaller_gap, words)
    return _look(form, grid, samples, seed, None, seconds, quiet)


def check_same_law(
    first: Callable[..., Any],
    second: Callable[..., Any],
    *,
    grid: Grid,
    samples: int = 10_000,
    seed: int = 0,
    seconds: float = 60.0,
    quiet: bool = False,
) -> Check:
    """Whether two simulations have one law, by Kolmogorov-Smirnov tests of every coordinate, with
    independent random numbers.

    Arguments:
        first, second: simulations, as in `check`.
        others: as in `check`.

    >>> import attlas
    >>> def sums(rng, n, scale):
    ...     return scale * rng.normal(size=(n, 2)).sum(-1)
    >>> def once(rng, n, scale):
    ...     return 2**0.5 * scale * rng.normal(size=n)
    >>> attlas.check_same_law(sums, once, grid={"scale": [1.0, 2.0]}).verdict.word
    'confirmed'
    """
    words = "{0} and {1} have the same law."
    form = Form((first, second), forms.compare_laws, SameLaw(), forms.laws_apart, words)
    return _look(form, grid, samples, seed, None, seconds, quiet)


def check_convergence(
    runs: Callable[..., Any],
    *,
    share: float,
    grid: Grid,
    samples: int = 200,
    seed: int = 0,
    seconds: float = 60.0,
    quiet: bool = False,
) -> Check:
    """Whether more than a share of runs arrive.

    Arguments:
        runs: `runs(rng, n, **cell)` gives n truth values.
        share: the share, which is part of what is claimed.
        samples: runs at each point.
        others: as in `check`.

    >>> import attlas
    >>> def walks_return(rng, n, steps):
    ...     return (rng.choice([-1, 1], size=(n, steps)).cumsum(-1) == 0).any(-1)
    >>> attlas.check_convergence(walks_return, share=0.7, grid={"steps": [100]}).verdict.word
    'confirmed'
    """
    rule, words = Convergence(share=share), "The runs of {0} arrive."
    form = Form((runs,), forms.count_arrivals, rule, forms.fewer_arrive, words)
    return _look(form, grid, samples, seed, None, seconds, quiet)


# --- looks ----------------------------------------------------------------------------------------


@dataclass
class _Progress:
    """Time that is left, and reports of how far the looks are."""

    seconds: float
    quiet: bool
    began: float = field(default_factory=time.perf_counter)
    said: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def say(self, cell: int, cells: int, samples: int) -> None:
        if not self.quiet and time.perf_counter() - self.said > REPORT_EVERY:
            self.said = time.perf_counter()
            words = f"cell {cell} of {cells}, {samples:,} samples each, after {self.spent:.0f} s"
            print(f"check: {words}", file=sys.stderr)


def _look(
    form: Form,
    grid: Grid,
    samples: int,
    seed: int,
    resolution: float | None,
    seconds: float,
    quiet: bool,
) -> Check:
    """Looks with ever more samples, until the rule decides and the resolution is reached."""
    for each in form.functions:
        if not callable(each):
            raise InputError(
                f"{each!r} is no function: a check takes functions of the grid's names"
            )
    values = _checked_grid(grid, form.along)
    whole("samples", samples, 2)
    whole("seed", seed, 0)
    if not seconds > 0:
        raise InputError(f"seconds = {seconds!r}: it must be a positive number")
    if resolution is not None and not resolution > 0:
        raise InputError(f"resolution = {resolution!r}: it must be a positive number")
    progress, first = _Progress(seconds, quiet), None
    for look in itertools.count():
        began = progress.spent
        rule: Any = replace(cast(Any, form.rule), level=form.rule.level / 2 ** (look + 1))
        evidence = _measured(form, values, samples, f"check/{look}", seed, progress)
        verdict = rule.judge(evidence)
        spent = progress.spent
        given = replace(form, rule=rule)
        found = Check(given, values, verdict, evidence, samples, spent, seed, first)
        over = spent + 4 * (spent - began) > seconds or 4 * samples > MAX_SAMPLES
        if verdict.word == "refuted" and first is None and not verdict.exact:
            first = verdict  # and once more, with fresh random numbers, whatever the time
        elif over or _settled(found, resolution):
            return found
        samples *= 1 if over else 4
    raise AssertionError("looks do not end by themselves")


def _settled(found: Check, resolution: float | None) -> bool:
    if found.verdict.word != "confirmed" or resolution is None:
        return found.verdict.word != "undecided"
    return found.resolution is not None and found.resolution <= resolution


def _checked_grid(grid: Grid, along: str) -> dict[str, tuple[Any, ...]]:
    if not grid and not along:
        raise InputError("the grid is empty: it takes values by name, as in {'length': [4, 16]}")
    values = {str(name): tuple(np.atleast_1d(each).tolist()) for name, each in grid.items()}
    for name, each in values.items():
        if not each:
            raise InputError(f"the grid has no value of {name}: it needs at least one")
        if name in ("samples", CELL):
            raise InputError(f"the grid has the name {name!r}, which is taken: choose another")
    return values


def _measured(
    form: Form,
    grid: dict[str, tuple[Any, ...]],
    samples: int,
    purpose: str,
    seed: int,
    progress: _Progress,
) -> xr.Dataset:
    """The evidence of all cells, each with random numbers of its own, with the grid's names as
    coordinates of `cell`."""
    cells = math.prod(len(values) for values in grid.values())
    points, parts = [], []
    for i, values in enumerate(itertools.product(*grid.values())):
        point = dict(zip(grid, values, strict=True))
        points.append(point)
        began = progress.spent
        draws = Draws(f"{purpose}/{i}", seed)
        measured = form.measure(Setting(**point, samples=samples), draws)
        parts.append(as_evidence(measured, 1, False))
        progress.say(i + 1, cells, samples)
        each = progress.spent - began
        if i == 1 and each * cells > 2 * progress.seconds:
            raise InputError(
                f"the grid has {cells:,} cells, and one takes {each:.2g} s:"
                f" seconds = {progress.seconds:g} allow {int(progress.seconds / each):,}; give a"
                " smaller grid, fewer samples or more seconds"
            )
    evidence = xr.concat(parts, CELL) if len(parts) > 1 else parts[0]
    coordinates = {name: (CELL, [point[name] for point in points]) for name in grid}
    return evidence.assign_coords(coordinates)


def _distances(form: Form, e: xr.Dataset) -> xr.DataArray:
    """How near each comparison is to a refutation, larger is nearer, in units of its rule."""
    tiny = 1e-300
    if isinstance(form.rule, Agreement | Approximation):
        return abs(e["measured"] - e["predicted"]) / (e["error"] + tiny)
    if isinstance(form.rule, Bound):
        return (e["measured"] - e["bound"]) / (abs(e["bound"]) + tiny)
    if isinstance(form.rule, Order):
        return (e["lower"] - e["upper"]) / (e["error"] + tiny)
    if isinstance(form.rule, Convergence):
        return -e["arrived"].astype(float).mean(dim="repeat")
    if isinstance(form.rule, SameLaw):
        a, b = (e[name].quantile(np.linspace(0.01, 0.99, 99), "draw") for name in form.rule.reads)
        return abs(a - b) / (e["sample_b"].std("draw") + tiny)
    logs = xr.DataArray(np.log(e["x"]))
    logs = logs - logs.mean(form.along)
    slope = (logs * np.log(abs(e["measured"]) + tiny)).sum(form.along) / (logs**2).sum(form.along)
    return abs(slope - e["exponent"])
