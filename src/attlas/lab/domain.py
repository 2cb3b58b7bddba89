"""The domain of validity of a claim: where, over two of its parameters, the statement goes on to
hold, and where it breaks; inside its hypotheses and beyond them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attlas.claims import Claim, Setting, Value
from attlas.errors import InputError
from attlas.lab.cluster import parse_where
from attlas.lab.files import add_entries, fits, read_entries
from attlas.lab.records import PLAIN, Records
from attlas.lab.refute import Hunt, Search
from attlas.lab.regions import Range, Region
from attlas.lab.runner import fresh_seed
from attlas.lab.searched import search_digest
from attlas.lab.shipped import FOLDER
from attlas.lab.store import Store
from attlas.lab.workers import open_workers

SIDE = 13
"""Values of each parameter."""

REFINEMENTS = 3
"""How often the step at the boundary is halved."""

FILE = FOLDER / "domains.json"
"""Domains that come with the package."""

WORDS = ("confirmed", "refuted", "undecided", "not defined")
COLORS = ("#56B4E9", "#D55E00", "#F0E442", "#BBBBBB")

_TABLE = {
    "axes": (str, str),
    "seed": int,
    "code": str,
    "points": [{"word": str, "inside": bool, str: PLAIN | bool}],
    "edges": [{"axis": str, "at": PLAIN, "low": PLAIN, "high": PLAIN}],
}


@dataclass(frozen=True)
class Domain:
    """Words at the points of a grid over two parameters, and edges between confirmed and refuted.

    `points` has, by parameter, the values, the `word`, and whether the point is `inside` the
    hypotheses. An edge lies on the line on which the other parameter is `at`, between `low` and
    `high` of `axis`: one end is confirmed, the other refuted, what lies between is not known.
    """

    claim: Claim
    axes: tuple[str, str]
    seed: int
    points: pd.DataFrame
    edges: pd.DataFrame

    def counts(self) -> dict[str, int]:
        """How many points have each word."""
        return {word: int((self.points["word"] == word).sum()) for word in WORDS}

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "axes": list(self.axes),
            "seed": self.seed,
            "code": self.claim.code,
            "points": self.points.to_dict("records"),
            "edges": self.edges.to_dict("records"),
        }

    def keep(self, records: Records) -> None:
        """Keep it in a store, for the claim's page."""
        records.keep_table(_name(self.claim), self.to_dict())

    def figure(self) -> Any:
        """The diagram, an Altair chart."""
        import altair as alt

        from attlas.figure import HEIGHT, WIDTH, finish_chart

        x, y = self.axes
        scales = {name: _scale(self.points[name]) for name in self.axes}
        place = {
            "x": alt.X(f"{x}:Q", scale=scales[x], title=x),
            "y": alt.Y(f"{y}:Q", scale=scales[y], title=y),
        }
        colors = alt.Scale(domain=list(WORDS), range=list(COLORS))
        shapes = alt.Scale(domain=list(WORDS), range=["circle", "cross", "triangle-up", "square"])
        tooltip = [x, y, "word", "inside"]
        marks = (
            alt.Chart(self.points)
            .mark_point(filled=True, size=110, opacity=1)
            .encode(
                **place,
                color=alt.Color("word:N", scale=colors, title="verdict"),
                shape=alt.Shape("word:N", scale=shapes, title="verdict"),
                tooltip=tooltip,
            )
        )
        inside = self.points[self.points["inside"]]
        rings = (
            alt.Chart(inside)
            .mark_point(size=260, strokeWidth=1.2, color="#777777", shape="circle")
            .encode(**place)
        )
        layers = [rings, marks]
        for axis, other in ((x, y), (y, x)):
            some = self.edges[self.edges["axis"] == axis]
            if len(some):
                some = some.rename(columns={"at": other, "low": axis})
                far = {"x2": "high"} if axis == x else {"y2": "high"}
                bars = alt.Chart(some).mark_rule(strokeWidth=4, color="#777777")
                layers.append(bars.encode(**place, **far))
        chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
        note = "rings: inside the hypotheses; bars: the boundary lies within"
        return finish_chart(chart, "Domain of validity", note)


def _scale(values: pd.Series) -> Any:
    import altair as alt

    positive = values.min() > 0 and values.max() >= 10 * values.min()
    return alt.Scale(type="log" if positive else "linear", zero=False, padding=12, nice=False)


def _name(claim: Claim) -> str:
    return f"domain-{claim.map}-{claim.slug}"


def kept_domain(claim: Claim, records: Records, path: Path = FILE) -> Domain | None:
    """The domain of a claim that a store keeps, or else one of the package, if today's code made
    it."""
    found: Any = records.kept_table(_name(claim), _TABLE)
    if found is None or found["code"] != claim.code or not found["points"]:
        found = read_entries(path).get(claim.id)
        if not fits(found, _TABLE) or found["code"] != search_digest(claim):
            return None
    edges = pd.DataFrame(found["edges"], columns=["axis", "at", "low", "high"])
    axes = found["axes"][0], found["axes"][1]
    return Domain(claim, axes, found["seed"], pd.DataFrame(found["points"]), edges)


