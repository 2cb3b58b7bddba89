r"""A checker of certificates: statements that interval arithmetic proves on boxes of parameters.

It stands alone: python-flint's ball arithmetic, the standard library, and the formulas of
`statements`, each written from its theorem. A certificate names a claim, a box (exact ends, as
decimal texts), the precision in bits, a tree of bisections, and the enclosures of some quantities
over the box. The tree is a text in preorder: a digit splits the box in the middle of that side, a
point is a leaf. `check` walks it, proves the statement on every leaf, and computes the enclosures
again; they must be those of the certificate. Whoever made it is not trusted.

`python -m attlas.certificates.checker FILE...` prints a line for each file, and exits with 1 if one
is refused.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from flint import ctx

from attlas.certificates.statements import STATEMENTS, Box, interval

DIGITS = 4
"""Of enclosures, which are rounded outwards."""

SEPARATED = ", "


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
    ends = []
    for end, way in ((low, ROUND_FLOOR), (high, ROUND_CEILING)):
        exact = Decimal(end.str(25, radius=False))
        ends.append(str(Context(prec=DIGITS, rounding=way).create_decimal(exact).normalize()))
    return ends


def enclosures(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Of each quantity, over all leaves."""
    ends: dict[str, tuple[Any, Any]] = {}
    for name, value in (item for leaf in found for item in leaf.items()):
        if name.startswith("_"):  # says on which side of something a leaf lies
            continue
        low, high = value if isinstance(value, tuple) else (value.lower(), value.upper())
        low, high = low.lower(), high.upper()
        if name in ends:
            low, high = low.min(ends[name][0]), high.max(ends[name][1])
        ends[name] = low, high
    return {name: rounded_outwards(*ends[name]) for name in sorted(ends)}


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
    with precision(statement.precision):
        wrong = statement.defined(balls_of(box))
        if wrong:
            raise Refused(f"the statement is not defined on its box: {wrong}")
        leaves = []
        for leaf in leaves_of(box, content["tree"]):
            found = statement.prove(balls_of(leaf), leaf)
            if found is None:
                raise Refused(f"the statement is not proved on {said(leaf)}")
            leaves.append((leaf, found))
        if wrong := statement.whole(leaves):
            raise Refused(wrong)
        proved = enclosures([found for _, found in leaves])
    if proved != content["enclosures"]:
        raise Refused(f"its enclosures are {content['enclosures']}, and {proved} is proved")
    return proved


def read_box(sides: Mapping[str, Any]) -> Box:
    """A box from texts; each side has two ends, the lower one first."""
    found: Box = {}
    for name, ends in sides.items():
        try:
            low, high = (Fraction(end) for end in ends)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise Refused(f"{name} = {ends!r}: a side of a box has two numbers") from error
        if low > high:
            raise Refused(f"{name} = {ends!r}: the side is empty")
        found[name] = low, high
    return found


def said(box: Box) -> str:
    return SEPARATED.join(
        f"{n} = {float(low):.6g} to {float(high):.6g}" for n, (low, high) in box.items()
    )


def main(files: list[str]) -> int:
    refused = 0
    for file in files:
        try:
            content = json.loads(Path(file).read_text(encoding="utf-8"))
            print(f"{file}: certified on {said(read_box(content['box']))}: {check(content)}")
        except (Refused, ValueError, KeyError, TypeError) as error:
            refused += 1
            print(f"{file}: refused: {error}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
