"""A claim: a statement, the evidence for it, a rule fixed beforehand, and a false variant to
refute."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import xarray as xr

from attlas.claims.digest import code_digest
from attlas.claims.evidence import Values, as_evidence, read_as
from attlas.claims.rules import Rule
from attlas.claims.setting import Cells, Setting, Value, whole
from attlas.draws import Draws
from attlas.errors import InputError

Origin = Literal["paper", "our reading", "ours"]
ORIGINS: tuple[str, ...] = get_args(Origin)

Kind = Literal["identity", "two routes", "simulation", "training", "real"]
KINDS: dict[str, str] = {
    "identity": "the same algebra on both sides",
    "two routes": "independent exact computations",
    "simulation": "a formula against samples",
    "training": "networks, or heads on their exact risk, that were trained",
    "real": "a real checkpoint or real data",
}
"""What the evidence is."""

DECADES, PER_DECADE = 4, 4
"""Shares of a control's size that are looked at: from 1 to 1e-4."""

_STATED = ("predicted", "bound", "exponent", "x", "repetitions")
"""What no other outcome of the measurement changes."""

Drawing = TypeVar("Drawing", bound=Callable[..., Any])

LOADED = "attlas_claims_"
"""How the names of modules begin that are made of claim files."""


@dataclass(frozen=True)
class Hypothesis:
    """A condition of the theorem.

    Where it fails the verdict is `outside`; where it is `defining`, nothing is defined without it
    and the setting is bad input.

    Arguments:
        words: the condition as a reader sees it.
        holds: a test of one cell.
        defining: whether the statement is meaningless where it fails.
    """

    words: str
    holds: Callable[[Setting], bool]
    defining: bool = False


@dataclass(frozen=True)
class Need:
    """Something that a measurement reads and that may not be there, such as a checkpoint.

    Where it is missing the verdict is `not run`.

    Arguments:
        words: what is needed.
        met: a test of one cell.
        remedy: the command that brings it.
    """

    words: str
    met: Callable[[Setting], bool]
    remedy: str


@dataclass(frozen=True)
class Control:
    """A false variant of the statement that the rule must refute on the same budget.

    Arguments:
        words: the variant; "{size}" in it, with a format if need be, stands for its size.
        alter: preferred to `setting`, since the data are then the same:
            `alter(evidence, size)` returns variables to assign, or a whole Dataset, for a variant
            that is `size` off; the size from which on it is refuted is the claim's resolution.
            Without the second argument the size is the share of the way from the evidence to the
            variant.
        setting: instead of `alter`, parameters of a mechanism without the property, which is
            measured too: a dict, or a function from the setting to one.
        size: that of the variant that must be refuted; 1, the whole way, without the argument.
    """

    words: str
    alter: Callable[..., Values] | None = None
    setting: Mapping[str, Any] | Callable[[Setting], Mapping[str, Any]] | None = None
    size: float = 1.0

    def __post_init__(self) -> None:
        if (self.alter is None) == (self.setting is None):
            raise InputError(
                f"the control {self.words!r} must alter either the evidence (a function) or the"
                " setting (setting=...)"
            )
        if not (isinstance(self.size, int | float) and 0 < self.size < math.inf):
            raise InputError(
                f"the control {self.words!r} has the size {self.size!r}: it must be a positive"
                " number"
            )
        if self.sized != ("{size" in self.words) or (self.size != 1 and not self.sized):
            raise InputError(
                f"the control {self.words!r}: a function of the evidence and a size goes with words"
                " that say {size}, as in Control('off by {size:.0%}', change, size=0.1)"
            )
        try:
            self.said()
        except (AttributeError, LookupError, ValueError) as error:
            raise InputError(
                f"the control {self.words!r} cannot say its size ({error}): {{size:.0%}} is a"
                " format, and braces of TeX are doubled"
            ) from error

    @property
    def sized(self) -> bool:
        """Whether `alter` takes a size."""
        return self.alter is not None and len(inspect.signature(self.alter).parameters) == 2

    def said(self, size: float | None = None) -> str:
        """The variant in words, of the size that must be refuted or of another."""
        size = self.size if size is None else size
        if self.sized:
            return self.words.format(size=_Size(size))
        return self.words if size == 1 else f"{size:.2g} of the way to the control"

    def altered_evidence(self, evidence: xr.Dataset, size: float | None = None) -> xr.Dataset:
        """The evidence of the false variant, of the size that must be refuted or of another."""
        assert self.alter is not None
        sizes = (self.size if size is None else size,) if self.sized else ()
        return read_as(evidence, self.alter(evidence, *sizes))

    def altered_setting(self, setting: Setting) -> Setting:
        """The setting in which the false variant is measured."""
        changes = self.setting(setting) if callable(self.setting) else self.setting
        return setting.replace(**dict(changes or {}))


