r"""From pretraining to a task: the largest ratio of their excess risks.

Both read an error $\delta = \hat\pi - \pi$ of a representation linearly: pretraining as $T\delta$,
the task as $D\delta$. Their excess risks are $E|T\delta|^2$ and $E|D\delta|^2$, and the condition
number is the largest ratio of the second to the first.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attlas.errors import InputError
from attlas.latent_posterior.models import checked_probabilities
from attlas.latent_posterior.pretraining import tangent
from attlas.surface import public

RANK = 1e-10
"""Singular values below this share of the largest count as 0."""


class ConditionNumber(NamedTuple):
    r"""$\kappa = \sup_\delta |D\delta|^2/|T\delta|^2$ and where it comes from.

    `witness` is a direction that attains it, `loose` the classical
    $\sigma_{max}(D)^2/\sigma_{min}(T)^2 \ge \kappa$, `rank` that of T on the tangent space of
    dimension `dim`. Where pretraining is blind to what the task reads, `value` is infinite and
    `reason` says so.
    """

    value: float
    witness: Float[np.ndarray, " m"]
    loose: float
    rank: int
    dim: int
    reason: str = ""


@public
def condition_number(
    pretraining: Any, downstream: Any, *, features: Any = None, simplex: bool = False
) -> ConditionNumber:
    r"""$\kappa = \sup_\delta\frac{|D\delta|^2}{|T\delta|^2} = \sigma_{max}(DT^+)^2 = \inf\{|A|^2 :
    D = AT\}$, so that the downstream excess is at most $\kappa$ times the pretraining excess,
    whatever the error of the representation.

    Our computable form of the condition number of Zhang et al. 2022.

    Arguments:
    - `pretraining` [p m], `downstream` [q m]: T and D, operators on a representation [m].
    - `features` [n m]: if given, the operators are fitted to targets `pretraining` [n p] and
      `downstream` [n q] by least squares. A fitted operator counts as 0 in directions in which
      it is no larger than by chance (`_fitted`), so that $\kappa$ is infinite where the task reads
      a direction in which T counts as 0.
    - `simplex`: restrict $\delta$ to directions that sum to 0, as the difference of two probability
      vectors does.

    >>> import numpy as np
    >>> from attlas.latent_posterior import condition_number, coverage_number
    >>> found = condition_number(np.diag([2.0, 1.0]), np.eye(2))
    >>> print(found.value, condition_number([[1.0, 0.0]], np.eye(2)).value)
    1.0 inf
    >>> coverage_number([0.5, 0.5], [0.25, 0.75])
    1.5
    """
    named = {"pretraining": pretraining, "downstream": downstream}
    t, d = (_matrix(name, value, column=features is not None) for name, value in named.items())
    blur = [0.0, 0.0]
    if features is not None:
        x = _matrix("features", features)
        for name, targets in zip(named, (t, d), strict=True):
            if len(targets) != len(x):
                raise InputError(
                    f"{name} has {len(targets)} rows and features have {len(x)}: there must be one"
                    f" target for each"
                )
        if len(x) == x.shape[1]:
            raise InputError(
                f"features have the shape {x.shape}: there must be more rows than columns, or"
                f" nothing tells targets from noise"
            )
        if np.linalg.matrix_rank(x) < x.shape[1]:
            raise InputError(
                f"features have the shape {x.shape} and not full rank: the operators on them"
                f" cannot be told"
            )
        (t, d), blur = zip(*(_fitted(x, targets) for targets in (t, d)), strict=True)
    if t.shape[1] != d.shape[1]:
        raise InputError(
            f"pretraining reads {t.shape[1]} entries and downstream {d.shape[1]}: they must read"
            f" the same representation"
        )
    directions = tangent(t.shape[1]) if simplex else np.eye(t.shape[1])
    a, b = t @ directions, d @ directions
    left, sizes, right = np.linalg.svd(a)
    dim, rounding = len(right), RANK * sizes.max(initial=0)
    rank = int((sizes > max(rounding, blur[0])).sum())
    strongest = np.linalg.svd(b, compute_uv=False).max(initial=0)
    blind = right[rank:].T
    _, unseen, axes = np.linalg.svd(b @ blind)
    if unseen.max(initial=0) > max(RANK * strongest, blur[1]):
        doubt = ", or that these data cannot tell from noise" if blur[0] > rounding else ""
        reason = (
            f"pretraining sees {rank} of {dim} directions, and downstream reads one that it does"
            f" not see{doubt}"
        )
        return ConditionNumber(np.inf, directions @ blind @ axes[0], np.inf, rank, dim, reason)
    loose = float(strongest**2 / sizes.min(initial=np.inf) ** 2) if rank == dim else np.inf
    inverse = right[:rank].T / sizes[:rank] @ left[:, :rank].T
    _, gains, inputs = np.linalg.svd(b @ inverse)
    witness = directions @ inverse @ inputs[0]
    return ConditionNumber(float(gains[0] ** 2), witness, loose, rank, dim)


@public
def coverage_number(pretraining: Any, downstream: Any) -> float:
    r"""$\sup\frac{dP_{down}}{dP_{pre}}$ of two laws [k] of a sequence: a non-negative loss has a
    mean downstream at most this times its mean in pretraining. Infinite where a sequence of the
    task has probability 0 in pretraining. The counterpart of `condition_number` for laws.

    Arguments:
        pretraining, downstream: the laws.
    """
    before, after = (np.asarray(law, float) for law in (pretraining, downstream))
    if before.shape != after.shape or before.ndim != 1:
        raise InputError(
            f"the laws have the shapes {before.shape} and {after.shape}: they must be two lists of"
            f" one length"
        )
    checked_probabilities("pretraining", before, (None,))
    checked_probabilities("downstream", after, (None,))
    met = after > 0
    with np.errstate(divide="ignore"):
        return float((after[met] / before[met]).max())


def _fitted(
    x: Float[np.ndarray, "n m"], targets: Float[np.ndarray, "n p"]
) -> tuple[Float[np.ndarray, "p m"], float]:
    r"""The operator that fits `targets` best, and how large chance alone makes one: $2s(\sqrt m +
    \sqrt p)/\sigma_{min}(X)$ for residuals of standard deviation s, about twice the expected norm
    of an operator fitted to noise."""
    solved, _, _, sizes = np.linalg.lstsq(x, targets)
    (n, m), p = x.shape, targets.shape[1]
    residual = np.sqrt(((targets - x @ solved) ** 2).sum() / max(1, n - m) / p)
    return solved.T, float(2 * residual * (m**0.5 + p**0.5) / sizes[-1])


def _matrix(name: str, value: Any, column: bool = False) -> np.ndarray:
    """As a matrix; one number for each row where it is a `column`."""
    matrix = np.asarray(value, float)
    matrix = matrix[:, None] if column and matrix.ndim == 1 else np.atleast_2d(matrix)
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"{name} has the shape {matrix.shape}: it must be a matrix")
    if not np.isfinite(matrix).all():
        raise InputError(f"{name} has an entry that is not a finite number")
    return matrix
