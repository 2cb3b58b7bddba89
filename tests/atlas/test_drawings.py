import dataclasses
import json
import sys

import pytest

from attlas.atlas import drawings
from attlas.atlas.drawings import drawing_of, pack_table, vega_script, widen_frame
from attlas.claims import load_file
from attlas.lab.runner import run


@pytest.fixture(scope="module")
def result(tested):
    return tested("single-location/zeta")


def test_a_drawing_is_made_once_and_kept(result, tmp_path, monkeypatch):
    made = drawing_of(result, tmp_path)
    assert set(made.files) == set(drawings.FORMATS) and json.loads(made.spec)["$schema"]
    monkeypatch.setattr(drawings, "_make", lambda result: pytest.fail("drawn again"))
    assert drawing_of(result, tmp_path) == made


def test_another_verdict_or_seed_is_another_drawing(result, tmp_path):
    drawing_of(result, tmp_path)
    drawing_of(dataclasses.replace(result, seed=result.seed + 1), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


CLAIM = """
from titles import title

from attlas.claims import Agreement, Control, Map, Setting
from attlas.figure import Figure

mine = Map("mine", source="attlas")


@mine.claim(kind="identity", reference="here", statement="$x = x$.", words="It is.",
            quick=Setting(n=3),
            rule=Agreement(), control=Control("off", lambda e: {"predicted": e.predicted + 1}))
def same(cell, draws):
    return {"predicted": 1.0, "measured": 1.0, "error": 0.0}


@same.figure
def points(evidence):
    return Figure(evidence, title).points("predicted", "measured")
"""


def test_an_edited_figure_is_drawn_again_and_nothing_is_measured(
    registry, store, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    file, beside = tmp_path / "mine.py", tmp_path / "titles.py"

    def draw():
        monkeypatch.delitem(sys.modules, "titles", raising=False)
        (claim,) = load_file(file)
        result = run(claim, store=store)
        return result.cached, drawing_of(result, tmp_path / "drawings").spec

    beside.write_text("title = 'A'\n")
    file.write_text(CLAIM)
    cached, first = draw()
    assert not cached and '"A"' in first
    file.write_text(CLAIM.replace("(evidence, title)", "(evidence, title * 2)"))
    cached, second = draw()
    assert cached and '"AA"' in second and second != first
    beside.write_text("title = 'BBB'\n")
    assert '"BBBBBB"' in draw()[1]


def test_a_damaged_drawing_is_made_again(result, tmp_path):
    made = drawing_of(result, tmp_path)
    (place,) = tmp_path.iterdir()
    (place / "drawing.json").write_text("{")
    again = [drawing_of(result, tmp_path)]
    (place / "svg").unlink()
    again.append(drawing_of(result, tmp_path))
    for name in ("svg", "csv", "nc", "drawing.json"):
        content = bytearray((place / name).read_bytes())
        content[len(content) // 2] ^= 1
        (place / name).write_bytes(content)
        again.append(drawing_of(result, tmp_path))
    for found in again:
        assert found.spec == made.spec and found.files == made.files
        assert all(found.files[name] == made.files[name] for name in ("svg", "nc", "csv"))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"<svg/>"]
)
def test_a_damaged_script_or_svg_is_made_again(tmp_path, damage):
    made = vega_script(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert vega_script(tmp_path) == made == vega_script(tmp_path)


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(result, tmp_path):
    (tmp_path / "file").write_text("")
    assert drawing_of(result, tmp_path / "file").files


def test_nothing_measured_is_nothing_drawn(result):
    assert drawing_of(dataclasses.replace(result, evidence=type(result.evidence)())).files == {}


def test_a_figure_has_room_for_wider_letters_than_those_it_was_laid_out_with():
    text = '<text text-anchor="{}" transform="translate({},9)" font-size="10px">{}</text>'
    inside, name = text.format("start", 10, "short"), "a name of thirty letters or so"
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="50" viewBox="0 0 200 50">'
        '<rect width="200" height="50"/><g transform="translate(20,0)">{}</g></svg>'
    )
    assert 'viewBox="0 0 200 50"' in widen_frame(svg.format(inside))
    assert 'viewBox="0 0 300 50"' in widen_frame(svg.format(text.format("start", 100, name)))
    assert 'viewBox="-80 0 280 50"' in widen_frame(svg.format(text.format("end", 80, name)))
    assert '<rect x="-80" width="280"' in widen_frame(svg.format(text.format("end", 80, name)))


def test_a_table_is_packed_column_by_column_and_nothing_is_lost():
    rows = [{"x": i / 3, "panel": f"d = {i % 2}", "layer": i % 2} for i in range(20)]
    rows[3]["error"] = 0.1
    packed = pack_table(rows)
    assert packed["panel"] == {"of": ["d = 0", "d = 1"], "at": [0, 1] * 10}
    assert packed["x"] == [row["x"] for row in rows]

    def column(values):
        return [values["of"][at] for at in values["at"]] if isinstance(values, dict) else values

    columns = {name: column(values) for name, values in packed.items()}
    again = [
        {name: values[i] for name, values in columns.items() if values[i] is not None}
        for i in range(20)
    ]
    assert again == rows
