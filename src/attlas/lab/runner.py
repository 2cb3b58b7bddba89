"""From a claim to a verdict: measure what is not stored, gather, judge, and judge the control by the same rule."""

import contextlib
import functools
import hashlib
import json
import platform
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import xarray as xr

import attlas
from attlas.claims import Claim, Setting, Verdict, catalogue, select
from attlas.errors import InputError
from attlas.lab.store import Address, Cell, Store

REPETITION = 4
"""How much more is spent on a repetition than on the first sight of a refutation."""

MAPS = 20_000
"""Memory maps of this process above which compiled programs are forgotten."""

_LOCKS: defaultdict[Address, threading.Lock] = defaultdict(threading.Lock)

Progress = Callable[[str, int, int], None]
"""Called with a claim's id, the cells done and the cells to do."""


@dataclass(frozen=True)
class Gathered:
    """Evidence with its cost: seconds of this run, those of them that went into compiling, seconds `spent` on it in
    this and earlier runs, and how many of its cells came from the store."""

    evidence: xr.Dataset
    seed: int
    seconds: float
    compile_seconds: float
    spent: float
    stored: int
    cells: int
    code: str


@dataclass(frozen=True, repr=False)
class Result:
    """A claim's verdict with all it rests on.

    `verdict` is the answer; `first` is the refutation at first sight, where there was one, which `verdict` repeats
    with a fresh seed and `REPETITION` times the budget. `control` is the verdict on the false variant. `evidence`
    is what `verdict` was read from; `figure()` draws it.
    """

    claim: Claim
    scale: str
    setting: Setting
    seed: int
    verdict: Verdict
    control: Verdict | None = None
    evidence: xr.Dataset = field(default_factory=xr.Dataset)
    first: Verdict | None = None
    seconds: float = 0.0
    compile_seconds: float = 0.0
    spent: float = 0.0
    cached: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        control = (
            f"; control {self.control.word}: {self.claim.control.words}" if self.control else ""
        )
        return f"{self.claim.id}: {self.verdict.word}. {self.verdict.reason}{control}"

    def figure(self) -> Any:
        """The claim's figure, an Altair chart, drawn from the evidence alone."""
        if self.claim.drawing is None or not self.evidence:
            raise InputError(
                f"{self.claim.id} has no figure{'' if self.evidence else ': nothing was measured'}"
            )
        return self.claim.draw(self.evidence)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "id": self.claim.id,
            "verdict": self.verdict.word,
            "control": self.control.word if self.control else None,
            **{key: value for key, value in self.verdict.to_dict().items() if key != "word"},
            "control_reason": self.control.reason if self.control else None,
            "first_sight": self.first.to_dict() if self.first else None,
            "scale": self.scale,
            "setting": dict(self.setting),
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds_spent": round(self.spent, 3),
            "cached": self.cached,
            "notes": list(self.notes),
            "provenance": self.provenance,
        }


