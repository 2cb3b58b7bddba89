"""The sentences say what the numbers say."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from attlas.audit import gallery
from attlas.audit.auditing import audit_model
from attlas.audit.findings import direction, largest_heads, summarise
from tests.audit.conftest import DATA, IDS


@pytest.fixture(scope="module")
def audited():
    return audit_model(DATA / "llama", tokens=IDS, probes="none")


def test_the_largest_heads_come_in_order_and_what_is_not_a_number_comes_last():
    values = xr.DataArray([[0.1, np.nan], [0.7, 0.5]], dims=("layer", "head"))
    assert largest_heads(values, 2) == [((1, 0), 0.7), ((1, 1), 0.5)]


def test_offsets_in_words():
    assert (
        direction(-1) == "at the previous token"
        and direction(3) == "3 tokens ahead"
        and direction(-2) == "2 tokens back"
    )


def test_every_sentence_has_the_number_that_it_is_about(audited):
    found = summarise(audited)
    place, value = largest_heads(audited.heads.single_location, 1)[0]
    assert any(f"{place} with {value:.2f}" in sentence for sentence in found)
    assert f"10^{audited.capacity['log10_lipschitz']:.1f}" in found[2]
    assert "the last token" in " ".join(found) and "random" in found[1]
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in found)


def test_a_certificate_is_told_beside_that_of_a_random_model(audited):
    probed = gallery.read("minilm")["probes"]
    told = replace(audited, probes=[probed], reference_probes={"random": [probed]})
    best = float(probed.certified.min())
    assert f"errs on at most {2 * best:.0%} of new texts" in told.summary[-1]
    assert f"drawn at random around it on at most {best:.0%}" in told.summary[-1]
    assert f"the best of the random model has {best:.2f}" in told.summary[-1]
    coins = probed.assign(certified=probed.certified * 0 + 0.62)
    told = replace(audited, probes=[coins])
    assert "has no certificate: the bound, 62%, is no better than guessing" in told.summary[-1]
    assert all("drawn at random" not in str(answer) for answer in told.answers)


def test_a_probe_is_told_beside_word_counts_chance_and_a_random_model(audited):
    probed = gallery.read("minilm")["probes"]
    told = replace(audited, probes=[probed], reference_probes={"random": [probed]})
    best = float(probed.accuracy.sel(set="both").max())
    assert (
        f"(both) is right in {best:.2f}" in told.summary[-2]
        and "chance is 0.50" in told.summary[-2]
    )
    assert (
        f"at random {best:.2f}" in told.summary[-2]
        and len(told.summary) == len(audited.summary) + 2
    )


def test_a_text_is_needed_for_what_needs_a_text():
    assert len(summarise(audit_model(DATA / "vit"))) == 4


def test_what_was_not_measured_is_said_and_is_no_number():
    found = audit_model(DATA / "llama", tokens=IDS[:3], probes="none")
    assert any("was not measured" in sentence for sentence in found.summary)
    assert not any("nan" in sentence or "inf " in sentence for sentence in found.summary)
