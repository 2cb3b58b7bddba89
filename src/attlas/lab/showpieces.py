"""Sweeps worth a page of their own: too large for `attlas atlas` to run, drawn by it from what the store holds."""

import shlex
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from attlas.lab.diagrams import diagram
from attlas.lab.grids import DONE
from attlas.lab.store import Store
from attlas.lab.sweeps import Sweep, plan_grid


@dataclass(frozen=True)
class Showpiece:
    """A sweep, what it shows, and how it is drawn: `show` is a variable, `at` chooses one value of an axis."""

    slug: str
    title: str
    words: str
    claim: str
    grid: dict[str, str]
    show: str
    at: dict[str, str] = field(default_factory=dict)
    kind: str | None = None
    scale: str = "paper"
    seeds: str = "0"
    settings: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that makes it."""
        options = [("grid", f"{name}={values}") for name, values in self.grid.items()]
        options += [("set", text) for text in self.settings]
        options += [("seeds", self.seeds)] if self.seeds != "0" else []
        options += [("show", self.show), *(("at", f"{name}={value}") for name, value in self.at.items())]
        options += [("kind", self.kind)] if self.kind else []
        options += [("out", f"{self.slug}.nc"), ("figure", f"{self.slug}.svg")]
        words = ["attlas", "sweep", self.claim, "--scale", self.scale]
        return shlex.join([*words, *(word for name, value in options for word in (f"--{name}", value))])

    def shown(self, store: Store) -> "Shown | None":
        """What the store holds of it, if that is half of it or more."""
        grid = plan_grid(self.claim, self.grid, self.seeds, self.scale, self.settings)
        if not store.find(grid.claim.evidence, set(grid.names)):  # most often, and quicker than hypotheses are checked
            return None
        shown = Shown(self, Sweep(grid, store))
        return shown if 2 * shown.stored >= shown.cells else None


@dataclass(frozen=True)
class Shown:
    """A showpiece with what the store holds of it."""

    piece: Showpiece
    sweep: Sweep

    @property
    def stored(self) -> int:
        return self.sweep.tally.stored

    @property
    def cells(self) -> int:
        """Cells within the hypotheses."""
        return self.sweep.tally.cells - self.sweep.tally.outside

    def evidence(self) -> xr.Dataset:
        return self.sweep.gathered()

    def figure(self) -> Any:
        chart = diagram(self.evidence(), self.piece.kind, self.piece.show, self.piece.at)
        chart.title.text = self.piece.title
        return chart

    def spent(self) -> float:
        """Seconds that its stored cells took."""
        names = {self.sweep.grid.names[i] for i in np.flatnonzero(self.sweep.status == DONE).tolist()}
        return sum(place.seconds for place in self.sweep.store.find(self.sweep.folder, names).values())


SHOWPIECES = (
    Showpiece(
        "basins",
        "Where descent ends",
        "The share of random starts that find the token that decides, over sharpness, dimension and length. At a small"
        " sharpness a start is as likely to mistake the value for the place; at a large one it learns the value and stalls.",
        "single-location/basins",
        {"lam": "0.05:1.6:16log", "dim": "25:6400:9log", "length": "2,5,10,20,50"},
        show="oracle",
        kind="phase",
    ),
    Showpiece(
        "thresholds",
        "Samples that training needs",
        "The logarithm of the number of samples with which four of five trained networks learn a function of s of T bits,"
        " over T and s, for and, or and majority.",
        "sparse-variables/samples-exponent",
        {"length": "25,50,100,200,400,800", "sparsity": "1,2,3,4,5", "function": "and,or,majority"},
        show="log_threshold",
        at={"learner": "attention"},
        kind="phase",
    ),
    Showpiece(
        "exponents",
        "Rates at great length",
        "The exponent with which the error of each mechanism falls at a context of 10^20 tokens, over the dimension of the"
        " sphere that keys lie on: softmax attention slows down with the dimension, and CME attention does not.",
        "latent-posterior/exponents",
        {"dim": "2:34"},
        show="local",
        at={"place": "20"},
        kind="lines",
    ),
)
