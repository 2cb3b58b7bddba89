"""A map: what the claims about one subject share, and how a claim is registered."""

import importlib
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attlas.claims.claim import KINDS, ORIGINS, Claim, Control, Hypothesis, Need
from attlas.claims.evidence import Values
from attlas.claims.rules import Rule
from attlas.claims.setting import Setting, whole
from attlas.errors import InputError, near
from attlas.references import bibliography

REGISTRY: dict[str, Claim] = {}
"""The claims that have been registered, by id."""

OURS = "attlas"
"""The source of a claim of our own."""

COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclass(eq=False)
class Measurement:
    """What several claims are read from; made by `Map.measurement`, with the fields of `Claim`.

    Arguments:
        name: under which its evidence is stored. `function`: that measures. `parts`: of every
            claim.

    >>> from attlas.claims import Map, Measurement, Setting
    >>> coins = Map("tosses", source="attlas")
    >>> @coins.measurement("tosses", quick=Setting(samples=100))
    ... def tosses(cell, draws):
    ...     return {"heads": draws.stream("tosses").integers(2, size=cell.samples).sum()}
    >>> isinstance(tosses, Measurement)
    True
    """

    name: str
    function: Callable[..., Values]
    parts: dict[str, Any] = field(default_factory=dict)


class Map:
    """What the claims about one subject share.

    Arguments:
        name: the first half of the claims' ids, as in "single-location".
        source: the key of the paper's BibTeX entry; a claim may name another.
        domain: conditions such as "dim >= 4", one parameter each, without which nothing is defined;
            each holds for the claims that have the parameter.
        home, subjects: the package that holds its claims (`__name__`), and the modules in it, in
            the order in which they are read; for a map in a single file neither.

    >>> from attlas import run
    >>> from attlas.claims import Agreement, Control, Hypothesis, Map, Need, Setting, on, product
    >>> coins = Map("coins", source="attlas")
    >>> @coins.claim(
    ...     kind="simulation", reference="a coin", origin="ours",
    ...     statement="$E[X] = p$", words="The mean of a coin is its bias.",
    ...     quick=Setting(bias=(0.2, 0.7), samples=10_000), cells=product("bias"), budget="samples",
    ...     hypotheses=(Hypothesis("bias <= 1", lambda cell: cell.bias <= 1),),
    ...     requires=(Need("nothing", lambda cell: True, "make nothing"),),
    ...     rule=Agreement(), control=Control("off by {size}", lambda e, size: {
    ...         "predicted": e.predicted + size}, size=0.1))
    ... def mean_of_a_coin(cell, draws):
    ...     tosses = draws.stream("tosses").random(cell.samples) < cell.bias
    ...     error = (cell.bias * (1 - cell.bias) / cell.samples) ** 0.5
    ...     return on("", predicted=cell.bias, measured=tosses.mean(), error=error)
    >>> result = run(mean_of_a_coin)
    >>> print(result.claim.id, result.verdict.word, result.control.word)
    coins/mean-of-a-coin confirmed refuted
    """

    def __init__(
        self,
        name: str,
        *,
        source: str,
        domain: Sequence[str] = (),
        home: str = "",
        subjects: Sequence[str] = (),
    ) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise InputError(f"map {name!r}: a name has lower-case letters, digits and dashes")
        self.name, self.source = name, source
        self.home, self.subjects = home, tuple(subjects)
        self.domain = dict(map(_domain, domain))

    def load(self) -> None:
        """Import its subjects, which registers its claims."""
        for subject in self.subjects:
            importlib.import_module(f"{self.home}.{subject}")

    def measurement(
        self,
        name: str,
        *,
        quick: Setting | None = None,
        paper: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> Callable[[Callable[..., Values]], Measurement]:
        """Decorator: a measurement from which several claims are read (`measured_by`).

        Arguments:
            name: the slug under which its evidence is stored and its random numbers are drawn.
            quick, paper, parts: what its claims have in common, as in `claim`.
        """

        def register(function: Callable[..., Values]) -> Measurement:
            shared = {"quick": quick, "paper": paper, **parts}
            return Measurement(f"{self.name}/{name}", function, shared)

        return register

    def claim(
        self,
        *,
        kind: str | None = None,
        reference: str = "",
        statement: str = "",
        words: str = "",
        rule: Rule | None = None,
        control: Control | None = None,
        quick: Setting | Mapping[str, Any] | None = None,
        paper: Mapping[str, Any] | None = None,
        measured_by: Measurement | None = None,
        source: str | None = None,
        hypotheses: Sequence[Hypothesis] = (),
        needs: Sequence[str] = (),
        **parts: Any,
    ) -> Callable[[Callable[..., Any]], Claim]:
        """Decorator: register a claim, whose slug is the function's name.

        The function measures: `function(cell, draws)` returns a mapping with what the rule reads.
        Where the claim is `measured_by` a measurement, the function reads its evidence instead:
        `function(evidence)` returns the variables that the rule reads.

        Arguments:
            kind: what the evidence is: "identity" (the same algebra on both sides), "two routes"
                (independent exact computations), "simulation" (a formula against samples),
                "training" (networks, or heads on their exact risk, that were trained) or "real"
                (a real checkpoint or data).
            reference: the place in the source, as in "Theorem 1".
            statement: with TeX between `$` signs.
            words: the statement without formulas.
            rule, control: how it is judged, and the false variant that must be refuted.
            quick: the setting of some seconds; beside `measured_by`, what differs from there.
            paper: what differs from `quick` at the paper's scale.
            source: the key of a BibTeX entry, if it is neither the map's nor, where the origin is
                "ours", this package's.
            hypotheses: conditions of the theorem.
            needs: claims that it rests on, by slug.
            parts: further fields of `Claim`: cells, shape, batch, budget, precision, long, origin,
                ranges, requires.
        """

        def register(function: Callable[..., Any]) -> Claim:
            shared = {} if measured_by is None else measured_by.parts
            where = _where(function, self.name)
            stated = {"reference": reference, "statement": statement, "words": words}
            whole_parts = {**shared, **parts}
            if kind is not None or "kind" not in whole_parts:
                whole_parts["kind"] = kind
            lists = {
                "hypotheses": hypotheses,
                "needs": needs,
                "requires": parts.get("requires", ()),
            }
            for name, given in lists.items():
                if not isinstance(given, list | tuple):
                    raise InputError(
                        f"{where}: its {name} is {_name_of(given)}: it must be a list, as in"
                        f" {name}=({_name_of(given)},)"
                    )
            scales = _scales(where, shared, quick, paper)
            domain = [
                condition for name, condition in self.domain.items() if name in scales["quick"]
            ]
            own = (*shared.get("hypotheses", ()), *hypotheses)
            whole_parts |= {
                **stated,
                **scales,
                "rule": rule,
                "control": control,
                "hypotheses": (*domain, *own),
                "needs": tuple(n if "/" in n else f"{self.name}/{n}" for n in needs),
            }
            _check_parts(where, whole_parts)
            id = f"{self.name}/{function.__name__.replace('_', '-')}"
            made = Claim(
                id=id,
                source=source or (OURS if whole_parts.get("origin") == "ours" else self.source),
                function=function if measured_by is None else measured_by.function,
                read=None if measured_by is None else function,
                evidence=id if measured_by is None else measured_by.name,
                **whole_parts,
            )
            _check_claim(where, made)
            REGISTRY[id] = made
            return made

        return register


def _domain(text: str) -> tuple[str, Hypothesis]:
    """A condition on one parameter, from words such as "dim >= 4"."""
    found = re.fullmatch(r"(\w+) (>=|>|<=|<) (-?[\d.]+)", text)
    if not found:
        raise InputError(f"domain {text!r}: a condition is written as 'name >= number'")
    name, compare, bound = found[1], COMPARISONS[found[2]], float(found[3])

    def holds(cell: Setting) -> bool:
        value = cell[name]
        return all(compare(v, bound) for v in (value if isinstance(value, tuple) else (value,)))

    return name, Hypothesis(text, holds, defining=True)


def _where(function: Callable[..., Any], map_name: str) -> str:
    file = Path(sys.modules[function.__module__].__file__ or "")
    line = function.__code__.co_firstlineno
    return f"{file.name}, line {line}: claim '{map_name}/{function.__name__.replace('_', '-')}'"


def _name_of(given: Any) -> str:
    """How a message calls a value: by its name, without an address in memory."""
    return repr(
        getattr(given, "__name__", None)
        or (given if isinstance(given, str) else type(given).__name__)
    )


def _scales(
    where: str,
    shared: Mapping[str, Any],
    quick: Setting | Mapping[str, Any] | None,
    paper: Mapping[str, Any] | None,
) -> dict[str, Setting]:
    """Both settings, from what is given and what differs."""
    base: Any = shared.get("quick")
    if base is not None:
        base = base.replace(**dict(quick or {}))
    elif isinstance(quick, Setting):
        base = quick
    elif quick is not None:
        raise InputError(f"{where}: quick is a {type(quick).__name__}: say quick=Setting(...)")
    else:
        raise InputError(f"{where} has no setting: say quick=Setting(...)")
    differs = {**dict(shared.get("paper") or {}), **dict(paper or {})}
    try:
        return {"quick": base, "paper": base.replace(**differs)}
    except InputError as error:
        raise InputError(f"{where}: paper= names what differs from quick: {error}") from error


def _check_parts(where: str, parts: Mapping[str, Any]) -> None:
    """The mistakes that are easily made in a claim file, each in one sentence."""
    unknown = [name for name in parts if name not in Claim.__dataclass_fields__]
    if unknown:
        close = near(unknown[0], Claim.__dataclass_fields__)
        raise InputError(f"{where}: there is no argument {unknown[0]!r}.{close}")
    for name in ("reference", "statement", "words"):
        if not (isinstance(parts[name], str) and parts[name].strip()):
            raise InputError(f"{where} has no {name}: say {name}='...'")
    kinds: tuple[tuple[str, type], ...] = (("rule", Rule), ("control", Control))
    for name, kind in kinds:
        given = parts[name]
        if not isinstance(given, kind):
            said = "missing" if given is None else _name_of(given)
            made = "an object such as Agreement()" if kind is Rule else "Control('words', change)"
            raise InputError(f"{where}: its {name} is {said}: it must be {made}")
    for name, kind in (("hypotheses", Hypothesis), ("requires", Need)):
        wrong = next((item for item in parts.get(name, ()) if not isinstance(item, kind)), None)
        if wrong is not None:
            raise InputError(
                f"{where}: {_name_of(wrong)} is among its {name}: write"
                f" {kind.__name__}('words', lambda s: ...)"
            )
    given_words = ("origin", parts.get("origin", "paper"), ORIGINS), ("kind", parts["kind"], KINDS)
    for name, given, allowed in given_words:
        if given not in allowed:
            raise InputError(
                f"{where}: {name} = {given!r}.{near(str(given), allowed)} It must be one of"
                f" {', '.join(allowed)}."
            )
    if not callable(parts.get("cells", whole)):
        raise InputError(
            f"{where}: cells = {parts['cells']!r}: say cells=together({parts['cells']!r}),"
            " product(...) or whole"
        )
    lists = [name for name, value in parts["quick"].items() if isinstance(value, tuple)]
    if lists and "cells" not in parts:
        raise InputError(
            f"{where}: {lists[0]} is a list: say cells=together({lists[0]!r}), or cells=whole if"
            " the measurement reads the list itself"
        )


def _check_claim(where: str, made: Claim) -> None:
    if made.id in REGISTRY:
        raise InputError(
            f"{where} exists already, in {REGISTRY[made.id].file}; choose another name"
        )
    unknown = {*(made.shape or ()), *([made.budget] if made.budget else [])} - set(made.quick)
    if unknown:
        raise InputError(
            f"{where}: {', '.join(sorted(unknown))} is no parameter of its setting."
            f"{near(min(unknown), made.quick)}"
        )
    for name, ends in made.ranges.items():
        numbers = not any(isinstance(end, str | bool) for end in ends)
        if name not in made.quick or len(ends) < 2 or (numbers and not ends[0] < ends[1]):
            raise InputError(
                f"{where}: the range {name} = {ends!r} must be of a parameter of its setting: two"
                " ends, the lower one first, or several words"
            )
    known = bibliography(made.file)
    if made.source not in known:
        raise InputError(
            f"{where}: no reference has the key {made.source!r}.{near(made.source, known)} Write"
            f" its BibTeX entry into {made.file.with_suffix('.bib').name} beside the file."
        )
    for formula in _formulas(where, made.statement):
        if formula.replace(r"\{", "").count("{") != formula.replace(r"\}", "").count("}"):
            raise InputError(f"{where}: the formula ${formula}$ has a brace that is not closed")


def _formulas(where: str, text: str) -> list[str]:
    parts = text.replace(r"\$", "").split("$")
    if len(parts) % 2 == 0:
        raise InputError(f"{where}: its statement has a $ that is not closed")
    return parts[1::2]
