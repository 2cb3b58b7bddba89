"""Conditions and verdicts that were written for a terminal, with their mathematics as TeX.

`lam sqrt(dim / 2) <= 1.06` becomes `$\\lambda\\sqrt{\\frac{d}{2}} \\le 1.06$`: parameters are their
letters where they have one, and names within a formula where they have none.
"""

import re
from collections.abc import Iterable, Mapping

from attlas.figure_style import legible

_RELATIONS = {"<=": r"\le", ">=": r"\ge", "<": "<", ">": ">", "=": "="}
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?!\w)|\.\d+"
_TOKEN = re.compile(rf"\s*({_NUMBER}|[A-Za-z]\w*|<=|>=|[-+*/^()<>=])")
_NAMES = {"sqrt": r"\sqrt", "exp": r"\exp"}
_ALWAYS = {"lambda_c": r"\lambda_c", "lam_c": r"\lambda_c"}


def with_formulas(words: str, letters: Mapping[str, str], parameters: Iterable[str] = ()) -> str:
    """A sentence with its conditions between $ signs.

    Arguments:
        letters: TeX by the name of a parameter that has a letter.
        parameters: names of all parameters; in a formula those without a letter are set upright.
    """
    if "$" in words:
        return _legible(words)
    upright = {name: rf"\mathrm{{{name.replace('_', '~')}}}" for name in parameters}
    known = upright | {name: name for name in upright if len(name) == 1} | _ALWAYS | dict(letters)
    words = re.sub(r"\d+\.\d{6,}", lambda number: f"{float(number[0]):.4g}", words)
    shown, end = [], 0
    while end < len(words):
        found = _expression(words, end, known)
        if found:
            tokens, after = found
            shown.append(f"${_tex(tokens, known)}$")
            end = after
            continue
        word = re.compile(r"\w+|\W").match(words, end)
        assert word is not None
        code = "_" in word[0] or word[0] in ("lam", "dim")  # other names are words of English
        shown.append(f"${letters[word[0]]}$" if code and word[0] in letters else word[0])
        end = word.end()
    return _legible("".join(shown))


def _legible(text: str) -> str:
    """With numbers as a reader writes them, outside formulas."""
    pieces = text.split("$")
    return "$".join(piece if place % 2 else _spaced(piece) for place, piece in enumerate(pieces))


def _spaced(text: str) -> str:
    """With a space that does not break the line before a per cent sign and after ±."""
    return re.sub(
        r"± (?=\d)",
        "±\N{NO-BREAK SPACE}",
        re.sub(r"(?<=\d) ?%", "\N{NO-BREAK SPACE}%", legible(text)),
    )


def _expression(words: str, start: int, known: Mapping[str, str]) -> tuple[list[str], int] | None:
    """The longest formula that begins here, as tokens, and where it ends."""
    if start and re.match(r"\w", words[start - 1]):
        return None
    tokens: list[str] = []
    ends: list[int] = []
    at = start
    while found := _TOKEN.match(words, at):
        token = found[1]
        single = len(token) == 1 and token.isalpha()
        if token[0].isalpha() and token not in known and token not in _NAMES and not single:
            break
        if single and token not in known and not _beside_a_sign(words, found.start(1)):
            break
        tokens.append(token)
        ends.append(found.end())
        at = found.end()
    while tokens and (tokens[-1] in "+-*/^<>=" or tokens[-1] in _RELATIONS or not _closed(tokens)):
        tokens.pop()
        ends.pop()
    signs = set(tokens) & {*_RELATIONS, "*", "/", "^", *_NAMES}
    if not signs or tokens[0] in _RELATIONS or tokens[0] in ("*", "/", "^", ")"):
        return None
    return (tokens, ends[-1]) if words[start] != " " else None


def _beside_a_sign(words: str, at: int) -> bool:
    near = words[max(0, at - 2) : at] + words[at + 1 : at + 3]
    called = re.match(r" ?(?:sqrt|exp)\(", words[at + 1 :])
    return bool(re.search(r"[-+*/^()<>=]", near) or called)


def _closed(tokens: list[str]) -> bool:
    return tokens.count("(") == tokens.count(")")


def _tex(tokens: list[str], known: Mapping[str, str]) -> str:
    text = ""
    for token in tokens:
        if token in _NAMES:
            text += _NAMES[token]
        elif token in _RELATIONS:
            text += f" {_RELATIONS[token]} "
        elif token == "*":
            text += r" \cdot "
        elif token in known:
            text += f" {known[token]}"
        else:
            text += token if token in "()^/" else f" {token}".replace(",", "{,}")
    text = re.sub(r"\^ (\w+)", r"^{\1}", text)
    operand = r"((?:\\mathrm\{[^}]*\}|\\?\w+(?:\.\d+)?)(?:\^\{\w+\})?)"
    text = re.sub(rf" {operand}/ ?{operand}", r" \\frac{\1}{\2}", text)
    text = re.sub(r"(\\mathrm\{[^}]*\}) (?=\\(?!le|ge|cdot)|\()", r"\1\\,", text)
    text = re.sub(r"(\d) (?=\\(?!le|ge|cdot)|[A-Za-z])", r"\1\\,", text)
    while found := re.search(r"\\sqrt\(([^()]*)\)", text):
        text = f"{text[: found.start()]}\\sqrt{{{found[1].strip()}}}{text[found.end() :]}"
    return " ".join(text.split())