class _Size(float):
    """A number that is said with two digits where a percentage would round it by more than 5 %."""

    def __format__(self, spec: str) -> str:
        text = super().__format__(spec)
        if spec.endswith("%") and abs(float(text[:-1]) / 100 - self) > 0.05 * abs(self):
            return f"{100 * self:.2g}%"
        return text


@dataclass(eq=False)
class Claim:
    """A statement with all that is needed to test it; made by `Map.claim`.

    Arguments:
        id: "map/slug".
        kind: what its evidence is, one of `KINDS`.
        source, reference: the key of a BibTeX entry, and the place in it.
        statement, words: with TeX between `$` signs, and without.
        function: `function(cell, draws)`, which measures one cell, or `function(cells, draws)`
        where
            `shape` is given; it returns a mapping (see `attlas.claims.evidence`).
        read: from the evidence of all cells to what the rule reads, where that takes more than one.
        quick, paper: settings.
        cells: how a setting becomes cells.
        shape: parameters in which cells agree that are measured in one batch, of `batch` at most.
        budget: the count that a repetition multiplies by four.
        long: begun first where several claims are measured at once.
        ranges: the ends, or the words, between which a search for a violation looks, by parameter.
        evidence: the name under which the evidence is stored and its random numbers are drawn;
            claims that share a measurement share it.
        code: digest of what its numbers depend on, as the sources were when it was registered.
        rule: how evidence is judged. `control`: the false variant.
        hypotheses, requires: what the statement and the measurement need.
        needs: ids of claims that it rests on. `origin`: "paper", "our reading" or "ours".
        precision: of the measurement. `drawing`: the function that draws its figure.

    >>> from attlas.claims import find_claim
    >>> claim = find_claim("single-location/zeta")
    >>> print(claim.map, claim.slug, claim.kind, type(claim.quick).__name__)
    single-location zeta two routes Setting
    """

    id: str
    source: str
    reference: str
    statement: str
    words: str
    function: Callable[..., Values]
    quick: Setting
    paper: Setting
    rule: Rule
    control: Control
    kind: Kind
    read: Callable[[xr.Dataset], Values] | None = None
    hypotheses: tuple[Hypothesis, ...] = ()
    requires: tuple[Need, ...] = ()
    needs: tuple[str, ...] = ()
    origin: Origin = "paper"
    cells: Cells = whole
    shape: tuple[str, ...] | None = None
    batch: int = 8
    budget: str | None = None
    precision: Literal["float64", "float32"] = "float64"
    long: bool = False
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    evidence: str = ""
    drawing: Callable[[xr.Dataset], Any] | None = None
    code: str = ""

    def __post_init__(self) -> None:
        # Taken now: sources may be edited between this and the measurement.
        self.code = self.code or code_digest(self.function.__module__)

    @property
    def map(self) -> str:
        """The first half of its id."""
        return self.id.partition("/")[0]

    @property
    def slug(self) -> str:
        """The second half of its id."""
        return self.id.partition("/")[2]

    @property
    def module(self) -> str:
        """The module in which it is stated."""
        return (self.read or self.function).__module__

    @property
    def file(self) -> Path:
        """The file in which it is stated."""
        return Path(sys.modules[self.module].__file__ or "")

    @property
    def where(self) -> str:
        """File, line and id, for messages."""
        code = getattr(self.read or self.function, "__code__", None)
        line = f", line {code.co_firstlineno}" if code else ""
        return f"{self.file.name}{line}: claim {self.id!r}"

    @property
    def loaded(self) -> bool:
        """Whether `load_file` made it."""
        return self.module.startswith(LOADED)

    def setting(self, scale: str = "quick") -> Setting:
        """The setting of a scale, "quick" or "paper"."""
        if scale not in ("quick", "paper"):
            raise InputError(f"scale {scale!r}: it must be quick or paper")
        return self.paper if scale == "paper" else self.quick

    def batches(self, cells: Sequence[Setting]) -> list[list[Setting]]:
        """`cells` in groups that `measure` takes at once."""
        if self.shape is None:
            return [[cell] for cell in cells]
        groups: dict[tuple[Value, ...], list[Setting]] = {}
        for cell in cells:
            groups.setdefault(tuple(cell[name] for name in self.shape), []).append(cell)
        return [
            group[i : i + self.batch]
            for group in groups.values()
            for i in range(0, len(group), self.batch)
        ]

    def measure(self, cells: Sequence[Setting], seed: int) -> xr.Dataset:
        """The evidence of a batch of cells: every variable has the leading axis `cell`."""
        draws = Draws(self.evidence or self.id, seed)
        found = self.function(cells[0] if self.shape is None else cells, draws)
        if not isinstance(found, Mapping):
            raise InputError(
                f"{self.where} returned {type(found).__name__}: a measurement returns a dict of"
                " numbers, estimates, and arrays with the names of their axes"
            )
        return as_evidence(found, len(cells), self.shape is not None)

    def fit(self, evidence: xr.Dataset) -> xr.Dataset:
        """What the rule reads, from the evidence of all cells."""
        return evidence if self.read is None else read_as(evidence, self.read(evidence))

    def unmet(self, cells: Sequence[Setting]) -> list[str]:
        """What its measurement needs and does not find, each with the command that brings it."""
        return [
            f"{need.words} ({need.remedy})"
            for need in self.requires
            if not all(need.met(cell) for cell in cells)
        ]

    def broken(self, cells: Sequence[Setting]) -> list[str]:
        """Hypotheses that some cell breaks, in words; an `InputError` if a defining one is
        broken."""
        found = []
        # Whether anything is defined comes first: the others may take a computation.
        for hypothesis in sorted(self.hypotheses, key=lambda hypothesis: not hypothesis.defining):
            offender = next((cell for cell in cells if not hypothesis.holds(cell)), None)
            if offender is None:
                continue
            if hypothesis.defining:
                values = ", ".join(
                    f"{k} = {v!r}" for k, v in offender.items() if k in hypothesis.words
                )
                raise InputError(
                    f"{values or offender}: {self.id} is defined only where {hypothesis.words}"
                )
            found.append(hypothesis.words)
        return found

    def figure(self, function: Drawing) -> Drawing:
        """Decorator: `function(evidence)` returns the claim's figure, a `Figure` or Altair
        chart."""
        self.drawing = function
        return function

    def control_evidence(self, evidence: xr.Dataset) -> xr.Dataset:
        """The evidence of the control, in which something that the rule reads is altered."""
        altered = self.control.altered_evidence(evidence)
        read = self.rule.variables(altered)
        added = [str(name) for name in altered.data_vars if name not in evidence]
        if (
            added
            and not set(added) & set(read)
            and altered[list(read)].equals(evidence[list(read)])
        ):
            raise InputError(
                f"{self.where}: its control alters {', '.join(added)}, which its rule does not"
                f" read: it reads {', '.join(read)}"
            )
        return altered

    def resolution(self, evidence: xr.Dataset) -> float | None:
        """The size from which on, up to the control's own, the rule refutes every variant."""
        return find_resolution(self.rule, self.control, evidence)

    def control_can_pass(self, evidence: xr.Dataset) -> bool:
        """Whether the control, which alters the evidence, would be confirmed on other evidence.

        Tried is what the false variant says, and each variable replaced by another that the rule
        reads, with its error, or changed in whole or in part (`_perturbed`). Errors and what is
        stated stay, truth values and counts stay such, and shares stay from 0 to 1. Where nothing
        is confirmed the control says nothing.
        """
        worlds = self._other_worlds(evidence, self.control.altered_evidence(evidence))
        with np.errstate(all="ignore"):
            judged = (self.rule.judge(self.control.altered_evidence(world)) for world in worlds)
            return any(verdict.word == "confirmed" for verdict in judged)

    def _other_worlds(self, evidence: xr.Dataset, variant: xr.Dataset) -> Iterator[xr.Dataset]:
        read = [name for name in self.rule.variables(evidence) if name in evidence]
        if "measured" in evidence:
            foretold = [variant[n] for n in ("predicted",) if n in variant]
            if "bound" in variant and "error" in evidence:
                foretold.append(variant["bound"] - 10 * evidence["error"])
            if "x" in variant:  # a rate has any constant: nothing smaller, beside the same errors
                if "exponent" in variant:
                    foretold.append(variant["x"] ** variant["exponent"])
                foretold += [each * (evidence["measured"] / each).max() for each in foretold]
            yield from (_replaced(evidence, measured=each) for each in foretold)
        for name, values in evidence.data_vars.items():
            fixed = str(name).endswith("error") or name in _STATED
            if fixed or values.dtype.kind not in "buif":
                continue
            for other in read:
                if evidence[other].dims == values.dims and other != "error":
                    changed = {str(name): evidence[other]}
                    if f"{name}_error" in evidence:
                        changed[f"{name}_error"] = evidence["error"]
                    yield _replaced(evidence, **changed)
                    if name in read and other not in _STATED:
                        yield evidence.assign({name: evidence[other], other: values})
            yield from (_replaced(evidence, **{str(name): other}) for other in _perturbed(values))

    def draw(self, evidence: xr.Dataset) -> Any:
        """The claim's figure, as an Altair chart, from the evidence alone."""
        if self.drawing is None:
            raise InputError(f"{self.id} has no figure")
        made = self.drawing(evidence)
        chart = made.chart() if hasattr(made, "chart") else made
        if not hasattr(chart, "to_dict"):
            raise InputError(
                f"{self.where}: its figure {self.drawing.__name__} returned"
                f" {type(made).__name__}: it must return a Figure or an Altair chart"
            )
        return chart


