r"""Laws of exchangeable sequences, and what a statistic of a sequence keeps of a label.

Everything is by enumeration in double precision. The law of a sequence over c letters is an array
[c, ..., c] with an axis for each token. A statistic is a partition of the sequences, given by the
number of each sequence's class.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import special, stats

from attlas.errors import InputError, whole
from attlas.gaussian import Real
from attlas.latent_posterior.models import MAX_TERMS, FiniteLatent, compositions


def sequences(letters: int, length: int) -> Int[np.ndarray, "n length"]:
    """All sequences of `length` letters, the last place fastest."""
    if whole("letters", letters, 1) ** whole("length", length, 1) * length > 4 * MAX_TERMS:
        raise InputError(
            f"length = {length}: there are {letters}^{length} sequences, too many to list"
        )
    return np.indices((letters,) * length).reshape(length, -1).T


def likelihoods(model: FiniteLatent, length: int) -> Float[np.ndarray, "n m"]:
    r"""$P(X \mid z) = \prod_i P(x_i \mid z)$ for all sequences X and latents z."""
    return np.asarray(model.words)[:, sequences(model.vocabulary, length)].prod(-1).T


def mixture_law(model: FiniteLatent, length: int) -> Float[np.ndarray, "..."]:
    r"""$P(x_1, \dots, x_L) = \sum_z p_z\prod_i P(x_i \mid z)$ (de Finetti)."""
    return (likelihoods(model, length) @ np.asarray(model.prior)).reshape(
        (model.vocabulary,) * length
    )


def urn_law(balls: Any, length: int, added: Real = 1.0) -> Float[np.ndarray, "..."]:
    """The law of the colours of `length` balls drawn one after the other from an urn.

    Arguments:
        balls: how many of each colour are in the urn.
        added: how many more of its colour are put back with each ball: Polya's urn at 1,
            independent draws at 0, draws without replacement at -1.
    """
    log_law = urn_log_probability(balls, sequences(len(balls), length), added)
    return np.exp(log_law).reshape((len(balls),) * length)


def urn_log_probability(
    balls: Any, drawn: Int[np.ndarray, "n length"], added: Real = 1.0
) -> Float[np.ndarray, " n"]:
    """Log probability of each sequence of colours, draw by draw; arguments as for `urn_law`."""
    balls = np.asarray(balls, float)
    before = np.cumsum(drawn[..., None] == np.arange(len(balls)), axis=1) - 1.0
    seen = np.take_along_axis(before, drawn[..., None], -1)[..., 0]
    with np.errstate(divide="ignore"):
        chances = np.log(np.maximum(balls[drawn] + added * seen, 0))
        return (chances - np.log(balls.sum() + added * np.arange(drawn.shape[1]))).sum(1)


def chain_law(stay: float, length: int) -> Float[np.ndarray, "..."]:
    """A chain of two letters that stays with probability `stay`: a law that is not exchangeable."""
    letters = sequences(2, length)
    stays = (letters[:, 1:] == letters[:, :-1]).sum(1)
    return (0.5 * stay**stays * (1 - stay) ** (length - 1 - stays)).reshape((2,) * length)


def asymmetry(law: Float[np.ndarray, "..."]) -> float:
    """The largest total variation between the law and itself with two neighbours exchanged.

    It is 0 if and only if the law is exchangeable, because such exchanges generate all
    permutations. No exchangeable law is nearer than half of it.
    """
    swaps = [abs(law - np.swapaxes(law, i, i + 1)).sum() / 2 for i in range(law.ndim - 1)]
    return float(max(swaps, default=0.0))


def beta_coins(a: float, b: float, length: int) -> FiniteLatent:
    r"""The mixture of coins whose bias is Beta(a, b), for sequences of up to `length` tosses.

    $P(X \mid z)$ is a polynomial of that degree in the bias, so that the $\lfloor L/2\rfloor + 1$
    nodes of Gauss-Jacobi quadrature give all such probabilities exactly.
    """
    nodes, weights = special.roots_jacobi(whole("length", length, 1) // 2 + 1, b - 1, a - 1)
    ones = (1 + nodes) / 2
    return FiniteLatent(weights / weights.sum(), np.stack([1 - ones, ones], 1))


def urn_distance(balls: Any, draws: int) -> float:
    """Total variation between `draws` draws without and with replacement.

    Exact, as a sum over counts, which are sufficient for both laws.
    """
    balls = np.asarray(balls, int)
    if whole("draws", draws, 1) > balls.sum():
        raise InputError(f"draws = {draws}: the urn holds {balls.sum()} balls")
    counts = compositions(draws, len(balls))
    without = stats.multivariate_hypergeom.pmf(counts, balls, draws)
    replaced = stats.multinomial.pmf(counts, draws, balls / balls.sum())
    return float(abs(without - replaced).sum() / 2)


def classes(statistic: Any, tolerance: float = 1e-9) -> Int[np.ndarray, " n"]:
    """The partition that a statistic [n, ...] makes: rows that are equal to rounding are one class.

    Entries are equal where steps below `tolerance` between sorted values join them.
    """
    columns = np.asarray(statistic, float).reshape(len(statistic), -1)
    order = np.argsort(columns, axis=0)
    with np.errstate(invalid="ignore"):  # infinities are equal to each other
        steps = np.diff(np.take_along_axis(columns, order, 0), axis=0) > tolerance
    ranks = np.concatenate([np.zeros((1, columns.shape[1]), int), np.cumsum(steps, axis=0)])
    labels = np.empty_like(ranks)
    np.put_along_axis(labels, order, ranks, 0)
    return np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)


def conditional_information(
    joint: Float[np.ndarray, "n y"], partition: Int[np.ndarray, " n"]
) -> float:
    r"""$I(y; X \mid S(X)) = \sum_{X, y}P(X, y)\ln\frac{P(y \mid X)}{P(y \mid S(X))}$ in nats.

    What X says about the label beyond the statistic; 0 if and only if the statistic is sufficient.

    Arguments:
        joint: P(X, y).
        partition: the class S(X) of each X.
    """
    pooled = np.zeros((partition.max() + 1, joint.shape[1]))
    np.add.at(pooled, partition, joint)

    def given(law: np.ndarray) -> np.ndarray:
        total = law.sum(1, keepdims=True)
        return np.divide(law, total, out=np.zeros_like(law), where=total > 0)

    beyond = special.rel_entr(given(joint), given(pooled)[partition])
    return float((joint.sum(1, keepdims=True) * beyond).sum())
