import random
import xml.etree.ElementTree as ET

import pytest

from attlas.atlas.graphs import Node, draw_graph, layers

SVG = "{http://www.w3.org/2000/svg}"


def some_needs(seed):
    """Which of up to twelve ids rest on which, without a circle."""
    chance = random.Random(seed)
    ids = [f"m/{letter}" for letter in "abcdefghijkl"[: chance.randint(1, 12)]]
    return {id: chance.sample(ids[:i], chance.randint(0, min(i, 3))) for i, id in enumerate(ids)}


every_graph = pytest.mark.parametrize("needs", [some_needs(seed) for seed in range(40)])


@every_graph
def test_everything_stands_to_the_right_of_what_it_rests_on(needs):
    columns = layers(needs)
    place = {id: i for i, column in enumerate(columns) for id in column}
    assert all(place[id] > place[other] for id, on in needs.items() for other in on)
    assert len(place) == sum(map(len, columns)) and all(columns)


@every_graph
def test_every_claim_is_drawn_once_and_no_two_in_one_place(needs):
    nodes = {id: Node(id, id[2:].upper(), "confirmed", f"{id}.html") for id in needs}
    tree = ET.fromstring(draw_graph(nodes, needs, "Graph <1>"))
    links = tree.findall(f"{SVG}a")
    assert sorted(link.get("href") for link in links) == sorted(f"{id}.html" for id in needs)
    places = [link.find(f"{SVG}g").get("transform") for link in links]
    assert len(set(places)) == len(places)
    assert len(tree.findall(f"{SVG}path")) == sum(map(len, needs.values()))


def test_a_circle_is_cut_and_a_stranger_left_out():
    needs = {"m/a": ["m/b", "m/stranger"], "m/b": ["m/a"]}
    nodes = {id: Node(id, id, "undecided", "") for id in needs}
    assert draw_graph(nodes, needs, "").count('class="edge"') == 2 and "stranger" not in draw_graph(
        nodes, needs, ""
    )


def test_verdicts_differ_in_form_and_not_only_in_colour():
    marks = {
        word: draw_graph({"m/a": Node("m/a", "A", word, "")}, {}, "")
        for word in ("confirmed", "refuted", "undecided", "outside", "not run")
    }
    assert len({text.replace(word, "") for word, text in marks.items()}) == 5


def test_labels_are_broken_where_the_graph_has_no_room():
    names = [f"m/{letter}" for letter in "abc"]
    needs = {name: names[:i] for i, name in enumerate(names)}
    label = "A long name of a claim"
    nodes = {name: Node(name, label, "confirmed", "") for name in names}
    widths = {}
    for room in (350, 1040):
        tree = ET.fromstring(draw_graph(nodes, needs, "", room))
        widths[room] = float(tree.get("width"))
        lines = [text.text for text in tree.iter(f"{SVG}text")]
        assert " ".join(lines) == " ".join([label] * 3)
    assert widths[350] <= 350 < widths[1040] <= 1040
