"""A claim for a paper."""

import re

import pytest

from attlas.cli.export import narrow_svg, parse_width, result_latex, write_export
from attlas.errors import InputError
from attlas.lab.runner import run


@pytest.fixture(scope="module")
def zeta(tmp_path_factory):
    return run("single-location/zeta", store=tmp_path_factory.mktemp("store"))


def test_latex_has_statement_verdict_table_and_bibtex(zeta):
    text = result_latex(zeta)
    assert zeta.claim.statement.split("$")[1] in text
    assert "Confirmed (two routes)." in text and "The same test refutes" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert text.count("% @software{attlas,") == 1


@pytest.mark.parametrize("suffix, start", [("tex", b"% single"), ("csv", b"variable,")])
def test_the_format_is_that_of_the_name(zeta, tmp_path, suffix, start):
    write_export(zeta, tmp_path / f"zeta.{suffix}", None)
    assert (tmp_path / f"zeta.{suffix}").read_bytes().startswith(start)


def test_a_figure_has_the_width_that_was_asked_for(zeta, tmp_path):
    svg = narrow_svg(zeta.figure().to_dict(), 240.0)
    (width,) = re.findall(r'<svg[^>]* width="([0-9.]+)"', svg)
    assert abs(float(width) - 240) < 12
    assert 'font-size="1' in svg  # text has not shrunk with it
    write_export(zeta, tmp_path / "zeta.pdf", 240.0)
    assert (tmp_path / "zeta.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match="for its labels"):
        narrow_svg(zeta.figure().to_dict(), 72.0)


def test_widths_have_units():
    assert parse_width("3.3in") == pytest.approx(237.6)
    assert parse_width("84 mm") == pytest.approx(238.1, abs=0.1)
    assert parse_width("240pt") == pytest.approx(239.1, abs=0.1)
    for bad in ("3.3", "0in", "99in", "1.2.3in", "wide"):
        with pytest.raises(InputError, match="it must be from 1in to 20in"):
            parse_width(bad)


def test_the_command_refuses_what_it_cannot_do(attlas):
    for words, told in (
        (["zeta", "--to", "tex", "--width", "3in"], "only a figure"),
        (["single-location/*", "--to", "tex"], "export takes one"),
        (["zeta", "--to", "tex", "--out", "a.pdf"], "must end in .tex"),
    ):
        answer = attlas("export", *words)
        assert answer.returncode == 2 and told in answer.stderr
