import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import jsonschema
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from attlas.atlas.contents import Atlas
from attlas.atlas.formulas import mathml
from attlas.atlas.notes import notes_of
from attlas.atlas.pages import write_atlas
from attlas.claims import catalogue
from attlas.lab.domain import Domain
from attlas.lab.searched import Searched
from attlas.lab.shipped import EARLIER
from tests.conftest import HEAVY, needs_models


class Reader(HTMLParser):
    """Links, sources and ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.sources, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes["href"]] if "href" in attributes and tag == "a" else []
        self.sources += [attributes[name] for name in ("src", "data") if name in attributes]
        self.sources += [attributes["href"]] if tag == "link" else []

    def handle_data(self, data):
        self.text.append(data)


pytestmark = pytest.mark.xdist_group("pages")

# Some of every map: each claim's own tests draw its figure.
LIGHT = [id for id, claim in catalogue().items() if id not in HEAVY and not needs_models(claim)]
RISK = "single-location/closed-form-risk"
USER = next(id for id in LIGHT if RISK in catalogue()[id].needs)
PAGES = sorted({RISK, USER, *LIGHT[::7]})


@pytest.fixture(scope="module")
def atlas(tested, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages") / "atlas"
    return write_atlas(Atlas([tested(id) for id in PAGES]), folder).parent


def test_every_claim_has_a_page_and_a_row(atlas):
    index = Reader((atlas / "index.html").read_text())
    assert {f"{id}.html" for id in PAGES} <= set(index.links)
    assert "".join(index.text).count("confirmed") >= len(PAGES)


def test_links_and_scripts_resolve_and_nothing_leaves_the_folder(atlas):
    for page in atlas.rglob("*.html"):
        text = page.read_text()
        reader = Reader(text)
        for target in (*reader.links, *reader.sources):
            target = target.partition("#")[0] or page.name
            if re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", target):
                continue  # a link that a reader may follow, not something that the page loads
            assert not re.match(r"\w+:|//", target), f"{page.name} asks for {target}"
            assert (page.parent / target).resolve().is_relative_to(atlas) and (
                page.parent / target
            ).exists()
        assert "@import" not in text and not re.search(r"url\((?!['\"]?#|&quot;#)", text)
        assert page.stat().st_size < 500_000
        assert "Content-Security-Policy" in text and "javascript:" not in text, page.name


def test_pages_show_what_a_search_found_and_where_a_claim_goes_on_to_hold(tested, tmp_path):
    result = tested("single-location/swapped-beats-oracle")
    rows = [
        {"lam": lam, "gamma": gamma, "word": word, "inside": lam < 0.1}
        for gamma in (0.5, 1.0)
        for lam, word in ((0.05, "confirmed"), (0.2, "refuted"))
    ]
    edges = pd.DataFrame([{"axis": "lam", "at": 0.5, "low": 0.09, "high": 0.1}])
    domain = Domain(result.claim, ("lam", "gamma"), 0, pd.DataFrame(rows), edges)
    box = {"lam": [0.0125, 0.4], "gate": ["erf", "softmax"]}
    kept = ("not refuted", 1234, 1300, 60.0, 0, 0.75, {"lam": 0.05}, "", 0, False)
    search = Searched(*kept, over=box)
    id = result.claim.id
    folder = write_atlas(
        Atlas([result], searched={id: search}, domains={id: domain}), tmp_path / "atlas"
    ).parent
    page = (folder / f"{id}.html").read_text()
    searched = "not refuted, 1,234 settings tried of lam"
    for part in ("Domain of validity", searched, "Certified on this box"):
        assert part in page, part
    assert "refuted" in (folder / f"{id}.domain.svg").read_text()
    seeds = (folder / "seeds.html").read_text()
    assert "1 claims, 1,234 settings: 0 refuted somewhere." in seeds and "0.75" in seeds
    assert "lam 0.0125 to 0.4; gate erf, softmax" in seeds
    assert "With nothing to search" not in seeds and "saw one setting only" not in seeds


@pytest.mark.parametrize(
    "settings, said",
    [(1, "1 of these searches saw one setting only"), (0, "which has lengths (compared)")],
)
def test_what_was_hardly_searched_is_told(tested, tmp_path, settings, said):
    result = tested("single-location/swapped-beats-oracle")
    reason = "it has no parameter that could be searched: lengths (compared)"
    search = Searched("not refuted", settings, 1, 60.0, 0, 0.75, {"lam": 0.05}, reason, 0, True)
    written = write_atlas(Atlas([result], searched={result.claim.id: search}), tmp_path / "atlas")
    seeds = (written.parent / "seeds.html").read_text()
    assert said in seeds and ("(*) saw an earlier version" in seeds) == bool(settings)


def test_a_page_shows_all_that_a_reader_needs(atlas, tested):
    result = tested("single-location/closed-form-risk")
    text = (atlas / "single-location/closed-form-risk.html").read_text()
    for part in (
        "<math",
        "stated in the paper",
        "Theorem 1",
        result.verdict.measured,
        "smallest detectable deviation",
        mathml(result.claim.control.said().replace("25%", "25\N{NO-BREAK SPACE}%")),
        "attlas run single-location/closed-form-risk",
        "@inproceedings{marion2025",
        r'alttext="\gamma &gt; 0"',
        "Content-Security-Policy",
        "https://arxiv.org/abs/2410.01537",
        "@misc{attlas:closed-form-risk",
        "vega.js",
        "closed-form-risk.svg",
        "closed-form-risk.nc",
        "Why it is true",
        "src/attlas/single_location/claims/risk.py:",
        "jax",
        "What it rests on, and what rests on it",
        'rel="next"',
        "Certified on these boxes",
        "Proved by interval arithmetic for every point of each box, not measured",
    ):
        assert part in text, part
    spec = json.loads(
        re.search(
            r'<script id="spec-closed-form-risk" type="application/json">(.*?)</script>', text, re.S
        )[1]
    )
    assert spec["$schema"].startswith("https://vega.github.io/schema/vega-lite")


def test_papers_are_told_item_by_item_and_what_is_not_covered_is_counted(atlas):
    notes = notes_of(catalogue().values())["single-location"]
    text = (atlas / "papers/single-location.html").read_text()
    assert text.count("<tr>") == len(notes.items) + 1 and "arXiv 2410.01537" in text
    assert "Closed form risk" in text and "not in this atlas" in text
    covered = sum(any(f"single-location/{s}" in PAGES for s in item.claims) for item in notes.items)
    said = f"{covered} of the {len(notes.items)} items that are listed have claims in this atlas"
    assert said in text and said in (atlas / "papers.html").read_text()


def test_the_machine_readable_list_keeps_its_schema(atlas):
    content = json.loads((atlas / "claims.json").read_text())
    schema = json.loads((atlas / content["$schema"]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(content, schema)
    assert {claim["id"] for claim in content["claims"]} == set(PAGES)
    for claim in content["claims"]:
        data = (atlas / claim["data"]["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == claim["data"]["sha256"]
    del content["claims"][0]["statement"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)


def test_the_data_can_be_taken_away(atlas, tested):
    result = tested("single-location/closed-form-risk")
    place = atlas / "single-location"
    with xr.open_dataset(place / "closed-form-risk.nc", engine="h5netcdf") as data:
        np.testing.assert_array_equal(data["measured"], result.evidence["measured"])
        assert (
            data.attrs["claim"] == "single-location/closed-form-risk"
            and data.attrs["verdict"] == "confirmed"
        )
    table = pd.read_csv(place / "closed-form-risk.csv")
    measured = table[table["variable"] == "measured"]["value"].to_numpy()
    np.testing.assert_allclose(measured, result.evidence["measured"].values.ravel(), rtol=1e-12)
    assert (place / "closed-form-risk.svg").read_text().startswith("<svg")


def test_both_scales_are_shown_where_both_are_there(tested, tmp_path):
    result = tested("single-location/zeta")
    other = dataclasses.replace(result, scale="paper", notes=(EARLIER,))
    atlas = Atlas([result], others={result.claim.id: other})
    folder = write_atlas(atlas, tmp_path / "atlas").parent
    text = (folder / "single-location" / "zeta.html").read_text()
    assert "quick scale" in text and "paper scale" in text and EARLIER in text
    assert (
        json.loads((folder / "claims.json").read_text())["claims"][0]["other_scale"]["scale"]
        == "paper"
    )


def test_the_index_offers_questions_maps_and_a_graph(atlas):
    text = (atlas / "index.html").read_text()
    for part in (
        "What makes an exact answer possible?",
        'id="search"',
        'class="graph"',
        "<img",
        "claims.schema.json",
    ):
        assert part in text, part
    for page in ("papers", "tightness", "beyond", "guides/first-result", "guides/sharp-bits"):
        assert (atlas / f"{page}.html").exists()


def test_an_older_atlas_is_replaced_whole(tested, tmp_path):
    folder = tmp_path / "atlas"
    one = Atlas([tested("single-location/zeta")])
    write_atlas(one, folder)
    write_atlas(Atlas([tested("single-location/closed-form-risk")]), folder)
    assert not (folder / "single-location" / "zeta.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["atlas"]


def test_a_failed_build_leaves_the_old_pages(tested, tmp_path, monkeypatch):
    folder = tmp_path / "atlas"
    one = Atlas([tested("single-location/zeta")])
    before = write_atlas(one, folder).read_text()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("attlas.atlas.pages.drawing_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atlas(one, folder)
    assert (folder / "index.html").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["atlas"]


def test_what_was_measured_on_real_data_has_a_page(tested, tmp_path):
    rows = [
        {
            "data": "musk",
            "first": True,
            "method": "ours",
            "numbers": [0.9, None],
            "ahead": None,
            "folds": 30,
            "seconds": 1.0,
        },
        {
            "data": "musk",
            "first": False,
            "method": "<SVM>",
            "numbers": [0.8, 0.7],
            "ahead": [0.1, 0.02, 0.18],
            "folds": 30,
            "seconds": 2.0,
        },
        {
            "data": "musk",
            "first": False,
            "method": "forest",
            "numbers": [0.8, 0.7],
            "ahead": [-0.1, -0.2, -0.01],
            "folds": 30,
            "seconds": 2.0,
        },
    ]
    measured = {
        "words": "Seed 1.",
        "kinds": [
            {"title": "Bags", "words": "Folds.", "measures": ["accuracy", "AUC"], "rows": rows}
        ],
    }
    atlas = Atlas([tested("single-location/closed-form-risk")], measured=measured)
    folder = write_atlas(atlas, tmp_path / "atlas").parent
    text = (folder / "real-data.html").read_text()
    assert "+0.100 [+0.020, +0.180]" in text and "&lt;SVM&gt;" in text and "behind" in text
    assert "real-data.html" in Reader((folder / "index.html").read_text()).links
