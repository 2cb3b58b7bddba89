"""What a large sweep needs beside time: memory of whoever hands out and gathers, and a packer's
first look. `python -m bench.sweeps_memory`.

Each is measured in a process of its own, because the most a process has used does not fall again.
"""

import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attlas.lab.grids import DONE, MISSING, gather
from attlas.lab.store import Address, Cell, Store
from attlas.lab.sweeps import Sweep, plan_grid, write_gathered
from bench.scaling import Crowd
from bench.sweeps import claims

STARTS = 128
FOLDER = Path(tempfile.gettempdir())


def basins(cells: int) -> xr.Dataset:
    """As large as the evidence of single-location/basins at quick scale: 2.7 kB a cell."""
    draws = np.random.default_rng(0)
    runs = ("cell", "repeat")
    found = {name: (runs, draws.normal(size=(cells, STARTS))) for name in ("eta_start", "nu_start")}
    words = ("arrived", "oracle", "sliding", "swapped", "twice_as_fast")
    return xr.Dataset(
        {**found, **{name: (runs, draws.random((cells, STARTS)) < 0.5) for name in words}}
    )


def gathering(missing: int) -> dict[str, float]:
    """10^4 such cells from blocks of a thousand."""
    claim, count = claims()["nothing"], 10_000
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        plan = Sweep(plan_grid(claim, {"n": "1:101", "lam": "1:101"}), folder)
        address = Address.of(claim, 0)
        for first in range(0, count, 1000):
            cells = [Cell(address, setting) for setting in plan.grid.settings[first : first + 1000]]
            plan.store.save(cells, basins(1000), {"seconds": 1.0})
        status = np.full(count, DONE, np.int8)
        status[:missing] = MISSING
        before, start = _now(), time.perf_counter()
        with _Peak() as peak:
            gathered = gather(plan.grid, Store(folder), status, {})
        took = time.perf_counter() - start
        held, start = _now(), time.perf_counter()
        with _Peak() as writing:
            write_gathered(gathered, Path(folder) / "all.nc")
        return {
            "seconds to gather": took,
            "seconds to write": time.perf_counter() - start,
            "kB a cell in the result": gathered.nbytes / count / 1e3,
            "kB a cell in the file": (Path(folder) / "all.nc").stat().st_size / count / 1e3,
            "kB a cell at most, gathering": (peak.most - before) / count / 1e3,
            "kB a cell at most, writing, above the result": (writing.most - held) / count / 1e3,
        }


def handing_out() -> dict[str, float]:
    """10^5 cells of a batch each, planned, queued and handed out while all that others stored is
    looked at."""
    claim, count = claims()["alone"], 100_000
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        found, before = {}, _now()
        plan = Sweep(plan_grid(claim, {"n": "1:1001", "lam": "1:101"}), folder)
        found["bytes a cell, planned"] = (_now() - before) / count
        queue = plan.missing_batches()
        found["bytes a cell, planned and queued"] = (_now() - before) / count
        queue.clear()
        address = Address.of(claim, 0)
        evidence = claim.measure(plan.grid.settings[:1000], 0)
        for first in range(0, count // 2, 1000):
            cells = [Cell(address, setting) for setting in plan.grid.settings[first : first + 1000]]
            plan.store.save(cells, evidence, {"seconds": 1.0})
        plan._looked = -np.inf
        with _Peak() as peak:
            plan.measure_missing(Crowd())
        found["bytes a cell at most, half of them stored by another"] = (peak.most - before) / count
        return found


def first_look() -> dict[str, float]:
    """A packer that has seen nothing yet parses every index: 195 of packed blocks with 256 times
    ten cells."""
    claim, blocks, each = claims()["alone"], 195, 2560
    address = Address.of(claim, 0)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        store = Store(folder)
        evidence = claim.measure([claim.quick.at(n=n) for n in range(1, each + 1)], 0)
        evidence = evidence.assign_attrs(precision="float64", code="c")
        for block in range(blocks):
            names = [address.named(f"{block}-{n}") for n in range(each)]
            store._save(
                address.claim, names, evidence, {"seconds": 1.0}, [n // 10 for n in range(each)]
            )
        size = next(Path(folder).rglob("*.json")).stat().st_size
        fresh, before = Store(folder), _now()
        looks = [_seconds(lambda: fresh.pack(address.claim)) for _ in range(2)]
        return {
            "kB of an index": size / 1e3,
            "seconds of a first look": looks[0],
            "seconds of the next": looks[1],
            "bytes a cell that are kept": (_now() - before) / blocks / each,
        }


class _Peak:
    """The most memory that this process has while the context lasts, looked at every few
    milliseconds."""

    def __enter__(self) -> "_Peak":
        self.most, self._going = _now(), True
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._going:
            self.most = max(self.most, _now())
            time.sleep(0.003)

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join()


def _now() -> float:
    return resource.getpagesize() * float(Path("/proc/self/statm").read_text().split()[1])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _apart(work: Callable[..., dict[str, float]], *given: Any) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


if __name__ == "__main__":
    measured: tuple[tuple[str, Callable[..., dict[str, float]], tuple[Any, ...]], ...] = (
        ("gathering, all cells there", gathering, (0,)),
        ("gathering, one cell missing", gathering, (1,)),
        ("handing out", handing_out, ()),
        ("packing", first_look, ()),
    )
    for title, work, given in measured:
        for what, value in _apart(work, *given).items():
            sys.stdout.write(f"{title + ': ' + what:84s} {value:12.4g}\n")
            sys.stdout.flush()
