"""Every page of a small atlas, opened from disk in a browser whose network is off."""

import base64
import dataclasses
import json
import re

import pytest
import xarray as xr
from tools.browser import axe_script

from attlas.atlas.contents import Atlas
from attlas.atlas.notes import notes_of
from attlas.atlas.pages import write_atlas
from attlas.audit.architectures import as_model
from attlas.audit.auditing import audit_model
from attlas.claims import catalogue
from tests.audit.conftest import DATA, IDS

pytestmark = pytest.mark.xdist_group("pages")
CLAIMS = (
    "single-location/closed-form-risk",
    "single-location/zeta",
    "sparse-variables/threshold-margin",
    "latent-posterior/softmax-is-nadaraya-watson",
    "latent-posterior/regret-in-context",
    "several-locations/attention-ahead",
)
(ARTICLE,) = notes_of([catalogue()["latent-posterior/regret-in-context"]])[
    "latent-posterior"
].articles
"""An article with some of these claims; the others are shown without evidence."""
EXPLORERS = ("portrait", "events", "estimator", "sparse", "belief", "parting")
"""Explorers with sliders that show all at once."""
SIGHT = """JSON.stringify([
  [...document.querySelectorAll("canvas")].map(canvas => canvas.toDataURL()),
  [...document.querySelectorAll("[role=status], table.facts")].map(part => part.textContent)])"""
"""All that an explorer shows: its pictures and its numbers."""


