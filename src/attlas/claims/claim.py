"""A claim: a statement, the evidence for it, a rule fixed beforehand, and a false variant to
refute."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import xarray as xr

from attlas.claims.digest import code_digest
from attlas.claims.evidence import Values, as_evidence, read_as
from attlas.claims.rules import Rule
from attlas.claims.setting import Cells, Setting, Value, whole
from attlas.draws import Draws
from attlas.errors import InputError

Origin = Literal["paper", "our reading", "ours"]
ORIGINS: tuple[str, ...] = get_args(Origin)

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
        words: the variant, with its size.
        alter: what changes in the evidence: a function from the evidence to variables to assign, or
            to a whole Dataset. By preference, since the data are then the same.
        setting: instead of `alter`, parameters of a mechanism without the property, which is
            measured too: a dict, or a function from the setting to one.
    """

    words: str
    alter: Callable[[xr.Dataset], Values] | None = None
    setting: Mapping[str, Any] | Callable[[Setting], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if (self.alter is None) == (self.setting is None):
            raise InputError(
                f"the control {self.words!r} must alter either the evidence (a function) or the"
                " setting (setting=...)"
            )

    def altered_evidence(self, evidence: xr.Dataset) -> xr.Dataset:
        """The evidence of the false variant."""
        assert self.alter is not None
        return read_as(evidence, self.alter(evidence))

    def altered_setting(self, setting: Setting) -> Setting:
        """The setting in which the false variant is measured."""
        changes = self.setting(setting) if callable(self.setting) else self.setting
        return setting.replace(**dict(changes or {}))


@dataclass(eq=False)
class Claim:
    """A statement with all that is needed to test it; made by `Map.claim`.

    Arguments:
        id: "map/slug".
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
        evidence: the name under which the evidence is stored and its random numbers are drawn;
            claims that share a measurement share it.
        code: digest of what its numbers depend on, as the sources were when it was registered.
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
    evidence: str = ""
    drawing: Callable[[xr.Dataset], Any] | None = None
    code: str = ""

    def __post_init__(self) -> None:
        # Taken now: sources may be edited between this and the measurement.
        self.code = self.code or code_digest(self.function.__module__)

    @property
    def map(self) -> str:
        return self.id.partition("/")[0]

    @property
    def slug(self) -> str:
        return self.id.partition("/")[2]

    @property
    def module(self) -> str:
        """The module in which it is stated."""
        return (self.read or self.function).__module__

    @property
    def file(self) -> Path:
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

    def figure(self, function: Callable[[xr.Dataset], Any]) -> Callable[[xr.Dataset], Any]:
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
