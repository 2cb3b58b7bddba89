"""Rows in an order, and folds, that depend on what the rows hold: a fit then depends neither on
how rows were shuffled nor on whether one is repeated or weighs more, and copies of a row are
never on both sides of a hold-out."""

import hashlib
import sys
import warnings
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import sklearn
from jaxtyping import Float, Int
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight
from threadpoolctl import threadpool_limits

import attlas

FEW = 6000
"""Rows up to which linear algebra is no faster on several threads than on one."""


def few_threads(rows: int) -> threadpool_limits:
    """A context in which the matrices of a small fit have one thread: more would wait for each
    other, all the longer on a busy machine."""
    return threadpool_limits(1 if rows <= FEW else None)


def distinct(
    contents: Iterable[bytes], weight: Float[np.ndarray, " n"], seed: int
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The first of each set of equal rows, in the order of a digest of their contents and
    `seed`, and the weight that they have together. Rows without weight are left out."""
    salt = int(seed).to_bytes(8, "little")
    first: dict[bytes, int] = {}
    total: dict[bytes, float] = {}
    for i, content in enumerate(contents):
        if weight[i] > 0:
            digest = hashlib.blake2b(content, digest_size=16, salt=salt).digest()
            first.setdefault(digest, i)
            total[digest] = total.get(digest, 0.0) + float(weight[i])
    order = sorted(first)
    return np.array([first[d] for d in order], int), np.array([total[d] for d in order])


def seed_of(random_state: Any) -> int:
    """A whole number from what scikit-learn takes as `random_state`."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def checked_weight(sample_weight: Any, X: Any, of: str) -> Float[np.ndarray, " n"]:
    """One weight for each `of` X, 0 or larger and not all 0."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():
        raise ValueError(
            f"sample_weight is zero for every {of}: all of the sample_weight must not be zero"
        )
    return weight


_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (attlas, joblib, sklearn))
_told: dict[type[Warning], tuple[Any, int, int]] = {}
"""For each category the call outside of libraries that was last warned."""


def warn_once(words: str, category: type[Warning]) -> None:
    """Warn the line outside of this package and scikit-learn that led here, and that once: a
    search fits many times, and changes the filters by which Python would notice."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, depth = frame.f_back, depth + 1
    call = (frame.f_code, frame.f_lasti, id(frame))
    if _told.get(category) != call:
        _told[category] = call
        warnings.warn(words, category, stacklevel=depth)


def warn_of_shares(weight: Float[np.ndarray, " n"]) -> None:
    """A weight counts rows: shares that sum to 1 would be one row."""
    if weight.sum() < 2:
        warnings.warn(
            f"sample_weight sums to {weight.sum():.3g}, and a weight of 2 counts as two rows: "
            f"these {np.count_nonzero(weight)} rows are fitted as fewer than 2; let"
            " weights have a mean of 1",
            UserWarning,
            stacklevel=3,
        )


def balanced_folds(strata: Sequence[Hashable], count: int) -> Int[np.ndarray, " m"]:
    """A fold for each row: those of one stratum are dealt out in turn."""
    seen: dict[Hashable, int] = {}
    folds = []
    for stratum in strata:
        # Not all from the first fold: a small stratum has no more.
        place = seen.setdefault(stratum, len(seen))
        folds.append(place % count)
        seen[stratum] = place + 1
    return np.array(folds, int)
