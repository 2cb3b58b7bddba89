"""Every reader of files, given files that coverage guides into its corners: `make fuzz MINUTES=2`.

A reader answers or refuses: with what it documents, in bounded time and memory. `READERS` names
them; `tests/corpus/READER` holds small whole files, and those that once broke something, which the
tests replay. New ones are left in `build/fuzz`. Atheris, which mutates and watches, is in a folder
of its own (`tools/fuzz.lock`); the tests do without it.
"""

import argparse
import contextlib
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
FOUND = Path(__file__).parents[1] / "build" / "fuzz" / "found"
WATCHED = ["attlas", "tomllib", "h5py", "xarray", "gguf", "zipfile", "numpy.lib._npyio_impl"]
"""Packages whose branches are counted."""
MOST_MEGABYTES, MOST_SECONDS = 2500, 20

Reader = Callable[[bytes], None]


def _sealed(data: bytes) -> bytes:
    """A JSON file with the right checksum, so that what is behind it is reached."""
    return b'{"checksum": "%s",%s' % (hashlib.sha256(data).hexdigest().encode(), data)


def make_reader(name: str, folder: Path) -> Reader:
    """The function that reads given bytes as a file of the kind `name`, in `folder`."""
    # Each imports what it needs alone, so that what it needs is watched.
    return _MAKERS[name](folder)


def _read_index(folder: Path) -> Reader:
    from attlas.lab.records import LAYOUT
    from attlas.lab.store import Store

    place = folder / "blocks" / LAYOUT / "map" / "claim"
    index = place / f"{'0' * 32}.{'0' * 16}.{'0' * 16}.json"

    def read(data: bytes) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for content in (data, _sealed(data)):
            index.write_bytes(content)
            index.with_suffix(".nc").write_bytes(b"")
            store = Store(folder)
            cells = {cell for _, index in store._indices("map/claim") for cell in index.cells}
            assert not store.load("map/claim", cells)
            store.costs("map/claim")
            store.pack("map/claim")

    return read


def _read_block(folder: Path) -> Reader:
    from attlas.lab.blocks import join_key, read_block
    from attlas.lab.files import Damaged

    def read(data: bytes) -> None:
        with contextlib.suppress(Damaged):
            join_key(read_block(data))

    return read


def _read_verdict(folder: Path) -> Reader:
    from attlas.cli.printing import print_entry
    from attlas.index import package_index
    from attlas.lab.records import LAYOUT, Records

    file = folder / "verdicts" / LAYOUT / "map" / "claim.json"
    entry = next(iter(package_index().values()))

    def read(data: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_sealed(data))
        found = Records(folder).recorded("map/claim")
        if found is not None:
            with contextlib.redirect_stdout(io.StringIO()):
                print_entry(entry, found)

    return read


def _read_shipped(folder: Path) -> Reader:
    from attlas.claims import find_claim
    from attlas.lab.files import seal
    from attlas.lab.shipped import read_shipped, shipped_path

    claim = find_claim("single-location/critical-lambda")
    file = shipped_path(claim, folder)
    file.parent.mkdir()

    def read(data: bytes) -> None:
        for content in (data, seal(data)):
            file.write_bytes(content)
            notes: list[str] = []
            assert read_shipped(claim, notes, folder) is not None or len(notes) == 1

    return read


def _refusing(folder: Path, name: str, use: Callable[[Path], object]) -> Reader:
    """A reader that says with an `InputError` what it does not read."""
    from attlas.errors import InputError

    def read(data: bytes) -> None:
        (folder / name).write_bytes(data)
        with contextlib.suppress(InputError):
            use(folder / name)

    return read


def _read_estimator(folder: Path) -> Reader:
    from attlas.estimators import load_estimator

    return _refusing(folder, "model.npz", load_estimator)


def _read_safetensors(folder: Path) -> Reader:
    from attlas.audit.checkpoints import safetensors_file

    return _refusing(folder, "m", lambda path: [t.load() for t in safetensors_file(path).values()])


def _read_gguf(folder: Path) -> Reader:
    from attlas.audit.gguf_format import gguf_file

    return _refusing(folder, "m", lambda path: [t.load() for t in gguf_file(path)[1].values()])


