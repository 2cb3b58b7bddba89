"""The notebooks run from the first cell to the last, and say what their prose says."""

import re

import pytest

from attlas.atlas.notebooks import (
    ORDER,
    Cell,
    notebook_files,
    parse_notebook,
    read_notebook,
    run_notebook,
)

SAID = {
    "check-a-formula": ("<p>confirmed", "<b>refuted</b>", "<p>refuted", "begin{tabular}"),
    "landscape": ("risk at the oracle", "confirmed"),
    "how-many-samples": ("singled out", "40 bits"),
    "what-a-head-estimates": ("conditioning: 0.00", "equal: True"),
    "choose-an-estimator": ("by similarity to", "deciding instance named: 100%", "column 61"),
    "audit": ("GPT-2", "Selects: feature 0", "of the positive bags"),
}


def test_there_are_six_in_the_order_of_a_reader():
    assert [path.stem for path in notebook_files()] == list(ORDER) == list(SAID)


@pytest.mark.parametrize("path", notebook_files(), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path / "store"))
    notebook = read_notebook(path, tmp_path)
    told = "".join(text for part in notebook.parts for kind, text in part.shown if kind == "html")
    for words in SAID[path.stem]:
        assert words in told
    assert notebook.title and notebook.words and "Error" not in told
    kept = list((tmp_path / "notebooks").iterdir())
    assert len(kept) == 1 and read_notebook(path, tmp_path) == notebook
    kept[0].write_text("{")
    assert read_notebook(path, tmp_path) == notebook


def test_descents_of_the_landscape_end_at_the_oracle_or_swapped(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTLAS_STORE", str(tmp_path))
    path = next(path for path in notebook_files() if path.stem == "landscape")
    told = "".join(text for part in read_notebook(path).parts for _, text in part.shown)
    number = r"<td>(-?[\d.]+)</td>\s*"
    ends = [[float(x) for x in row] for row in re.findall(number * 5, told)]
    oracle = [risk for kappa, nu, _, _, risk in ends if kappa * nu > 0.99]
    swapped = [risk for _, _, theta, eta, risk in ends if theta * eta > 0.99]
    assert len(oracle) + len(swapped) == len(ends) == 12
    assert min(len(oracle), len(swapped)) > 0 and max(swapped) < min(oracle)


def test_cells_are_text_and_code():
    script = "# %% [markdown]\n# # A title\n#\n# Words.\n\n# %%\nx = 1\nx + 1\n\n# %%\nprint('<')\n"
    cells = parse_notebook(script)
    assert cells[0] == Cell("text", "# A title\n\nWords.\n")
    assert [cell.kind for cell in cells] == ["text", "code", "code"]
    shown = run_notebook(cells)
    assert shown == [[], [("html", "<pre>2</pre>")], [("html", "<pre>&lt;</pre>")]]


def test_frames_and_verdicts_display_as_html():
    script = [
        Cell("code", "import pandas as pd\nfrom attlas.claims import Verdict"),
        Cell("code", "pd.DataFrame({'a': [1]})"),
        Cell("code", "Verdict('confirmed', '1 < 2.')"),
    ]
    _, ((_, frame),), ((_, verdict),) = run_notebook(script)
    assert "<td>1</td>" in frame and "<style" not in frame
    assert verdict == "<p><b>confirmed</b>: 1 &lt; 2.</p>"
