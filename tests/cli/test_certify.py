"""The verb `certify`: certificates made, checked, shown, and refused."""

import json

MARGIN = "sparse-variables/threshold-margin"


def test_shipped_certificates_are_checked_and_shown(attlas):
    found = attlas("certify", MARGIN)
    assert found.returncode == 0
    assert f"certified  {MARGIN}" in found.stdout
    assert "On the box sparsity = 2 to 32, sharpness = 1.1 to 16." in found.stdout
    assert "margin: from 0.001381 to 0.2273" in found.stdout
    assert "Certified on the box sparsity = 2 to 32" in attlas("show", MARGIN).stdout


def test_a_certificate_is_made_written_and_checked(attlas, tmp_path):
    box = ("--box", "sparsity=3", "--box", "sharpness=2:4")
    made = attlas("certify", MARGIN, *box, "--out", "margin.json", "--json")
    answer = json.loads(made.stdout)["certificates"][0]
    assert made.returncode == 0 and answer["verdict"] == "certified"
    assert answer["box"] == {"sparsity": ["3", "3"], "sharpness": ["2", "4"]}
    assert attlas("certify", MARGIN, "--check", "margin.json").returncode == 0
    content = json.loads((tmp_path / "margin.json").read_text())
    (tmp_path / "margin.json").write_text(json.dumps(content | {"tree": "0.."}))
    refused = attlas("certify", MARGIN, "--check", "margin.json")
    assert refused.returncode == 1 and "refused" in refused.stdout
    assert "do not match their checksum" in refused.stderr


def test_bad_input_is_one_sentence(attlas):
    for words, message in (
        ((MARGIN, "--box", "sharpness=4:2"), "sharpness = '4:2': the side is empty"),
        (
            (MARGIN, "--box", "sharpness=0.5:2"),
            "not defined on this box: sharpness must be above 1",
        ),
        (("single-location/basins",), "in the package: intervals prove no statement of it"),
        (("single-location/basins", "--box", "lam=1:2"), "has no statement that intervals prove"),
        ((MARGIN, "--box", "sparsity=3", "--check", "a.json"), "--box and --check"),
        ((MARGIN, "--check", "nowhere.json"), "cannot be read"),
    ):
        found = attlas("certify", *words)
        assert found.returncode == 2 and message in found.stderr and found.stdout == ""
        assert found.stderr.count("\n") == 1
