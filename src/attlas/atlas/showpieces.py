"""Hours of work that `attlas atlas` does not start but shows: sweeps, and the benchmark on real
data. It shows what the store holds of them, or what comes with the package."""

import json
import shlex
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attlas.claims.digest import code_digest
from attlas.errors import InputError
from attlas.lab.blocks import read_block
from attlas.lab.diagrams import diagram
from attlas.lab.files import Damaged, read_whole
from attlas.lab.grids import DONE, Grid
from attlas.lab.store import Store
from attlas.lab.sweeps import Sweep, plan_grid

REAL_DATA = "real-data"
_NUMBER = int | float | list | None
"""A measure; that by thirds is a list."""
_REAL_DATA_FORM = {
    "words": str,
    "kinds": [
        {
            "title": str,
            "words": str,
            "measures": [str],
            "rows": [
                {
                    "data": str,
                    "first": bool,
                    "method": str,
                    "numbers": [_NUMBER],
                    "ahead": object,
                    "folds": int,
                    "seconds": int | float,
                }
            ],
        }
    ],
}


@dataclass(frozen=True)
class Showpiece:
    """A sweep of a claim that is worth a page: an entry `[[showpieces]]` of its map's notes.

    The sweep runs through `grid`; other parameters are as at `scale` but for `settings`. What came
    with the package is `SLUG.nc` in `folder`. The figure shows the variable `show`, which it calls
    `label`, at one value of each axis in `at`; `axes` says what it calls the axes.
    """

    map: str
    folder: Path
    slug: str
    title: str
    words: str
    claim: str
    grid: dict[str, str]
    show: str
    label: str
    kind: str
    axes: dict[str, str] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    scale: str = "paper"
    settings: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Its page in the atlas."""
        return f"showpieces/{self.slug}.html"

    @property
    def claim_id(self) -> str:
        return f"{self.map}/{self.claim}"

    @property
    def command(self) -> str:
        """The command that makes it, with the evidence's own names of the axes."""
        names = {label: axis for axis, label in self.axes.items()}
        options = [
            *(("--grid", f"{name}={values}") for name, values in self.grid.items()),
            *(("--set", text) for text in self.settings),
            ("--show", self.show),
            *(("--at", f"{names.get(name, name)}={value}") for name, value in self.at.items()),
            ("--kind", self.kind),
            ("--out", f"{self.slug}.nc"),
            ("--figure", f"{self.slug}.svg"),
        ]
        words = ["attlas", "sweep", self.claim_id, "--scale", self.scale]
        return shlex.join([*words, *(word for option in options for word in option)])

    @property
    def cells(self) -> Grid:
        return plan_grid(self.claim_id, self.grid, 0, self.scale, self.settings)

    def shipped(self) -> xr.Dataset:
        """The evidence that came with the package, without what takes room and is not drawn."""
        file = self.folder / f"{self.slug}.nc"
        try:
            found = read_block(read_whole(file))
        except (OSError, Damaged) as error:
            raise InputError(f"the evidence {str(file)!r} cannot be read: {error}") from error
        if missing := {"status", self.show} - set(found.variables):
            raise InputError(f"the evidence {str(file)!r} has no {min(missing)}")
        return found

    def load(self, store: Store) -> "LoadedShowpiece":
        """The evidence in the store, if that is all of it, else what came with the package."""
        grid = self.cells
        # Looking for any of it first is faster than checking hypotheses of all cells.
        if store.find(grid.claim.evidence, set(grid.names)):
            sweep = Sweep(grid, store)
            if sweep.tally.stored == sweep.tally.cells - sweep.tally.outside:
                return LoadedShowpiece(self, sweep.gathered(), _count_seconds(sweep))
        return LoadedShowpiece(self, self.shipped())


def _count_seconds(sweep: Sweep) -> float:
    names = {sweep.grid.names[i] for i in np.flatnonzero(sweep.status == DONE).tolist()}
    return sum(place.seconds for place in sweep.store.find(sweep.folder, names).values())


@dataclass(frozen=True)
class LoadedShowpiece:
    """A showpiece with its evidence, and the seconds that it took if it is in the store."""

    piece: Showpiece
    evidence: xr.Dataset
    seconds: float | None = None

    @property
    def done(self) -> int:
        return int((self.evidence["status"] == "done").sum())

    @property
    def earlier(self) -> bool:
        """Whether other code made it than would be used today."""
        return self.evidence.attrs.get("code") != code_digest(self.piece.cells.claim.module)

    def figure(self) -> Any:
        piece = self.piece
        shown = self.evidence.drop_vars(piece.label, errors="ignore")
        evidence = shown.rename({piece.show: piece.label, **piece.axes})
        chart = diagram(evidence, piece.kind, piece.label, piece.at)
        chart.title.text = piece.title
        return chart


def real_data(store: Store) -> dict[str, Any]:
    """What `make bench-data` measured: here, if it compares ours with others on every kind of data,
    or before the package was made."""
    shipped = files("attlas.atlas") / "shipped" / f"{REAL_DATA}.json"
    kept = store.kept_table(REAL_DATA, _REAL_DATA_FORM)
    if kept and all(any(row["ahead"] for row in kind["rows"]) for kind in kept["kinds"]):
        return kept
    return json.loads(shipped.read_text(encoding="utf-8"))
