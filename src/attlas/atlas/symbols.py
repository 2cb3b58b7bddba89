"""Which letters a reader meets on a claim's page, and which of them nothing there explains."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attlas.atlas.conditions import with_formulas
from attlas.atlas.notes import Notes, Symbol, Term
from attlas.claims import Claim

KNOWN = frozenset((r"\pi", "e", "E", "P", "O", "o", r"\mathbb", "i", "j", "N", "I"))
r"""Letters that need no words: $\pi$ and $e$, expectation, probability, orders, indices, the normal
law and the unit matrix."""
_SIGNS = r"""
\frac \tfrac \dfrac \sqrt \le \ge \ne \neq \leq \geq \in \notin \cdot \times \ldots \dots \log \ln
\exp \tanh \cosh \sin \cos \arctan \max \min \sup \inf \sum \prod \int \langle \rangle \lVert \rVert
\infty \to \mapsto \leftarrow \pm \mp \approx \sim \propto \left \right \big \Big \bigl \bigr \Bigl
\Bigr \quad \qquad \mid \partial \nabla \subset \cup \cap \setminus \otimes \odot \oplus \ll \gg
\equiv \top \circ \prime \star \ast \hat \bar \tilde \widehat \overline \underline \mathcal \binom
\det \lim \Pr \forall \exists \lfloor \rfloor \lceil \rceil \vee \wedge \colon \dot \limits"""
_NOT_LETTERS = frozenset(_SIGNS.split())
_LINKS = """
a and are as at by from for in is like of on one or than that the then to up where with below above
beyond within between has have be which while whose its only all"""
_JOINING = frozenset(_LINKS.split())
_NAMES = r"""
\alpha \beta \gamma \delta \varepsilon \zeta \eta \theta \kappa \lambda \mu \nu \xi \pi \rho \sigma
\tau \phi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Sigma \Phi \Omega"""
_GREEK = dict(zip("αβγδεζηθκλμνξπρστφχψωΓΔΘΛΣΦΩ", _NAMES.split(), strict=True))


def letters_of(text: str) -> set[str]:
    """Letters in the formulas of a sentence, as TeX, without names of functions and indices in
    words."""
    found: set[str] = set()
    for tex in re.findall(r"\$(.+?)\$", text):
        plain = re.sub(r"\\(?:mathrm|operatorname|text|mathbf)\{[^}]*\}", " ", tex)
        plain = re.sub(r"_\{[A-Za-z]{2,}\}|_(?:in|out)\b", " ", plain)
        found |= set(re.findall(r"\\[A-Za-z]+|[A-Za-z]", plain)) - _NOT_LETTERS
    return found


def letters_in_words(text: str, named: bool = True) -> set[str]:
    """Letters of a line without TeX, such as the title of an axis: Greek ones, and Latin ones that
    stand alone; without those that the line itself names (`named`), as in "distance ε"."""
    if not named:
        text = re.sub(r"(?<=[^\W\d_]{2}),? ?\|?[^\W\d_](?![\w'’])", "", text)
    greek = {_GREEK[sign] for sign in text if sign in _GREEK}
    return greek | set(re.findall(r"(?<![\w'’.])([B-HJ-Zb-hj-z])(?![\w'’])", text))


def explained_in(text: str, letter: str) -> bool:
    """Whether a sentence says itself what a letter is: it sets it equal to something, binds it in a
    sum, a maximum or an integral, or puts it beside a noun."""
    name = re.escape(letter) + ("" if not letter.startswith("\\") else r"(?![A-Za-z])")
    formulas = " ".join(re.findall(r"\$(.+?)\$", text))
    index = r"(?:[_^](?:\{[^}]*\}|\\?\w+|\*|\+)|'|\([^)]*\))*"
    told = (
        rf"(?<![A-Za-z\\]){name}{index}(?:, [^=$]{{1,12}})?\s*(?:=|\\sim|\\in|:)",
        rf"\\(?:sum|prod|max|min|inf|sup|int)_\{{?{name}(?![A-Za-z])",
        rf"(?:\\,)?d{name}(?![A-Za-z])",
    )
    if any(re.search(pattern, formulas) for pattern in told):
        return True
    prose = re.sub(r"\$(.+?)\$", lambda tex: f" ${tex[1].replace(' ', '')}$ ", text)
    words = prose.split()
    alone = re.compile(rf"(?:\$[|(]?{name}{index}[|)]?\$|(?<!\$){name})[,.;:]?")
    return any(
        alone.fullmatch(word)
        and (
            (
                place > 0
                and re.fullmatch(r"[A-Za-z-]{2,}", words[place - 1]) is not None
                and words[place - 1] not in _JOINING
            )
            or (
                place + 1 < len(words)
                and re.match(r"(the|an?|its) ?", words[place + 1]) is not None
            )
            or (not word.startswith("$") and place + 1 < len(words))
        )
        for place, word in enumerate(words)
    )


def unexplained(claim: Claim, notes: Notes, lines: Iterable[str] = ()) -> set[str]:
    """Letters of the claim's statement, of its hypotheses, and of `lines` of its figure, that
    nothing explains."""
    told = shown_symbols(claim, notes, lines)
    known = {letter for s in told for letter in letters_of(f"${s.tex}$") | letters_of(s.means)}
    drawn = {letter for line in lines for letter in letters_in_words(line, named=False)}
    parameters = {s.parameter: s.tex for s in told if s.parameter}
    assumed = [with_formulas(h.words, parameters, claim.quick) for h in claim.hypotheses]
    met = letters_of(claim.statement) | drawn | set().union(*map(letters_of, assumed))
    return {letter for letter in met - known - KNOWN if not explained_in(claim.statement, letter)}


def shown_symbols(claim: Claim, notes: Notes, lines: Iterable[str] = ()) -> list[Symbol]:
    """The letters that a claim's page explains, those of `lines` of its figure among them.

    A meaning of this claim alone goes before a general one.
    """
    drawn: set[str] = set().union(*(letters_in_words(line) for line in lines))
    found = [s for s in notes.symbols if s.occurs_in(claim) or (s.tex in drawn and not s.claims)]
    own = {symbol.tex for symbol in found if symbol.claims}
    return [symbol for symbol in found if symbol.claims or symbol.tex not in own]


def shown_terms(claim: Claim, notes: Notes) -> list[Term]:
    """The words of the map that a claim's page explains: those of its statement, of its words, of
    its hypotheses and of its control."""
    assumed = (hypothesis.words for hypothesis in claim.hypotheses if not hypothesis.defining)
    text = " ".join((claim.statement, claim.words, claim.control.said(), *assumed))
    return [term for term in notes.terms if term.occurs_in(text)]


def symbols_in(text: str, notes: Notes, slugs: Iterable[str] = ()) -> list[Symbol]:
    """The letters in the formulas of a text that have one meaning: that of the map or, if it has
    none, of the claims `slugs` that the text shows."""
    met = letters_of(text)
    found: dict[str, list[Symbol]] = {}
    for symbol in notes.symbols:
        shown = not symbol.claims or set(symbol.claims) & set(slugs)
        if shown and letters_of(f"${symbol.tex}$") <= met and _occurs(symbol.tex, text):
            found.setdefault(symbol.tex, []).append(symbol)
    kept = []
    for symbols in found.values():
        general = [symbol for symbol in symbols if not symbol.claims]
        if general or len({symbol.means for symbol in symbols}) == 1:
            kept.append((general or symbols)[0])
    return kept


def _occurs(tex: str, text: str) -> bool:
    """Whether a letter, with its index, is in a formula of a text."""
    formulas = " ".join(re.findall(r"\$(.+?)\$", text))
    edge = r"(?<![A-Za-z\\])" if tex[0] != "\\" else ""
    return re.search(rf"{edge}{re.escape(tex)}(?![A-Za-z])", formulas) is not None


def lines_of(spec: Mapping[str, Any]) -> list[str]:
    """What the axes, legends and panels of a Vega-Lite specification are called, and the entries of
    its legends."""
    return list(dict.fromkeys((*_titles(spec), *_entries(spec, spec))))


def _entries(part: Any, spec: Mapping[str, Any], data: Any = None) -> Iterator[str]:
    """The words that colours, dashes, shapes and panels stand for."""
    if isinstance(part, list):
        for inner in part:
            yield from _entries(inner, spec, data)
    if not isinstance(part, Mapping):
        return
    data = part.get("data", data)
    for channel in ("color", "strokeDash", "shape", "facet", "row", "column"):
        shown = part.get("encoding", part).get(channel)
        if isinstance(shown, Mapping) and shown.get("type") == "nominal" and "field" in shown:
            rows = (data or {}).get("values") or spec["datasets"].get((data or {}).get("name"), ())
            for row in rows:
                if isinstance(entry := row.get(shown["field"]), str):
                    yield entry
    for name, inner in part.items():
        if name not in ("datasets", "config", "data", "encoding"):
            yield from _entries(inner, spec, data)


def _titles(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for name, inner in part.items():
            if name in ("datasets", "config", "data"):
                continue
            if name == "title" and isinstance(inner, str):
                yield inner
            yield from _titles(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _titles(inner)
