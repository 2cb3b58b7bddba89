import pytest

from attlas.atlas import filters
from attlas.atlas.filters import (
    format_numbers,
    letter,
    prose,
    shortened,
    show_value,
    size_of,
    standing,
)
from attlas.atlas.formulas import mathml
from attlas.atlas.notes import notes_of
from attlas.claims import catalogue


def test_values_are_shown_as_a_reader_writes_them():
    assert (
        show_value((1000, 2)) == "1,000, 2"
        and show_value(0.5**0.5) == "0.707107"
        and show_value("sphere") == "sphere"
    )


def test_sentences_for_a_terminal_become_prose():
    assert prose("n >= 2") == "n ≥ 2" and "<math" in prose("$x$ <= 1")


@pytest.mark.parametrize(
    ("ahead", "word"),
    [(None, ""), ([0.1, 0.02, 0.2], "ahead"), ([0, -1, 1], "level"), ([-2, -3, -1], "behind")],
)
def test_an_interval_says_where_an_estimator_stands(ahead, word):
    assert standing(ahead) == word


def test_measured_numbers_have_three_digits():
    assert format_numbers(None) == "" and format_numbers([0.5, 2]) == "0.500 2.000"


def test_the_size_of_a_figure_is_read_from_it():
    assert size_of('<svg class="a" width="12.5" height="7">') == ("12.5", "7")
    assert size_of("") == ("460", "300")


def test_parameters_are_shown_by_their_letters_and_long_numbers_short():
    claim = catalogue()["single-location/zeta"]
    notes = notes_of([claim])["single-location"]
    assert letter("spread", claim, notes) == mathml("$s$")
    assert letter("points", claim, notes) == "points"
    assert shortened("0.7071067811865476") == "0.707107" and shortened("0.8928") == "0.8928"


def test_data_sets_have_the_names_that_readers_know():
    assert filters.data_name("corel_dogs") == "Corel dogs"
    assert filters.data_name("dna, n = 20") == "DNA splices, n = 20"
    assert filters.data_name("some_new_set") == "some new set"
