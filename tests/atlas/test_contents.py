import dataclasses

import pytest

from attlas.atlas.contents import Atlas, bibtex_of, gather_atlas, source_line
from attlas.atlas.drawings import drawings_folder
from attlas.claims import find_claim
from attlas.lab import shipped
from attlas.lab.runner import run


@pytest.fixture(scope="module")
def results(tested):
    ids = ("sparse-variables/threshold-margin", "single-location/zeta")
    return [tested(id) for id in ids]


def test_maps_of_the_package_come_in_their_order_with_what_the_store_holds(
    results, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "nothing")
    atlas = gather_atlas(results, store)
    assert list(atlas.by_map) == ["single-location", "sparse-variables"] and atlas.of_the_package
    assert [explorer.name for explorer in atlas.explorers] == [
        "sentence",
        "portrait",
        "schedule",
        "events",
        "sparse",
    ]
    assert atlas.others == {} and atlas.showpieces == [] and atlas.measured["kinds"]
    assert atlas.cache == drawings_folder(store) and atlas.counts["confirmed"] == 2


def test_a_showpiece_is_there_with_its_claim(results, store):
    claim = find_claim("latent-posterior/exponents")
    result = dataclasses.replace(results[0], claim=claim, setting=claim.quick)
    (loaded,) = gather_atlas([result], store).showpieces
    assert loaded.piece.slug == "exponents" and loaded.done > 0


def test_what_comes_with_the_package_stands_in_for_what_the_store_does_not_hold(
    toy, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "files")
    shipped.ship(run(toy, scale="paper", seed=3, store=store))
    quick, notes = run(toy, store=store), store.notes
    (other,) = gather_atlas([quick], store).others.values()
    assert (other.scale, other.seed, other.verdict.word) == ("paper", 3, "confirmed")
    stale = dataclasses.replace(quick, claim=dataclasses.replace(toy, precision="float32"))
    (other,) = gather_atlas([stale], store).others.values()
    assert shipped.EARLIER in other.notes and not notes
    shipped.shipped_path(toy).write_bytes(b"damaged")
    assert gather_atlas([quick], store).others == {} and "is ignored" in notes[0]
    assert gather_atlas([run(toy, scale="paper", store=store)], store).others[toy.id].scale == (
        "quick"
    )


def test_both_scales_are_there_with_the_quick_one_first(results):
    paper = dataclasses.replace(results[0], scale="paper")
    atlas = Atlas([paper], others={paper.claim.id: results[0]})
    assert [r.scale for r in atlas.both_scales(paper)] == ["quick", "paper"]


def test_a_question_of_two_maps_is_asked_once(results):
    asked = Atlas(results).asked
    assert all(answer and found for answer, found in asked.values())
    for result in results:
        for question in Atlas(results).questions(result.claim):
            assert result in asked[question][1]


def test_a_claim_says_where_it_is_measured_and_what_it_cites(results):
    claim = results[1].claim
    assert source_line(claim).startswith("src/attlas/single_location/claims/")
    assert bibtex_of(claim).startswith("@")
    assert bibtex_of(dataclasses.replace(claim, source="nobody2000")) == ""