def find_resolution(rule: Rule, control: Control, evidence: xr.Dataset) -> float | None:
    """The size from which on, up to the control's own, a rule refutes every variant.

    The noise of this sample does not enter where the rule has a prediction: what is altered is
    the evidence as predicted, with its errors (`Rule.expected`), so that a deviation of that
    size is refuted with an even chance, whatever its sign; under the rules for bounds, orders,
    shares and laws it is what was measured. Sizes are tried from the control's own downwards,
    `PER_DECADE` to a factor of ten; between the last that is refuted and the first that is not
    the border is found by bisection.

    Returns:
        The size, to 4 %, or 1e-4 of the control's own where that is still refuted; smaller
        ones are not looked at. None where it has none: the control is a mechanism of its own,
        or counts something, or is not refuted on the evidence as predicted.
    """
    if control.alter is None:
        return None
    evidence = rule.expected(evidence)
    if control.sized:

        def refutes(power: float) -> bool:
            variant = control.altered_evidence(evidence, 10**power * control.size)
            return rule.judge(variant).word == "refuted"
    else:
        variant = control.altered_evidence(evidence)
        read = rule.variables(variant)
        alike = all(n in evidence and _same_sizes(evidence[n], variant[n]) for n in read)
        if not (rule.continuous and alike):
            return None

        def refutes(power: float) -> bool:
            return rule.refutes_between(evidence, variant, 10**power)

    powers = [-step / PER_DECADE for step in range(DECADES * PER_DECADE + 1)]
    first = next((i for i, power in enumerate(powers) if not refutes(power)), len(powers))
    if first == 0:
        return None
    high, low = powers[first - 1], powers[min(first, len(powers) - 1)]
    while high - low > 0.016:  # a factor of 1.04
        middle = (low + high) / 2
        low, high = (low, middle) if refutes(middle) else (middle, high)
    return control.size * 10**high


