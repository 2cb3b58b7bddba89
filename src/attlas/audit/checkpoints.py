"""Checkpoints: a config and tensors by name, from wherever a person keeps a model.

    read_checkpoint("folder")                     # config.json with model.safetensors (also in
                                                  # shards), pytorch_model.bin or a .gguf
    read_checkpoint("model.gguf")                 # one such file; config.json is read beside it
    read_checkpoint("package:NAME/sub")           # a folder of an installed package, not imported
    read_checkpoint("~/.cache/.../models--org--name")    # a Hugging Face cache
    read_checkpoint("org/name")                   # the same by its name, if the cache has it
    read_checkpoint(model)                        # a module of torch with its config, in memory
    read_checkpoint(arrays, config=config)        # a dict of arrays or tensors in memory
    checkpoint.config                             # config.json, or the metadata of a .gguf
    checkpoint.tensors["encoder.layer.0.attention.self.query.weight"].load()

A file that is truncated, contradicts itself or would have to be executed is an `InputError`; so is
a folder without a model.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from attlas.audit.gguf_format import gguf_file
from attlas.audit.tensors import (
    PLAIN,
    Tensor,
    check_header,
    file_tensor,
    import_extra,
    itemsize,
    memory_tensor,
    read_bytes,
    read_small_file,
    torch_tensor,
)
from attlas.audit.torch_format import torch_file
from attlas.errors import InputError, near
from attlas.escaping import printable

WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "*.gguf"),
)
"""The files that hold the weights of a folder, the preferred one first."""
HUB_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
"""What a name of a model on the Hub looks like: an organisation and a model."""
MAX_JSON_BYTES = 64 * 2**20
MAX_MESSAGE = 300
"""So many letters of a path, or of what a library says, stand in a message."""
MAX_DEPTH, MAX_FOLDERS, MAX_LISTED = 6, 10_000, 12
"""How deep and in how many folders a model is searched for; how many finds a message lists."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model as its files describe it.

    `folder` is where a tokenizer may lie, `bytes` the size of the weights on disk.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    folder: Path | None = None
    bytes: int = 0


def kept_models() -> Path:
    """The folder of `make models`: ATTLAS_MODELS, or `models` in the user's cache."""
    default = user_cache_path("attlas", appauthor=False) / "models"
    return Path(os.environ.get("ATTLAS_MODELS") or default)


def read_checkpoint(source: Any, config: Any = None) -> Checkpoint:
    """Read the headers of a checkpoint; its tensors are read when they are asked for.

    Arguments:
        source: a folder, a file, "package:NAME", the name of a model in a Hugging Face cache,
            arrays or tensors by name, or what has them as `state_dict()`, such as a model of
            `transformers`; torch is not imported for it.
        config: in place of the config.json beside the weights or the `config` of the model: a
            mapping, a file, or an object with `to_dict()`.
    """
    if not isinstance(source, str | Path | Mapping) and hasattr(source, "state_dict"):
        config = getattr(source, "config", None) if config is None else config
        source = source.state_dict()
    given = _read_config(config)
    if isinstance(source, Mapping):
        return _from_memory(source, given)
    if not isinstance(source, str | Path):
        raise InputError(
            f"{printable(type(source).__name__)} is no model: it must be a path, arrays by name, or"
            " have a state_dict"
        )
    try:
        path, name = _locate_weights(source)
        return _read_files(path, name, given)
    except OSError as error:
        where = printable(source, MAX_MESSAGE)
        raise InputError(f"{where} cannot be read: {error.strerror or error}") from error


def _read_config(config: Any) -> Mapping[str, Any] | None:
    """A config that was given: a mapping, a file, or an object with `to_dict()`."""
    if config is None or isinstance(config, Mapping):
        return config
    if isinstance(config, str | Path):
        return read_json(Path(config))
    if hasattr(config, "to_dict"):
        return config.to_dict()
    raise InputError(
        f"the config is a {printable(type(config).__name__)}: it must be a mapping, a file or have"
        " to_dict()"
    )


