"""Checkpoints: a config and tensors by name, from wherever a person keeps a model.

    checkpoint = read_checkpoint("folder")        # config.json with model.safetensors (also in shards), pytorch_model.bin or a .gguf
    read_checkpoint("model.gguf")                 # or one file of these; config.json is looked for beside it
    read_checkpoint("package:NAME/sub")           # a folder of an installed package, which is not imported
    read_checkpoint("~/.cache/.../models--org--name")    # a Hugging Face cache
    read_checkpoint(arrays, config=config)        # a dict of arrays in memory
    checkpoint.config                             # config.json, or the metadata of a .gguf
    checkpoint.tensors["encoder.layer.0.attention.self.query.weight"].load()

A file that is truncated, contradicts itself or would have to be executed is an `InputError`; so is a folder without a model.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from attlas.audit.pickled import torch_file
from attlas.audit.quantised import gguf_file
from attlas.audit.tensors import PLAIN, Tensor, held, itemsize, library, stored
from attlas.errors import InputError, near

WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "*.gguf"),
)
"""The files that hold a folder's weights; the first that is there counts."""
LARGEST_JSON = 64 * 2**20
DEEPEST, MOST_FOLDERS = 6, 10_000


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model as its files describe it. `folder` is where a tokenizer may lie, `bytes` the size of the weights on disk."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    folder: Path | None = None
    bytes: int = 0


def kept_models() -> Path:
    """Where `make models` keeps real checkpoints, a folder for each package: ATTLAS_MODELS, or the user's cache."""
    return Path(
        os.environ.get("ATTLAS_MODELS") or user_cache_path("attlas", appauthor=False) / "models"
    )


def read_checkpoint(
    source: str | Path | Mapping[str, Any], config: Mapping[str, Any] | str | Path | None = None
) -> Checkpoint:
    """The checkpoint at `source`; `config` stands for its config.json, as a file or a dictionary."""
    given = config if config is None or isinstance(config, Mapping) else read_json(Path(config))
    if isinstance(source, Mapping):
        return _in_memory(source, given)
    try:
        path, name = _locate(source)
        return _read(path, name, given)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error


def _in_memory(arrays: Mapping[str, Any], config: Mapping[str, Any] | None) -> Checkpoint:
    if config is None:
        raise InputError(
            "weights in memory come without a config: give it as config=, with the keys of a config.json"
        )
    tensors = {}
    for name, value in arrays.items():
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name} is of the type {type(value).__name__}, which is no array: {error}"
            ) from error
        if array.dtype.kind in "OSUMmc":
            raise InputError(
                f"{name} is of the type {type(value).__name__}: it must be an array of real numbers"
            )
        tensors[name] = held(array)
    return Checkpoint(
        "in memory",
        config,
        tensors,
        bytes=sum(np.asarray(value).nbytes for value in arrays.values()),
    )


def _locate(source: str | Path) -> tuple[Path, str]:
    """The file that holds the weights, and what to call the model."""
    text = os.fspath(source)
    if text.startswith("package:"):
        folder, name = _package(text.removeprefix("package:"))
    else:
        folder = Path(text)
        with contextlib.suppress(RuntimeError):  # of a home that nobody has
            folder = folder.expanduser()
        name = (
            "/".join(folder.resolve().parts[-2:])
            if folder.name in ("", ".", "model")
            else folder.name
        )
    if "\0" in text or not folder.exists():
        parent = folder.parent if "\0" not in text and folder.parent.is_dir() else None
        beside = [entry.name for entry in parent.iterdir()] if parent else []
        raise InputError(f"there is no {text!r}.{near(folder.name, beside)}")
    if folder.is_file():
        return folder, folder.stem.removesuffix(".safetensors.index")
    if (folder / "snapshots").is_dir():
        name = folder.name.removeprefix("models--").replace("--", "/")
        folder = _snapshot(folder)
    here = weights_in(folder)
    if here is not None:
        return here, name
    found = _below(folder)
    if not found:
        raise InputError(
            f"{text} holds no model: looked for {', '.join(WEIGHTS)}, also in its subfolders"
        )
    if len(found) > 1:
        listed = ", ".join(str(file.parent.relative_to(folder)) for file in found[:12])
        raise InputError(f"{text} holds {len(found)} models, name one of its folders: {listed}")
    return found[0], f"{name}/{found[0].parent.relative_to(folder)}" if name else found[
        0
    ].parent.name