@pytest.fixture(scope="module")
def atlas(tested, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "atlas"
    results = [tested(id) for id in CLAIMS]
    for id in ARTICLE.related:
        if id not in CLAIMS:
            claim = catalogue()[id]
            results.append(dataclasses.replace(results[-1], claim=claim, evidence=xr.Dataset()))
    return write_atlas(Atlas(results), folder).parent


@pytest.fixture(scope="module")
def pages(atlas):
    return sorted(atlas.rglob("*.html"))


@pytest.fixture(autouse=True)
def as_usual(browser):
    browser.resize(1200, 900)
    browser.prefer(colour_scheme="light")


def inked(browser, picture):
    """The share of a picture's points that differ from the commonest colour among its corners."""
    source = json.dumps("data:image/png;base64," + base64.b64encode(picture).decode())
    return browser.run(f"""new Promise((done, failed) => {{
      const image = new Image();
      image.onerror = failed;
      image.onload = () => {{
        const {{ width, height }} = image;
        const canvas = Object.assign(document.createElement("canvas"), {{ width, height }});
        const pen = canvas.getContext("2d");
        pen.drawImage(image, 0, 0);
        const points = new Uint32Array(pen.getImageData(0, 0, width, height).data.buffer);
        done(points.reduce((count, point) => count + (point !== points[0]), 0) / points.length);
      }};
      image.src = {source};
    }})""")


def test_every_page_opens_without_error_and_asks_for_nothing_outside(browser, atlas, pages):
    for page in pages:
        browser.open(page)
        assert browser.errors == [], page
        strangers = [
            url
            for url in browser.requests
            if not url.startswith((atlas.as_uri(), "data:", "blob:"))
        ]
        assert strangers == [], page
        assert inked(browser, browser.picture()) > 0.01, f"{page} is blank"


def test_every_link_leads_to_a_page_and_a_place_on_it(browser, atlas, pages):
    anchors, wanted = {}, []
    for page in pages:
        browser.open(page)
        links = browser.run(
            "[...document.querySelectorAll('a[href]')]"
            ".map(link => new URL(link.getAttribute('href'), document.baseURI).href)"
        )
        anchors[page.as_uri()] = set(
            browser.run("[...document.querySelectorAll('[id]')].map(node => node.id)")
        )
        wanted += [(page, *link.partition("#")[::2]) for link in links]
    known = {path.as_uri() for path in atlas.rglob("*") if path.is_file()}
    for page, target, place in wanted:
        # Not a download that the page made itself, the paper, or what a search is set to.
        if not (target.startswith(("data:", "https://arxiv.org/abs/")) or "=" in place):
            assert target in known, f"{page} links to {target}"
            assert not place or place in anchors.get(target, ()), (
                f"{page} links to {target}#{place}"
            )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_of_accessibility(browser, pages, scheme):
    if not axe_script().exists():
        pytest.skip("axe-core is not there: `make browser` fetches it")
    browser.prefer(colour_scheme=scheme)
    for page in pages:
        browser.open(page)
        grave = [
            fault for fault in browser.accessibility() if fault["impact"] in ("serious", "critical")
        ]
        assert grave == [], f"{page}: {json.dumps(grave, indent=1)}"


def test_pages_fit_a_phone(browser, pages):
    browser.resize(400, 800)
    for page in pages:
        browser.open(page)
        assert browser.run("document.documentElement.scrollWidth") <= 400, page


def test_figures_of_claims_are_interactive(browser, atlas):
    for id in CLAIMS:
        browser.open(atlas / f"{id}.html")
        browser.wait("document.querySelector('.vega-embed svg path') !== null")
        assert browser.errors == [], id


def test_figures_fill_their_card_and_their_text_is_legible_on_a_phone(browser, atlas):
    browser.resize(390, 800)
    for id in CLAIMS:
        browser.open(atlas / f"{id}.html")
        browser.wait("document.querySelector('.vega-embed svg path') !== null")
        sizes = browser.run(
            "[...document.querySelectorAll('.vega-embed svg text')]"
            ".filter(text => text.textContent)"
            ".map(text => parseFloat(getComputedStyle(text).fontSize))"
        )
        assert min(sizes) >= 11, id
        wide = "document.querySelector('.vega-embed svg').getBoundingClientRect().width"
        room = "document.querySelector('.drawing').clientWidth"
        assert 0.85 * browser.run(room) <= browser.run(wide) <= browser.run(room) + 8, id


def test_legends_switch_series_and_axes_become_logarithmic(browser, atlas):
    browser.open(atlas / f"{CLAIMS[0]}.html")
    browser.wait("document.querySelectorAll('.keys button').length > 2")
    marks = "document.querySelectorAll('.vega-embed svg .mark-symbol path').length"
    labels = "[...document.querySelectorAll('.vega-embed svg text')].map(t => t.textContent).join()"
    before, axis = browser.run(marks), browser.run(labels)
    browser.run("document.querySelector('.key button').focus()")
    browser.press("Enter")
    browser.wait(f"{marks} < {before}")
    assert (
        browser.run("document.querySelector('.key button').getAttribute('aria-pressed')") == "false"
    )
    browser.run("document.querySelector('.key button').click()")
    browser.wait(f"{marks} === {before}")
    log = "[...document.querySelectorAll('.keys button')].find(b => b.textContent === 'log x')"
    browser.run(f"{log}.click()")
    browser.wait(f"{labels} !== {json.dumps(axis)}")
    assert browser.errors == []


def test_figures_have_the_colours_of_the_page(browser, atlas):
    ink = "getComputedStyle(document.querySelector('.vega-embed svg text')).fill"
    found = {}
    for scheme in ("light", "dark"):
        browser.prefer(colour_scheme=scheme)
        browser.open(atlas / f"{CLAIMS[0]}.html")
        browser.wait("document.querySelector('.vega-embed svg text') !== null")
        found[scheme] = browser.run(ink)
    assert found == {"light": "rgb(34, 34, 34)", "dark": "rgb(230, 230, 230)"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [("Marion", 0), ("lambda", 0), ("theorem 1", 0), ("exact answer risk", 0), ("margin bits", 2)],
)
def test_a_search_finds_by_a_symbol_an_author_a_number_and_a_question(browser, atlas, asked, found):
    browser.open(atlas / "index.html")
    browser.run("document.getElementById('search').focus()")
    browser.type(asked)
    browser.wait("location.hash.startsWith('#search=')")
    shown = (
        "[...document.querySelectorAll('section[data-map] tr[data-text]:not([hidden]) td a[href]')]"
        ".map(link => link.getAttribute('href'))"
    )
    hits = browser.run(shown)
    assert f"{CLAIMS[found]}.html" in hits
    address = browser.run("location.hash")
    browser.open(atlas / "guides" / "tour.html")
    browser.open(atlas / "index.html")
    browser.run(f"location.hash = {json.dumps(address)}")
    browser.wait("document.getElementById('search').value !== ''")
    assert browser.run(shown) == hits


def test_both_spellings_and_near_words_find_the_same(browser, atlas):
    browser.open(atlas / "index.html")
    shown = "[...document.querySelectorAll('tr[data-text]:not([hidden])')].length"
    counts = []
    for asked in ("generalization", "generalisation", "Bayesian", "posterior"):
        browser.run(f"location.hash = '#search={asked}'")
        browser.wait(f"document.getElementById('search').value === '{asked}'")
        counts.append(browser.run(shown))
    every = browser.run("document.querySelectorAll('tr[data-text]').length")
    assert 0 < counts[0] == counts[1] < every and 0 < counts[2] == counts[3] < every


def test_an_empty_search_says_so_and_the_matrix_filters(browser, atlas):
    browser.open(atlas / "index.html")
    browser.run("location.hash = '#search=zzzz'")
    browser.wait("!document.getElementById('nothing').hidden")
    browser.run("document.querySelector('.matrix td a').click()")
    browser.wait("document.getElementById('search').value === ''")
    rows = "[...document.querySelectorAll('tr[data-text]:not([hidden])')]"
    kinds = browser.run(f"{rows}.map(row => row.dataset.origin + row.dataset.kind)")
    assert len(set(kinds)) == 1 and len(kinds) == int(
        browser.run("document.querySelector('.matrix td a').textContent")
    )
    browser.run("document.getElementById('all').click()")
    browser.wait(f"{rows}.length > {len(kinds)}")


def test_the_doors_of_the_maps_are_alive_unless_less_motion_is_preferred(browser, atlas):
    browser.open(atlas / "index.html")
    browser.wait("document.querySelectorAll('canvas.living').length === 4")
    sight = "[...document.querySelectorAll('canvas.living')].map(c => c.toDataURL()).join()"
    first = browser.run(sight)
    browser.wait(f"{sight} !== {json.dumps(first)}")
    assert browser.errors == []
    browser.prefer(reduced_motion="reduce")
    browser.open(atlas / "index.html")
    assert browser.run("document.querySelectorAll('canvas.living').length") == 0
    assert browser.run("document.querySelectorAll('.door img').length") >= 4


def test_the_search_finds(browser, atlas):
    browser.open(atlas / "index.html")
    shown = (
        "[...document.querySelectorAll('section[data-map] td a[href]')]"
        ".filter(link => link.checkVisibility()).map(link => link.getAttribute('href'))"
    )
    links = [f"{id}.html" for id in CLAIMS]
    before = browser.run(shown)
    assert set(links) <= set(before)
    browser.run("document.querySelector('input[type=search]').focus()")
    browser.type("nadaraya")
    browser.wait(f"!{shown}.includes('{links[0]}')")
    assert links[3] in browser.run(shown)


def test_the_index_is_walked_through_by_keys(browser, atlas):
    browser.open(atlas / "index.html")
    focused = "document.activeElement"
    browser.press("Tab")
    assert browser.run(f"{focused}.textContent") == "To the text"
    browser.press("Enter")
    browser.press("Tab")
    assert browser.run(f"{focused}.id") == "search"
    browser.type("nadaraya")
    browser.wait("document.getElementById('found').textContent.includes(' of ')")
    browser.press("Tab")
    assert browser.run(f"{focused}.closest('.matrix') !== null")
    browser.press("Enter")
    browser.wait("/(word|kind|origin)=/.test(location.hash)")
    assert browser.errors == []


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_slider_moves_what_an_explorer_shows_by_the_keyboard(browser, atlas, name):
    browser.open(atlas / "explorers" / f"{name}.html")
    sliders = browser.run(
        "[...document.querySelectorAll('input[type=range]')].map(slider => slider.id)"
    )
    assert len(sliders) >= 2
    for slider in sliders:
        before = (
            browser.run(SIGHT),
            browser.run(f"document.getElementById('{slider}').getAttribute('aria-valuetext')"),
        )
        browser.run(f"document.getElementById('{slider}').focus()")
        browser.press("ArrowRight")
        assert browser.run(SIGHT) != before[0], slider
        assert (
            browser.run(f"document.getElementById('{slider}').getAttribute('aria-valuetext')")
            != before[1]
        ), slider
    assert browser.errors == []


def test_letters_are_explained_under_the_pointer_and_on_focus(browser, atlas):
    browser.open(atlas / f"{CLAIMS[1]}.html")
    told = "document.getElementById('meaning')?.checkVisibility() && meaning.textContent"
    letter = "[...document.querySelectorAll('.statement mi')].find(one => one.textContent === 's')"
    box = browser.run(f"{letter}.getBoundingClientRect().toJSON()")
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
    browser.settle()
    assert "the spread of the argument" in browser.run(told)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.settle()
    assert not browser.run(told)
    browser.run("document.querySelector('.statement .formula').focus()")
    assert "the spread of the argument" in browser.run(told) and "Owen" in browser.run(told)
    if axe_script().exists():
        grave = [fault["id"] for fault in browser.accessibility() if fault["impact"] == "serious"]
        assert grave == []
    assert browser.errors == []


def test_a_sentence_is_changed_by_the_keyboard(browser, atlas):
    browser.open(atlas / "explorers" / "sentence.html")
    word = "document.querySelector('.said .decides b').textContent"
    assert browser.run(word) == "nice."
    browser.run("document.getElementById('adjective').focus()")
    browser.press("ArrowDown")
    browser.wait("location.hash === '#adjective=cute'")
    assert browser.run(word) == "cute."
    told = browser.run("document.getElementById('status').textContent")
    assert "“cute”, which decides" in told
    browser.run("document.getElementById('reset').click()")
    browser.wait("location.hash === ''")
    assert browser.run(word) == "nice." and browser.errors == []


def middle(browser, id, right, down):
    """The point of an element at these shares of its width and height."""
    box = browser.run(f"document.getElementById('{id}').getBoundingClientRect().toJSON()")
    return box["x"] + right * box["width"], box["y"] + down * box["height"]


def number(text):
    return float(re.search(r"−?[\d.]+", text)[0].replace("−", "-"))


def test_a_click_starts_descent_there(browser, atlas):
    browser.open(atlas / "explorers" / "portrait.html")
    before = browser.run(SIGHT)
    browser.drag(middle(browser, "field", 0.2, 0.8))
    kappa, nu = (
        number(browser.run(f"document.getElementById('{id}-shown').textContent"))
        for id in ("kappa", "nu")
    )
    assert -0.9 < kappa < -0.5 and -0.9 < nu < -0.5 and browser.run(SIGHT) != before
    assert "mirror image" in browser.run("document.getElementById('status').textContent")


def test_a_click_moves_the_start_of_the_nearer_head_and_other_runs_are_counted(browser, atlas):
    browser.open(atlas / "explorers" / "parting.html")
    assert browser.errors == [] and "steps of size 0.02" in said(browser)
    for place in ((0.3, 0.3), (0.7, 0.7)):
        browser.drag(middle(browser, "field", *place))
    ax, ay, bx, by = (
        number(browser.run(f"document.getElementById('{id}-shown').textContent"))
        for id in ("ax", "ay", "bx", "by")
    )
    assert ay > 0.6 > ax and bx > 0.6 > by
    browser.run("document.getElementById('dim').value = 1")
    browser.run("document.getElementById('others').click()")
    browser.wait("document.getElementById('share').textContent.endsWith(' of 24')")
    assert browser.errors == []


def test_a_hundred_random_starts_end_half_of_them_swapped_where_the_gate_is_soft(browser, atlas):
    browser.open(atlas / "explorers" / "portrait.html")
    told = "document.getElementById('crowd-ends')"
    assert browser.run(f"{told}.textContent") == "not drawn"
    browser.run("document.getElementById('dim').value = 7")  # 100: fewer steps than 400
    browser.run("document.getElementById('many').focus()")
    browser.run("document.getElementById('many').click()")
    browser.wait(f"{told}.dataset.done === 'yes'")
    words = browser.run(f"{told}.textContent")
    found = {
        end: int(n) for n, end in re.findall(r"(\d+) (at the oracle|swapped|at neither)", words)
    }
    assert sum(found.values()) == 100 and 30 <= found["swapped"] <= 70, words
    browser.wait("location.hash.includes('many=true')")
    assert browser.errors == []


def test_basins_off_the_manifold_are_filled_in(browser, atlas):
    browser.open(atlas / "explorers" / "portrait.html")
    small = {"dim": 3, "off": 0.4}  # a small dimension needs few steps
    for id, value in small.items():
        browser.run(f"document.getElementById('{id}').value = {value}")
    moved = "document.getElementById('off').dispatchEvent(new Event('input', {bubbles: true}))"
    first = browser.run(f"({moved}, {SIGHT})")  # at once: a fast machine fills in between two calls
    browser.wait("document.getElementById('field').dataset.done === 'yes'")
    assert browser.run(SIGHT) != first


@pytest.mark.parametrize(("rate", "swapped"), [("0", True), ("0.0001", False)])
def test_a_schedule_saves_runs_from_the_swapped_point(browser, atlas, rate, swapped):
    browser.open(atlas / "explorers" / "schedule.html")
    first = "0.1" if swapped else "1"
    browser.run(f"location.hash = '#first={first}&rate={rate}&time=80&starts=10'")
    browser.wait("document.getElementById('starts-shown').textContent === '10'")
    browser.wait("document.getElementById('excess').dataset.done === 'yes'")
    count = int(browser.run("document.getElementById('share-swapped').textContent").split()[0])
    assert (count >= 2) is swapped and "After step 20,000" in said(browser)
    assert browser.errors == []


def test_the_query_can_be_dragged(browser, atlas):
    browser.open(atlas / "explorers" / "estimator.html")
    before = browser.run(SIGHT)
    browser.drag(*(middle(browser, "scene", right, 0.3) for right in (0.3, 0.6, 0.9)))
    assert number(browser.run("document.getElementById('query-shown').textContent")) > 100
    assert browser.run(SIGHT) != before
    browser.run("document.getElementById('temperature').value = 3")
    browser.run("document.getElementById('bayes').click()")
    browser.settle()
    shown = [
        browser.run(f"document.getElementById('{id}-shown').textContent")
        for id in ("temperature", "ridge")
    ]
    assert shown == ["0.1", "0.09"]


def test_bits_and_functions_of_the_sparse_head_are_read(browser, atlas):
    browser.open(atlas / "explorers" / "sparse.html")
    said = "document.getElementById('status').textContent"
    assert "majority is 1" in browser.run(said)
    for id in ("bit1", "bit2"):
        browser.run(f"document.getElementById('{id}').click()")
    browser.settle()
    assert "majority is 0" in browser.run(said) and "right" in browser.run(said)
    browser.run(
        "document.getElementById('function').value = 'or', document.getElementById('bit3').click()"
    )
    browser.settle()
    assert "or is 1" in browser.run(said)


def said(browser):
    return browser.run("document.getElementById('status').textContent")


def test_letters_are_typed_and_beliefs_follow(browser, atlas):
    browser.open(atlas / "explorers" / "belief.html")
    box = "document.getElementById('sequence')"
    browser.run(f"{box}.focus(), {box}.select()")
    browser.type("aXa1B")
    assert "After 3 letters (aab)" in said(browser) and browser.run(f"{box}.value") == "aab"
    before = said(browser)
    browser.run("document.querySelector('[data-letter=c]').click()")
    browser.settle()
    assert "After 4 letters (aabc)" in said(browser) and said(browser) != before
    browser.run("document.getElementById('back').click()")
    browser.settle()
    assert said(browser) == before
    numbers = "document.querySelector('table.facts').textContent"
    browser.run(f"{box}.focus(), {box}.select()")
    browser.type("abcdefabcdefaaa")
    browser.settle()
    kept = browser.run(numbers)
    browser.run("document.getElementById('shuffle').click()")
    browser.settle()
    assert browser.run(numbers) == kept, "the order of the letters says nothing"
    browser.run("document.querySelector('[data-topic=\"3\"]').click()")
    browser.settle()
    assert "After 24 letters" in said(browser) and browser.run(numbers) != kept
    browser.drag(middle(browser, "beliefs", 0.1, 0.5))
    assert browser.run("document.getElementById('read-shown').textContent") in ("0", "1")
    assert browser.errors == []


def test_what_an_explorer_shows_stands_in_its_address(browser, atlas):
    browser.open(atlas / "explorers" / "belief.html")
    first = browser.run(SIGHT)
    browser.run("location.hash = '#steps=10&sequence=eee&read=2&trained=no&source=probe'")
    browser.wait("document.getElementById('status').textContent.includes('10 steps')")
    assert "After 2 letters (ee)" in said(browser)
    assert browser.run("document.getElementById('trained').value") == "every"
    assert browser.run("document.getElementById('source').value") == "probe"
    browser.run("document.getElementById('steps').focus()")
    browser.press("ArrowRight")
    browser.wait("location.hash.includes('steps=100&') || location.hash.endsWith('steps=100')")
    browser.run("document.getElementById('reset').click()")
    browser.wait("location.hash === ''")
    assert browser.run(SIGHT) == first and browser.errors == []
    for name in EXPLORERS:
        browser.open(atlas / "explorers" / f"{name}.html")
        first = browser.run(SIGHT)
        slider = browser.run("document.querySelector('input[type=range]').id")
        browser.run(f"document.getElementById('{slider}').focus()")
        browser.press("ArrowRight")
        browser.wait(f"location.hash.includes('{slider}=')")
        moved = browser.run(SIGHT)
        browser.run("document.getElementById('reset').click()")
        browser.wait("location.hash === ''")
        assert moved != browser.run(SIGHT) == first, name


def test_an_article_shows_its_figures_and_explorers(browser, atlas):
    browser.open(atlas / ARTICLE.path)
    browser.wait("document.querySelectorAll('.vega-embed svg path').length > 0")
    frame = "document.querySelector('iframe')"
    browser.run(f"{frame}.scrollIntoView()")
    browser.wait(f"parseFloat({frame}.style.height) > 300")
    assert browser.errors == []


def test_explorers_do_not_jump(browser, atlas):
    for name in EXPLORERS:
        browser.open(atlas / "explorers" / f"{name}.html")
        shifts = browser.run("""new Promise(done => {
          let total = 0;
          const add = list => list.getEntries().forEach(entry => { total += entry.value; });
          new PerformanceObserver(add).observe({type: "layout-shift", buffered: true});
          setTimeout(() => done(total), 300);
        })""")
        assert shifts < 0.02, name


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir() if path.is_dir()))
def test_the_page_of_every_architecture_opens_and_is_moved_through_by_keys(browser, tmp_path, name):
    model = as_model(DATA / name)
    text = {} if model.vocabulary is None else {"tokens": IDS}
    browser.open(audit_model(model, probes="none", **text).save(tmp_path / "audit.html"))
    assert browser.errors == []
    assert browser.run("document.querySelectorAll('.answers .panel').length") == 3
    title = "document.querySelector('#card h3').textContent"
    seen = {browser.run(title)}
    browser.run("document.querySelector('#map .chosen').focus()")
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):
        browser.press(key)
        seen.add(browser.run(title))
    assert len(seen) > 1
    browser.resize(400, 800)
    assert browser.run("document.documentElement.scrollWidth") <= 400
