"""The verb `doctor`: versions, devices, folders with their sizes, and what is missing."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click

from attlas import __version__
from attlas.cli import options, printing

EXTRAS = {
    "audit": "read checkpoints",
    "certify": "prove claims on boxes",
    "cluster": "sweep on a cluster",
    "notebook": "work in a notebook, and for xarray's own plots",
}
"""What the optional dependencies are for."""


@click.command("doctor")
@options.store_option
@options.json_option
def examine(store: str | None, as_json: bool) -> None:
    """Versions, devices, the store and caches with their sizes, and what is missing, with the line
    that brings it.

    Exit code: 0, also where something optional is missing; 2 where a package that is needed is.
    """
    found = describe_installation(store)
    if as_json:
        printing.print_json(found)
    else:
        for name, value in found.items():
            if name not in ("packages", "missing"):
                click.echo(f"{name:<12}{value}")
        click.echo(
            f"{'packages':<12}" + ", ".join(f"{k} {v}" for k, v in found["packages"].items())
        )
        for line in found["missing"]:
            click.echo(f"{'missing':<12}{line}")
    sys.exit(2 if any(line.startswith("needed") for line in found["missing"]) else 0)


def describe_installation(store: str | None = None) -> dict[str, Any]:
    """What `doctor` prints, as plain data."""
    from attlas.audit.checkpoints import kept_models
    from attlas.lab.records import Records

    packages, missing = _packages()
    records, models = Records(store).folder, kept_models()
    if not (models.is_dir() and any(models.iterdir())):
        missing.append("checkpoints, for claims about real models: make models")
    return {
        "attlas": f"{__version__}, {Path(__file__).parents[1]}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.platform()}, {os.cpu_count()} cores",
        "devices": _devices(),
        "store": _sized(records),
        "compiled": _sized(records / "compiled"),
        "models": _sized(models),
        "packages": packages,
        "missing": missing,
    }


def _devices() -> str:
    try:
        import jax

        return ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in jax.devices()}))
    except (ImportError, RuntimeError) as error:
        return f"none: {error}"


def _packages() -> tuple[dict[str, str], list[str]]:
    """Versions of what is there, and sentences about what is not."""
    # Which jaxlib there is depends on the machine, and errors of JAX are often its.
    found: dict[str, str] = {"jaxlib": version("jaxlib")} if _is_there("jaxlib") else {}
    missing: list[str] = []
    for line in requires("attlas") or []:
        words, _, marker = line.partition(";")
        name = words.split("[")[0].strip(" ()")
        for sign in "<>=!~":
            name = name.partition(sign)[0].strip()
        extra = marker.partition("extra ==")[2].strip(" '\"")
        if _is_there(name):
            found[name] = version(name)
        elif extra:
            why = EXTRAS.get(extra, extra)
            missing.append(f"{name}, to {why}: pip install 'attlas[{extra}]'")
        else:
            missing.append(f"needed: {name}: pip install '{words.strip()}'")
    return found, missing


def _is_there(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _sized(folder: Path) -> str:
    """A folder, and how large what it holds is."""
    if not folder.is_dir():
        return f"{folder} (not there yet)"
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            total += file.lstat().st_size if file.exists() else 0
    return f"{folder} ({total / 1e6:,.1f} MB)"
