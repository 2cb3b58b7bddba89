from pathlib import Path

import pytest
from tools.browser import Browser, chromium


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(
        "<!doctype html><title>x</title><img src='http://example.org/x.png'><input id='text'>"
        "<script>console.error('oh'); let got = 0; document.addEventListener('mousedown',"
        " event => { got = [event.clientX, event.clientY]; })</script>"
    )
    return path


def test_errors_and_requests_are_noted_and_the_network_is_off(browser, page):
    browser.open(page)
    assert "oh" in browser.errors and any("ERR_PROXY" in error for error in browser.errors)
    assert browser.requests == [page.as_uri(), "http://example.org/x.png"]
    browser.open(page)
    assert len(browser.requests) == 2, "each page begins anew"


def test_a_page_is_spoken_to(browser, page):
    browser.open(page)
    assert browser.run("Promise.resolve(6 * 7)") == 42
    browser.drag((30, 40))
    assert browser.run("got") == [30, 40]
    browser.run("document.getElementById('text').focus()")
    browser.type("κ")
    assert browser.run("document.getElementById('text').value") == "κ"
    assert browser.picture().startswith(b"\x89PNG")
    with pytest.raises(RuntimeError, match="nothing is not defined"):
        browser.run("nothing")
    with pytest.raises(FileNotFoundError):
        browser.open(page.with_name("other.html"))


def test_preferences_and_sizes(browser, page):
    browser.prefer(colour_scheme="dark")
    browser.resize(400, 700)
    browser.open(page)
    assert (
        browser.run("matchMedia('(prefers-color-scheme: dark)').matches")
        and browser.run("innerWidth") == 400
    )
    browser.prefer()
    browser.resize(1200, 900)


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="Chromium: `make browser` installs it")
def test_it_ends_what_it_started(page):
    with Browser() as own:
        own.open(page)
        process, profile = own._process, Path(own._profile.name)
        assert profile.exists()
    assert process.poll() is not None and not profile.exists()
