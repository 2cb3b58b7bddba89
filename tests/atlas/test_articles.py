import dataclasses
from math import comb

import pytest
import xarray as xr

from attlas.atlas.articles import Article, Inset
from attlas.atlas.contents import Atlas
from attlas.atlas.drawings import render_specification
from attlas.atlas.guides import Guide
from attlas.atlas.notes import notes_of
from attlas.atlas.pages import check_prose, write_atlas
from attlas.claims import catalogue
from attlas.errors import InputError
from attlas.sparse_variables import SparseBoolean

pytestmark = pytest.mark.xdist_group("pages")
NOTES = notes_of(catalogue().values())
ARTICLES = [article for notes in NOTES.values() for article in notes.articles]
TEXT = """# On *toys*

They $a_1\\,b_2$ move. Then they do not.

![What a claim
says of $x_i$.](claim:toy-law)

More, `my-map/toy-law` and [a guide](audit.md).

![A picture.](figure:drawn)
![A toy.](explorer:toy#speed=3)
"""


@pytest.fixture
def write(tmp_path):
    def article(text):
        (tmp_path / "toys.md").write_text(text, encoding="utf-8")
        return Article("my-map", tmp_path, "toys")

    return article


def test_a_text_is_cut_at_its_figures(write):
    article = write(TEXT)
    assert [type(part) for part in article.parts] == [Guide, Inset, Guide, Inset, Inset]
    assert article.parts[1] == Inset("claim", "toy-law", "What a claim says of $x_i$.")
    assert article.parts[4] == Inset("explorer", "toy", "A toy.", "#speed=3")
    assert (article.title, article.words) == ("On toys", "They $a_1\\,b_2$ move.")
    assert (article.path, article.related) == ("articles/toys.html", ["my-map/toy-law"])
    assert 'alttext="a_1\\,b_2"' in article.parts[0].body and "<h1" not in article.parts[0].body


def test_what_cannot_be_read_is_named(write, tmp_path):
    for text, words in (
        ("# A\n\nB.\n\n![c](claims:d)\n", "claims:d"),
        ("![c](claim:d)\n", "must begin with a title"),
    ):
        with pytest.raises(InputError, match=words):
            assert write(text).title
    with pytest.raises(InputError, match="'nothing' cannot be read"):
        assert Article("my-map", tmp_path, "nothing").parts
    with pytest.raises(InputError, match=r"drawn\.vl\.json"):
        write(TEXT).specification("drawn")


@pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article.name)
def test_articles_of_the_package_show_what_there_is(article):
    known = {explorer.name for explorer in NOTES[article.map].explorers}
    assert article.related and set(article.related) <= set(catalogue())
    assert set(article.insets("explorer")) <= known and article.title and article.words
    for name in article.insets("figure"):
        drawn = render_specification(article.specification(name))
        assert "<" not in drawn.spec and drawn.svg.startswith("<svg")
    for part in article.parts:
        if isinstance(part, Guide):
            assert "\\" not in part.body.striptags() and "$" not in part.body.striptags()


def test_the_nights_of_an_example_are_those_of_the_floor():
    (article,) = NOTES["sparse-variables"].articles
    nights = {readings: SparseBoolean(readings, (1, 4, 8)).floor() for readings in (10, 300, 3000)}
    text = " ".join(article.text.split())
    assert f"After {nights[300]} nights" in text and f"it takes {nights[10]} nights" in text
    assert f"with 3,000 it takes {nights[3000]}:" in text and f"{comb(300, 3):,} triples" in text


def told(article, result):
    """Results of an article's claims, without evidence: nothing is measured for them."""
    return [
        dataclasses.replace(result, claim=catalogue()[id], evidence=xr.Dataset())
        for id in article.related
    ]


@pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article.name)
def test_an_article_is_in_an_atlas_of_all_its_claims(article, tested, tmp_path):
    results = told(article, tested("latent-posterior/regret-in-context"))
    assert Atlas(results[1:]).articles == []
    atlas = Atlas(results)
    assert [each.name for each in atlas.articles] == [article.name]
    folder = write_atlas(atlas, tmp_path / "atlas").parent
    text, index = ((folder / path).read_text() for path in (article.path, "index.html"))
    assert article.title in text and f'href="{article.path}"' in index
    for id in article.related:
        assert f'href="../{id}.html"' in text
        assert f'href="../{article.path}"' in (folder / f"{id}.html").read_text()
    for name in article.insets("explorer"):
        assert f'src="../explorers/{name}.html' in text
        assert article.title in (folder / "explorers" / f"{name}.html").read_text()
    for name in article.insets("figure"):
        assert (folder / "articles" / f"{name}.svg").is_file() and f'src="{name}.svg"' in text
    assert len(text) < 300_000


def test_an_explorer_that_there_is_not_is_refused(write, monkeypatch, toy):
    notes = dataclasses.replace(NOTES["latent-posterior"], articles=(write(TEXT),))
    monkeypatch.setattr("attlas.atlas.pages.notes_of", lambda claims: {"my-map": notes})
    with pytest.raises(InputError, match="'toys' shows 'toy', an unknown explorer"):
        check_prose([toy])