def _read_torch(folder: Path) -> Reader:
    from attlas.audit.torch_format import torch_file

    return _refusing(folder, "m", lambda path: [t.load() for t in torch_file(path).values()])


def _read_tokenizer(folder: Path) -> Reader:
    from dataclasses import replace

    from attlas.audit.architectures import as_model
    from attlas.audit.checkpoints import read_checkpoint
    from attlas.audit.texts import encode

    whole = read_checkpoint(CORPUS.parent / "audit" / "data" / "bert")
    model = as_model(replace(whole, folder=folder))
    return _refusing(folder, "tokenizer.json", lambda _: encode(model, ["a bb."]))


def _read_notes(folder: Path) -> Reader:
    from attlas.atlas.notes import read_notes

    return _refusing(folder, "notes.toml", lambda path: read_notes.__wrapped__("map", path))


def _read_references(folder: Path) -> Reader:
    from attlas.references import bibliography

    return _refusing(folder, "claims.bib", lambda path: bibliography(path.with_suffix(".py")))


def _read_list(folder: Path) -> Reader:
    from attlas.atlas.folders import LIST, check_folder

    (folder / "atlas").mkdir()
    return _refusing(folder / "atlas", LIST, lambda path: check_folder(path.parent))


def _read_drawing(folder: Path) -> Reader:
    from attlas.atlas.drawings import _read
    from attlas.lab.files import seal

    def read(data: bytes) -> None:
        (folder / "drawing.json").write_bytes(seal(data))
        (folder / "svg").write_bytes(seal(b""))
        _read(folder)

    return read


_MAKERS = {
    "index": _read_index,
    "block": _read_block,
    "verdict": _read_verdict,
    "shipped": _read_shipped,
    "estimator": _read_estimator,
    "safetensors": _read_safetensors,
    "gguf": _read_gguf,
    "torch": _read_torch,
    "tokenizer": _read_tokenizer,
    "notes": _read_notes,
    "references": _read_references,
    "list": _read_list,
    "drawing": _read_drawing,
}
READERS = tuple(_MAKERS)


def fuzz(name: str, seconds: float) -> None:
    """Give a reader files until the time is over or it breaks; this process ends with it."""
    import atheris

    with tempfile.TemporaryDirectory(prefix="attlas-fuzz-") as folder:
        with atheris.instrument_imports(include=WATCHED):
            read = make_reader(name, Path(folder))
        FOUND.mkdir(parents=True, exist_ok=True)
        kept = FOUND.parent / "corpus" / name
        kept.mkdir(parents=True, exist_ok=True)
        limits = [f"-rss_limit_mb={MOST_MEGABYTES}", f"-timeout={MOST_SECONDS}"]
        time = [f"-max_total_time={seconds:.0f}", f"-artifact_prefix={FOUND}/{name}-"]
        places = [str(kept), str(CORPUS / name)]
        atheris.Setup([sys.argv[0], *limits, *time, "-print_final_stats=1", *places], read)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--minutes", type=float, default=1.0, help="for each reader")
    parser.add_argument("--here", action="store_true", help="one reader, in this process")
    given = parser.parse_args()
    if given.here:
        fuzz(given.readers[0], 60 * given.minutes)
        return
    broken = {}
    for name in given.readers or READERS:
        command = [sys.executable, "-m", "tools.fuzz", name, "--here"]
        ended = subprocess.run(
            [*command, "--minutes", str(given.minutes)], stderr=subprocess.PIPE, text=True
        )
        lines = ended.stderr.splitlines()
        counts = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
        peak = [line.split()[-1] for line in lines if "peak_rss_mb" in line]
        said = f"{counts[-1]} files, {peak[-1]} MB at most" if counts else "it ended early"
        print(f"{name}: {said}{', BROKEN' if ended.returncode else ''}", flush=True)
        if ended.returncode:
            broken[name] = "\n".join(lines[-40:])
    for name, words in broken.items():
        print(f"\n{name} broke; the file is in {FOUND}:\n{words}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
