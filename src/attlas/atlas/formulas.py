"""Formulas between $ signs, as MathML."""

import functools
import html
import re

from latex2mathml import converter, exceptions
from markupsafe import Markup

from attlas.errors import InputError

_TEX_ERRORS = tuple(
    kind
    for kind in vars(exceptions).values()
    if isinstance(kind, type) and issubclass(kind, Exception)
)
# An operator is set apart from its neighbours; a star in the exponent and the bars of a modulus
# must not be.
_TIGHT = {
    "<mo>&#x0002A;</mo>": "<mi>∗</mi>",
    '<mo stretchy="false">&#x0007C;</mo>': '<mo stretchy="false" lspace="0" rspace="0">|</mo>',
}
# The name of a function is set apart a little from a factor before it and from an argument without
# brackets.
_NAME, _GAP = "<mi>(?:arctan|cosh|exp|ln|log|tanh)</mi>", '<mspace width="0.167em" />'
_APART = (
    (rf"(?<=[a-z]>)(?<!<mrow>)(?={_NAME})", _GAP),
    (rf"({_NAME})(?=<m(?!o|space))", rf"\1{_GAP}"),
)


_FORMULA = re.compile(r"(\(?\$.+?\$[.,;:)]*)")
"""A formula, with a bracket before it and the signs that follow."""


@functools.cache
def mathml(text: str) -> Markup:
    """HTML of a sentence with formulas between $ signs and code between backticks.

    Each formula keeps its TeX, as its alternative text. A bracket before and a stop after it stay
    on its line.
    """
    pieces = _FORMULA.split(text)
    return Markup(
        "".join(_bound(piece) if i % 2 else _words(piece) for i, piece in enumerate(pieces))
    )


LONG = 45
"""Signs of TeX from which on a formula of a statement that equates or compares is displayed; one
that does not has half as many more."""


def stated(text: str) -> Markup:
    """HTML of a statement, whose long formulas stand on lines of their own."""
    shown = Markup("")
    for place, piece in enumerate(_FORMULA.split(text)):
        before, tex, after = piece.split("$") if place % 2 else ("", "", "")
        told = re.search(r"=|<|>|\\(?:le|ge|approx|to|sim)\b", tex)
        if before or len(tex) < (LONG if told else 1.5 * LONG):
            shown += mathml(piece)
            continue
        shown += Markup(
            '<span class="formula scroll" tabindex="0" role="group" aria-label="Formula">'
            f"{_formula(tex, 'block')}{after}</span>"
        )
    return shown


def display(tex: str) -> Markup:
    """A formula on a line of its own."""
    return Markup(_formula(tex, "block"))


def code(text: str) -> str:
    """HTML of code within a sentence: no line ends after the dashes of an option."""
    return f"<code>{re.sub(r'(?<![^ ])--?[a-z][a-z-]*', _unbroken, html.escape(text))}</code>"


def _words(text: str) -> str:
    parts = re.split("`([^`]+)`", text)
    return "".join(code(part) if i % 2 else html.escape(part) for i, part in enumerate(parts))


def _bound(piece: str) -> str:
    before, tex, after = piece.split("$")
    formula = before + _formula(tex) + after
    return _unbroken(formula) if before or after else formula


def _unbroken(part: str | re.Match[str]) -> str:
    return f'<span class="unbroken">{part if isinstance(part, str) else part[0]}</span>'


def _formula(tex: str, display: str = "inline") -> str:
    if strange := re.search(r"\\(?:href|url|class|style|html\w*)\b", tex):
        raise InputError(f"the formula ${tex}$ has {strange[0]}: formulas hold no links or styles")
    try:
        formula = converter.convert(tex, display=display)
    except _TEX_ERRORS as error:
        raise InputError(f"the formula ${tex}$ cannot be read: {type(error).__name__}") from error
    for loose, tight in _TIGHT.items():
        formula = formula.replace(loose, tight)
    for near, apart in _APART:
        formula = re.sub(near, apart, formula)
    return formula.replace("<math ", f'<math alttext="{html.escape(tex)}" ', 1)
