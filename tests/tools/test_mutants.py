"""Mutants of a toy: what a test looks at is killed, what none looks at survives."""

import json
import os
import subprocess
import sys

import pytest
from tools.mutants import ROOT, draw, modules_of

MODULE = '''"""A toy."""


def area(width: float, height: float = 2.0) -> float:
    """2 * width is no area."""
    if width < 0:
        raise ValueError(f"{width + 1}")
    return width * height


def perimeter(width, height):
    return width + height


def halve(x):
    while x > 1:
        x = x / 2
    return x
'''
TEST = """from toys.shapes import area, halve

def test_area():
    assert area(3.0, 5.0) == 15

def test_halves():
    assert halve(8) == 1
"""


@pytest.fixture
def toy(tmp_path):
    for name, text in {"src/toys/shapes.py": MODULE, "tests/test_shapes.py": TEST}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (tmp_path / "src/toys/__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["long: slow", "cluster: many"]\n'
    )
    return tmp_path


def test_the_mathematics_is_changed_and_nothing_else(toy):
    drawn = draw(toy, modules_of(toy), 1000, seed=3)
    assert {mutant.line for mutant in drawn} == {4, 8, 12, 16, 17}
    assert drawn[:3] == draw(toy, modules_of(toy), 3, seed=3)
    assert drawn[:3] != draw(toy, modules_of(toy), 3, seed=4)
    source = MODULE.encode()
    for mutant in drawn:
        assert source[mutant.start : mutant.end].decode() == mutant.before
        compile(mutant.applied(source), "toy", "exec")


def survey(toy):
    options = ["-n", "100", "--least", "2", "--root", toy, "--json", toy / "found.json"]
    return subprocess.run(
        [sys.executable, "-m", "tools.mutants", *options],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_what_no_test_looks_at_survives(toy):
    said = survey(toy)
    found = json.loads((toy / "found.json").read_text())
    by_line = {}
    for mutant in found["mutants"]:
        by_line.setdefault(mutant["line"], set()).add(mutant["fate"])
    assert by_line[8] == {"killed by a test"} and by_line[12] == {"survived"}
    assert by_line[4] == {"survived"}, "the default is in no test"
    assert "src/toys/shapes.py:12: width + height -> " in said and found["share"] > 0
    late = [mutant for mutant in found["mutants"] if mutant["by"] == "time limit"]
    assert {x["line"] for x in late} == {17}, "it halves no more, and never ends"
    assert all(x["fate"] == "killed by a test" for x in late)
    assert (toy / "src/toys/shapes.py").read_text() == MODULE

    # Interrupted before the last mutant, it judges that one and no other.
    last = found["mutants"].pop()
    for mutant in found["mutants"]:
        mutant["by"] = "an earlier run"
    (toy / "found.json").write_text(json.dumps(found | {"drawn": len(found["mutants"])}))
    survey(toy)
    ended = json.loads((toy / "found.json").read_text())["mutants"]
    assert [mutant["by"] == "an earlier run" for mutant in ended] == [True] * (len(ended) - 1) + [
        False
    ]
    assert ended[-1]["fate"] == last["fate"] and ended[-1]["start"] == last["start"]


def test_the_modules_of_mathematics():
    files = modules_of(ROOT)
    assert {"src/attlas/gaussian.py", "src/attlas/kernels/fit.py"} <= set(files)
    assert not [file for file in files if "claims" in file or "/lab/" in file]
    assert modules_of(ROOT, ["kernels", "scan"])[-1] == "src/attlas/scan.py"
    with pytest.raises(SystemExit, match="no module of mathematics is called gausian"):
        modules_of(ROOT, ["gausian"])
