r"""A checker of certificates: statements that interval arithmetic proves on boxes of parameters.

It stands alone: python-flint's ball arithmetic, the standard library, and the formulas of
`statements`, each written from its theorem. A certificate names a claim, a box (exact ends, as
decimal texts or ratios), the precision in bits, a tree of bisections, and the enclosures of some
quantities over the box. The tree is a text in preorder: a digit splits the box in the middle of
that side, a point is a leaf. `check` walks it, proves the statement on every leaf, and computes the
enclosures again; they must be those of the certificate. Whoever made it is not trusted.

`python -m attlas.certificates.checker FILE...` prints a line for each file, and exits with 1 if one
is refused.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from flint import ctx

from attlas.certificates.balls import interval
from attlas.certificates.boxes import Box
from attlas.certificates.reading import parse
from attlas.certificates.statements import STATEMENTS, Statement

DIGITS = 4
"""Of enclosures, which are rounded outwards."""

SEPARATED = ", "

NUMBER = re.compile(
    r"[+-]?(\d{1,40}/\d{1,40}|(?=\.?\d)\d{0,40}(\.\d{0,40})?(e[+-]?\d{1,2})?)",
    re.IGNORECASE | re.ASCII,
)
"""An end of a side: a decimal or a ratio, of which all arithmetic is quick."""

EXACT = 4096
"""Ends with more binary places than this are written by their leading digits."""


class Refused(ValueError):
    """A certificate that proves nothing; the message says why."""


@contextmanager
def precision(bits: int) -> Iterator[None]:
    before, ctx.prec = ctx.prec, bits
    try:
        yield
    finally:
        ctx.prec = before


def balls_of(box: Box) -> dict[str, Any]:
    return {name: interval(*ends) for name, ends in box.items()}


def halves(box: Box, side: int) -> tuple[Box, Box]:
    """The two halves of a box, split in the middle of one side."""
    name = list(box)[side]
    low, high = box[name]
    middle = (low + high) / 2
    return {**box, name: (low, middle)}, {**box, name: (middle, high)}


def leaves_of(box: Box, tree: str) -> Iterator[Box]:
    """The boxes into which a tree splits a box."""
    waiting = [box]
    for letter in tree:
        if not waiting:
            raise Refused("its tree goes on after the last leaf")
        here = waiting.pop()
        if letter == ".":
            yield here
        elif letter.isdecimal() and int(letter) < len(box):
            waiting += reversed(halves(here, int(letter)))
        else:
            raise Refused(f"its tree has the letter {letter!r}")
    if waiting:
        raise Refused("its tree ends before all of the box is covered")


def rounded_outwards(low: Any, high: Any) -> list[str]:
    """Two ends, as decimal texts that enclose what lies between them."""
    return [rounded(low.lower(), ROUND_FLOOR), rounded(high.upper(), ROUND_CEILING)]


def rounded(end: Any, way: str) -> str:
    """A number, rounded down or up to `DIGITS` digits."""
    context, wider = (
        Context(prec=digits, rounding=way, Emin=MIN_EMIN, Emax=MAX_EMAX) for digits in (DIGITS, 20)
    )
    mantissa, exponent = map(int, end.mid().man_exp())
    if abs(exponent) <= EXACT:
        above, below = Decimal(mantissa * 2 ** max(exponent, 0)), Decimal(2 ** max(-exponent, 0))
        return str(context.normalize(context.divide(above, below)))
    # The digits of a text are the nearest ones: a step outwards from them.
    near = wider.create_decimal(end.str(25, radius=False))
    step = wider.next_minus if way == ROUND_FLOOR else wider.next_plus
    return str(context.normalize(step(near)))


def enclosures(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Of each quantity, over all leaves."""
    ends: dict[str, tuple[Any, Any]] = {}
    for name, value in (item for leaf in found for item in leaf.items()):
        low, high = value if isinstance(value, tuple) else (value.lower(), value.upper())
        low, high = low.lower(), high.upper()
        if name in ends:
            low, high = low.min(ends[name][0]), high.max(ends[name][1])
        ends[name] = low, high
    return {name: rounded_outwards(*ends[name]) for name in sorted(ends)}


def enclosures_of(
    statement: Statement, leaves: list[tuple[Box, dict[str, Any]]]
) -> dict[str, list[str]]:
    """What all leaves together prove; `Refused` if that is not the statement."""
    if wrong := statement.whole(leaves):
        raise Refused(wrong)
    return enclosures([found for _, found in leaves])


def digest(content: Mapping[str, Any]) -> str:
    """Of all of a certificate but its checksum."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def check(content: Any) -> dict[str, list[str]]:
    """The enclosures that a certificate proves; `Refused` if it proves nothing."""
    form = {"claim": str, "words": str, "box": dict, "precision": int, "tree": str}
    form |= {"enclosures": dict, "checksum": str}
    if not isinstance(content, dict) or set(content) != set(form):
        raise Refused(f"it must have {SEPARATED.join(form)}, and nothing else")
    if any(type(content[name]) is not kind for name, kind in form.items()):
        raise Refused("its contents have another form")
    if content["checksum"] != digest(content):
        raise Refused("its contents do not match their checksum")
    if content["claim"] not in STATEMENTS:
        raise Refused(f"no statement is known for {content['claim']!r}")
    statement, box = STATEMENTS[content["claim"]], read_box(content["box"])
    if content["words"] != statement.words or tuple(box) != statement.parameters:
        raise Refused("it states something else than is proved")
    if content["precision"] != statement.precision:
        raise Refused(f"its precision must be {statement.precision} bits")
    if wrong := statement.defined(box):
        raise Refused(f"the statement is not defined on its box: {wrong}")
    for _ in leaves_of(box, content["tree"]):
        pass  # a tree that does not cover the box is refused before anything is proved
    with precision(statement.precision):
        leaves = []
        for leaf in leaves_of(box, content["tree"]):
            found = statement.prove(balls_of(leaf), leaf)
            if found is None:
                raise Refused(f"the statement is not proved on {said(leaf)}")
            leaves.append((leaf, found))
        proved = enclosures_of(statement, leaves)
    if proved != content["enclosures"]:
        raise Refused(f"its enclosures are {content['enclosures']}, and {proved} is proved")
    return proved


def read_box(sides: Mapping[str, Any]) -> Box:
    """A box from texts; each side has two ends, the lower one first."""
    if not isinstance(sides, Mapping):
        raise Refused("its box has no sides")
    found: Box = {}
    for name, ends in sides.items():
        numbers = [exact(end) for end in ends] if isinstance(ends, list) else []
        if len(numbers) != 2 or None in numbers:
            raise Refused(f"{name} = {ends!r}: a side of a box has two numbers, as texts")
        low, high = (number for number in numbers if number is not None)
        if low > high:
            raise Refused(f"{name} = {ends!r}: the side is empty")
        found[name] = low, high
    return found


def exact(text: Any) -> Fraction | None:
    """The number that a text says, a decimal with at most two digits of exponent or a ratio."""
    if not isinstance(text, str) or not NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def said(box: Box) -> str:
    return SEPARATED.join(
        f"{n} = {float(low):.6g} to {float(high):.6g}" for n, (low, high) in box.items()
    )


def main(files: list[str]) -> int:
    refused = 0
    for file in files:
        try:
            content = parse(Path(file).read_text(encoding="utf-8"))
            proved = check(content)
            print(f"{file}: certified on {said(read_box(content['box']))}: {proved}")
        except (OSError, ValueError) as error:  # one that is refused is a ValueError
            refused += 1
            print(f"{file}: refused: {error}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