def _from_memory(arrays: Mapping[str, Any], config: Mapping[str, Any] | None) -> Checkpoint:
    if config is None:
        raise InputError(
            "weights in memory come without a config: give it as config=, with the keys of a"
            " config.json"
        )
    tensors, size = {}, 0
    for name, value in arrays.items():
        if all(hasattr(value, part) for part in ("detach", "dtype", "element_size", "numel")):
            tensors[name] = torch_tensor(value)
            size += value.numel() * value.element_size()
            continue
        kind, shown = type(value).__name__, printable(name)
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{shown} is of the type {kind}, which is no array: {error}"
            ) from error
        if array.dtype.kind in "OSUMmc":
            raise InputError(f"{shown} is of the type {kind}: it must be an array of real numbers")
        tensors[name] = memory_tensor(array)
        size += array.nbytes
    # A model of transformers knows the folder it came from, where its tokenizer lies too.
    stated = config.get("_name_or_path")
    folder = Path(stated) if isinstance(stated, str) and stated and "\0" not in stated else None
    folder = folder if folder is not None and folder.is_dir() else None
    return Checkpoint("in memory", config, tensors, folder, size)


def _locate_weights(source: str | Path) -> tuple[Path, str]:
    """The file that holds the weights, and what to call the model."""
    text = os.fspath(source)
    if text.startswith("package:"):
        folder, name = _locate_package(text.removeprefix("package:"))
    else:
        folder = Path(text)
        with contextlib.suppress(RuntimeError):  # "~name" of an unknown user
            folder = folder.expanduser()
        nameless = folder.name in ("", ".", "model")
        name = "/".join(folder.resolve().parts[-2:]) if nameless else folder.name
    on_hub = re.fullmatch(HUB_NAME, text) and not folder.exists()
    if on_hub and not folder.parent.is_dir():
        folder = _cached_model(text)
    if "\0" in text or not folder.exists():
        parent = folder.parent if "\0" not in text and folder.parent.is_dir() else None
        beside = [entry.name for entry in parent.iterdir()] if parent else []
        raise InputError(f"there is no {text!r}.{near(folder.name, beside)}")
    if folder.is_file():
        return folder, folder.stem.removesuffix(".safetensors.index")
    if (folder / "snapshots").is_dir():
        name = folder.name.removeprefix("models--").replace("--", "/")
        folder = _current_snapshot(folder)
    here = weights_in(folder)
    if here is not None:
        return here, name
    found = _search_subfolders(folder)
    places = [str(file.parent.relative_to(folder)) for file in found[:MAX_LISTED]]
    if not found:
        raise InputError(
            f"{text} holds no model: looked for {', '.join(WEIGHTS)}, also in its subfolders"
        )
    if len(found) > 1:
        raise InputError(
            f"{text} holds {len(found)} models, name one of its folders: {', '.join(places)}"
        )
    return found[0], f"{name}/{places[0]}" if name else found[0].parent.name


