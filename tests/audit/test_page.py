"""The page holds everything, asks nothing of a network, and is written whole or not at all."""

import json
import re
import shutil
import subprocess

import pytest

from attlas import InputError
from attlas.audit import page
from attlas.audit.auditing import audit_model
from attlas.audit.page import render_page, write_page
from tests.audit.conftest import IDS, model_of


@pytest.fixture(scope="module")
def audits():
    return [
        audit_model(model, tokens=IDS, probes="none")
        for model in (model_of("llama"), model_of("llama").reinitialised(1))
    ]


def data_of(text):
    return json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1]
    )


@pytest.mark.parametrize("count", (1, 2))
def test_a_page_asks_nothing_of_a_network_and_holds_the_numbers(audits, count):
    text = render_page(audits[:count])
    assert not re.findall(r"""src=|href="(?!#)|url\(|@import|fetch\(|XMLHttp""", text)
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}
    found = data_of(text)
    assert len(found["audits"]) == count and (found["difference"] is None) == (count == 1)
    assert found["audits"][0]["heads"]["qk_spectral"][0][0] == pytest.approx(
        float(audits[0].heads.qk_spectral[0, 0]), rel=1e-5
    )
    for sentence in audits[0].summary:
        assert sentence.partition("(")[0][:40] in text.replace("&#39;", "'")
    assert "not asked for" in text


def test_what_stands_in_a_text_cannot_break_out_of_the_page(audits):
    from dataclasses import replace

    example = replace(audits[0].example, pieces=("</script><b>", *audits[0].example.pieces[1:]))
    text = render_page([replace(audits[0], example=example, name="<i>model</i>")])
    assert "</script><b>" not in text and "<i>model" not in text
    assert data_of(text)["audits"][0]["example"]["pieces"][0] == "</script><b>"


def test_an_error_leaves_no_page_and_an_older_one_alone(audits, tmp_path, monkeypatch):
    path = write_page(audits[:1], tmp_path / "page.html")
    before = path.read_text()

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(page.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_page(audits, path)
    assert path.read_text() == before and [file.name for file in tmp_path.iterdir()] == [
        "page.html"
    ]
    with pytest.raises(InputError, match="cannot be written"):
        write_page(audits, tmp_path / "nowhere" / "page.html")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_of_the_page_is_read_without_a_fault(audits, tmp_path):
    script = re.findall(r"<script>\n(.*?)</script>", render_page(audits), re.S)[0]
    (tmp_path / "page.js").write_text(script)
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True)


def test_answers_come_first_and_lead_to_an_atlas_where_there_is_one(audits, tmp_path):
    alone = render_page(audits[:1])
    assert alone.index("Single-location regression") < alone.index("In words")
    assert "attlas show single-location/softmax-is-bayes" in alone
    text = write_page(audits[:1], tmp_path / "page.html", tmp_path / "an atlas").read_text()
    for place in ("single-location/softmax-is-bayes", "guides/audit", "explorers/portrait"):
        assert f'href="an%20atlas/{place}.html"' in text
    assert "10<sup>" in text and "10^" not in text.partition("<script")[0]


def test_every_quantity_of_a_head_has_a_plain_name():
    assert set(page.NAMES) == set(page.WORDS)
    assert len(set(page.NAMES.values())) == len(page.NAMES)
