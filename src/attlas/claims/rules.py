"""How evidence becomes a verdict: seven rules, each fixed before the data and each with a stated
level.

A rule reads fixed variables of the evidence, an `xarray.Dataset`. Comparisons are simultaneous:
with N of them each is made at `level / N` (Bonferroni), so that a true statement is refuted with
probability at most `level` whatever N is. Between what confirms and what refutes lies `undecided`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import xarray as xr
from scipy import special

from attlas.claims.strength import (
    POWER,
    SEEN,
    counted,
    described,
    relative_deviation,
    student_reach,
    which,
)
from attlas.claims.verdict import Verdict, Word
from attlas.errors import InputError
from attlas.statistics import binomial_limits, log_slope, student_quantile

LEVEL = 1e-4
EDGE = 1 + 1e-9
"""What a margin may be exceeded by before it counts: exact values that touch it are not beyond
it."""


class Rule(ABC):
    """A decision about a Dataset. Subclasses are frozen dataclasses that name what they read.

    A sampled value comes with its standard error, taken as known: it should rest on a thousand
    samples or more. Where it rests on few, the evidence says on how many, in a variable
    `repetitions`, and Student's quantiles take the place of the normal ones.
    """

    reads: ClassVar[tuple[str, ...]]
    seen: ClassVar[str]
    """What would not have passed, with `{}` for the verdict's `deviation`."""
    counts: ClassVar[str] = "comparison"
    """What the verdict's `points` are."""
    continuous: ClassVar[bool] = True
    """Whether what lies between two values of what it reads has a meaning."""
    level: float  # chance of refuting what is true, at most

    def __post_init__(self) -> None:
        for name, most in (("level", 1.0), ("share", 1.0), ("margin", np.inf), ("rounding", 1.0)):
            value = getattr(self, name, 0.5)
            if not (0 <= value <= most and np.isfinite(value)):
                raise InputError(
                    f"{name} = {value!r}: {type(self).__name__} takes a number from 0 to {most:g}"
                )

    def variables(self, evidence: xr.Dataset) -> tuple[str, ...]:
        """The names of what it reads of this evidence."""
        return self.reads

    def judge(self, evidence: xr.Dataset) -> Verdict:
        """The verdict on `evidence`, which is undecided where it is empty or not finite."""
        evidence = self._prepared(evidence)
        reads = self.variables(evidence)
        missing = [name for name in reads if name not in evidence]
        if missing:
            raise InputError(
                f"the evidence lacks {', '.join(missing)}: {type(self).__name__} reads"
                f" {', '.join(reads)}, and there is"
                f" {', '.join(map(str, evidence.data_vars)) or 'nothing'}"
            )
        values = [evidence[name] for name in reads]
        for name, value in zip(reads, values, strict=True):
            if value.dtype.kind not in "buif":
                raise InputError(
                    f"the evidence's {name} has the type {value.dtype}: it must be real numbers"
                )
        values = [value.astype(float) for value in values]
        if not all(v.size for v in values):
            return Verdict("undecided", "Nothing was measured.")
        broken = sum(int((~np.isfinite(v.values)).sum()) for v in values)
        if broken:
            are = "is" if broken == 1 else "are"
            return Verdict(
                "undecided", f"{counted(broken, 'value')} of the evidence {are} not finite."
            )
        if "error" in reads and (evidence["error"].values < 0).any():
            raise InputError(
                "the evidence has a negative error: a standard error is 0 (exact) or positive"
            )
        found = self._judge(*values, count=_repetitions(evidence))
        return replace(found, strength=described(found, self.seen, self.counts))

    def expected(self, evidence: xr.Dataset) -> xr.Dataset:
        """The evidence without the noise of its sample, where the rule has a prediction."""
        if "predicted" not in self.reads:
            return evidence
        sampled = evidence["error"] > 0
        return evidence.assign(measured=evidence["predicted"].where(sampled, evidence["measured"]))

    def refutes_between(self, evidence: xr.Dataset, variant: xr.Dataset, share: float) -> bool:
        """Whether it refutes what lies a share of the way from the evidence to a false variant."""
        evidence, variant = self._prepared(evidence), self._prepared(variant)
        names = self.variables(variant)
        mixed = [self._between(evidence[name], variant[name], share) for name in names]
        return self._judge(*mixed, count=_repetitions(variant)).word == "refuted"

    def _prepared(self, evidence: xr.Dataset) -> xr.Dataset:
        return evidence

    def _between(self, a: xr.DataArray, b: xr.DataArray, share: float) -> xr.DataArray:
        return a + share * (b - a)

    @abstractmethod
    def _judge(self, *values: xr.DataArray, count: float) -> Verdict: ...

    @abstractmethod
    def __str__(self) -> str:
        """The rule in a sentence, as a page shows it."""