def _cached_model(name: str) -> Path:
    """The folder of a model in the cache of Hugging Face; nothing is downloaded."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{name.replace('/', '--')}"
    if not folder.is_dir():
        raise InputError(
            f"there is no {name!r} here, and {printable(cache, MAX_MESSAGE)} has no model of that"
            f" name. Nothing is downloaded: `hf download {name}` puts it there"
        )
    return folder


def _locate_package(text: str) -> tuple[Path, str]:
    """The folder of an installed package, found without importing it."""
    name, _, sub = text.partition("/")
    module = name.replace("-", "_")
    if not module.isidentifier():
        raise InputError(
            f"package:{text} names no package: it should read as in package:NAME or"
            " package:NAME/folder"
        )
    spec = PathFinder.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package {name!r} is not installed here, or has no folder")
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    folder = (root / sub).resolve()
    if not folder.is_relative_to(root):
        raise InputError(f"package:{text} leaves the folder of {name}")
    return folder, f"{name}/{sub}" if sub else name


def _current_snapshot(folder: Path) -> Path:
    """The snapshot of a Hugging Face cache that `refs/main` names, or the only one."""
    kept = sorted(entry for entry in (folder / "snapshots").iterdir() if entry.is_dir())
    main = folder / "refs" / "main"
    revision = main.read_text("utf-8", "replace").strip()[:80] if main.is_file() else ""
    current = folder / "snapshots" / revision
    if current in kept:
        return current
    if len(kept) != 1:
        raise InputError(
            f"{folder} holds {len(kept)} snapshots and no refs/main among them: name the folder of"
            " one of them"
        )
    return kept[0]


def weights_in(folder: Path) -> Path | None:
    """The file with the weights of the model in `folder`, if there is one; two are an error."""
    for pattern in WEIGHTS:
        found = sorted(file for file in folder.glob(pattern) if file.is_file())
        if len(found) > 1:
            listed = ", ".join(file.name for file in found[:MAX_LISTED])
            raise InputError(
                f"{folder} holds {len(found)} files {pattern} and no index: name one of them:"
                f" {listed}"
            )
        if found:
            return found[0]
    return None


def _search_subfolders(folder: Path) -> list[Path]:
    found = []
    for here, folders, _ in islice(os.walk(folder), MAX_FOLDERS):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(Path(here).relative_to(folder).parts) >= MAX_DEPTH:
            folders.clear()
        found.append(weights_in(Path(here)))
    return [file for file in found if file is not None]


def _read_files(path: Path, name: str, given: Mapping[str, Any] | None) -> Checkpoint:
    beside = path.parent / "config.json"
    config = given if given is not None else read_json(beside) if beside.is_file() else {}
    size = path.stat().st_size
    if path.suffix == ".gguf":
        metadata, tensors = gguf_file(path)
        config = {**metadata, **(given or {})}
    elif path.name.endswith(".index.json"):
        tensors, size = _read_shards(path)
    else:
        tensors = _read_tensors(path)
    return Checkpoint(printable(name), config, tensors, path.parent, size)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors_file(path)
    if path.suffix in (".bin", ".pt", ".pth"):
        return torch_file(path)
    raise InputError(
        f"{path} is no weights file: its name should end in .safetensors, .bin, .pt, .pth or .gguf"
    )


def _read_shards(path: Path) -> tuple[dict[str, Tensor], int]:
    """The tensors that an index distributes over files beside it, and the size of these files."""
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
        raise InputError(f"{path} has no weight_map from names of tensors to files")
    files = {}
    for file in sorted(set(shards.values())):
        if not re.fullmatch(r"[\w.-]+", file) or not (path.parent / file).is_file():
            raise InputError(f"{path} names the file {printable(file)!r}, which is not beside it")
        files[file] = _read_tensors(path.parent / file)
    for name, file in shards.items():
        if name not in files[file]:
            raise InputError(
                f"{path} says that {printable(name)} is in {file}, which does not hold it"
            )
    tensors = {name: files[file][name] for name, file in shards.items()}
    return tensors, sum((path.parent / file).stat().st_size for file in files)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; anything else is an `InputError`."""
    content = read_small_file(path, "config", MAX_JSON_BYTES)
    try:
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        said = printable(error, MAX_MESSAGE)
        raise InputError(f"{path} is no JSON: {said}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}: it should be a JSON object")
    return found


def safetensors_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, by name.

    The library checks the header: tensors lie end to end and fill the file. The numbers are read
    from the file, because pages of the library's memory map would count as memory of the process.
    A header has at most `MAX_HEADER_BYTES`.
    """
    safetensors = import_extra("safetensors")
    check_header(path, int.from_bytes(read_bytes(path, 0, 8).tobytes(), "little"))
    try:
        with safetensors.safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            found = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        said = printable(error, MAX_MESSAGE)
        raise InputError(f"{path} is no whole .safetensors file: {said}") from error
    tensors, end = {}, path.stat().st_size
    for name, (shape, dtype) in reversed(found.items()):
        if dtype not in PLAIN:
            raise InputError(
                f"the tensor {printable(name)} of {path} is stored as {dtype}: known are"
                f" {', '.join(PLAIN)}"
            )
        end -= math.prod(shape) * itemsize(dtype)
        tensors[name] = file_tensor(path, end, tuple(shape), dtype)
    return dict(reversed(tensors.items()))
