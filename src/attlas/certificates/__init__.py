"""Certificates: statements that interval arithmetic proves on boxes of parameters, not at points.

`make_certificate` bisects a box until `checker` proves the statement on every part of it;
`shipped_certificates` are those that come with the package. Both need python-flint, the extra
`certify`. The checker stands alone and trusts nothing of this.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attlas.certificates.reading import parse
from attlas.errors import InputError, near

if TYPE_CHECKING:
    from attlas.certificates.boxes import Box

FOLDER = Path(__file__).with_name("shipped")
MAX_LEAVES = 20_000
"""Parts of a box, of a process, before it is said that the statement cannot be proved there."""
NARROWEST = Fraction(1, 10**7)
"""Parts are not split further whose sides are all narrower than this, relative to their ends."""

Certificate = dict[str, Any]


def need_flint() -> None:
    """Refuse where python-flint is not installed."""
    if find_spec("flint") is None:
        raise InputError(
            "certificates need python-flint, which is not installed: pip install 'attlas[certify]'"
        )


def shipped_certificates(claim: str) -> list[Certificate]:
    """The certificates of a claim that come with the package, as they are; nothing is checked."""
    files = sorted(FOLDER.glob(f"{claim.replace('/', '.')}.*.json"))
    return [read_certificate(file) for file in files]


def read_certificate(path: Path) -> Any:
    """What a file holds, as it is."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is no JSON of a certificate: {error}") from error


def refusal(certificate: Any, claim: str) -> str:
    """Why the checker refuses a certificate of a claim; nothing if it proves what it says."""
    need_flint()
    from attlas.certificates.checker import Refused, check

    try:
        check(certificate)
    except Refused as error:
        return str(error)
    return "" if certificate["claim"] == claim else f"it is of {certificate['claim']}"


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate, of which a person can read the box."""
    path.write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")


def said_box(certificate: Certificate) -> str:
    """The box of a certificate in words; sides of one number as such."""
    sides = certificate["box"].items()
    return ", ".join(f"{n} = {a}" if a == b else f"{n} = {a} to {b}" for n, (a, b) in sides)


def parse_box(claim: str, texts: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, list[str]]:
    """The sides of a box from texts `"low:high"` or `"value"`.

    Arguments:
        claim: whose statement is to be proved.
        texts: by parameter.
        own: values of parameters that `texts` leaves out, as the claim's setting has them.
    """
    need_flint()
    from attlas.certificates.checker import STATEMENTS, exact

    if claim not in STATEMENTS:
        raise InputError(
            f"{claim} has no statement that intervals prove.{near(claim, STATEMENTS)} There are:"
            f" {', '.join(STATEMENTS)}."
        )
    names = STATEMENTS[claim].parameters
    unknown = [name for name in texts if name not in names]
    if unknown:
        close = near(unknown[0], names)
        raise InputError(f"unknown side {unknown[0]!r}.{close} There are: {', '.join(names)}.")
    box = {}
    for name in names:
        if name not in texts and name not in own:
            raise InputError(f"the box lacks {name}: say --box {name}=low:high")
        value = own.get(name)
        text = texts.get(name, str(value[0] if isinstance(value, tuple) else value))
        ends = [end.strip() for end in text.split(":")]
        numbers = [number for end in ends if (number := exact(end)) is not None]
        if len(numbers) != len(ends) or len(ends) > 2:
            raise InputError(
                f"{name} = {text!r}: a side is given as low:high, or as one number, of no more than"
                " 40 digits and between 1e-99 and 1e99"
            )
        if numbers[0] > numbers[-1]:
            raise InputError(f"{name} = {text!r}: the side is empty; low is not above high")
        box[name] = [ends[0], ends[-1]]
    return box


def make_certificate(
    claim: str,
    box: Mapping[str, list[str]],
    processes: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Certificate:
    """A certificate of a claim's statement on a box, which `checker.check` accepts.

    Arguments:
        claim, box: as `parse_box` gives the box.
        processes: that prove parts of the box at the same time.
        progress: called with the share of the box that is proved.
    """
    need_flint()
    from attlas.certificates import checker

    statement, sides = checker.STATEMENTS[claim], checker.read_box(box)
    if wrong := statement.defined(sides):
        raise InputError(f"{claim} is not defined on this box: {wrong}")
    top = _split_evenly(sides, 8 * processes if processes > 1 else 1, statement.split)
    parts = list(checker.leaves_of(sides, top))
    report = progress or (lambda share: None)
    trees: list[str] = []
    for tree in _grown(claim, parts, processes):
        trees.append(tree)
        report(len(trees) / len(parts))
    left = iter(trees)
    content: Certificate = {
        "claim": claim,
        "words": statement.words,
        "box": dict(box),
        "precision": statement.precision,
        "tree": "".join(next(left) if letter == "." else letter for letter in top),
    }
    with checker.precision(statement.precision):
        leaves = [
            (leaf, statement.prove(checker.balls_of(leaf), leaf) or {})
            for leaf in checker.leaves_of(sides, content["tree"])
        ]
        try:
            content["enclosures"] = checker.enclosures_of(statement, leaves)
        except checker.Refused as error:
            raise InputError(f"{claim} could not be proved on this box: {error}") from error
    content["checksum"] = checker.digest(content)
    return content


def _grown(claim: str, parts: "list[Box]", processes: int) -> Iterator[str]:
    """The trees of parts of a box, in their order."""
    if processes == 1 or len(parts) == 1:
        yield from (grow(claim, part) for part in parts)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(min(processes, os.cpu_count() or 1), mp_context=context) as pool:
        yield from pool.map(grow, itertools.repeat(claim), parts)


def grow(claim: str, box: "Box") -> str:
    """The tree of bisections of a box on whose leaves the statement of a claim is proved."""
    from attlas.certificates import checker

    statement, tree, waiting, leaves = checker.STATEMENTS[claim], "", [box], 0
    with checker.precision(statement.precision):
        while waiting:
            here = waiting.pop()
            if statement.prove(checker.balls_of(here), here) is not None:
                tree, leaves = tree + ".", leaves + 1
                continue
            side = _widest(here, statement.split)
            if side is None or leaves + len(waiting) > MAX_LEAVES:
                raise InputError(
                    f"{claim} could not be proved on {checker.said(here)}: it may be false there,"
                    " or the box too wide"
                )
            tree += str(side)
            waiting += reversed(checker.halves(here, side))
    return tree


def _widest(box: "Box", among: Sequence[str] = ()) -> int | None:
    """The side that is widest relative to its ends, of all or `among` some."""
    widths = [
        (b - a) / max(abs(a), abs(b)) if b > a and (not among or name in among) else Fraction(0)
        for name, (a, b) in box.items()
    ]
    return widths.index(max(widths)) if max(widths) > NARROWEST else None


def _split_evenly(box: "Box", parts: int, among: Sequence[str]) -> str:
    """A tree with that many leaves or more, or one where no side has a width."""
    from attlas.certificates.checker import halves

    side = _widest(box, among)
    if parts <= 1 or side is None:
        return "."
    two = halves(box, side)
    return str(side) + "".join(_split_evenly(half, (parts + 1) // 2, among) for half in two)
