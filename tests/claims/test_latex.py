"""Sentences and tables as LaTeX."""

import pandas as pd

from attlas.claims.latex import MAX_ROWS, escape, escape_prose, tabular


def test_signs_that_latex_reads_are_escaped():
    assert escape("5 % of a_b ± 1") == r"5 \% of a\_b $\pm$ 1"
    assert escape_prose(r"at most 5 %: $x_1 < \frac{a}{b}$.") == (
        r"at most 5 \%: $x_1 < \frac{a}{b}$."
    )


def test_a_table_has_a_line_a_row_and_says_what_it_leaves_out():
    frame = pd.DataFrame({"law_of": ["a", "b"], "value": [0.123456, 2.0]})
    assert tabular(frame).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\hline",
        r"law\_of & value \\",
        r"\hline",
        r"a & 0.1235 \\",
        r"b & 2 \\",
        r"\hline",
        r"\end{tabular}",
    ]
    long = tabular(pd.DataFrame({"value": range(MAX_ROWS + 3)}))
    assert "3 further rows" in long and long.count(r"\\") == MAX_ROWS + 2
