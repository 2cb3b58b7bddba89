import json

from attlas.claims import catalogue
from attlas.cli import atlas as verb
from tests.cli.conftest import CLAIMS


def test_atlas_writes_pages_and_exits_by_the_verdicts_only_when_strict(attlas, file, tmp_path):
    file.write_text(CLAIMS.partition("@test.claim")[0])
    for words, code in (((), 0), (("--strict",), 1)):
        answer = attlas("atlas", "test", "--claims", file, "--out", tmp_path / "out", *words)
        assert answer.returncode == code and answer.stdout.strip().endswith("index.html")
        assert "1 confirmed (1 identity), 1 refuted, 1 undecided" in answer.stdout
    assert {path.stem for path in (tmp_path / "out" / "test").iterdir()} == {
        "false",
        "toothless",
        "true",
    }
    content = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert [c["verdict"] for c in content["claims"]] == ["refuted", "undecided", "confirmed"]


def test_evidence_of_an_older_version_is_told(capsys):
    (claim, *_) = catalogue().values()
    for code, told in (
        ("0" * 16, "verdict on 1 claim is of another version"),
        (claim.code[:16], ""),
    ):
        verb._note_older_evidence(
            [claim],
            type(
                "Store",
                (),
                {"recorded": lambda self, id, code=code: {"provenance": {"code": code}}},
            )(),
        )
        assert told in capsys.readouterr().err


def test_pages_stay_while_nothing_changed(attlas, tmp_path):
    def write(*words):
        answer = attlas("atlas", "single-location/zeta", "--out", tmp_path / "out", *words)
        assert answer.returncode == 0, answer.stderr
        return answer, (tmp_path / "out" / "index.html").stat().st_mtime_ns

    first, written = write()
    second, kept = write()
    assert kept == written and second.stdout == first.stdout
    assert "Nothing has changed" in second.stderr
    (tmp_path / "out" / "index.html").write_text("damaged")
    write()
    assert "damaged" not in (tmp_path / "out" / "index.html").read_text()
    for words in (("--fresh",), ("--seed", "1"), ("--json",)):
        before = (tmp_path / "out" / "index.html").stat().st_mtime_ns
        assert write(*words)[1] > before
