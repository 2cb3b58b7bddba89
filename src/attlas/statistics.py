"""How evidence becomes a verdict: seven rules, each fixed before the data and each with a stated level.

A rule reads fixed variables of the evidence, an `xarray.Dataset`. Comparisons are simultaneous: with N of them each is
made at `level / N` (Bonferroni), so that a true statement is refuted with probability at most `level` whatever N is.
Between what confirms and what refutes lies `undecided`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from scipy import special

from attlas.errors import InputError

Word = Literal["confirmed", "refuted", "undecided", "outside"]

LEVEL = 1e-4
POWER = 0.95
"""The probability with which a deviation of the size called `detectable` is refuted."""


@dataclass(frozen=True)
class Verdict:
    """A word, the number that decided it, the number it was held against, and why, in a sentence.

    `predicted` and `measured` show the comparison that decided; `detectable` is the smallest deviation that this
    budget would have refuted with probability `POWER`. `exact` says that no sampling error entered the comparison: a
    refutation is then a counterexample, which no repetition takes back.
    """

    word: Word
    reason: str
    statistic: float = float("nan")
    threshold: float = float("nan")
    predicted: str = ""
    measured: str = ""
    detectable: str = ""
    exact: bool = False

    def __str__(self) -> str:
        return self.word

    def to_dict(self) -> dict[str, Any]:
        """As plain data; a number that is not finite becomes None, which JSON can hold."""
        return {
            k: None if isinstance(v, float) and not np.isfinite(v) else v
            for k, v in asdict(self).items()
        }


def normal_quantile(level: float, comparisons: int = 1, sides: int = 2) -> float:
    """The z beyond which a standard normal falls with probability `level` in any of `comparisons` draws (Bonferroni)."""
    return float(-special.ndtri(level / (sides * comparisons)))


def student_quantile(
    level: float, comparisons: int = 1, sides: int = 2, count: float = math.inf
) -> float:
    """The same for a mean of `count` normal values in units of the standard error that they give: Student's, for few of them."""
    if math.isinf(count):
        return normal_quantile(level, comparisons, sides)
    return float(-special.stdtrit(count - 1, level / (sides * comparisons)))


