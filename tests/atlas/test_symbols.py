import pytest

from attlas.atlas.drawings import drawing_of
from attlas.atlas.notes import notes_of
from attlas.atlas.symbols import (
    explained_in,
    letters_in_words,
    letters_of,
    lines_of,
    shown_symbols,
    shown_terms,
    symbols_in,
    unexplained,
)
from attlas.claims import catalogue
from attlas.lab.shipped import read_shipped

CATALOGUE = catalogue()
NOTES = notes_of(CATALOGUE.values())


def test_every_term_is_explained_on_some_page_and_only_where_it_is_used():
    shown = {id: shown_terms(claim, NOTES[claim.map]) for id, claim in CATALOGUE.items()}
    met = {(id.partition("/")[0], term.word) for id, terms in shown.items() for term in terms}
    assert met == {(name, term.word) for name, notes in NOTES.items() for term in notes.terms}
    words = {term.word for term in shown["single-location/schedule-run"]}
    assert {"oracle", "swapped point", "random start"} <= words and "linear attention" not in words
    assert "state" not in {term.word for term in shown["latent-posterior/one-constant"]}


@pytest.mark.parametrize("id", CATALOGUE)
def test_every_letter_of_a_statement_is_explained(id):
    claim = CATALOGUE[id]
    assert unexplained(claim, NOTES[claim.map]) == set()


def test_every_letter_of_an_axis_and_a_legend_is_explained():
    strange = {}
    for id, claim in CATALOGUE.items():
        shipped = read_shipped(claim, [])
        if shipped is None or shipped.thinned or claim.drawing is None:
            continue
        lines = lines_of(drawing_of(shipped.result).picture.content)
        if letters := unexplained(claim, NOTES[claim.map], lines):
            strange[id] = letters
    assert strange == {}


def test_letters_are_found_and_names_of_functions_are_not():
    assert letters_of(r"the risk $\frac{\gamma^2}{L}\mathrm{erf}(x_{in}) + \ln d$") == {
        r"\gamma",
        "L",
        "x",
        "d",
    }
    assert letters_in_words("|κ| at length T, a share") == {r"\kappa", "T"}
    assert letters_in_words("|κ| at length T, a share", named=False) == {r"\kappa"}


@pytest.mark.parametrize(
    ("text", "letter", "told"),
    [
        (r"with $A = 2b$", "A", True),
        (r"with $A = 2b$", "b", False),
        (r"the sum $\sum_l x_l$", "l", True),
        (r"a gate $g$ of some kind", "g", True),
        (r"on n sequences", "n", True),
        (r"grows as $n$", "n", False),
        (r"$w$ the eigenvalues", "w", True),
    ],
)
def test_a_letter_is_explained_by_an_equation_a_sum_or_a_noun(text, letter, told):
    assert explained_in(text, letter) is told


def test_a_page_explains_what_its_figure_shows():
    claim = CATALOGUE["single-location/schedule-run"]
    notes = NOTES["single-location"]
    without = {symbol.tex for symbol in shown_symbols(claim, notes)}
    assert r"\kappa" not in without
    assert without | {r"\kappa"} == {s.tex for s in shown_symbols(claim, notes, ["|κ|"])}


def test_a_text_explains_the_letters_that_it_meets():
    notes = NOTES["single-location"]

    def told(text, slugs=()):
        return {symbol.tex: symbol.means for symbol in symbols_in(text, notes, slugs)}

    found = told(r"The sharpness is $\lambda_0$, the key aligns with $k^*$, and lambda is a word.")
    assert set(found) == {r"\lambda", "k^*"}
    assert "k" not in told("the key $k$") and "k" in told("the key $k$", ["closed-form-risk"])
    # Time in one claim, Owen's function in another: with both on a page neither is shown.
    assert "T" in told("$T$", ["zeta"]) and "T" not in told("$T$", ["zeta", "basins"])
