import json
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[1] / "audit" / "data"


@pytest.fixture
def ids(tmp_path):
    (tmp_path / "ids.txt").write_text(
        "".join(f"{i + 3} 9 21 {40 - i} 3 7 11 {i + 12}\n" for i in range(6))
    )
    return tmp_path / "ids.txt"


def test_an_audit_tells_its_findings_and_writes_a_page(attlas, ids, tmp_path):
    answer = attlas("audit", MODELS / "bert", "--tokens", ids, "--probes", "none")
    assert (
        answer.returncode == 0 and "spectral norm" in answer.stdout and "Left out" in answer.stdout
    )
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")


def test_an_audit_as_json_is_one_object_and_no_page(attlas, ids, tmp_path):
    answer = attlas(
        "audit", MODELS / "llama", MODELS / "llama", "--tokens", ids, "--probes", "none", "--json"
    )
    found = json.loads(answer.stdout)
    assert answer.returncode == 0 and [each["model"] for each in found["audits"]] == [
        "llama",
        "llama",
    ]
    assert found["difference"]["heads"]["qk_21"][0][0] == 0
    assert not (tmp_path / "audit.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["audit", "nowhere"], "there is no 'nowhere'"),
        (["audit", MODELS], "models"),
        (["audit", MODELS / "bert", "--text", "nothing.txt"], "cannot be read"),
        (["audit", MODELS / "bert", "--out", "page.pdf"], "must end in .html"),
        (["audit", MODELS / "bert", "--out", "no/where.html"], "'no' does not exist"),
        (["audit", MODELS / "bert", "--map", "none.toml"], "cannot be read"),
        (["audit", MODELS / "bert", "--labels", "none.tsv"], "cannot be read"),
        (["audit", "a", "b", "c"], "one, or of two"),
    ],
)
def test_an_audit_of_bad_input_is_one_sentence_and_no_page(attlas, words, sentence, tmp_path):
    answer = attlas(*words)
    assert answer.returncode == 2 and sentence in answer.stderr and answer.stdout == ""
    assert not list(tmp_path.glob("*.html"))
