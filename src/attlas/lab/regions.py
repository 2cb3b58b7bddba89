"""The settings of a claim among which a violation is looked for: a box, and what the claim says of
its points."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attlas.claims import Claim, Rate, Setting, Value
from attlas.errors import InputError, near
from attlas.lab.forecast import excess
from attlas.lab.measurement import claim_errors_named

WIDER, BEYOND = 4.0, 8.0
"""How far, as a factor, the default ranges reach beyond a claim's own values, and beyond its
hypotheses. Whole numbers reach as far up from the quick ones as down, and down only where a claim
trains, reads real data or enumerates, or beyond the hypotheses: larger counts take too long."""

ENUMERATED = {"hidden", "latents", "letters", "sparsity", "vocabulary"}
"""Parameters of claims that go through all words, latents or sets: with larger counts, of whatever,
there are so many that they fill the memory."""

MOST_EXCESS = 4.0
"""Default ranges leave out settings whose counts, as a product, are beyond the claim's own by
more: each may be four times as large, not all at once."""

DIGITS = 5
"""Of a searched number: settings are written down."""

PROTOCOL = {
    *("batch", "batch_size", "contexts", "draws", "effort", "end", "every", "generations"),
    *("members", "models", "points", "queries", "rate", "repeats", "rings", "runs", "samples"),
    *("sequences", "side", "starts", "steps", "step_size", "time", "trials", "trips", "validation"),
}
"""Parameters that say how something is measured or trained. They are searched where the claim's
cells run through them, where it declares a range, or where one is asked for."""


@dataclass(frozen=True)
class Range:
    """The values of one parameter that are searched: from `low` to `high`, or `words`.

    `swept` says that the claim's cells run through a list of them, of which a setting has one.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    words: tuple[Value, ...] = ()
    swept: bool = False
    own: tuple[Any, ...] = ()
    """Values of the claim's own: what rounds to one of them is that one."""

    @property
    def in_ratio(self) -> bool:
        """Whether equal ratios are equally far apart: of positive numbers that differ much."""
        return self.low > 0 and self.high >= 3 * self.low

    def value(self, share: float) -> Value:
        """The value at a share of the way, from 0 to 1."""
        share = min(max(share, 0.0), 1.0)
        if self.words:
            return self.words[min(int(share * len(self.words)), len(self.words) - 1)]
        if self.in_ratio:
            number = self.low ** (1 - share) * self.high**share
        else:
            number = (1 - share) * self.low + share * self.high
        if self.whole:
            return int(min(max(round(number), math.ceil(self.low)), math.floor(self.high)))
        short = rounded(number, DIGITS)
        exact: Any = next((own for own in self.own if rounded(own, DIGITS) == short), short)
        return min(max(float(exact), self.low), self.high)

    def share(self, value: Any) -> float:
        """The inverse of `value`; what is outside is at an end."""
        if self.words:
            place = self.words.index(value) if value in self.words else 0
            return (place + 0.5) / len(self.words)
        if self.high == self.low:
            return 0.0
        if self.in_ratio:
            start, here, end = map(math.log, (self.low, max(value, self.low), self.high))
            share = (here - start) / (end - start)
        else:
            share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return min(max(share, 0.0), 1.0)

    def __contains__(self, value: Any) -> bool:
        return value in self.words if self.words else bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        if self.words:
            return f"{self.name} = {', '.join(map(str, self.words))}"
        return f"{self.name} = {self.low:.6g} to {self.high:.6g}"


def rounded(number: float, digits: int) -> float:
    """A number in so many digits."""
    return float(f"{number:.{digits}g}")