def binomial_limits(successes: Any, trials: Any, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Clopper-Pearson limits of a probability; each is wrong with probability at most `level`."""
    k, n = np.asarray(successes, float), np.asarray(trials, float)
    with np.errstate(invalid="ignore"):
        lower = np.where(k > 0, special.betaincinv(k, n - k + 1, level), 0.0)
        upper = np.where(k < n, special.betaincinv(k + 1, n - k, 1 - level), 1.0)
    return lower, upper


def log_slope(x: np.ndarray, y: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares slope of log y against log x along the first axis, and its standard error from those of y."""
    lx = np.log(x)
    weights = (lx - lx.mean(0)) / ((lx - lx.mean(0)) ** 2).sum(0)
    return (weights * np.log(y)).sum(0), np.sqrt(((weights * error / y) ** 2).sum(0))


class Rule(ABC):
    """A decision about a Dataset. Subclasses are frozen dataclasses that name what they read.

    A sampled value comes with its standard error, taken as known: it should rest on a thousand samples or more. Where it rests
    on few, the evidence says on how many, in a variable `repetitions`, and Student's quantiles take the place of the normal ones.
    """

    reads: ClassVar[tuple[str, ...]]
    level: float

    def __post_init__(self) -> None:
        for name, most in (("level", 1.0), ("share", 1.0), ("margin", np.inf), ("rounding", 1.0)):
            value = getattr(self, name, 0.5)
            if not (0 <= value <= most and np.isfinite(value)):
                raise InputError(
                    f"{name} = {value!r}: {type(self).__name__} takes a number from 0 to {most:g}"
                )

    def judge(self, evidence: xr.Dataset) -> Verdict:
        """The verdict on `evidence`. Evidence that is empty or not finite is undecided, never confirmed."""
        missing = [name for name in self.reads if name not in evidence]
        if missing:
            raise InputError(
                f"the evidence lacks {', '.join(missing)}: {type(self).__name__} reads {', '.join(self.reads)}, "
                f"and there is {', '.join(map(str, evidence.data_vars)) or 'nothing'}"
            )
        values = [evidence[name] for name in self.reads]
        for name, value in zip(self.reads, values, strict=True):
            if value.dtype.kind not in "buif":
                raise InputError(
                    f"the evidence's {name} has the type {value.dtype}: it must be real numbers"
                )
        values = [value.astype(float) for value in values]
        if not all(v.size for v in values):
            return Verdict("undecided", "Nothing was measured.")
        broken = sum(int((~np.isfinite(v.values)).sum()) for v in values)
        if broken:
            return Verdict(
                "undecided", f"{_count(broken, 'value')} of the evidence {_are(broken)} not finite."
            )
        if "error" in self.reads and (evidence["error"].values < 0).any():
            raise InputError(
                "the evidence has a negative error: a standard error is 0 (exact) or positive"
            )
        return self._judge(*values, count=self._count(evidence))

    def _count(self, evidence: xr.Dataset) -> float:
        """The fewest repetitions behind an error, where the evidence says so."""
        if "repetitions" not in evidence:
            return math.inf
        count = float(evidence["repetitions"].min())
        if not count >= 2:
            raise InputError(
                f"the evidence has {count:g} repetitions: an error rests on two repetitions or more"
            )
        return count

    @abstractmethod
    def _judge(self, *values: xr.DataArray, count: float) -> Verdict: ...

    @abstractmethod
    def __str__(self) -> str:
        """The rule in a sentence, as a page shows it."""


EDGE = 1 + 1e-9
"""What a margin may be exceeded by before it counts: exact values that touch it are not beyond it."""


def _flat(*values: xr.DataArray) -> list[np.ndarray]:
    alike = all(
        v.dims == values[0].dims for v in values
    )  # as mostly; to ask xarray takes milliseconds
    return [v.values.ravel() for v in (values if alike else xr.broadcast(*values))]


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _with_error(value: float, error: float) -> str:
    return f"{value:.5g} ± {error:.2g}" if error > 0 else f"{value:.6g}"


@dataclass(frozen=True)
class Agreement(Rule):
    """Prediction and measurement are equal: to rounding where both are exact, to sampling error where one is not."""

    rounding: float = 1e-12
    level: float = LEVEL
    reads: ClassVar = ("predicted", "measured", "error")

    def __str__(self) -> str:
        return (
            f"Agreement: every difference is within its sampling error at joint level {self.level:g}; where both sides "
            f"are exact, within {self.rounding:g} of max(1, |predicted|)."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        predicted, measured, error = _flat(*values)
        n = predicted.size
        z = student_quantile(self.level, n, count=count)
        # What rounding may do, exact values to an absolute scale and sampled ones to their own.
        scale = np.where(error > 0, abs(predicted), np.maximum(1, abs(predicted)))
        difference = abs(measured - predicted)
        exact = not error.any()
        # One unit of allowed deviation per z: the standard error, plus the rounding shared out over z.
        unit = error + self.rounding * scale / z
        with np.errstate(divide="ignore", invalid="ignore"):
            units = np.where(difference > 0, difference / unit, 0.0)
        worst = int(np.argmax(units))
        statistic = float(difference[worst] / scale[worst] if exact else units[worst])
        threshold = self.rounding if exact else z
        if exact:
            detectable = f"{self.rounding:g} of max(1, |predicted|): rounding"
        else:
            shift = z * unit + special.ndtri(POWER) * error
            relative = predicted.all()
            shift = shift / abs(predicted) if relative else shift
            detectable = (
                f"{shift.min():.2g}{' of the predicted value' if relative else ''} at the most precise of "
                f"{_count(n, 'comparison')}, {shift.max():.2g} at the least"
            )
        agrees = statistic <= threshold
        what = "the relative difference" if exact else "the difference in standard errors"
        reason = (
            f"The largest of {n:,}: {what} is {statistic:.3g}, and {threshold:.3g} is allowed."
            if n > 1
            else f"{what.capitalize()} is {statistic:.3g}, and {threshold:.3g} is allowed."
        )
        return Verdict(
            "confirmed" if agrees else "refuted",
            reason,
            statistic,
            threshold,
            f"{predicted[worst]:.6g}",
            _with_error(measured[worst], error[worst]),
            detectable,
            exact=bool(error[worst] == 0),
        )


@dataclass(frozen=True)
class Approximation(Rule):
    """The measurement lies within a margin of the prediction; the margin is part of the statement."""

    margin: float
    relative: bool = True
    level: float = LEVEL
    reads: ClassVar = ("predicted", "measured", "error")

    def __str__(self) -> str:
        of = "of the prediction" if self.relative else "in absolute terms"
        return f"Approximation: the interval of every difference (joint level {self.level:g}) lies within {self.margin:g} {of}."

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        predicted, measured, error = _flat(*values)
        z = student_quantile(self.level, predicted.size, count=count)
        scale = abs(predicted) if self.relative else np.ones_like(predicted)
        if not scale.all():
            return Verdict("undecided", "A prediction is 0, and the margin is relative to it.")
        off, half = abs(measured - predicted) / scale, z * error / scale
        word: Word = "undecided"
        worst = int(np.argmax(off + half))
        if (off + half <= EDGE * self.margin).all():
            word = "confirmed"
        elif (off - half > EDGE * self.margin).any():
            word, worst = "refuted", int(np.argmax(off - half))
        reach = self.margin + (z + special.ndtri(POWER)) * (error / scale)
        return Verdict(
            word,
            f"The worst of {_count(off.size, 'comparison')} is off by {off[worst]:.3g} (interval ± {half[worst]:.2g}); "
            f"the margin is {self.margin:g}.",
            float(off[worst]),
            self.margin,
            f"{predicted[worst]:.6g}",
            _with_error(measured[worst], error[worst]),
            f"a deviation of {reach.min():.2g} {'of the prediction' if self.relative else ''}".strip(),
            exact=bool(error[worst] == 0),
        )


@dataclass(frozen=True)
class Bound(Rule):
    """The measurement, sought where it is largest, stays below the bound."""

    rounding: float = 1e-12
    level: float = LEVEL
    reads: ClassVar = ("bound", "measured", "error")

    def __str__(self) -> str:
        return (
            f"Bound: the upper limit of every measurement (joint level {self.level:g}) stays below the bound, to rounding "
            f"({self.rounding:g} of it)."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        bound, measured, error = _flat(*values)
        z = student_quantile(self.level, bound.size, sides=1, count=count)
        slack = self.rounding * abs(bound)
        above, half = measured - bound - slack, z * error
        # How near the bound is, in its own size: 1 where it is attained.
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = 1 + (measured - bound) / abs(bound)
            reach = (slack + (z + special.ndtri(POWER)) * error) / abs(bound)
        reached = np.where(bound != 0, reached, np.where(measured > 0, np.inf, 1.0))
        word: Word = "undecided"
        shown = int(np.argmax(reached))
        if (above + half <= 0).all():
            word = "confirmed"
        elif (above - half > 0).any():
            word, shown = "refuted", int(np.argmax(above - half))
        else:
            shown = int(np.argmax(above + half))
        return Verdict(
            word,
            f"The measured value {_against(reached[shown])}"
            f"{' at its tightest' if word == 'confirmed' else ''}, in {_count(bound.size, 'comparison')}.",
            float(reached[shown]),
            1.0,
            f"≤ {bound[shown]:.6g}",
            _with_error(measured[shown], error[shown]),
            f"an excess of {np.nanmin(reach):.2g} of the bound"
            if bound.all()
            else "any excess over a bound of 0",
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
    """The measurement scales as predicted: slope of log measured against log x.

    `predicted` is an exponent (without the axis `along`), or the finite-size prediction itself; then the slope of
    log(measured / predicted), which has no curvature to average over, is compared with 0. Errors count as
    independent along `along`; where sizes share random numbers and have like relative errors the true one is smaller.
    """

    margin: float
    along: str = "cell"
    level: float = LEVEL
    reads: ClassVar = ("x", "measured", "error", "predicted")

    def __str__(self) -> str:
        return f"Rate: the interval of the exponent (joint level {self.level:g}) lies within {self.margin:g} of the predicted one."

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
        word: Word = "undecided"
        worst = int(np.argmax(off + half))
        if (off + half <= EDGE * self.margin).all():
            word = "confirmed"
        elif (off - half > EDGE * self.margin).any():
            word, worst = "refuted", int(np.argmax(off - half))
        reach = self.margin + (z + special.ndtri(POWER)) * se
        return Verdict(
            word,
            f"The exponent is {slope[worst]:.4g} (interval ± {half[worst]:.2g}) and {expected[worst]:.4g} is predicted; "
            f"the margin is {self.margin:g}.",
            float(off[worst]),
            self.margin,
            f"exponent {expected[worst]:.4g}",
            f"exponent {slope[worst]:.4g}" + (f" ± {se[worst]:.2g}" if se[worst] else ""),
            f"an exponent off by {reach.min():.2g}",
            exact=bool(se[worst] == 0),
        )


@dataclass(frozen=True)
class Convergence(Rule):
    """More than a share of the runs arrive. The share is part of the statement."""

    share: float
    level: float = LEVEL
    reads: ClassVar = ("arrived",)

    def __str__(self) -> str:
        return (
            f"Convergence: the binomial interval (joint level {self.level:g}) of the share of runs that arrive lies "
            f"above {self.share:g}."
        )

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        (arrived,) = values
        if "repeat" not in arrived.dims:
            raise InputError(
                f"the evidence's 'arrived' has axes {arrived.dims}: Convergence counts along 'repeat'"
            )
        if not np.isin(arrived.values, (0, 1)).all():
            raise InputError(
                "the evidence's 'arrived' has values other than 0 and 1: a run arrives or does not"
            )
        n = arrived.sizes["repeat"]
        counted = arrived.sum("repeat")
        k = counted.values.ravel()
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
        detectable = (
            f"a share of {special.betaincinv(telling[-1] + 1, n - telling[-1], 1 - POWER):.2g} or less"
            if telling.size
            else "none: too few runs to refute anything"
        )
        return Verdict(
            word,
            f"{int(k[worst])} of {n} runs arrived{_worst(counted)}: a share between {lower[worst]:.4g} and {upper[worst]:.4g}; "
            f"{self.share:g} is claimed.",
            float(k[worst] / n),
            self.share,
            f"> {self.share:g} of runs",
            f"{int(k[worst])} of {n}",
            detectable,
        )


def _worst(counted: xr.DataArray) -> str:
    """Which of several cells has the fewest, by what differs between them."""
    if counted.size == 1:
        return ""
    cell = counted[counted.argmin(...)]
    differ = [
        name
        for name, values in counted.coords.items()
        if len(set(values.values.ravel().tolist())) > 1
    ]
    named = ", ".join(f"{name} = {cell[name].item()}" for name in differ)
    return f" in the worst of {counted.size} cells{f' ({named})' if named else ''}"


@dataclass(frozen=True)
class Order(Rule):
    """One quantity is below the other. `error` is that of the difference, paired where possible."""

    rounding: float = 1e-12
    level: float = LEVEL
    reads: ClassVar = ("lower", "upper", "error")

    def __str__(self) -> str:
        return f"Order: the interval of every difference (joint level {self.level:g}) lies above 0."

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        lower, upper, error = _flat(*values)
        z = student_quantile(self.level, lower.size, count=count)
        gap = upper - lower
        half = z * error + self.rounding * np.maximum(abs(lower), abs(upper))
        word: Word = "undecided"
        worst = int(np.argmin(gap - half))
        if (gap - half > 0).all():
            word = "confirmed"
        elif (gap + half < 0).any():
            word, worst = "refuted", int(np.argmin(gap + half))
        return Verdict(
            word,
            f"The narrowest of {_count(gap.size, 'difference')} is {gap[worst]:.4g} (interval ± {half[worst]:.2g}).",
            float(gap[worst]),
            0.0,
            " < ".join(_apart(lower[worst], upper[worst])),
            f"difference {_with_error(gap[worst], error[worst])}",
            f"an inversion by {((z + special.ndtri(POWER)) * error).min():.2g}"
            if error.all()
            else "any inversion",
            exact=bool(error[worst] == 0),
        )


def _apart(*values: float) -> list[str]:
    """Numbers in as few digits, from five on, as tell them apart."""
    for digits in range(5, 17):
        shown = [f"{value:.{digits}g}" for value in values]
        if len(set(shown)) == len(set(values)):
            break
    return shown


@dataclass(frozen=True)
class SameLaw(Rule):
    """Two samples come from one law: Kolmogorov-Smirnov tests along the axis `draw`, one for each named statistic."""

    level: float = LEVEL
    reads: ClassVar = ("sample_a", "sample_b")
    along: str = field(default="draw")

    def __str__(self) -> str:
        return f"SameLaw: no Kolmogorov-Smirnov test between the two samples rejects at joint level {self.level:g}."

    def _judge(self, *values: xr.DataArray, count: float) -> Verdict:
        if any(self.along not in v.dims for v in values):
            raise InputError(
                f"the samples have axes {values[0].dims}: SameLaw compares along '{self.along}'"
            )
        # Pair by name; the draws of the two samples have nothing to do with each other.
        named = xr.broadcast(
            values[0], values[1].rename({self.along: "other"}), exclude=(self.along, "other")
        )
        axes = zip(named, (self.along, "other"), strict=True)
        a, b = (v.transpose(..., draws).values.reshape(-1, v.sizes[draws]) for v, draws in axes)
        threshold = self.level / len(a)
        distance = max(_distance(*pair) for pair in zip(a, b, strict=True))
        sizes = a.shape[1] * b.shape[1] / (a.shape[1] + b.shape[1])
        # Of the limit law: below a tenth it is larger than that of finitely many draws, never smaller.
        p = float(special.kolmogorov(np.sqrt(sizes) * distance))
        critical = special.kolmogi(threshold) / np.sqrt(sizes)
        reach = min(1.0, critical + special.ndtri(POWER) / 2 / np.sqrt(sizes))
        return Verdict(
            "confirmed" if p >= threshold else "refuted",
            f"The smallest of {_count(len(a), 'p-value')} is {p:.2g}, at a distance of {distance:.3g}; below {threshold:.2g} rejects.",
            p,
            threshold,
            f"distance < {min(1.0, critical):.3g}",
            f"distance {distance:.3g}",
            f"two distribution functions about {reach:.2g} apart",
        )


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest distance between the distribution functions of two samples."""
    a, b, at = np.sort(a), np.sort(b), np.concatenate([a, b])
    gaps = np.searchsorted(a, at, "right") / len(a) - np.searchsorted(b, at, "right") / len(b)
    return float(abs(gaps).max())