def ship_domain(domain: Domain, path: Path = FILE) -> None:
    """Write a domain beside those of other claims that come with the package."""
    code = search_digest(domain.claim)
    add_entries(path, {domain.claim.id: domain.to_dict() | {"code": code}})


def map_domain(
    claim: Claim,
    over: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    side: int = SIDE,
    store: Store | None = None,
    on: str = "local",
    progress: Callable[[Search], None] | None = None,
) -> Domain:
    """The verdicts on a claim over two parameters, beyond its hypotheses too.

    Other parameters are as in the claim's first cell. A refutation is repeated on a fresh seed with
    four times the budget, and is undecided if it does not come again; between confirmed and refuted
    neighbours the step is halved `REFINEMENTS` times.

    Arguments:
        over: ranges of two parameters, as in `find_violation`; by default the first two numbers.
        seed, store, on, progress: as there. `side`: values of each parameter.
    """
    opened = Store() if store is None else store
    region = Region(claim, over, beyond=True)
    numbers = [r for r in region.ranges if not r.words]
    if len(numbers) < 2 or (over and len(over) != 2):
        raise InputError(
            f"a domain of validity is over two parameters with numbers, and {claim.id} has"
            f" {', '.join(r.name for r in numbers) or 'none'}: say --over twice"
        )
    axes = (numbers[0], numbers[1])
    with open_workers(parse_where(on), claim, opened) as workers:
        hunt = Hunt(region, seed, opened, workers, 86_400.0, 2**31, progress)
        found = _Domains(hunt, axes, side).domain()
    found.keep(opened)
    return found


class _Domains:
    """A domain in the making."""

    def __init__(self, hunt: Hunt, axes: tuple[Range, Range], side: int) -> None:
        self.hunt, self.region, self.axes = hunt, hunt.region, axes
        shares = np.linspace(0, 1, side)
        self.values = [list(dict.fromkeys(r.value(u) for u in shares)) for r in axes]

    def at(self, x: Value, y: Value) -> Setting:
        return self.region.at({self.axes[0].name: x, self.axes[1].name: y})

    def words(self, places: Sequence[tuple[Value, Value]]) -> dict[tuple[Value, Value], str]:
        """The verdicts at places, refutations repeated."""
        settings = {place: self.at(*place) for place in places}
        known = {p: s for p, s in settings.items() if self.region.admits(s)}
        first = self._judged(list(known.values()), self.hunt.found.seed)
        doubted = [s for s in known.values() if first.get(s) == "refuted"]
        more = {self.hunt.more(s): s for s in doubted}
        judged = self._judged(list(more), fresh_seed(self.hunt.found.seed))
        again = {more[setting]: word for setting, word in judged.items()}
        words = {}
        for place, setting in settings.items():
            word = first.get(setting, "not defined")
            if word == "refuted" and again.get(setting) != "refuted":
                word = "undecided"
            words[place] = word
        self.hunt.report(self.hunt.found)
        return words

    def _judged(self, settings: list[Setting], seed: int) -> dict[Setting, str]:
        trials = self.hunt.measure(settings, seed)
        return {t.setting: t.verdict.word for t in trials if t.verdict is not None}

    def domain(self) -> Domain:
        x, y = (r.name for r in self.axes)
        words = self.words([(a, b) for a in self.values[0] for b in self.values[1]])
        rows = [
            {x: a, y: b, "word": word, "inside": self.region.status(self.at(a, b)) == "inside"}
            for (a, b), word in words.items()
        ]
        columns = ["axis", "at", "low", "high"]
        edges = pd.DataFrame(self._edges(words), columns=columns)
        claim, seed = self.region.claim, self.hunt.found.seed
        return Domain(claim, (x, y), seed, pd.DataFrame(rows), edges)

    def _edges(self, words: dict[tuple[Value, Value], str]) -> list[dict[str, Any]]:
        """Where neighbours are confirmed and refuted: narrower and narrower steps between them."""
        ends = {"confirmed", "refuted"}
        steps: list[dict[str, Any]] = []
        for axis in (0, 1):
            for at, (low, high) in itertools.product(
                self.values[1 - axis], itertools.pairwise(self.values[axis])
            ):
                pair = [words[(end, at) if axis == 0 else (at, end)] for end in (low, high)]
                if set(pair) == ends:
                    steps.append(
                        {"axis": axis, "at": at, "low": low, "high": high, "word": pair[0]}
                    )
        for _ in range(REFINEMENTS):
            middles = [self._between(s["axis"], s["low"], s["high"]) for s in steps]
            places = [
                (m, s["at"]) if s["axis"] == 0 else (s["at"], m)
                for s, m in zip(steps, middles, strict=True)
            ]
            found = self.words([p for p in dict.fromkeys(places) if p not in words])
            words = {**words, **found}
            for step, middle, place in zip(steps, middles, places, strict=True):
                if words[place] in ends:
                    step["low" if words[place] == step["word"] else "high"] = middle
        names = [r.name for r in self.axes]
        return [
            {"axis": names[s["axis"]], "at": s["at"], "low": s["low"], "high": s["high"]}
            for s in steps
        ]

    def _between(self, axis: int, low: Any, high: Any) -> Value:
        side = self.axes[axis]
        return side.value((side.share(low) + side.share(high)) / 2)