def _repetitions(evidence: xr.Dataset) -> float:
    """The fewest repetitions behind an error, where the evidence says so."""
    if "repetitions" not in evidence:
        return math.inf
    count = float(evidence["repetitions"].min())
    if not count >= 2:
        raise InputError(
            f"the evidence has {count:g} repetitions: an error rests on two repetitions or more"
        )
    return count


def _flat(*values: xr.DataArray) -> list[np.ndarray]:
    alike = all(
        v.dims == values[0].dims for v in values
    )  # mostly; asking xarray takes milliseconds
    return [v.values.ravel() for v in (values if alike else xr.broadcast(*values))]


def _with_error(value: float, error: float) -> str:
    return f"{value:.5g} ± {error:.2g}" if error > 0 else f"{value:.6g}"


def _decide(
    distance: np.ndarray, half: np.ndarray, limit: float, strict: bool = False
) -> tuple[Word, int]:
    """Whether every distance is within the limit, by intervals distance ± half.

    Returns:
        the word, and the index of the comparison that decided: the one whose interval reaches
        furthest, or, where one lies beyond the limit whole, the one that lies furthest beyond.
    """
    if (distance - half > limit).any():
        return "refuted", int(np.argmax(distance - half))
    furthest = distance + half
    within = furthest < limit if strict else furthest <= limit
    return ("confirmed" if within.all() else "undecided"), int(np.argmax(furthest))