class Region:
    """The settings of a claim that are searched: its base, and a box of ranges.

    Arguments:
        claim: which is searched.
        over: ranges by name, as texts `"low:high"` or `"word,word"`, in place of the default ones;
            if there are any, only these are searched.
        beyond: also outside the hypotheses, with wider ranges.
    """

    def __init__(
        self, claim: Claim, over: Mapping[str, str] | None = None, beyond: bool = False
    ) -> None:
        self.claim, self.beyond = claim, beyond
        self.slow = claim.kind in ("training", "real")
        self.down_only = self.slow or beyond or bool(ENUMERATED & set(claim.quick))
        own = claim.cells(claim.quick)
        lists = {n for n, value in claim.quick.items() if isinstance(value, tuple)}
        self.swept = {name for name in lists if not isinstance(own[0][name], tuple)}
        along_cells = isinstance(claim.rule, Rate) and claim.rule.along == "cell"
        apart = bool(lists & set(claim.ranges))
        self.together = along_cells or (bool(claim.read) and not apart)
        """Whether the rule compares cells with each other, so that their lists stay as they are. It
        does not where the claim declares a range of a list."""
        self.fixed = lists - self.swept | (self.swept if self.together else set())
        self.chosen = bool(over)
        if over:
            self.ranges = [self._asked(name, text) for name, text in over.items()]
        else:
            self.ranges = [found for name in claim.quick if (found := self._default(name))]
        if not self.ranges:
            raise InputError(
                f"{claim.id} has no parameter that could be searched: {self._why_none()}"
            )
        self.own = [claim.quick] if self.together else [self._single(cell) for cell in own]

    def _why_none(self) -> str:
        """What keeps each parameter as it is."""
        claim = self.claim
        reasons: dict[str, set[Any]] = {
            "compared with each other": self.fixed,
            "for precision": {claim.budget},
            "of the measurement": PROTOCOL - {claim.budget} - self.fixed,
        }
        told = [
            f"{', '.join(named)} ({why})"
            for why, names in reasons.items()
            if (named := [name for name in claim.quick if name in names])
        ]
        rest = [n for n in claim.quick if not any(n in names for names in reasons.values())]
        told += [f"{', '.join(rest)} (of one value)"] if rest else []
        return ", ".join(told) or "it has none"

    def _single(self, cell: Setting) -> Setting:
        """A setting whose one cell is `cell`."""
        return self.claim.quick.at(**{name: (cell[name],) for name in self.swept})

    def _values(self, name: str) -> list[Any]:
        """The claim's own values: of both scales, or of the quick one where larger ones take
        long."""
        scales = [self.claim.quick[name]]
        if not self.slow:
            scales.append(self.claim.paper[name])
        lists = (v if isinstance(v, tuple) else (v,) for v in scales)
        return list(dict.fromkeys(itertools.chain(*lists)))

    def _default(self, name: str) -> Range | None:
        """The range of a parameter: what the claim declares, or its own values and beyond them."""
        declared = self.claim.ranges.get(name)
        if declared is not None and name not in self.fixed:
            return self._range(name, declared)
        protocol = name in PROTOCOL and name not in self.swept
        if protocol or name == self.claim.budget or name in self.fixed:
            return None
        values = self._values(name)
        if isinstance(values[0], bool | str):
            return self._range(name, values) if len(values) > 1 else None
        wider = BEYOND if self.beyond else WIDER
        least, most = min(values), max(values)
        if isinstance(values[0], int):
            low = max(math.ceil(least / wider), min(least, 1))
            high = most if self.down_only else max(most, int(wider * self._most(name)))
        elif least >= 0:
            low, high = least / wider, most * wider
        else:
            reach = (most - least) * (wider - 1) / 2
            low, high = least - reach, most + reach
        return self._range(name, (low, high)) if low < high else None

    def _most(self, name: str) -> Any:
        """The largest value at quick scale."""
        value = self.claim.quick[name]
        return max(value) if isinstance(value, tuple) else value

    def _range(self, name: str, ends: Sequence[Any]) -> Range:
        value = self.claim.quick[name]
        like = value[0] if isinstance(value, tuple) else value
        if isinstance(like, bool | str):
            return Range(name, words=tuple(ends), swept=name in self.swept)
        low, high = map(float, ends)
        own = tuple(self._values(name))
        return Range(name, low, high, isinstance(like, int), (), name in self.swept, own)

    def _asked(self, name: str, text: str) -> Range:
        claim = self.claim
        if name not in claim.quick:
            raise InputError(
                f"unknown parameter {name!r}.{near(name, claim.quick)} There are:"
                f" {', '.join(claim.quick)}."
            )
        if name in self.fixed:
            raise InputError(
                f"{name} = {claim.quick[name]}: the statement compares the values of this list, so"
                f" that it cannot be searched"
            )
        if name == claim.budget:
            raise InputError(
                f"{name} is the budget of {claim.id}: it is raised where it gets close"
            )
        value = claim.quick[name]
        like = value[0] if isinstance(value, tuple) else value
        if isinstance(like, bool | str):
            words: Any = claim.quick.at(**{name: (like,)}).parse([f"{name}={text}"])[name]
            return self._range(name, words)
        low, colon, high = text.partition(":")
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = math.nan, math.nan
        if not (colon and all(map(math.isfinite, ends))):
            raise InputError(f"{name} = {text!r}: a range is given as low:high, two numbers")
        if isinstance(like, int):
            ends = math.ceil(ends[0]), math.floor(ends[1])
        if not ends[0] < ends[1]:
            raise InputError(f"{name} = {text!r}: the range is empty; low is below high")
        return self._range(name, ends)

    def setting(self, point: Iterable[float]) -> Setting:
        """The setting at a point of the unit box."""
        return self.at({r.name: r.value(u) for r, u in zip(self.ranges, point, strict=True)})

    def at(self, values: Mapping[str, Value]) -> Setting:
        """The setting with these values of searched parameters; others as in the first cell."""
        listed = {name: (v,) if name in self.swept else v for name, v in values.items()}
        return self.own[0].at(**listed)

    def values(self, setting: Setting) -> dict[str, Value]:
        """The searched parameters of a setting."""
        found = {r.name: setting[r.name] for r in self.ranges}
        return {n: v[0] if isinstance(v, tuple) else v for n, v in found.items()}

    def point(self, setting: Setting) -> list[float]:
        """The inverse of `setting`."""
        return [r.share(v) for r, v in zip(self.ranges, self.values(setting).values(), strict=True)]

    def status(self, setting: Setting) -> str:
        """Whether the claim speaks of a setting: `inside`, `outside` or `not defined`."""
        with claim_errors_named(self.claim, "its hypotheses"):
            try:
                return "outside" if self.claim.broken(self.claim.cells(setting)) else "inside"
            except InputError:
                return "not defined"

    def admits(self, setting: Setting) -> bool:
        """Whether a setting is searched."""
        limited = not (self.chosen or self.beyond)
        if limited and excess(self.claim, setting) > MOST_EXCESS:
            return False
        status = self.status(setting)
        return status == "inside" or (self.beyond and status == "outside")

    def size(self, setting: Setting) -> float:
        """By how much the searched counts of a setting are beyond the quick ones, as a product."""
        found: Mapping[str, Any] = self.values(setting)
        counts = [r.name for r in self.ranges if r.whole]
        return math.prod(max(1.0, found[n] / max(1, self._most(n))) for n in counts)

    def box(self) -> dict[str, list[Value]]:
        """The ranges as plain data: two ends, or words, by name."""
        return {r.name: list(r.words) or [r.low, r.high] for r in self.ranges}

    def searches(self, setting: Setting) -> bool:
        """Whether a setting is in the box, and admitted."""
        values = self.values(setting)
        return all(values[r.name] in r for r in self.ranges) and self.admits(setting)


def values_said(values: Mapping[str, Value]) -> str:
    """Parameters and their values, as a sentence has them."""
    return ", ".join(
        f"{n} = {v:.6g}" if isinstance(v, float) else f"{n} = {v}" for n, v in values.items()
    )
