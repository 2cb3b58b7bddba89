from attlas.atlas.guides import ORDER, link_claims, link_pages, read_guides, render_guide


def test_every_guide_is_a_page_in_the_order_a_reader_wants():
    found = read_guides()
    assert [guide.slug for guide in found][: len(ORDER)] == list(ORDER)
    for guide in found:
        assert guide.title and guide.words and "<h1" not in guide.body and "](" not in guide.words


def test_links_lead_from_page_to_page_and_nowhere_else():
    guide = render_guide(
        "x",
        "# A `b`\n\nSee [that](other.md), [here](#here) and [a *file*](../examples/walk.py). More."
        "\n\n| a |\n| --- |\n| $1 < 2$ |\n",
    )
    assert 'href="other.html"' in guide.body and 'href="#here"' in guide.body
    assert "walk.py" not in guide.body and "a <em>file</em>" in guide.body
    assert (guide.title, guide.words) == ("A b", "See that, here and a file.")
    assert '<div class="scroll"><table>' in guide.body and "<math" in guide.body


def test_claims_with_a_page_are_led_to():
    text = "<code>a/known</code>, <code>a/other</code>, <code>not an id</code>"
    assert link_claims(text, {"a/known"}, "../") == text.replace(
        "<code>a/known</code>", '<a href="../a/known.html"><code>a/known</code></a>'
    )


def test_an_article_links_only_to_pages_that_are_there():
    body = '<a href="../tightness.html">bounds</a>, <a href="other.html">another</a>'
    pages = {"tightness.html", "articles/third.html"}
    found = link_pages(body, "articles/this.html", pages)
    assert found == '<a href="../tightness.html">bounds</a>, another'