@dataclass(frozen=True)
class Agreement(Rule):
    """Prediction and measurement are equal: to rounding where exact, to sampling error where
    not."""

    rounding: float = 1e-12  # what floating point may be off, relatively
    level: float = LEVEL  # chance of refuting what is true, at most
    reads: ClassVar = ("predicted", "measured", "error")
    seen: ClassVar = SEEN % " of the prediction"

    def __str__(self) -> str:
        return (
            f"Agreement: every difference is within its sampling error at joint level"
            f" {self.level:g}; where both sides are exact, within {self.rounding:g} of"
            " max(1, |predicted|)."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        predicted, measured, error = _flat(*values)
        n = predicted.size
        z = student_quantile(self.level, n, count=count)
        # Rounding is relative: of exact values to max(1, |predicted|), of sampled ones to
        # themselves.
        scale = np.where(error > 0, abs(predicted), np.maximum(1, abs(predicted)))
        difference = abs(measured - predicted)
        exact = not error.any()
        # One unit of allowed deviation per z: the standard error plus a z-th of the rounding.
        unit = error + self.rounding * scale / z
        with np.errstate(divide="ignore", invalid="ignore"):
            units = np.where(difference > 0, difference / unit, 0.0)
        worst = int(np.argmax(units))
        statistic = float(difference[worst] / scale[worst] if exact else units[worst])
        threshold = self.rounding if exact else z
        shift = self.rounding * scale + student_reach(z, count) * error
        detectable = f"{self.rounding:g} of max(1, |predicted|): rounding"
        if not exact:
            relative = predicted.all()
            shown = shift / abs(predicted) if relative else shift
            detectable = f"{shown.min():.2g}{' of the predicted value' if relative else ''}"
            if n > 1:
                detectable += (
                    f" at the most precise of {n:,} comparisons, {shown.max():.2g} at the least"
                )
        what = "the relative difference" if exact else "the difference in standard errors"
        start = f"The largest of {n:,}: {what}" if n > 1 else what.capitalize()
        return Verdict(
            "confirmed" if statistic <= threshold else "refuted",
            f"{start} is {statistic:.3g}, and {threshold:.3g} is allowed.",
            statistic,
            threshold,
            f"{predicted[worst]:.6g}",
            _with_error(measured[worst], error[worst]),
            detectable,
            **relative_deviation(shift, predicted),
            points=n,
            exact=bool(error[worst] == 0),
        )


@dataclass(frozen=True)
class Approximation(Rule):
    """The measurement lies within a margin of the prediction; the margin is part of the
    statement."""

    margin: float  # how far it may be off
    relative: bool = True  # whether the margin is a share of the prediction
    level: float = LEVEL  # chance of refuting what is true, at most
    reads: ClassVar = ("predicted", "measured", "error")
    seen: ClassVar = SEEN % " of the prediction"

    def __str__(self) -> str:
        of = "of the prediction" if self.relative else "in absolute terms"
        return (
            f"Approximation: the interval of every difference (joint level {self.level:g}) lies"
            f" within {self.margin:g} {of}."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        predicted, measured, error = _flat(*values)
        z = student_quantile(self.level, predicted.size, count=count)
        scale = abs(predicted) if self.relative else np.ones_like(predicted)
        if not scale.all():
            return Verdict("undecided", "A prediction is 0, and the margin is relative to it.")
        off, half = abs(measured - predicted) / scale, z * error / scale
        word, worst = _decide(off, half, EDGE * self.margin)
        reach = self.margin + student_reach(z, count) * (error / scale)
        # Beside a margin in absolute terms the size of the prediction means nothing.
        absolute = {"deviation": float(np.median(reach)), "strength": SEEN % ""}
        return Verdict(
            word,
            f"{which('worst', 'comparison', off.size)} is off by {off[worst]:.3g} (interval ±"
            f" {half[worst]:.2g}); the margin is {self.margin:g}.",
            float(off[worst]),
            self.margin,
            f"{predicted[worst]:.6g}",
            _with_error(measured[worst], error[worst]),
            f"a deviation of {reach.min():.2g} {'of the prediction' * self.relative}".strip(),
            **(relative_deviation(reach * scale, predicted) if self.relative else absolute),
            points=off.size,
            exact=bool(error[worst] == 0),
        )


@dataclass(frozen=True)
class Bound(Rule):
    """The measurement, sought where it is largest, stays below the bound."""

    rounding: float = 1e-12  # what floating point may be off, relatively
    level: float = LEVEL  # chance of refuting what is true, at most
    reads: ClassVar = ("bound", "measured", "error")
    seen: ClassVar = "a bound smaller by {} of it would have been broken"

    def __str__(self) -> str:
        return (
            f"Bound: the upper limit of every measurement (joint level {self.level:g}) stays below"
            f" the bound, to rounding ({self.rounding:g} of it)."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        bound, measured, error = _flat(*values)
        z = student_quantile(self.level, bound.size, sides=1, count=count)
        slack = self.rounding * abs(bound)
        word, shown = _decide(measured - bound - slack, z * error, 0)
        # How near the bound is, in its own size: 1 where it is attained.
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = 1 + (measured - bound) / abs(bound)
            reach = (slack + student_reach(z, count) * error) / abs(bound)
        reached = np.where(bound != 0, reached, np.where(measured > 0, np.inf, 1.0))
        deviation = min([1.0, *(1 - reached + reach)[bound != 0].tolist()])
        if word == "confirmed":
            shown = int(np.argmax(reached))
        return Verdict(
            word,
            f"The measured value {_against(reached[shown])}"
            f"{' at its tightest' if word == 'confirmed' else ''}, in"
            f" {counted(bound.size, 'comparison')}.",
            float(reached[shown]),
            1.0,
            f"≤ {bound[shown]:.6g}",
            _with_error(measured[shown], error[shown]),
            f"an excess of {np.nanmin(reach):.2g} of the bound"
            if bound.all()
            else "any excess over a bound of 0",
            deviation,
            bound.size,
            "" if deviation < 1 else "no smaller bound would have been broken",
            exact=bool(error[shown] == 0),
        )


def _against(reached: float) -> str:
    """A measurement beside its bound, of which it reaches a share or more than all."""
    if reached < 0:
        return "is of the other sign than the bound"
    shown = f"{reached:.5g}"
    return f"is {shown} times the bound" if float(shown) > 1 else f"reaches {shown} of the bound"


@dataclass(frozen=True)
class Rate(Rule):
    """The measurement scales as predicted: slope of log measured against log x along an axis.

    The evidence has an `exponent`, or the finite-size prediction itself in `predicted`; then the
    slope of log(measured / predicted), which has no curvature to average over, is compared with 0.
    Errors count as independent along the axis; where sizes share random numbers and have like
    relative errors the true one is smaller.
    """

    margin: float  # of the exponent
    along: str = "cell"  # the axis of sizes
    level: float = LEVEL  # chance of refuting what is true, at most
    reads: ClassVar = ("x", "measured", "error", "predicted")
    seen: ClassVar = "an exponent off by {} would have been seen"
    counts: ClassVar = "size"

    def __str__(self) -> str:
        return (
            f"Rate: the interval of the exponent (joint level {self.level:g}) lies within"
            f" {self.margin:g} of the predicted one."
        )

    def variables(self, evidence: xr.Dataset) -> tuple[str, ...]:
        return (*self.reads[:3], "exponent") if "exponent" in evidence else self.reads

    def _prepared(self, evidence: xr.Dataset) -> xr.Dataset:
        """With one exponent, not one for each size."""
        if "exponent" in evidence and self.along in evidence["exponent"].dims:
            first = evidence["exponent"].isel({self.along: 0})
            if not (evidence["exponent"] == first).all():
                raise InputError(
                    f"the evidence's exponent varies along {self.along!r}: a rate has one exponent"
                )
            return evidence.assign(exponent=first)
        return evidence

    def expected(self, evidence: xr.Dataset) -> xr.Dataset:
        """Turned about its middle, so that the exponent is the predicted one."""
        x, y, error = (evidence[name] for name in self.reads[:3])
        if not ((x > 0).all() and (y > 0).all() and (error > 0).any()):
            return evidence
        exponent = self._prepared(evidence)[self.variables(evidence)[3]]
        if self.along in exponent.dims:
            exponent = self._slope(x, exponent)
        turned = np.exp(self._logs(x) * (exponent - self._slope(x, y)))
        return evidence.assign(measured=y * turned, error=error * turned)

    def _logs(self, x: xr.DataArray) -> xr.DataArray:
        logs = x.copy(data=np.log(x.values))
        return logs - logs.mean(self.along)

    def _slope(self, x: xr.DataArray, y: xr.DataArray) -> xr.DataArray:
        logs = self._logs(x)
        return (logs * np.log(y)).sum(self.along) / (logs**2).sum(self.along)

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        finite_size = self.along in values[3].dims
        if self.along not in values[1].dims or values[1].sizes[self.along] < 2:
            return Verdict("undecided", "A rate needs at least two sizes.")
        x, y, error, predicted = (
            v.transpose(self.along, ...).values.reshape(v.sizes[self.along], -1)
            for v in xr.broadcast(*values)
        )
        z = student_quantile(self.level, x.shape[1], count=count)
        if (y <= 0).any() or (x <= 0).any() or (finite_size and (predicted <= 0).any()):
            return Verdict("undecided", "A value is not positive, so it has no logarithm.")
        if (z * error > y / 10).any():  # beyond this the logarithm is skewed enough to cost level
            return Verdict(
                "undecided",
                "A value is too noisy for its logarithm: its interval exceeds a tenth of it.",
            )
        if (np.ptp(x, axis=0) == 0).any():
            return Verdict("undecided", "A rate needs at least two different sizes.")
        slope, se = log_slope(x, y, error)
        expected = log_slope(x, predicted, 0 * error)[0] if finite_size else predicted[0]
        off, half = abs(slope - expected), z * se
        word, worst = _decide(off, half, EDGE * self.margin)
        reach = self.margin + student_reach(z, count) * se
        return Verdict(
            word,
            f"The exponent is {slope[worst]:.4g} (interval ± {half[worst]:.2g}) and"
            f" {expected[worst]:.4g} is predicted; the margin is {self.margin:g}.",
            float(off[worst]),
            self.margin,
            f"exponent {expected[worst]:.4g}",
            f"exponent {slope[worst]:.4g}" + (f" ± {se[worst]:.2g}" if se[worst] else ""),
            f"an exponent off by {reach.min():.2g}",
            float(reach.max()),
            int(min(len(np.unique(column)) for column in x.T)),
            exact=bool(se[worst] == 0),
        )


@dataclass(frozen=True)
class Convergence(Rule):
    """More than a share of the runs arrive. The share is part of the statement."""

    share: float  # of runs, from 0 to 1
    level: float = LEVEL  # chance of refuting what is true, at most
    reads: ClassVar = ("arrived",)
    seen: ClassVar = "a share of runs that is {} lower than claimed would have been seen"
    counts: ClassVar = "run"  # of each cell
    continuous: ClassVar = False

    def __str__(self) -> str:
        return (
            f"Convergence: the binomial interval (joint level {self.level:g}) of the share of runs"
            f" that arrive lies above {self.share:g}."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        (arrived,) = values
        if "repeat" not in arrived.dims:
            raise InputError(
                f"the evidence's 'arrived' has axes {arrived.dims}: Convergence counts along"
                " 'repeat'"
            )
        if not np.isin(arrived.values, (0, 1)).all():
            raise InputError(
                "the evidence's 'arrived' has values other than 0 and 1: a run arrives or does not"
            )
        n = arrived.sizes["repeat"]
        arrivals = arrived.sum("repeat")
        k = arrivals.values.ravel()
        lower, upper = binomial_limits(k, n, self.level / k.size)
        worst = int(np.argmin(k))
        word: Word = "undecided"
        if (lower > self.share).all():
            word = "confirmed"
        elif (upper < self.share).any():
            word = "refuted"
        # The largest true share that this many runs would tell from the claimed one.
        counts = np.arange(n + 1)
        telling = counts[binomial_limits(counts, n, self.level / k.size)[1] < self.share]
        detectable, share = "none: too few runs to refute anything", float("nan")
        if telling.size:
            share = float(special.betaincinv(telling[-1] + 1, n - telling[-1], 1 - POWER))
            detectable = f"a share of {share:.2g} or less"
        return Verdict(
            word,
            f"{int(k[worst])} of {n} runs arrived{_name_worst(arrivals)}: a share between"
            f" {lower[worst]:.4g} and {upper[worst]:.4g}; {self.share:g} is claimed.",
            float(k[worst] / n),
            self.share,
            f"> {self.share:g} of runs",
            f"{int(k[worst])} of {n}",
            detectable,
            self.share - share,
            n,
        )


def _name_worst(arrivals: xr.DataArray) -> str:
    """Which of several cells has the fewest, by what differs between them."""
    if arrivals.size == 1:
        return ""
    cell = arrivals[arrivals.argmin(...)]
    differ = [
        name
        for name, values in arrivals.coords.items()
        if len(set(values.values.ravel().tolist())) > 1
    ]
    parameters = ", ".join(f"{name} = {cell[name].item()}" for name in differ)
    return f" in the worst of {arrivals.size} cells{f' ({parameters})' if parameters else ''}"


@dataclass(frozen=True)
class Order(Rule):
    """One quantity is below the other. `error` is that of the difference, paired where possible."""

    rounding: float = 1e-12  # what floating point may be off, relatively
    level: float = LEVEL  # chance of refuting what is true, at most
    reads: ClassVar = ("lower", "upper", "error")
    seen: ClassVar = "a gap of {} of the measured one would have been told from 0"

    def __str__(self) -> str:
        return f"Order: the interval of every difference (joint level {self.level:g}) lies above 0."

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        lower, upper, error = _flat(*values)
        z = student_quantile(self.level, lower.size, count=count)
        gap = upper - lower
        half = z * error + self.rounding * np.maximum(abs(lower), abs(upper))
        word, worst = _decide(-gap, half, 0, strict=True)
        reach = student_reach(z, count) * error
        told = half - z * error + reach
        return Verdict(
            word,
            f"{which('narrowest', 'difference', gap.size)} is {gap[worst]:.4g} (interval ±"
            f" {half[worst]:.2g}).",
            float(gap[worst]),
            0.0,
            " < ".join(_distinct(lower[worst], upper[worst])),
            f"difference {_with_error(gap[worst], error[worst])}",
            f"an inversion by {reach.min():.2g}" if error.all() else "any inversion",
            float((told / gap).max()) if (gap > 0).all() else float("nan"),
            gap.size,
            exact=bool(error[worst] == 0),
        )


def _distinct(*values: float) -> list[str]:
    """Numbers in as few digits, from five on, as tell them apart."""
    for digits in range(5, 17):
        shown = [f"{value:.{digits}g}" for value in values]
        if len(set(shown)) == len(set(values)):
            break
    return shown


@dataclass(frozen=True)
class SameLaw(Rule):
    """Two samples come from one law: Kolmogorov-Smirnov tests along `draw`, one for each
    statistic."""

    level: float = LEVEL  # chance of refuting what is true, at most
    along: str = "draw"  # the axis of samples
    reads: ClassVar = ("sample_a", "sample_b")
    seen: ClassVar = "two distribution functions {} apart would have been told apart"

    def __str__(self) -> str:
        return (
            "SameLaw: no Kolmogorov-Smirnov test between the two samples rejects at joint level"
            f" {self.level:g}."
        )

    def _between(self, a: xr.DataArray, b: xr.DataArray, share: float) -> xr.DataArray:
        """The law between two: between their quantiles, since draws are in no order."""
        a, b = (v.copy(data=np.sort(v.values, axis=v.get_axis_num(self.along))) for v in (a, b))
        return super()._between(a, b, share)

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        if any(self.along not in v.dims for v in values):
            raise InputError(
                f"the samples have axes {values[0].dims}: SameLaw compares along '{self.along}'"
            )
        # Pair by name; the draws of the two samples have nothing to do with each other.
        pairs = xr.broadcast(
            values[0], values[1].rename({self.along: "other"}), exclude=(self.along, "other")
        )
        axes = zip(pairs, (self.along, "other"), strict=True)
        a, b = (v.transpose(..., draws).values.reshape(-1, v.sizes[draws]) for v, draws in axes)
        threshold = self.level / len(a)
        distance = max(_distance(*pair) for pair in zip(a, b, strict=True))
        sizes = a.shape[1] * b.shape[1] / (a.shape[1] + b.shape[1])
        # Of the limit law: below a tenth it is larger than that of finitely many draws,
        # never smaller.
        p = float(special.kolmogorov(np.sqrt(sizes) * distance))
        critical = special.kolmogi(threshold) / np.sqrt(sizes)
        reach = min(1.0, critical + special.ndtri(POWER) / 2 / np.sqrt(sizes))
        return Verdict(
            "confirmed" if p >= threshold else "refuted",
            f"{which('smallest', 'p-value', len(a))} is {p:.2g}, at a distance of"
            f" {distance:.3g}; below {threshold:.2g} rejects.",
            p,
            threshold,
            f"distance < {min(1.0, critical):.3g}",
            f"distance {distance:.3g}",
            f"two distribution functions about {reach:.2g} apart",
            float(reach),
            len(a),
        )


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest distance between the distribution functions of two samples."""
    a, b, at = np.sort(a), np.sort(b), np.concatenate([a, b])
    gaps = np.searchsorted(a, at, "right") / len(a) - np.searchsorted(b, at, "right") / len(b)
    return float(abs(gaps).max())
