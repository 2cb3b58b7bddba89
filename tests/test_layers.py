"""The shape of the package: imports point downwards, names do not clash, importing is cheap."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attlas

ROOT = Path(attlas.__file__).parent
TOP = ROOT.parents[1]
MAPS = ("single_location", "several_locations", "sparse_variables", "latent_posterior")
LAYERS = {
    **dict.fromkeys(("claims", "figure", "figure_style"), 1),
    **dict.fromkeys(MAPS, 2),
    **dict.fromkeys(("lab", "estimators", "audit"), 3),
    "atlas": 4,
    "cli": 5,
}
"""Every other module is of the root, which is layer 0."""
APART = (MAPS, ("lab", "estimators", "audit"))
"""Rooms of which none imports another."""
EXCEPTIONS = {("index", "claims"): "it is the name of a group of entry points, too"}
FILES = sorted(ROOT.rglob("*.py"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def room(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def named_modules(tree):
    """Names of modules in imports, and in strings: `"attlas.a.b"`, `"attlas.a.b:function"`, and
    `f"attlas.{name}"`, of which the name is a star."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\A(attlas(?:\.\w+)+)(?=:|\Z)", node.value)
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            yield from ["attlas.*"] if node.values[0].value == "attlas." else []


def rooms_of(names):
    """The rooms of the package among `names`."""
    found = {name.split(".")[1] for name in names if name.startswith("attlas.")}
    known = {file.relative_to(ROOT).parts[0].removesuffix(".py") for file in FILES}
    return found & {*known, "*"}


def test_strings_that_name_modules_are_found():
    code = 'files("attlas.atlas"); drawn_by("attlas.lab.runner:run"); f"attlas.{x}.claims"'
    assert rooms_of(named_modules(ast.parse(code))) == {"atlas", "lab", "*"}
    other = '"""Of attlas.lab."""\nimport attlas.cli\nfrom attlas import kernels, InputError'
    assert rooms_of(named_modules(ast.parse(other))) == {"cli", "kernels"}


@every_file
def test_imports_point_downwards(path):
    here = room(path)
    if here == "__init__":  # the public face: its lazy exports name modules of every layer
        return
    for there in rooms_of(named_modules(ast.parse(path.read_text()))) - {here}:
        if (here, there) in EXCEPTIONS:
            continue
        assert there != "*", f"{here} names a module by an f-string"
        assert LAYERS.get(there, 0) <= LAYERS.get(here, 0), f"{here} imports {there}"
        for group in APART:
            assert not (here in group and there in group), f"{here} imports {there}"


@every_file
def test_no_public_function_bears_the_name_of_a_module_beside_it(path):
    beside = {file.stem for file in path.parent.glob("*.py")}
    beside |= {folder.name for folder in path.parent.iterdir() if folder.is_dir()}
    nodes = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        # The name of a claim is its slug, and nobody imports it.
        and not any("claim(" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert not {node.name for node in nodes} & beside


def test_no_line_is_longer_than_100_columns():
    counts = {
        str(path.relative_to(ROOT)): sum(len(line) > 100 for line in path.read_text().splitlines())
        for path in FILES
    }
    assert {name: count for name, count in counts.items() if count} == {}


@pytest.mark.parametrize("ending", ["py", "js", "html", "css", "toml"])
def test_no_file_is_longer_than_600_lines(ending):
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n")
        for path in ROOT.rglob(f"*.{ending}")
    }
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_the_formatter_is_trusted():
    files = [
        path for part in ("src", "tests", "tools", "bench") for path in (TOP / part).rglob("*.py")
    ]
    marks = sum(path.read_text().count("# fmt: " + "skip") for path in files)
    assert marks <= 10


def test_tests_mirror_the_modules():
    tests = Path(__file__).parent
    for path in FILES:
        folders = path.relative_to(ROOT).parts[:-1]
        if path.name.startswith("__") or {"claims", "figures"} & set(folders[1:]):
            continue  # of claims and figures of a map, see tests/maps.py
        mirror = tests.joinpath(*folders) / f"test_{path.name}"
        assert mirror.exists(), f"no test mirrors {path.relative_to(ROOT)}"


def test_importing_the_package_and_asking_for_help_import_nothing_heavy():
    code = "import sys, attlas, attlas.cli; print([m for m in HEAVY if m in sys.modules])"
    heavy = "HEAVY = ('jax', 'numpy', 'xarray', 'altair', 'rich', 'jinja2')"
    words = [sys.executable, "-c", f"{heavy}; {code}"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "[]"
