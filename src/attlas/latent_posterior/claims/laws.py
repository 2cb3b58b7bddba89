"""Claims about attention as an estimate of a whole conditional law."""

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.linalg import solve
from scipy.special import ndtr, softmax

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Approximation, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import DRAWS, mean_over_draws, root_mean_over_draws
from attlas.latent_posterior.rates import optimal_temperature, softmax_bias, softmax_error

LETTERS = np.array([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
TILT = 0.9 / len(LETTERS)
"""Letter j has the probability 1/4 + TILT <k, LETTERS_j> at the key k.

The cumulative probabilities are linear in k as well.
"""
LAWS = SOFTMAX, SIGNED, CLIPPED, FIXED = (
    "softmax",
    "CME, signed",
    "CME, clipped",
    "softmax, fixed γ",
)


@latent_posterior.measurement(
    "law-crps",
    quick=Setting(length=(64, 256), fixed=2.0, draws=400, queries=32),
    paper=dict(length=(64, 256, 1024)),
    cells=together("length"),
    budget="draws",
    hypotheses=(DRAWS, Hypothesis("length >= 64", lambda s: s.length >= 64)),
)
def conditional_laws(cell: Setting, draws: Draws) -> Values:
    """Attention to the letters of tokens as an estimate of the law of a letter at a query."""
    powers, noises = cumulative_powers()
    total, noise = powers.sum(0), float(np.sqrt((noises**2).sum()))
    best = float(optimal_temperature(cell.length, dim=3, powers=total, noise=noise))
    # The Bayes ridge of a Gaussian process: noise over the variance of the tilts.
    ridge = noise**2 / total[1]
    shape = (cell.draws, cell.queries + cell.length, 4)
    contexts = draws.stream("contexts").standard_normal(shape)
    temperatures = np.array([best, cell.fixed])
    found = [law_distances(one, cell.queries, ridge, temperatures, 0.5) for one in contexts]
    crps, apart = np.swapaxes(found, 0, 1)
    return {
        **on("draw law", crps=crps, apart=apart),
        "formula": softmax_error(cell.length, temperature=best, dim=3, powers=total, noise=noise),
        "bias": softmax_bias(best, 3, total) ** 2,
        "law": list(LAWS),
    }


def cumulative_powers() -> tuple[Float[np.ndarray, "letter degree"], Float[np.ndarray, " letter"]]:
    """Powers of the cumulative probabilities by degree, and their mean noise."""
    height = np.arange(1, len(LETTERS) + 1) / len(LETTERS)
    tilts = TILT**2 * (np.cumsum(LETTERS, 0) ** 2).sum(1) / 3
    return np.stack([height**2, tilts], 1)[:-1], np.sqrt(height - height**2 - tilts)[:-1]


def law_distances(
    drawn: Float[np.ndarray, "token 4"],
    queries: int,
    ridge: float,
    temperatures: Float[np.ndarray, " 2"],
    kernel: float,
) -> Float[np.ndarray, "2 law"]:
    """Excess CRPS and L1 distance of each estimated law to the true one, means over queries.

    Arguments:
        drawn: normal numbers, four for each of the `queries` and then for each token: three for the
            key and one for the letter.
        ridge: of CME attention, whose exponential kernel has the temperature `kernel`.
        temperatures: of softmax attention, the best and the fixed one.
    """
    points = drawn[:, :3] / np.linalg.norm(drawn[:, :3], axis=1, keepdims=True)
    truth, given = np.split(1 / len(LETTERS) + TILT * points @ LETTERS.T, [queries])
    heights = np.cumsum(given, 1)[:, :-1]
    letters = np.eye(len(LETTERS))[(ndtr(drawn[queries:, 3:]) >= heights).sum(1)]
    products = points @ points[queries:].T
    best, fixed = (softmax(products[:queries] / t, axis=1) @ letters for t in temperatures)
    cross, gram = np.split(np.exp((products - 1) / kernel), [queries])
    gram[np.diag_indices(len(gram))] += ridge
    signed = cross @ solve(gram, letters, assume_a="pos", check_finite=False)
    kept = np.maximum(signed, 0)
    off = np.stack([best, signed, kept / kept.sum(1, keepdims=True), fixed]) - truth
    crps = (np.cumsum(off, -1)[..., :-1] ** 2).sum(-1).mean(-1)
    return np.stack([crps, abs(off).sum(-1).mean(-1)])


@latent_posterior.claim(
    kind="simulation",
    measured_by=conditional_laws,
    reference="softmax attention as a conditional law",
    origin="ours",
    statement=r"Softmax weights are an estimate $\hat P(v \mid q) = \sum_i w_i\delta_{v_i}$ of the"
    r" conditional law; the expected excess of its CRPS, $\sum_j(\hat F_j - F_j)^2$, is the sum of"
    r" the finite-length errors of the cumulative probabilities, to 10 % of its root.",
    words="Attention to tokens is also a forecast of the whole law of the next value, and its error"
    " at finite length is known.",
    rule=Approximation(margin=0.1),
    control=Control("the bias alone", lambda e: {"predicted": np.sqrt(e.bias)}),
    needs=("softmax-rate",),
)
def law_crps(evidence: xr.Dataset) -> Values:
    measured, error = root_mean_over_draws(evidence.crps.sel(law=SOFTMAX, drop=True))
    return {"measured": measured, "error": error, "predicted": np.sqrt(evidence.formula)}


@law_crps.figure
def excess_of_the_forecast(evidence: xr.Dataset) -> Figure:
    return distances_by_length(
        evidence,
        "crps",
        "Attention as a forecast of a law",
        "dashed: the formula for softmax",
        y="excess CRPS",
    ).lines("length", "formula", theory=True)


def distances_by_length(evidence: xr.Dataset, name: str, title: str, note: str, y: str) -> Figure:
    mean, error = mean_over_draws(evidence[name])
    return Figure(
        evidence.assign(distance=mean, distance_error=error),
        title,
        note,
        x="tokens L",
        y=y,
        log="xy",
        legend={"law": None},
    ).lines("length", "distance", points=True, error="distance_error", color="law")


@latent_posterior.claim(
    kind="simulation",
    measured_by=conditional_laws,
    reference="attention as a conditional law",
    origin="ours",
    statement=r"The $L_1$ distance of $\hat P(\cdot \mid q)$ to the true law falls by more than a"
    r" quarter from the shortest context to the longest, four times as long or more, for softmax"
    r" attention at the best temperature and for clipped CME attention.",
    words="With more tokens the forecast of the law gets nearer to the truth.",
    rule=Order(),
    control=Control("at a fixed temperature, too", lambda e: fall_of_distance(e, FIXED)),
    needs=("law-crps",),
)
def law_distance(evidence: xr.Dataset) -> Values:
    return fall_of_distance(evidence, SOFTMAX, CLIPPED)


@law_distance.figure
def distances_of_laws(evidence: xr.Dataset) -> Figure:
    return distances_by_length(
        evidence,
        "apart",
        "Attention as a conditional law",
        "a letter of four, keys on the sphere of three dimensions",
        y="L1 distance to the true law",
    )


def fall_of_distance(evidence: xr.Dataset, *laws: str) -> Values:
    """The last distance below three quarters of the first."""
    distances = evidence["apart"].sel(law=list(laws)).drop_vars("law").rename(law="falling")
    first, last = (mean_over_draws(distances.isel(cell=end, drop=True)) for end in (0, -1))
    return {
        "lower": last.mean,
        "upper": 0.75 * first.mean,
        "error": np.hypot(0.75 * first.error, last.error),
        "repetitions": evidence["draws"].variable,
    }
