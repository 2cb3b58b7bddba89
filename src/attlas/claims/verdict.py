"""What a rule says of the evidence: a word, and what it is worth."""

import html
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Word = Literal["confirmed", "certified", "refuted", "undecided", "outside", "not run"]
"""`certified` is what intervals prove on a box (`attlas.certificates`); no rule gives it."""


@dataclass(frozen=True)
class Verdict:
    """A word, the number that decided it, the number it was held against, and why, in a sentence.

    `predicted` and `measured` show the comparison that decided; `detectable` is the smallest
    deviation that this budget would have refuted with probability `rules.POWER`, in words;
    `deviation` is its size: relative to the prediction, the bound or the gap that the claim is
    about, absolute for rates and shares of runs (see `Rule.seen`). `points` counts the comparisons,
    the runs of a cell, or the sizes from which a rate was taken. `strength` of what is confirmed
    says both in a sentence, after a grade: `fine` if a deviation of 1 % would have been seen,
    `fair` if one of 10 %, else `coarse`; a rate from fewer than five sizes is coarse. `exact` says
    that no sampling error entered the comparison: a refutation is then a counterexample, which no
    repetition takes back.
    """

    word: Word  # confirmed, refuted, undecided, outside or not run
    reason: str  # in a sentence
    statistic: float = float("nan")  # what decided
    threshold: float = float("nan")  # what it was held against
    predicted: str = ""
    measured: str = ""
    detectable: str = ""
    deviation: float = float("nan")
    points: int = 0
    strength: str = ""
    exact: bool = False

    def __str__(self) -> str:
        return self.word

    def _repr_html_(self) -> str:
        """The word, the reason and the strength, for a notebook."""
        parts = [self.reason, f"{self.strength}." if self.strength else ""]
        told = html.escape(" ".join(part for part in parts if part))
        return f"<p><b>{html.escape(self.word)}</b>: {told}</p>"

    def to_dict(self) -> dict[str, Any]:
        """As plain data; a number that is not finite becomes None, which JSON can hold."""
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in asdict(self).items()
        }
