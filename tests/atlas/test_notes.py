import dataclasses
import re

import pytest

from attlas.atlas.formulas import mathml
from attlas.atlas.notes import Notes, Symbol, notes_file, notes_of, read_notes
from attlas.atlas.symbols import shown_symbols
from attlas.claims import catalogue
from attlas.errors import InputError

NOTES = notes_of(catalogue().values())
CLAIMS = {name: [claim for claim in catalogue().values() if claim.map == name] for name in NOTES}


@pytest.mark.parametrize("name", NOTES)
class TestTheNotesOfAMap:
    def test_give_an_idea_of_every_proof(self, name):
        assert set(NOTES[name].ideas) == {claim.slug for claim in CLAIMS[name]}
        for idea in NOTES[name].ideas.values():
            assert 30 < len(re.sub(r"\$.+?\$", "x", idea)) < 600 and idea.rstrip()[-1] in ".!"

    def test_ask_a_question_about_every_claim(self, name):
        for claim in CLAIMS[name]:
            assert any(question.about(claim) for question in NOTES[name].questions), claim.id
        for question in NOTES[name].questions:
            assert question.ask.endswith("?") and question.answer
            assert any(question.about(claim) for claim in CLAIMS[name])

    def test_name_claims_that_exist(self, name):
        slugs = {claim.slug for claim in CLAIMS[name]}
        notes = NOTES[name]
        named = {
            *notes.picture,
            *(piece.claim for piece in notes.showpieces),
            *(
                slug
                for part in (*notes.items, *notes.findings, *notes.symbols, *notes.explorers)
                for slug in part.claims
            ),
            *(slug for article in notes.articles for slug in article.insets("claim")),
        }
        assert named <= slugs and notes.items and notes.findings and notes.words and notes.source

    def test_say_of_every_item_what_tests_it_or_why_nothing_does(self, name):
        for item in NOTES[name].items:
            assert item.about and (item.claims or item.why), item.name
        assert len({item.name for item in NOTES[name].items}) == len(NOTES[name].items)

    def test_cover_every_claim_that_the_paper_states(self, name):
        named = {slug for item in NOTES[name].items for slug in item.claims}
        for claim in CLAIMS[name]:
            assert claim.origin != "paper" or claim.slug in named, claim.id

    def test_explain_letters_on_every_page(self, name):
        for claim in CLAIMS[name]:
            letters = [symbol.tex for symbol in NOTES[name].symbols if symbol.occurs_in(claim)]
            assert letters or not re.search(r"\$", claim.statement), claim.id

    def test_are_readable_tex(self, name):
        notes = NOTES[name]
        texts = [notes.remark, *notes.ideas.values(), *(q.answer for q in notes.questions)]
        texts += [item.about for item in notes.items] + [item.why for item in notes.items]
        texts += [text for symbol in notes.symbols for text in (f"${symbol.tex}$", symbol.means)]
        texts += [term.means for term in notes.terms]
        for text in [*texts, *(finding.words for finding in notes.findings)]:
            assert "\\" not in mathml(text).striptags(), text


def test_a_map_without_notes_has_a_title():
    (claim, *_) = catalogue().values()
    assert notes_file(claim).name == "notes.toml" and notes_file(claim).is_file()
    assert read_notes("my-map", notes_file(claim).with_name("nothing.toml")) == Notes(
        "my-map", "My map"
    )


def test_notes_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "bad.toml").write_text("title = ")
    with pytest.raises(InputError, match=r"bad\.toml.*cannot be read"):
        read_notes("bad", tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text('[[items]]\nname = "Theorem 1"\nabuot = ""\n')
    with pytest.raises(InputError, match=r"odd\.toml.*abuot"):
        read_notes("odd", tmp_path / "odd.toml")
    for number, text in enumerate(
        (
            'questions = ["a"]',
            'ideas = "abc"',
            '[[items]]\nname = "T"\nabout = "A"\nclaims = "slug"',
        )
    ):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        with pytest.raises(InputError, match="not understood"):
            read_notes("odd", file)


def test_notes_stay_as_they_are():
    with pytest.raises(dataclasses.FrozenInstanceError):
        NOTES["single-location"].title = ""  # type: ignore[misc]


def test_a_letter_is_explained_where_it_stands_and_is_not_defined():
    assert Symbol("m", "a length").needed_by("the mean $2m k^*$ of a token")
    assert Symbol("\\kappa", "an overlap").needed_by("overlaps $N_l\\kappa_0$")
    for sentence in ("m tokens", "$m^2 = d/2$ and $m$", "$\\mathrm{min}_x$", "$m_l$", "$m(q)$"):
        assert not Symbol("m", "a length").needed_by(sentence), sentence


def test_a_letter_has_its_meaning_in_the_claims_that_it_names():
    ids = ("latent-posterior/cme-error", "latent-posterior/transfer-price")
    claims = [catalogue()[id] for id in ids]
    of_error, of_price = (
        {s.tex: s.means for s in shown_symbols(claim, NOTES[claim.map])} for claim in claims
    )
    assert of_error["\\kappa"] == "the effective ridge over the length"
    assert of_price["\\kappa"] == "the condition number"
    assert "p" in of_error and "p" not in of_price