def _same_sizes(a: xr.DataArray, b: xr.DataArray) -> bool:
    """Whether the axes that two arrays share have the same lengths."""
    return all(a.sizes[axis] == b.sizes[axis] for axis in a.sizes if axis in b.sizes)


def _replaced(evidence: xr.Dataset, **others: xr.DataArray) -> xr.Dataset:
    """The evidence with other values of some variables, as near as they can have them."""
    for name, other in others.items():
        values = evidence[name]
        if values.dtype.kind in "bui":
            other = other.astype(float).round().clip(0, 1 if values.dtype.kind == "b" else None)
        elif other.dims == values.dims and _are_shares(values.values):
            other = other.clip(0.0 if values.min() >= 0 else -1.0, 1)
        others[name] = other.astype(values.dtype)
    return evidence.assign(others)


def _are_shares(values: np.ndarray) -> bool:
    """Whether values, or their first thousand, look like shares of a number of runs, or
    differences of such: from -1 to 1, not all of them whole, and all multiples of the inverse of
    one number of runs up to 1000."""
    seen = np.unique(values[np.isfinite(values)])[:1000, None]
    whole = abs(seen * (runs := np.arange(2, 1001)) - np.round(seen * runs)) < 1e-9
    return bool((abs(seen) <= 1).all() and (seen != np.round(seen)).any() and whole.all(0).any())


def _perturbed(values: xr.DataArray) -> Iterator[xr.DataArray]:
    """Other values of a variable: fixed, larger, in reverse order, and larger or smaller at one
    place of an axis, or at its ends where it has many."""
    yield from (xr.zeros_like(values), xr.ones_like(values))
    if values.dtype.kind != "b":
        yield from (values * 100, values + 10 * abs(values).max())
    yield values.copy(data=values.values[..., ::-1] if values.ndim else values.values)
    for axis, size in values.sizes.items():
        places = xr.DataArray(np.arange(size), dims=[axis])
        yield from (
            (values * xr.where(places == place, times, 1)).transpose(*values.dims)
            for place in (range(size) if size <= 8 else (0, size - 1))
            for times in (100, 0.01, 0)
        )
