"""The verb `export`: a claim for a paper, as LaTeX, figure or table."""

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attlas.cli import options
from attlas.cli.printing import stderr
from attlas.cli.running import run_all
from attlas.errors import InputError

if TYPE_CHECKING:
    from attlas.lab.runner import Result

FORMATS = ("tex", "svg", "pdf", "csv")
UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 72 / 25.4, "pt": 72 / 72.27}
"""Units of a width, in points of 1/72 inch, which a figure's pixels are."""
ROOM = 60.0
"""The narrowest that the drawing area of a figure may become, in points."""


@click.command("export")
@click.argument("claim")
@click.option("--to", "format", type=click.Choice(FORMATS), required=True)
@click.option("--out", type=options.FILE, help="The file. [default: the claim's name]")
@click.option("--width", help="Of a figure, as in 3.3in, 84mm or 240pt.")
@options.scale_option
@options.seed_option
@options.claims_option
@options.store_option
def export_claim(
    claim: str,
    format: str,
    out: str | None,
    width: str | None,
    files: Any,
    store: str | None,
    **run_options: Any,
) -> None:
    """CLAIM for a paper: statement, verdict, table and BibTeX (tex), its figure in the width of a
    column (svg, pdf), or all values of its evidence (csv). What is not stored is measured."""
    from attlas.lab import compile_quickly

    compile_quickly()
    found = options.select_claims([claim], files)
    if len(found) > 1:
        raise InputError(f"{claim!r} matches {len(found)} claims: export takes one")
    if width and format not in ("svg", "pdf"):
        raise InputError(f"--width {width}: only a figure (--to svg, --to pdf) has a width")
    points = parse_width(width) if width else None
    path = options.check_writable("--out", out or f"{found[0].slug}.{format}", [f".{format}"])
    assert path is not None
    running = run_all(found, options.open_store(store), False, **run_options)
    with contextlib.closing(running) as results:
        (result,) = results
    if not result.evidence:
        raise InputError(f"{found[0].id} has nothing to export: {result.verdict.reason}")
    write_export(result, path, points, files)
    stderr().print(f"{result.verdict.word}: {path}", markup=False)


def parse_width(text: str) -> float:
    """A width in points of 1/72 inch."""
    match = re.fullmatch(r"([0-9.]+) *(in|cm|mm|pt)", text.strip())
    try:
        points = float(match[1]) * UNITS[match[2]] if match else 0.0
    except ValueError:
        points = 0.0
    if not 72 <= points <= 1440:
        raise InputError(f"--width {text!r}: it must be from 1in to 20in, as in 3.3in, 84mm, 240pt")
    return points


def write_export(result: "Result", path: Path, points: float | None, files: Any = ()) -> None:
    """Write a result in the format of the file's name, whole or not at all."""
    from attlas.lab.files import write_whole

    if path.suffix == ".tex":
        content = result_latex(result, files).encode()
    elif path.suffix == ".csv":
        from attlas.atlas.drawings import evidence_table

        content = evidence_table(result.evidence).encode()
    else:
        import vl_convert

        svg = narrow_svg(result.figure().to_dict(), points)
        content = svg.encode() if path.suffix == ".svg" else vl_convert.svg_to_pdf(svg)
    write_whole(path, content)


def result_latex(result: "Result", files: Any = ()) -> str:
    """Statement, verdict, what the rule read, and BibTeX in comments."""
    from attlas.claims.latex import escape, escape_prose, tabular
    from attlas.references import bibtex

    claim, verdict = result.claim, result.verdict
    names = [name for name in claim.rule.variables(result.evidence) if name in result.evidence]
    kept = result.evidence[names].reset_coords(drop=True)
    small = {"draw", "repeat"} & set(kept.dims)
    frame = (kept.astype(float).mean(small) if small else kept).to_dataframe().reset_index()
    control = f" The same test refutes {claim.control.said()}." if result.control else ""
    entries = "\n".join(
        bibtex(source, *map(Path, files)) for source in dict.fromkeys((claim.source, "attlas"))
    )
    return "\n".join(
        [
            f"% {claim.id}, {result.scale} scale, seed {result.seed}",
            rf"\paragraph{{{escape(claim.reference)}~\cite{{{claim.source}}}.}}",
            escape_prose(claim.statement),
            "",
            escape(f"{verdict.word.capitalize()} ({claim.kind}). {verdict.reason}")
            + escape_prose(control)
            + (f" Strength: {escape(verdict.strength)}." if verdict.strength else ""),
            "",
            tabular(frame),
            "",
            *(f"% {line}" for line in entries.splitlines()),
            "",
        ]
    )


def narrow_svg(spec: dict[str, Any], points: float | None) -> str:
    """A chart as SVG; of a given width if there is one: drawing areas shrink, text does not, and
    the title is left to the caption."""
    import vl_convert

    from attlas.atlas.drawings import widen_frame

    if points is None:
        return widen_frame(vl_convert.vegalite_to_svg(spec))
    spec = {k: v for k, v in spec.items() if k != "title"}
    legend = {**spec.get("config", {}).get("legend", {}), "orient": "bottom", "columns": 1}
    spec["config"] = {**spec.get("config", {}), "legend": legend}
    widths = [_svg_width(vl_convert.vegalite_to_svg(_scaled(spec, f))) for f in (1.0, 0.5)]
    inner = 2 * (widths[0] - widths[1])
    factor = 1 - (widths[0] - points) / inner if inner > 0 else 0.0
    if factor * inner < ROOM:
        raise InputError(
            f"--width: this figure needs {(widths[0] - inner + ROOM) / 72:.2g} in for its labels"
        )
    return vl_convert.vegalite_to_svg(_scaled(spec, factor))


def _scaled(spec: Any, factor: float) -> Any:
    """The specification with all widths of drawing areas times a factor."""
    if isinstance(spec, list):
        return [_scaled(part, factor) for part in spec]
    if not isinstance(spec, dict):
        return spec
    views = ("layer", "hconcat", "vconcat", "concat", "spec")
    changed = {k: _scaled(v, factor) for k, v in spec.items() if k in views}
    if isinstance(spec.get("width"), int | float):
        changed["width"] = factor * spec["width"]
    return {**spec, **changed}


def _svg_width(svg: str) -> float:
    match = re.search(r'<svg[^>]* width="([0-9.]+)"', svg)
    assert match
    return float(match[1])
