"""What the documents say is executed: code, commands, links, the skeleton of a claim."""

import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from attlas.atlas.notes import notes_of
from attlas.claims import catalogue, load_file, select
from attlas.cli.entry import commands
from attlas.lab.runner import run
from attlas.lab.sweeps import plan_grid

TOP = Path(__file__).parents[1]
NEW = [
    TOP / "docs" / f"{name}.md"
    for name in ("first-result", "check", "tour", "add-a-claim", "which-bound", "sharp-bits")
]
DOCUMENTS = [
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    TOP / "ARCHITECTURE.md",
    TOP / "docs" / "audit.md",
    TOP / "docs" / "scaling.md",
    TOP / "docs" / "refute.md",
    *NEW,
]
GUIDES = [TOP / "docs" / "estimators.md", *NEW]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.S)


@pytest.mark.parametrize("code", blocks(DOCUMENTS[0], "python"))
def test_code_in_the_readme_runs(code, tmp_path, monkeypatch, capsys, unchecked):
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path))
    exec(code, {})
    told = capsys.readouterr().out
    for expected in re.findall(r"# .*?(0\.1134|confirmed)(?:9\.\.\.)?$", code, re.M):
        assert expected in told


@pytest.mark.parametrize("code", [code for guide in GUIDES for code in blocks(guide, "python")])
def test_code_in_the_guides_runs(code, tmp_path, monkeypatch, capsys, registry, unchecked):
    (tmp_path / "build").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path / "store"))
    if ".claim(" in code:
        (tmp_path / "guide.py").write_text(code)
        for claim in load_file(tmp_path / "guide.py"):
            result = run(claim)
            assert (result.verdict.word, result.control.word) == ("confirmed", "refuted")
            print(result)
    else:
        exec(code, {})
    assert capsys.readouterr().out


COMMANDS = [
    line.partition("  #")[0].strip()
    for path in DOCUMENTS
    for block in blocks(path, "console")
    for line in block.splitlines()
    if line.startswith(("attlas", "make"))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_documents_exist(command, registry, monkeypatch):
    monkeypatch.chdir(TOP)
    program, verb, *words = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{verb}:", (TOP / "Makefile").read_text(), re.M)
        return
    context = commands.commands[verb].make_context(verb, words, parent=click.Context(commands))
    for file in context.params.get("files", ()):
        load_file(file)
    patterns = [
        context.params.get("pattern"),
        context.params.get("claim"),
        *context.params.get("patterns", ()),
        *context.params.get("claims", ()),
    ]
    if verb == "sweep":
        plan_grid(
            *(context.params[name] for name in ("claim", "grid", "seeds", "scale", "settings"))
        ).outside()
        return
    found = select([pattern for pattern in patterns if pattern])
    for text in context.params.get("settings", ()):
        claim = found[0]
        claim.broken(claim.cells(claim.quick.parse([text])))


@pytest.mark.parametrize("path", sorted({*DOCUMENTS, *GUIDES}), ids=lambda p: p.name)
def test_links_in_the_documents_resolve(path):
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    assert targets or path.name == "ARCHITECTURE.md"
    for target in targets:
        assert (path.parent / target).exists(), target


def test_every_claim_named_in_the_documents_exists(registry):
    for name in ("claim_skeleton", "one_step"):
        load_file(TOP / "examples" / f"{name}.py")
    known = catalogue()
    for path in DOCUMENTS:
        for id in re.findall(
            r"\b(?:single-location|several-locations|sparse-variables|latent-posterior|softmax|one-step)/[a-z-]+",
            path.read_text(),
        ):
            assert id in known, id


def test_the_skeleton_of_a_claim_is_a_claim(registry, store):
    (skeleton,) = load_file(TOP / "examples" / "claim_skeleton.py")
    result = run(skeleton, store=store)
    assert (result.verdict.word, result.control.word) == ("confirmed", "refuted")
    assert run(skeleton, store=store, settings={"sharpness": -1.0}).verdict.word == "outside"


def test_a_fourth_map_stands_in_one_file(registry, store):
    made = load_file(TOP / "examples" / "one_step.py")
    notes = notes_of(made)["one-step"]
    assert (
        set(notes.ideas)
        == {claim.slug for claim in made}
        == {slug for item in notes.items for slug in item.claims}
    )
    for claim in made:
        result = run(claim, store=store)
        assert (result.verdict.word, result.control.word) == ("confirmed", "refuted")
        assert result.figure().to_dict()


def test_every_make_target_sets_up_what_it_needs():
    rules = dict(re.findall(r"^([a-z-]+):(.*)$", (TOP / "Makefile").read_text(), re.M))
    assert set(rules) >= {
        "setup",
        "atlas",
        "test",
        "test-long",
        "bench",
        "soak",
        "lint",
        "lock",
        "clean",
    }
    for target in set(rules) - {"clean"}:
        assert "$(STAMP)" in rules[target] or "lint" in rules[target], target


def test_the_lock_names_no_host_and_hashes_everything():
    text = (TOP / "requirements.lock").read_text()
    assert "://" not in text and sys.version_info >= (3, 11)
    pins = re.findall(r"^[a-z0-9-]+==.*$", text, re.M)
    assert len(pins) > 30 and all(pin.rstrip().endswith("\\") for pin in pins)
    assert len(re.findall(r"^jax==", text, re.M)) == 1