def _package(text: str) -> tuple[Path, str]:
    """The folder of an installed package, found without importing it."""
    from importlib.machinery import PathFinder

    name, _, sub = text.partition("/")
    module = name.replace("-", "_")
    if not module.isidentifier():
        raise InputError(
            f"package:{text} names no package: it should read as in package:NAME or package:NAME/folder"
        )
    spec = PathFinder.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package {name!r} is not installed here, or has no folder")
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    folder = (root / sub).resolve()
    if not folder.is_relative_to(root):
        raise InputError(f"package:{text} leaves the folder of {name}")
    return folder, f"{name}/{sub}" if sub else name


def _snapshot(folder: Path) -> Path:
    """The snapshot of a Hugging Face cache that `refs/main` names, or the only one."""
    kept = sorted(entry for entry in (folder / "snapshots").iterdir() if entry.is_dir())
    main = folder / "refs" / "main"
    current = (
        folder / "snapshots" / main.read_text("utf-8", "replace").strip()[:80]
        if main.is_file()
        else None
    )
    if current in kept:
        return current
    if len(kept) != 1:
        raise InputError(
            f"{folder} holds {len(kept)} snapshots and no refs/main among them: name the folder of one of them"
        )
    return kept[0]


def weights_in(folder: Path) -> Path | None:
    """The file with the weights of the model in `folder`, if there is one and it is clear which."""
    for pattern in WEIGHTS:
        found = sorted(file for file in folder.glob(pattern) if file.is_file())
        if len(found) > 1:
            raise InputError(
                f"{folder} holds {len(found)} files {pattern} and no index: name one of them: {', '.join(f.name for f in found[:12])}"
            )
        if found:
            return found[0]
    return None


def _below(folder: Path) -> list[Path]:
    """The models in the folders below, as far as it is sensible to look."""
    found = []
    for count, (here, folders, _) in enumerate(os.walk(folder)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(Path(here).relative_to(folder).parts) >= DEEPEST:
            folders.clear()
        if count >= MOST_FOLDERS:
            break
        file = weights_in(Path(here))
        if file is not None:
            found.append(file)
    return found


def _read(path: Path, name: str, given: Mapping[str, Any] | None) -> Checkpoint:
    folder = path.parent
    beside = folder / "config.json"
    config = given if given is not None else read_json(beside) if beside.is_file() else {}
    files = [path]
    if path.suffix == ".gguf":
        metadata, tensors = gguf_file(path)
        config = {**metadata, **(given or {})}
    elif path.name.endswith(".index.json"):
        tensors, files = _shards(path)
    else:
        tensors = _tensors(path)
    return Checkpoint(name, config, tensors, folder, sum(file.stat().st_size for file in files))


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors_file(path)
    if path.suffix in (".bin", ".pt", ".pth"):
        return torch_file(path)
    raise InputError(
        f"{path} is no weights file: its name should end in .safetensors, .bin, .pt, .pth or .gguf"
    )


def _shards(path: Path) -> tuple[dict[str, Tensor], list[Path]]:
    """The tensors that an index distributes over files beside it."""
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
        raise InputError(f"{path} has no weight_map from names of tensors to files")
    files = {}
    for file in sorted(set(shards.values())):
        if not re.fullmatch(r"[\w.-]+", file) or not (path.parent / file).is_file():
            raise InputError(f"{path} names the file {file!r}, which is not beside it")
        files[file] = _tensors(path.parent / file)
    for name, file in shards.items():
        if name not in files[file]:
            raise InputError(f"{path} says that {name} is in {file}, which does not hold it")
    return {name: files[file][name] for name, file in shards.items()}, [
        path.parent / file for file in files
    ]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise InputError(
                f"{path} has {path.stat().st_size} bytes: a config has at most {LARGEST_JSON}"
            )
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}: it should be a JSON object")
    return found


def safetensors_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file. The library checks the header: tensors lie end to end and fill the file."""
    safetensors = library("safetensors")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            found = {
                name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()
            }
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path} is no whole .safetensors file: {error}") from error
    sizes = {}
    for name, (shape, dtype) in found.items():
        if dtype not in PLAIN:
            raise InputError(
                f"the tensor {name} of {path} is stored as {dtype}: known are {', '.join(PLAIN)}"
            )
        sizes[name] = int(np.prod(shape, dtype=np.int64)) * itemsize(dtype)
    # Read from the file rather than through the library's map of it, whose pages would count as memory.
    offset = path.stat().st_size - sum(sizes.values())
    tensors = {}
    for name, (shape, dtype) in found.items():
        tensors[name] = stored(path, offset, shape, dtype)
        offset += sizes[name]
    return tensors
