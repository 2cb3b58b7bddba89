"""The atlas as pages: self-contained HTML that opens from disk and asks nothing of a network."""

import html
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from latex2mathml import converter, exceptions
from markupsafe import Markup

import attlas
from attlas.errors import InputError
from attlas.lab.explorers import write_explorers
from attlas.lab.runner import Result
from attlas.lab.showpieces import Shown
from attlas.references import bibtex

LIST = "claims.json"
"""The machine-readable list beside the index. It names every file of the atlas, by which a folder is known as one."""


_TEX_ERRORS = tuple(
    kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
# An operator keeps its distance from its neighbours; a star in the exponent and the bars of a modulus are none.
_TIGHT = {"<mo>&#x0002A;</mo>": "<mi>*</mi>", '<mo stretchy="false">&#x0007C;</mo>': '<mo stretchy="false" lspace="0" rspace="0">|</mo>'}  # fmt: skip


def check_folder(folder: Path) -> Path:
    """`folder`, if an atlas may be written there: it can be, and it is new, empty, or an atlas already."""
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; name a folder with --out")
    if folder.is_dir():
        strangers = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - _files_of(folder)
        if strangers:
            raise InputError(
                f"the folder {str(folder)!r} holds other things ({min(strangers)}); name an empty or new one with --out"
            )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        raise InputError(f"the folder {str(folder)!r} cannot be written: {error.strerror or error}") from error
    return folder


def _files_of(folder: Path) -> set[str]:
    """The files that the atlas in `folder` says are its own; none where there is no atlas."""
    try:
        content = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return set()
    return set(content["files"]) if isinstance(content, dict) and "attlas" in content and "files" in content else set()


def write_atlas(
    results: Sequence[Result], folder: Path, shown: Sequence[Shown] = (), measured: Mapping[str, Any] | None = None
) -> Path:
    """Write all pages and return the index: those of the claims, of the showpieces that can be shown, and of what `make bench-data`
    `measured` on real data. An older atlas in `folder` stays until the new one is complete."""
    folder = check_folder(folder)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        _write_pages(results, fresh, shown, measured)
        fresh.chmod(0o755)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder / "index.html"


def _write_pages(
    results: Sequence[Result], folder: Path, shown: Sequence[Shown], measured: Mapping[str, Any] | None
) -> None:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("attlas.lab"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["mathml"] = mathml
    templates.filters["value"] = show_value
    templates.globals["version"] = attlas.__version__
    (folder / "vega.js").write_text(vl_convert.javascript_bundle(), encoding="utf-8")  # type: ignore[call-arg]
    page = templates.get_template("claim.html")
    known = {result.claim.id for result in results}
    for result in results:
        path = folder / f"{result.claim.id}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(page.render(known=known, **_page_context(result)), encoding="utf-8")
    large = templates.get_template("showpiece.html")
    for one in shown:
        path = folder / "showpieces" / f"{one.piece.slug}.html"
        path.parent.mkdir(exist_ok=True)
        context = {"known": known, "shown": one, "piece": one.piece, **_drawn(one.figure())}
        path.write_text(large.render(**context), encoding="utf-8")
    if measured:
        told = templates.get_template("real_data.html").render(measured=measured, standing=standing)
        (folder / "real-data.html").write_text(told, encoding="utf-8")
    explorers = write_explorers(folder, templates, known)
    index = templates.get_template("index.html").render(
        groups=_groups(results), counts=_counts(results), showpieces=[one.piece for one in shown], measured=measured,
        explorers=explorers,
    )  # fmt: skip
    (folder / "index.html").write_text(index, encoding="utf-8")
    files = sorted([LIST, *(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())])
    content = {"attlas": attlas.__version__, "files": files, "claims": [result.to_dict() for result in results]}
    (folder / LIST).write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")


def _swap(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`; if that fails the old one is put back."""
    if not folder.exists():
        os.replace(fresh, folder)
        return
    older = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    os.replace(folder, older)
    try:
        os.replace(fresh, folder)
    except BaseException:
        os.replace(older, folder)
        raise
    shutil.rmtree(older, ignore_errors=True)


def _page_context(result: Result) -> dict[str, Any]:
    context: dict[str, Any] = {"result": result, "claim": result.claim, "bibtex": bibtex_of(result)}
    if result.claim.figure is not None and result.evidence:
        context |= _drawn(result.figure())
    return context


def _drawn(chart: Any) -> dict[str, str]:
    spec = chart.to_dict(validate=False)  # the tests validate
    # "<" is written so that no text of the data can end the script element it stands in.
    return {
        "spec": json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c"),
        "svg": vl_convert.vegalite_to_svg(spec),
    }


def bibtex_of(result: Result) -> str:
    """BibTeX of the claim's source; empty for a claim of somebody else's whose source we do not know."""
    try:
        return bibtex(result.claim.source)
    except InputError:
        return ""


def _groups(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.claim.map, []).append(result)
    return groups


def _counts(results: Sequence[Result]) -> dict[str, int]:
    words = [result.verdict.word for result in results]
    return {word: words.count(word) for word in ("confirmed", "refuted", "undecided", "outside")}


def standing(ahead: Sequence[float] | None) -> str:
    """Where an interval [mean, low, high] of a difference puts the estimator: ahead, behind or level."""
    return "" if ahead is None else "ahead" if ahead[1] > 0 else "behind" if ahead[2] < 0 else "level"


def mathml(text: str) -> str:
    """HTML of a sentence whose formulas stand between $ signs."""
    parts = re.split(r"\$(.+?)\$", text)
    pieces = []
    for i, part in enumerate(parts):
        if i % 2 == 0:
            pieces.append(html.escape(part))
            continue
        try:
            formula = converter.convert(part)
        except _TEX_ERRORS as error:
            raise InputError(f"the formula ${part}$ cannot be read: {type(error).__name__}") from error
        for loose, tight in _TIGHT.items():
            formula = formula.replace(loose, tight)
        pieces.append(formula)
    return Markup("".join(pieces))


def show_value(value: Any) -> str:
    """A parameter as a reader would write it."""
    if isinstance(value, tuple):
        return ", ".join(show_value(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
