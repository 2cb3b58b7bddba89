"""Claims about what a head reads where the target is not linear in the deciding token."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import special

from attlas.claims import Approximation, Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.figure import Figure
from attlas.gaussian import BLOCK, Estimate
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import SAMPLES, paper_task, sequences, task_of
from attlas.single_location.task import SingleLocation

CUT = 1e-4
"""Share of the largest variance below which a direction of similarities is left out: what is read
there are rare tokens."""


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="what a head reads",
    statement=r"Let $Y = h(U) + \varepsilon\xi$ with $h = \sin(\omega\,\cdot)$ of $U = \langle"
    r" X_J, v^*\rangle$, let $\gamma = 1$, and let $q = E[p_J]$ be the weight that the Bayes"
    r" weights $p$ give the informative token. A head $\sum_lp_lf(x_l)$ with $f$ a function of"
    r" coordinates orthogonal to $k^*$, of mean 0, has risk"
    r" $\varepsilon^2 + (1 - q)E[h^2] + q\,E[(h - f)^2]$. So the best reading that is linear keeps"
    r" the excess $q(E[h^2] - \omega^2e^{-\omega^2})$ over the Bayes predictor, and the best"
    r" through $r$ Gaussian similarities $\varphi$ the part of $h$ outside their span, $q(E[h^2] -"
    r" g^\top C^{-1}g)$ with $g = E[h\varphi]$ and their covariance $C$, without directions of"
    r" less than $10^{-4}$ of its largest eigenvalue; heads fitted by least squares"
    r" come within 5 % of these risks.",
    words="Where the target is not linear in the deciding token, a linear head keeps an error that"
    " no number of samples removes. Through similarities to random points it falls with their"
    " number, towards that of the best possible predictor.",
    hypotheses=(
        SAMPLES,
        Hypothesis("gamma = 1: the weights do not see what is read", lambda s: s.gamma == 1),
        Hypothesis("width < dim: read beside k*", lambda s: s.width < s.dim, defining=True),
        Hypothesis("sharpness > 0", lambda s: s.sharpness > 0, defining=True),
        Hypothesis(
            "100 samples or more a feature: least squares adds 1 % or less",
            lambda s: s.samples >= 100 * s.features,
        ),
    ),
    quick=paper_task(
        dim=6,
        length=3,
        gamma=1.0,
        noise=0.1,
        frequency=2.0,
        width=2,
        sharpness=1.0,
        features=(2, 4, 8, 16, 24),
        samples=150_000,
    ),
    paper=dict(dim=8, length=5, features=(1, 2, 4, 8, 16, 32, 64), samples=500_000),
    cells=together("features"),
    budget="samples",
    rule=Approximation(margin=0.05),
    control=Control(
        "{size:.0%} of the way to a linear reading",
        lambda e, size: {"predicted": e.predicted + size * (e.linear - e.predicted)},
        size=0.25,
    ),
)
def features_of_readings(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    centres = draws.stream("centres").standard_normal((cell.features, cell.width))
    found = best_weight(task, draws.stream("weight"), cell.samples)
    square = (1 - math.exp(-2 * cell.frequency**2)) / 2
    slope = cell.frequency**2 * math.exp(-(cell.frequency**2))
    bayes = task.noise**2 + (1 - found) * square
    similarities = Similarities.of(centres, cell.sharpness, cell.frequency)
    read = [slope, similarities.shared @ similarities.shared]
    predicted = bayes + found * (square - np.array(read))
    weights = least_squares(read_bags(task, cell, similarities, draws, "train"))
    losses = [
        [(x @ w - y) ** 2 for x, w in zip(heads, weights, strict=True)]
        for *heads, y in read_bags(task, cell, similarities, draws, "test")
    ]
    loss = np.concatenate(losses, 1)
    measured = Estimate(loss.mean(1), loss.std(1) / loss.shape[1] ** 0.5)
    return {
        **on("reading", predicted=predicted, measured=measured),
        "reading": ["linear", "similarities"],
        "linear": predicted[0],
        "bayes": bayes,
    }


@features_of_readings.figure
def risk_by_features(evidence: xr.Dataset) -> Figure:
    title = "What similarities change where the target is not linear"
    figure = Figure(evidence, title, x="similarities that are read", y="risk", log="x")
    figure.lines("features", {"predicted": "closed form"}, color="reading")
    figure.lines("features", {"bayes": "Bayes predictor"}, theory=True)
    return figure.points("features", "measured", color="reading", error=True, size=50)


def best_weight(task: SingleLocation, generator: np.random.Generator, samples: int) -> float:
    """E[p_J] at gamma = 1, of draws of the scores alone: log odds of the place are m times the
    score."""
    scores = generator.standard_normal((samples, task.length))
    place = np.arange(samples), generator.choice(task.length, samples, p=task.location_law)
    scores[place] += task.m
    return float(special.softmax(task.m * scores + np.log(task.location_law), -1)[place].mean())


class Similarities(NamedTuple):
    """Similarities less their means, in directions in which they vary by 1, and what sin(omega u)
    has in common with each."""

    centres: Float[np.ndarray, "m r"]
    mean: Float[np.ndarray, " m"]
    whiten: Float[np.ndarray, "m p"]
    shared: Float[np.ndarray, " p"]

    @classmethod
    def of(
        cls, centres: Float[np.ndarray, "m r"], sharpness: float, frequency: float
    ) -> "Similarities":
        r"""Of $e^{-s|c - z_j|^2}$ with $c \sim N(0, I)$ and $u$ its first coordinate."""
        s, width = sharpness, centres.shape[1]
        squares = (centres**2).sum(-1)
        sums = ((centres[:, None] + centres) ** 2).sum(-1)
        products = (1 + 4 * s) ** (-width / 2) * np.exp(
            2 * s**2 * sums / (1 + 4 * s) - s * (squares[:, None] + squares)
        )
        mean = (1 + 2 * s) ** (-width / 2) * np.exp(-s * squares / (1 + 2 * s))
        shrunk = frequency / (1 + 2 * s)
        g = mean * math.exp(-frequency * shrunk / 2) * np.sin(2 * s * shrunk * centres[:, 0])
        values, vectors = np.linalg.eigh(products - np.outer(mean, mean))
        kept = values > CUT * values[-1]
        whiten = vectors[:, kept] / np.sqrt(values[kept])
        return cls(centres, mean, whiten, g @ whiten)

    def __call__(self, read: np.ndarray, sharpness: float) -> np.ndarray:
        squares = (read**2).sum(-1)[..., None] + (self.centres**2).sum(-1)
        near = np.exp(-sharpness * (squares - 2 * read @ self.centres.T))
        return (near - self.mean) @ self.whiten


def read_bags(
    task: SingleLocation,
    cell: Setting,
    similarities: Similarities,
    draws: Draws,
    purpose: str,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Blocks of bags: what the Bayes weights read of the coordinates and of the similarities, each
    [n, p] with an intercept, and the targets [n]."""
    quiet = SingleLocation(task.dim, task.length, task.gamma, 0.0, task.key, task.prior)
    for block, first in enumerate(range(0, cell.samples, BLOCK)):
        count, stream = min(BLOCK, cell.samples - first), draws.stream(purpose, block)
        tokens, u = sequences(quiet, stream, count)
        y = np.sin(cell.frequency * u) + task.noise * stream.standard_normal(count)
        share = special.softmax(np.asarray(task.bayes_logits(tokens)), axis=-1)[:, None]
        # v* comes first after k*; the other coordinates are orthogonal to both.
        read = tokens[..., 1 : 1 + cell.width]
        near = similarities(read, cell.sharpness)
        linear, similar = (
            np.pad((share @ x)[:, 0], ((0, 0), (0, 1)), constant_values=1) for x in (read, near)
        )
        yield linear, similar, y


def least_squares(blocks: Iterator[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Weights of each of several readings of the same bags."""
    sums: list[list[np.ndarray]] = []
    for *heads, y in blocks:
        sums.append([part for x in heads for part in (x.T @ x, x.T @ y)])
    parts = [sum(part) for part in zip(*sums, strict=True)]
    return [
        np.linalg.solve(gram, product)
        for gram, product in zip(parts[::2], parts[1::2], strict=True)
    ]
