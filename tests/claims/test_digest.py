import ast

import pytest

from attlas.claims import digest, load_file
from attlas.claims.digest import (
    _closure,
    code_digest,
    figure_digest,
    function_digest,
    source_digest,
)
from tests.claims.test_map import CLAIM_FILE, written  # noqa: F401

FIGURE = """

@first.figure
def drawn(evidence):
    return None
"""


@pytest.fixture
def digests(written):  # noqa: F811
    """The digests of a claim file's numbers and figures, by its text."""

    def of(text, **others):
        (claim,) = load_file(written(text, **others))
        return code_digest(claim.module), figure_digest(claim.module)

    return of


def test_words_comments_and_figures_change_no_number(digests):
    code, figure = digests(CLAIM_FILE + FIGURE)
    for old, new in (
        ('words="It is."', 'words="It is so."'),
        ("def first(cell, draws):", 'def first(cell, draws):\n    """Measure."""'),
        ("    return {", "    # a comment\n    return {"),
        ("lambda s: s.temperature < 9", "lambda s: s.temperature < 99"),
        ("return None", "return 1"),
    ):
        other, drawn = digests((CLAIM_FILE + FIGURE).replace(old, new))
        assert other == code, old
        assert (drawn == figure) == ("comment" in new), old


def test_what_measures_changes_the_digest_and_so_does_what_it_imports(
    digests, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    text = CLAIM_FILE.replace("\nmine =", "\nimport helper_of_mine\n\nmine =", 1)
    (tmp_path / "helper_of_mine.py").write_text("x = 1\n")
    code, _ = digests(text)
    assert digests(text.replace('measured": cell.length', 'measured": 2 * cell.length'))[0] != code
    (tmp_path / "helper_of_mine.py").write_text("x = 1  # the same\n")
    assert digests(text)[0] == code
    (tmp_path / "helper_of_mine.py").write_text("x = 1 + 1\n")
    assert digests(text)[0] != code


def test_a_claim_depends_on_what_its_module_imports_and_on_nothing_that_prints():
    names = set(_closure("attlas.single_location.claims.risk", figures=False))
    assert {"attlas.gaussian", "attlas.draws", "attlas.claims.evidence"} <= names
    assert {"attlas.single_location.population", "attlas.single_location.task"} <= names
    outside = ("attlas.lab", "attlas.atlas", "attlas.cli", "attlas.figure", "attlas.sparse")
    assert not [name for name in names if name.startswith(outside)]
    assert "attlas.claims.rules" not in names
    assert "attlas.figure" in _closure("attlas.single_location.claims.risk", figures=True)


@pytest.mark.parametrize(
    ("line", "helpers"),
    [
        ("from helpers.core import twice", {"core.py": "from .deep import factor as twice\n"}),
        ("from helpers import core", {"core.py": "from . import deep\n"}),
    ],
)
def test_relative_imports_are_followed(digests, tmp_path, monkeypatch, line, helpers):
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "helpers"
    folder.mkdir()
    for name, text in {"__init__.py": "", "deep.py": "factor = 2\n", **helpers}.items():
        (folder / name).write_text(text)
    text = CLAIM_FILE.replace("\nmine =", f"\n{line}\n\nmine =", 1)
    code, _ = digests(text)
    (folder / "deep.py").write_text("factor = 2  # the same\n")
    assert digests(text)[0] == code
    (folder / "deep.py").write_text("factor = 3\n")
    assert digests(text)[0] != code


def test_rooms_that_are_used_through_the_package_are_followed(written, tmp_path):  # noqa: F811
    text = CLAIM_FILE.replace("\nmine =", "\nimport attlas\n\nmine =", 1)
    text = text.replace('"measured": cell.length', '"measured": attlas.covers.f(cell.length)')
    (claim,) = load_file(written(text))
    assert "attlas.covers" in _closure(claim.module, figures=False)


def test_a_helper_beside_the_file_is_loaded_again_with_it(written, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "helper_loaded_again.py"
    text = CLAIM_FILE.replace("\nmine =", "\nimport helper_loaded_again as h\n\nmine =", 1)
    text = text.replace('"measured": cell.length', '"measured": h.x')
    found = []
    for value in (1, 20):
        helper.write_text(f"x = {value}\n")
        (claim,) = load_file(written(text))
        found.append((claim.measure([claim.quick], 0)["measured"].item(), claim.code))
    assert [value for value, _ in found] == [1, 20] and found[0][1] != found[1][1]


def test_the_code_of_a_claim_is_what_was_loaded(written):  # noqa: F811
    file = written(CLAIM_FILE)
    (claim,) = load_file(file)
    before = claim.code
    file.write_text(CLAIM_FILE.replace('"measured": cell.length', '"measured": 2'))
    assert claim.code == before


def test_a_decorator_of_somebody_elses_counts(digests):
    own = "\nimport functools\n\n\ndef claim(size):\n    return lambda function: function\n\n\n"
    own += "class lib:\n    claim = staticmethod(claim)\n\n\n"
    own += "@lib.claim({size})\ndef helper():\n    return 1\n"
    first, second = (
        digests(CLAIM_FILE + own.replace("{size}", size))[0] for size in ("2.0", "3.0")
    )
    assert first != second


def test_a_digest_of_sources_does_not_depend_on_versions(monkeypatch):
    module = "attlas.single_location.claims.risk"
    sources, code = source_digest(module), code_digest(module)
    monkeypatch.setattr(digest, "versions", lambda: "others")
    assert source_digest(module) == sources and code_digest(module) != code
    # Python 3.12 and 3.13 have fields, and ways to print them, that 3.11 has not.
    text = "FunctionDef(name='f',args=arguments(),body=[Return(value=Constant(value=1))])"
    assert digest._dump(ast.parse("def f(): return 1")) == f"Module(body=[{text}])"


def test_the_digest_of_a_function_is_that_of_how_it_is_written(tmp_path):
    def digest(text):
        path = tmp_path / "functions.py"
        path.write_text(text)
        space = {}
        exec(compile(text, str(path), "exec"), space)
        return function_digest(space["alter"])

    first = digest("alter = lambda e: e + 1\n")
    assert digest("# moved\n\nalter = lambda e:  e + 1  # said\n") == first
    assert digest("alter = lambda e: e + 2\n") != first
    text = "def alter(e):\n    'Words.'\n    return e + 1\n"
    assert digest(text) == digest(text.replace("Words", "Others")) != first
    made = "def make(size):\n    return lambda e: e + size\nalter = make(1)\n"
    assert digest(made) != digest(made.replace("make(1)", "make(2)"))
    assert function_digest({"lam": 1}) != function_digest({"lam": 2}) != function_digest(None)


def test_what_welcomes_a_caller_or_shows_progress_changes_no_number(digests):
    imports = "from attlas.surface import public, described\nfrom attlas.progress import watched\n"
    plain = "\n\nclass Data:\n    a = 1\n\n\ndef helper(n):\n    return sum(x for x in range(n))\n"
    welcoming = plain.replace("class", "@public\nclass").replace("def", "@public\ndef")
    welcoming = welcoming.replace("range(n)", "watched(described(range(n), a='b'), 'rounds')")
    code, _ = digests(CLAIM_FILE + plain)
    assert digests(imports + CLAIM_FILE + welcoming)[0] == code
    # Neither a function of that name from elsewhere, nor what such a call is given.
    refused = welcoming.replace("@public\ndef helper", "@public\n@refusing(len)\ndef helper")
    imports_too = imports.replace("public,", "public, refusing,")
    assert digests(imports_too + CLAIM_FILE + refused)[0] == code
    own = "def refusing(check):\n    return lambda function: function\n\n\n"
    assert (
        digests(imports + own + CLAIM_FILE + refused)[0]
        != digests(imports + own + CLAIM_FILE + welcoming)[0]
    )
    own = "def watched(x, words):\n    return x\n\n\npublic, described = watched, watched\n"
    called = welcoming.replace("@public\n", "")
    assert digests(own + CLAIM_FILE + called)[0] != digests(own + CLAIM_FILE + plain)[0]
    assert digests(imports + CLAIM_FILE + welcoming.replace("range(n)", "range(n + 1)"))[0] != code


@pytest.mark.parametrize(
    "text",
    [
        "@f.defjvp\ndef slope(x):\n    return 7\n",
        "@register('a')\ndef hidden(x):\n    return 7\n",
        "@f.register\ndef _(x: int):\n    return 7\n",
        "x = (y := 7) + 1\n",
    ],
)
def test_statements_that_do_more_than_define_a_name_always_count(text, tmp_path):
    path = tmp_path / "parts.py"
    path.write_text(text)
    assert len(digest._parts(path, 0, 0).loose) == 1
    path.write_text("import jax\n\n@jax.jit\ndef f(x):\n    return 7\n\nX = 7\n")
    assert digest._parts(path, 1, 0).loose == []


def test_of_somebody_elses_helper_all_counts(digests, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "helper_with_a_table.py"
    text = CLAIM_FILE.replace("\nmine =", "\nfrom helper_with_a_table import TABLE\n\nmine =", 1)
    found = []
    for value in (7, 8):
        helper.write_text(f"TABLE = {{}}\n\n\ndef hidden():\n    return {value}\n")
        found.append(digests(text)[0])
    assert found[0] != found[1]


def test_a_claim_does_not_depend_on_functions_that_it_does_not_call():
    used = digest._Used("attlas.sparse_variables.claims.thresholds").texts
    names = [text for text in used if text.startswith("attlas.gaussian: ")]
    assert any("name='stream'" in text for text in names)
    assert not any("name='zeta'" in text for text in names)
    risk = digest._Used("attlas.single_location.claims.risk").texts
    assert any("name='zeta'" in text and text.startswith("attlas.gaussian: ") for text in risk)


def test_rules_have_a_digest_though_no_number_depends_on_them():
    rules = digest._Used("attlas.claims.rules").texts
    assert any("name='Agreement'" in text for text in rules)
    assert source_digest("attlas.claims.rules") != source_digest("attlas.claims.verdict")
