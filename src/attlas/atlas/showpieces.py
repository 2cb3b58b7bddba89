"""Hours of work that `attlas atlas` does not start, worth a page of their own: sweeps, and the benchmark on real data. It shows
what the store holds of them, or what comes with the package."""

import json
import shlex
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import xarray as xr

from attlas.lab.blocks import read_block
from attlas.lab.diagrams import diagram
from attlas.lab.grids import DONE, Grid
from attlas.lab.store import Store
from attlas.lab.sweeps import Sweep, plan_grid

REAL_DATA = "real-data"


@dataclass(frozen=True)
class Showpiece:
    """A sweep of `grid`, with other parameters as at `scale` but for `settings`, what it shows, and how it is drawn: `show` is a variable,
    called `label` in the figure, `axes` says what its axes are called there, and `at` chooses one value of an axis."""

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
    def command(self) -> str:
        """The command that makes it."""
        options = [("grid", f"{name}={values}") for name, values in self.grid.items()]
        options += [("set", text) for text in self.settings]
        options += [
            ("show", self.show),
            *(("at", f"{name}={value}") for name, value in self.at.items()),
        ]
        options += [("kind", self.kind), ("out", f"{self.slug}.nc"), ("figure", f"{self.slug}.svg")]
        words = ["attlas", "sweep", self.claim, "--scale", self.scale]
        return shlex.join(
            [*words, *(word for name, value in options for word in (f"--{name}", value))]
        )

    @property
    def cells(self) -> Grid:
        return plan_grid(self.claim, self.grid, 0, self.scale, self.settings)

    def shipped(self) -> xr.Dataset:
        """What was gathered before the package was made, without evidence that takes room and is not drawn."""
        return read_block((files("attlas.atlas") / "shipped" / f"{self.slug}.nc").read_bytes())

    def shown(self, store: Store) -> "Shown":
        """What the store holds, if that is all of it, else what came with the package."""
        grid = self.cells
        # Most often there is nothing, and to see that is quicker than to check hypotheses.
        if store.find(grid.claim.evidence, set(grid.names)):
            sweep = Sweep(grid, store)
            if sweep.tally.stored == sweep.tally.cells - sweep.tally.outside:
                return Shown(self, sweep.gathered(), _spent(sweep))
        return Shown(self, self.shipped())


def real_data(store: Store) -> dict[str, Any]:
    """What `make bench-data` measured: here, or before the package was made."""
    found = store.kept_table(REAL_DATA)
    return found or json.loads(
        (files("attlas.atlas") / "shipped" / f"{REAL_DATA}.json").read_text(encoding="utf-8")
    )


def _spent(sweep: Sweep) -> float:
    names = {sweep.grid.names[i] for i in np.flatnonzero(sweep.status == DONE).tolist()}
    return sum(place.seconds for place in sweep.store.find(sweep.folder, names).values())


@dataclass(frozen=True)
class Shown:
    """A showpiece with the evidence that is shown, and the seconds that it took, if it is in the store."""

    piece: Showpiece
    evidence: xr.Dataset
    seconds: float | None = None

    @property
    def done(self) -> int:
        return int((self.evidence["status"] == "done").sum())

    def figure(self) -> Any:
        piece = self.piece
        named = self.evidence.rename({piece.show: piece.label, **piece.axes})
        chart = diagram(named, piece.kind, piece.label, piece.at)
        chart.title.text = piece.title
        return chart


SHOWPIECES = (
    Showpiece(
        "basins",
        "Where descent ends",
        "The share of random starts whose descent mistakes the value for the place, over sharpness, dimension and length."
        " At a small sharpness it is every second one; at a large one it is the fewer, the larger the dimension and the longer"
        " the sequence.",
        "single-location/basins",
        {"lam": "0.05:1.6:16log", "dim": "25:3200:8log", "length": "2,5,10,20,50"},
        show="swapped",
        label="share that ends swapped",
        kind="phase",
        axes={"lam": "sharpness λ", "dim": "dimension d", "length": "tokens L"},
    ),
    Showpiece(
        "thresholds",
        "Samples that training needs",
        "The number of samples with which four of five trained networks learn a function of s of T bits without a single error,"
        " over T and s, for and, or and majority; 400 samples are the most that are tried. Samples grow slowly with the length, and in the"
        " shortest contexts more are needed again.",
        "sparse-variables/samples-exponent",
        {"length": "25,50,100,200,400,800", "sparsity": "1,2,3", "function": "and,or,majority"},
        show="threshold",
        label="samples needed",
        kind="phase",
        axes={"length": "length T", "sparsity": "relevant bits s"},
        at={"learner": "attention"},
        settings=("trials=24",),
    ),
    Showpiece(
        "exponents",
        "Rates at great length",
        "The exponent with which the error of each mechanism falls at a context of 10^20 tokens, over the dimension p of the"
        " space in which keys lie on a sphere. Softmax attention slows down with every dimension. CME attention with the proof's ridge keeps"
        " the exponent -1/4 up to some ten dimensions, and beyond them even so many tokens are too few to see it; with Bayes' own ridge it"
        " is near -1/2 and slows down late.",
        "latent-posterior/exponents",
        {"dim": "2:34"},
        show="local",
        label="exponent",
        kind="lines",
        axes={"dim": "dimension p", "every": "attention", "place": "log₁₀ of tokens"},
        at={"log₁₀ of tokens": "20"},
    ),
)
