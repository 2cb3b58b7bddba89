"""Everything public is described, and every example of the reference is run."""

import doctest
import importlib
import inspect
import re

import pytest

import attlas
from attlas.atlas.reference import read_reference

REFERENCE = read_reference()
THINGS = [(section, thing) for section in REFERENCE.sections for thing in section.things]
EXAMPLES = {
    f"{home}.{name}".rstrip("."): text
    for section in REFERENCE.sections
    for home, name, doc in [
        (section.name, "", section.doc),
        *((thing.home, thing.name, thing.doc) for thing in section.things),
    ]
    for text in doc.examples
}
each = pytest.mark.parametrize(
    ("section", "thing"), THINGS, ids=[f"{s.name}.{t.name}" for s, t in THINGS]
)


@each
def test_everything_public_has_a_docstring_that_describes_its_arguments(section, thing):
    assert thing.doc.prose, "it has no docstring"
    assert thing.undescribed == [], "nothing is said of these"
    silent = [m.name for m in thing.members if not m.doc.prose and m.short != "__call__"]
    assert silent == [], "these have no docstring"


@each
def test_everything_public_is_used_in_an_example(section, thing):
    if thing.kind != "constant":
        assert thing.doc.examples or section.examples_with(thing)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_reference_run(name, tmp_path, monkeypatch, registry):
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"__name__": __name__}, name, "", 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert said == [], "".join(said)


def test_the_reference_has_what_the_package_shows():
    pages = {s.name: {thing.name for thing in s.things} for s in REFERENCE.sections}
    offered = {name: getattr(attlas, name) for name in dir(attlas) if not name.startswith("_")}
    modules = {f"attlas.{name}" for name, value in offered.items() if inspect.ismodule(value)}
    assert modules == set(pages) - {"attlas"}
    assert {n for n, v in offered.items() if not inspect.ismodule(v)} <= pages["attlas"]
    for name in modules:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", vars(module))
        for own in names:
            value = getattr(module, own)
            ours = getattr(value, "__module__", "") or ""
            belongs = ours.startswith("attlas") if hasattr(module, "__path__") else ours == name
            made = type(value).__module__.startswith("attlas")  # such as `squared`, a loss
            if not own.startswith("_") and callable(value) and belongs and not made:
                assert own in pages[name], f"{name}.{own}"


@each
def test_signatures_are_those_of_the_functions(section, thing):
    if thing.kind == "constant":
        return
    value = getattr(importlib.import_module(thing.home), thing.name)
    try:
        known = list(inspect.signature(value).parameters)
    except ValueError:  # a class that has none
        return
    if thing.kind == "function" or not issubclass(value, Exception | dict):
        assert [p.name for p in thing.parameters] == [k for k in known if not k.startswith("_")]


def test_every_question_leads_to_names_that_are_there():
    assert len(REFERENCE.questions) >= 15
    answered = {name for question in REFERENCE.questions for name in question.names}
    for section in REFERENCE.sections:
        assert any(name.startswith(section.name) for name in answered), section.name


def test_names_in_code_lead_to_their_places():
    section = next(s for s in REFERENCE.sections if s.name == "attlas.single_location")
    linked = REFERENCE.link("<code>risk</code> <code>nothing</code>", "../", section)
    assert linked == (
        '<a href="../reference/attlas.single_location.html#risk"><code>risk</code></a>'
        " <code>nothing</code>"
    )
    assert re.search("order_parameters.html#risk", REFERENCE.places["attlas.order_parameters.risk"])
    assert "risk" not in REFERENCE.places  # two modules have one