def run(
    claim: str | Claim,
    *,
    scale: str = "quick",
    seed: int = 0,
    settings: Sequence[str] | dict[str, Any] = (),
    store: Store | str | Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Test one claim: `run("single-location/zeta")`.

    `settings` changes parameters, as a dict or as texts `"name=value"`. Evidence that the store holds is not computed
    again unless `fresh`; what is computed is stored batch by batch, so that an interruption loses one batch.
    """
    if isinstance(claim, str):
        claim = named(claim)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise InputError(f"seed = {seed!r}: it must be a whole number from 0 to {2**31 - 1}")
    setting = claim.setting(scale)
    setting = setting.replace(**settings) if isinstance(settings, dict) else setting.parse(settings)
    opened = store if isinstance(store, Store) else Store(store)
    return _recorded(_Bench(claim, opened, fresh, progress).test(scale, setting, seed), opened)


def recall(
    claim: Claim,
    *,
    scale: str,
    seed: int,
    store: Store,
    settings: Sequence[str] = (),
    record: bool = False,
) -> Result | None:
    """The result of a claim if the store holds all its evidence; None where something is lacking. It is only looked at, unless `record`."""
    setting = claim.setting(scale).parse(settings)
    address = Address.of(claim, seed)
    names = {address.cell(cell) for cell in claim.cells(setting)}
    if len(store.find(address.claim, names)) < len(names):  # quicker than to check hypotheses
        return None
    try:
        result = _Bench(claim, store, fresh=False, progress=None, measure=False).test(
            scale, setting, seed
        )
    except _NotStored:
        return None
    return _recorded(result, store) if record else result


def _recorded(result: Result, store: Store) -> Result:
    """The store knows it as the last result of its claim; the record of when and how fast it was measured stays."""
    told = {"attlas": attlas.__version__, "when": _now(), **result.to_dict()}
    if not (result.cached and _says(store.recorded(result.claim.id)) == _says(told)):
        store.record(result.claim.id, told)
    return result


def _says(told: dict[str, Any] | None) -> Any:
    """What a record says of a claim, whenever it was measured."""
    if told is None:
        return None
    names = ("attlas", "scale", "setting", "seed", "verdict", "control", "reason", "control_reason")
    return json.dumps([told.get(name) for name in names] + [told.get("provenance", {}).get("code")])


class _NotStored(Exception):
    """Evidence would have to be measured."""


def named(pattern: str) -> Claim:
    """The one claim with that id, or that matches."""
    if pattern.endswith(".py"):
        raise InputError(
            f"{pattern!r} is a file: name the function that simulates too, as in {pattern}:FUNCTION"
        )
    known = catalogue()
    found = [known[pattern]] if pattern in known else select([pattern])
    if len(found) > 1:
        some = ", ".join(claim.id for claim in found[:5])
        raise InputError(
            f"{pattern!r} matches {len(found)} claims; name one: {some}{', ...' if len(found) > 5 else ''}"
        )
    return found[0]


@dataclass
class _Bench:
    """One claim under test."""

    claim: Claim
    store: Store
    fresh: bool
    progress: Progress | None
    measure: bool = True

    def test(self, scale: str, setting: Setting, seed: int) -> Result:
        told = len(self.store.notes)
        cells = self.claim.cells(setting)
        broken = self.claim.broken(cells)
        if broken:
            verdict = Verdict("outside", f"The setting breaks a hypothesis: {'; '.join(broken)}.")
            return Result(self.claim, scale, setting, seed, verdict)
        gathered = [self.gather(setting, seed)]
        first: Verdict | None = None
        verdict = self.claim.rule.judge(gathered[0].evidence)
        used = setting
        if verdict.word == "refuted" and not verdict.exact:
            first = verdict
            used = self._larger(setting)
            gathered.append(self.gather(used, fresh_seed(seed)))
            verdict = self.claim.rule.judge(gathered[-1].evidence)
        evidence = gathered[-1].evidence
        control, more = self._control(evidence, used, gathered[-1].seed)
        gathered += more
        if control.word != "refuted":
            reason = f"The control was not refuted on this budget ({control.reason}), so the evidence says nothing."
            verdict = replace(verdict, word="undecided", reason=reason)
        return Result(
            self.claim,
            scale,
            setting,
            seed,
            verdict,
            control,
            evidence,
            first,
            sum(g.seconds for g in gathered),
            sum(g.compile_seconds for g in gathered),
            sum(g.spent for g in gathered),
            all(g.stored == g.cells for g in gathered),
            self._provenance(gathered),
            tuple(self.store.notes[told:]),
        )

    def _larger(self, setting: Setting) -> Setting:
        budget = self.claim.budget
        return (
            setting if budget is None else setting.replace(**{budget: REPETITION * setting[budget]})
        )

    def _control(
        self, evidence: xr.Dataset, setting: Setting, seed: int
    ) -> tuple[Verdict, list[Gathered]]:
        control = self.claim.control
        if control.alter is not None and getattr(control, "on", "evidence") == "evidence":
            return self.claim.rule.judge(control.altered_evidence(evidence)), []
        gathered = self.gather(control.altered_setting(setting), seed)
        return self.claim.rule.judge(gathered.evidence), [gathered]

    def gather(self, setting: Setting, seed: int) -> Gathered:
        """The evidence of all cells of `setting`, from the store or measured now and stored batch by batch."""
        address = Address.of(self.claim, seed)
        with _LOCKS[
            address
        ]:  # a claim that shares its measurement with one under way waits, and then finds it stored
            return self._gather(setting, seed, address)

    def _gather(self, setting: Setting, seed: int, address: Address) -> Gathered:
        cells = self.claim.cells(setting)
        names = {cell: address.cell(cell) for cell in cells}
        places = {} if self.fresh else self.store.find(address.claim, names.values())
        have = self.store.load(address.claim, places)
        stored = len(have)
        if stored < len(cells) and not self.measure:
            raise _NotStored
        earlier = sum(places[name].seconds for name in have)
        seconds = compiling = 0.0
        self._tell(len(have), len(cells))
        for batch in self.claim.batches([cell for cell in cells if names[cell] not in have]):
            evidence, facts = measured(self.claim, batch, seed)
            self.store.save([Cell(address, cell) for cell in batch], evidence, facts)
            have.update({names[cell]: evidence.isel({"cell": [i]}) for i, cell in enumerate(batch)})
            seconds, compiling = seconds + facts["seconds"], compiling + facts["compile_seconds"]
            self._tell(len(have), len(cells))
        joined = self.claim.fit(_join([have[names[cell]] for cell in cells], cells))
        return Gathered(
            joined, seed, seconds, compiling, earlier + seconds, stored, len(cells), address.code
        )

    def _tell(self, done: int, cells: int) -> None:
        if self.progress is not None:
            self.progress(self.claim.id, done, cells)

    def _provenance(self, gathered: list[Gathered]) -> dict[str, Any]:
        return {
            **machine(),
            "code": gathered[-1].code[:16],
            "precision": self.claim.precision,
            "seed": gathered[-1].seed,
            "cells": sum(g.cells for g in gathered),
            "cells_from_store": sum(g.stored for g in gathered),
        }


def measured(claim: Claim, batch: list[Setting], seed: int) -> tuple[xr.Dataset, dict[str, Any]]:
    """The evidence of a batch of cells, and the facts about its measurement: where, when and how long."""
    clock = _Clock()
    with clock, reproducible(claim.precision):
        evidence = _measure(claim, batch, seed)
    if clock.compiling:
        make_room()
    return evidence, {
        **machine(),
        "seconds": clock.seconds,
        "compile_seconds": clock.compiling,
        "when": _now(),
    }


def _measure(claim: Claim, batch: list[Setting], seed: int) -> xr.Dataset:
    try:
        evidence = claim.measure(batch, seed)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise InputError(f"{claim.id} does not fit into memory with {batch[0]}") from error
    if not isinstance(evidence, xr.Dataset) or evidence.sizes.get("cell") != len(batch):
        what = dict(evidence.sizes) if isinstance(evidence, xr.Dataset) else type(evidence).__name__
        raise InputError(
            f"{claim.id} measured {len(batch)} cells and returned {what}: it must return a Dataset with an axis "
            f"'cell' of that length"
        )
    odd = next((name for name, values in evidence.variables.items() if not _storable(values)), None)
    if odd is not None:
        raise InputError(
            f"{claim.id} returned {odd} of type {evidence[odd].dtype}: it must be numbers, truth values or words"
        )
    # NumPy from here on: outside the scoped precision JAX would compute with these numbers in single.
    return evidence.as_numpy()


def _storable(values: xr.Variable) -> bool:
    """Whether a block can hold these values."""
    if values.dtype == object:
        return all(isinstance(value, str) for value in values.values.ravel())
    return values.dtype.kind in "biufUSMm"


def _join(parts: list[xr.Dataset], cells: Sequence[Setting]) -> xr.Dataset:
    """The cells' evidence along one axis, in their order, with the parameters of each as coordinates."""
    try:
        joined = xr.concat(
            parts, dim="cell", data_vars="minimal", coords="minimal", compat="equals", join="exact"
        )
    except ValueError as error:
        raise InputError(
            f"the evidence of {len(parts)} cells does not fit together; what differs between cells needs the axis 'cell': {error}"
        ) from error
    names = [name for name in cells[0] if name not in joined and name not in joined.dims]
    return joined.assign_coords(
        {name: ("cell", [cell[name] for cell in cells]) for name in names if _plain(cells, name)}
    )


def _plain(cells: Sequence[Setting], name: str) -> bool:
    return not any(isinstance(cell[name], tuple) for cell in cells)


@contextlib.contextmanager
def reproducible(precision: str = "float64") -> Iterator[None]:
    """The precision of a claim, and the form of JAX's generator that compiles three times faster: most of what the atlas
    compiles draws numbers, and this choice is part of what a seed means."""
    with jax.threefry_partitionable(False), jax.enable_x64(precision == "float64"):
        yield


def make_room() -> None:
    """Forget compiled programs before they are too many: each takes a few memory maps, of which Linux allows a process
    65,530, and XLA does not survive the last."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()


def keep_compiled(store: Store) -> None:
    """Let JAX keep what it compiles in the store, for other processes and later ones."""
    jax.config.update("jax_compilation_cache_dir", str(store.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def fresh_seed(seed: int) -> int:
    """The seed of a repetition: fixed by the first, and unrelated to the ones a user would try next."""
    return int.from_bytes(hashlib.sha256(f"again {seed}".encode()).digest()[:4], "little") % 2**31


@functools.cache
def machine() -> dict[str, str]:
    """What the numbers may depend on besides the code."""
    return {
        "attlas": attlas.__version__,
        "jax": version("jax"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": jax.devices()[0].device_kind,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class _Clock:
    """Seconds that pass inside it, and those of them that JAX spends compiling."""

    def __enter__(self) -> "_Clock":
        self.compiling, self._start, self._thread = 0.0, time.perf_counter(), threading.get_ident()
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/") and threading.get_ident() == self._thread:
            self.compiling += duration_secs
