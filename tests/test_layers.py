"""The shape of the package: imports point downwards, names do not clash, importing is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attlas

ROOT = Path(attlas.__file__).parent
MAPS = ("single_location", "sparse_variables", "latent_posterior")
LAYERS = {
    "claims": 1,
    **dict.fromkeys(MAPS, 2),
    "lab": 3,
    "atlas": 4,
    "estimators": 3,
    "audit": 3,
    "terminal": 5,
    "cli": 6,
}
FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Rooms of the package that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    inside = {name.split(".")[1] for name in found if name.startswith("attlas.")}
    return {name for name in inside if (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()}


@pytest.mark.parametrize(
    "path", [f for f in FILES if f != ROOT / "__init__.py"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_point_downwards(path):
    here = room(path)
    for there in imported(path) - {here}:
        assert LAYERS.get(there, 0) <= LAYERS.get(here, 0), f"{here} imports {there}"
        assert not (here in MAPS and there in MAPS), f"the map {here} imports the map {there}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_public_function_bears_the_name_of_a_module_beside_it(path):
    beside = {f.stem for f in path.parent.glob("*.py")} | {
        f.name for f in path.parent.iterdir() if f.is_dir()
    }
    names = {
        n.name
        for n in ast.parse(path.read_text()).body
        if isinstance(n, ast.FunctionDef | ast.ClassDef)
    }
    assert not names & beside


def test_tests_mirror_the_modules():
    tests = Path(__file__).parent
    for path in FILES:
        parts = path.relative_to(ROOT).parts
        if path.name == "__init__.py" or {"claims", "figures"} & set(
            parts[:-1]
        ):  # see tests/maps.py
            continue
        assert (tests.joinpath(*parts[:-1]) / f"test_{path.name}").exists(), (
            f"no test mirrors {path.relative_to(ROOT)}"
        )


def test_importing_the_package_and_asking_for_help_import_nothing_heavy():
    code = "import sys, attlas, attlas.cli; print([m for m in ('jax', 'numpy', 'xarray', 'altair', 'rich') if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_the_public_face():
    assert (
        callable(attlas.run)
        and callable(attlas.catalogue)
        and issubclass(attlas.InputError, ValueError)
    )
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attlas.nothing  # noqa: B018
