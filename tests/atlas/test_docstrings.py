from attlas.atlas.docstrings import parse_docstring, render_prose

HOUSE = r"""A sum $a + b$. More of it.

    code(1)

    Arguments:
        a, b: what is added, as
            long as it is. `c`: not read.
        others: as in `other`.

    Returns: the sum of `d`.

    >>> 1 + 1
    2

    >>> 2
    2
    """


def test_a_docstring_falls_into_its_parts():
    doc = parse_docstring(HOUSE)
    assert doc.summary == "A sum $a + b$."
    assert doc.arguments["a"] == doc.arguments["b"] == "what is added, as long as it is."
    assert doc.arguments["c"] == "not read." and doc.alike == ("other",)
    assert doc.returns == "the sum of `d`."
    assert doc.examples == (">>> 1 + 1\n2\n\n>>> 2\n2",)
    assert doc.mentions("d") and doc.mentions("a") and not doc.mentions("e")


def test_arguments_may_be_a_list_with_shapes():
    doc = parse_docstring(
        """X.

        Arguments:
        - `queries` [q d], `keys` [n d]: points.
        - `progress(done, steps)`: called.
        - `mask` [n] or [q n]: what
          counts.
        """
    )
    assert doc.arguments == {
        "queries": "[q d]: points.",
        "keys": "[n d]: points.",
        "progress": "called.",
        "mask": "[n] or [q n]: what counts.",
    }


def test_arguments_may_be_as_scikit_learn_has_them():
    doc = parse_docstring(
        """X.

        Parameters
        ----------
        penalty : float or None
            By folds.
        max_iter, tol : of L-BFGS.

        Attributes
        ----------
        shape_ : tuple
            Its shape.

        Examples
        --------
        >>> 1
        1
        """
    )
    assert doc.arguments["penalty"] == "float or None. By folds."
    assert doc.arguments["tol"].startswith("of L-BFGS.")
    assert doc.prose[1:] == ("Attributes:", "- `shape_ : tuple`: Its shape.")
    assert doc.examples == (">>> 1\n1",)


def test_prose_becomes_paragraphs_lists_formulas_and_code():
    body = render_prose(("A $x$ and\n`y`.", "- one\n- two\n  more", "    f(<1>)"))
    assert body.startswith("<p>A <math") and "<code>y</code>" in body
    assert "<ul><li>one</li><li>two more</li></ul>" in body
    assert "<pre><code>f(&lt;1&gt;)</code></pre>" in body


def test_nothing_is_a_docstring_too():
    assert parse_docstring(None).summary == "" and not parse_docstring("").prose
