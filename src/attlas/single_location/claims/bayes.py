"""Claims about the best possible prediction: softmax attention makes it, and how fast the gaps to it close."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims.compat import (
    Agreement,
    Approximation,
    Control,
    Hypothesis,
    Rate,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream, zeta
from attlas.single_location.baselines import (
    LogEstimate,
    bayes_exponent,
    bayes_gap,
    log_bayes_asymptote,
    log_softmax_asymptote,
    softmax_exponent,
    softmax_gap,
)
from attlas.single_location.claims.shared import (
    FIGURES,
    PRIOR,
    ROOT_HALF,
    SAMPLES,
    TASK,
    column,
    constants_of,
    over_cells,
    sampled_over_cells,
    sequences,
    task_of,
)
from attlas.single_location.population import ORACLE, total_risk
from attlas.single_location.task import SingleLocation


@claim(
    "single-location/softmax-is-bayes",
    source="attlas",
    reference="Bayes' rule for the place",
    statement=r"$E[Y \mid X]$ is softmax attention, sequence by sequence:"
    r" $\sum_l \mathrm{softmax}(\ell)_l \langle x_l, v^*\rangle$ with $\ell_l = \log p_l + \frac{m}{\gamma^2}\langle x_l, k^*\rangle -"
    r" \frac12(\gamma^{-2} - 1)|x_l|^2$. At $\gamma = 1$ it needs no norm term, only the inverse temperature"
    r" $\sqrt{d/2}$.",
    words="Attention with the right temperature, and a term for the tokens' norms, is the best possible predictor.",
    hypotheses=(*TASK, PRIOR),
    quick=Setting(
        dim=(400, 20, 20, 20, 20),
        length=10,
        gamma=(ROOT_HALF, 1.0, ROOT_HALF, 1.3, ROOT_HALF),
        ratio=(1.0, 1.0, 1.0, 1.0, 0.7),
        noise=0.0,
        samples=500,
    ),
    paper=Setting(
        dim=(400, 1600, 20, 20, 20, 20, 8),
        length=10,
        gamma=(ROOT_HALF, 1.0, 1.0, ROOT_HALF, 1.3, ROOT_HALF, 1.0),
        ratio=(1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.5),
        noise=0.0,
        samples=2000,
    ),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the norm term missing, which at gamma^2 = 1/2 and d = 20 is off by up to the size of the answer",
        lambda e: e.assign(measured=e["without_norms"]),
    ),
    figure=drawn_by(f"{FIGURES}.baselines:bayes_per_sequence"),
    cells=together("dim", "gamma", "ratio"),
    budget="samples",
    origin="ours",
)
def softmax_is_bayes(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "single-location/softmax-is-bayes", "sequences")
    names = ("predicted", "measured", "without_norms")
    answers = dict(zip(names, per_sequence(task_of(cell), key, cell.samples), strict=True))
    # Where the statement says that the norm term is not needed, it is the softmax without it that has to agree.
    if cell.gamma == 1:
        answers["measured"] = answers["without_norms"]
    return xr.Dataset(
        {name: (("cell", "sequence"), value[None]) for name, value in answers.items()}
        | {"error": 0.0}
    )


def per_sequence(
    task: SingleLocation, key: Array, samples: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions [n] of the posterior mean, of softmax attention with the norm term, and of the same without it."""
    tokens, _ = sequences(task, stream(key), samples)
    plain = special.softmax(
        task.m / task.gamma**2 * tokens @ task.k_star + np.log(task.location_law), axis=-1
    )
    ours = np.asarray(task.bayes_predict(tokens))
    return posterior_mean(task, tokens), ours, (plain * (tokens @ task.v_star)).sum(-1)


def posterior_mean(
    task: SingleLocation, tokens: Float[np.ndarray, "n length dim"]
) -> Float[np.ndarray, " n"]:
    """E[Y | X] from the definition: the density of the whole sequence for each place, times the place's probability; each is without the
    factor that all tokens have in common."""
    informative = -((tokens - task.m * task.k_star) ** 2).sum(-1) / (
        2 * task.gamma**2
    ) - task.dim * np.log(task.gamma)
    other = -(tokens**2).sum(-1) / 2
    here = np.eye(task.length, dtype=bool)
    joint = np.where(here, informative[:, None], other[:, None]).sum(-1) + np.log(task.location_law)
    return (special.softmax(joint, axis=-1) * (tokens @ task.v_star)).sum(-1)


LADDER = (
    *TASK,
    SAMPLES,
    Hypothesis(
        "80 <= dim <= 1600, gamma <= 1, length <= 20: a third token hardly matters, and float64 holds the risk",
        lambda s: 80 <= s.dim <= 1600 and s.gamma <= 1 and s.length <= 20,
    ),
)


def slightly_faster(evidence: xr.Dataset) -> xr.Dataset:
    return evidence.assign(predicted=evidence["predicted"] * evidence["x"] ** -0.004)


@claim(
    "single-location/softmax-gap",
    source="attlas",
    reference="large deviations of the softmax head",
    statement=r"The excess risk of softmax attention with $k = k^*$, $v = v^*$ and inverse temperature $m$ falls exponentially"
    r" in $d$, with the exponent $\frac{1}{4(1+\gamma^2)}$: to 0.2 %, beside the power of $d$ in its sharp asymptotics.",
    words="What erf attention gains like a power of the dimension, softmax attention gains exponentially.",
    hypotheses=LADDER,
    quick=Setting(dim=(80, 160, 320, 640), length=10, gamma=ROOT_HALF, noise=0.0, samples=60_000),
    paper=Setting(
        dim=(80, 160, 320, 640, 1600), length=10, gamma=ROOT_HALF, noise=0.0, samples=1_000_000
    ),
    rule=Rate(margin=0.002),
    control=Control("an exponent 0.4 % larger", slightly_faster),
    figure=drawn_by(f"{FIGURES}.baselines:gap_curves"),
    cells=together("dim"),
    shape=("length", "samples"),
    budget="samples",
    needs=("single-location/softmax-is-bayes",),
    origin="ours",
)
def softmax_gap_rate(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    key = key_for(seed, "single-location/softmax-gap", "samples")
    gaps = softmax_gaps(key, cells)
    return gap_evidence(cells, gaps, softmax_exponent, log_softmax_asymptote)


@claim(
    "single-location/bayes-gap",
    source="attlas",
    reference="large deviations of the Bayes predictor",
    statement=r"The excess risk of the Bayes predictor falls exponentially in $d$, with the exponent"
    r" $\frac{1}{4(1+\gamma^2)} + \ln\frac{1+\gamma^2}{2\gamma}$, twice the Bhattacharyya distance of an informative and another"
    r" token: to 0.2 %, beside the power of $d$ in its sharp asymptotics.",
    words="The best possible predictor errs only where another token happens to look just like the one that decides.",
    hypotheses=LADDER,
    quick=Setting(dim=(80, 160, 320, 640), length=10, gamma=ROOT_HALF, noise=0.0, samples=60_000),
    paper=Setting(
        dim=(80, 160, 320, 640, 1600), length=10, gamma=ROOT_HALF, noise=0.0, samples=1_000_000
    ),
    rule=Rate(margin=0.002),
    control=Control("an exponent 0.4 % larger", slightly_faster),
    figure=drawn_by(f"{FIGURES}.baselines:gap_curves"),
    cells=together("dim"),
    shape=("length", "samples"),
    budget="samples",
    needs=("single-location/softmax-is-bayes",),
    origin="ours",
)
def bayes_gap_rate(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    key = key_for(seed, "single-location/bayes-gap", "samples")
    gaps = bayes_gaps(key, cells)
    return gap_evidence(cells, gaps, bayes_exponent, log_bayes_asymptote)


@claim(
    "single-location/gap-constants",
    source="attlas",
    reference="sharp asymptotics of the gaps",
    statement=r"With their constants the gaps are, to within 10 % from $d = 160$ on,"
    r" $(L-1)\sqrt{\frac{1}{2\pi q}}\,\frac{B(q,\,2-q)}{m}\,e^{-qd/4}$ for softmax, $q = \frac{1}{1+\gamma^2}$, and"
    r" $(L-1)\,2\pi\gamma^2 q\,(2\pi V)^{-1/2}e^{-rd}$ for Bayes, $V = 2d\,[4\gamma^2q^3 + 2(1-\gamma^2)^2q^2]$ and $r$ its exponent.",
    words="Not only how fast the gaps close but how large they are is known.",
    hypotheses=(*LADDER, Hypothesis("dim >= 160", lambda s: s.dim >= 160)),
    quick=Setting(
        dim=(160, 320, 160, 320),
        length=10,
        gamma=(ROOT_HALF, ROOT_HALF, 1.0, 1.0),
        noise=0.0,
        samples=100_000,
    ),
    paper=Setting(
        dim=(160, 640, 1280, 160, 640, 1280),
        length=10,
        gamma=(ROOT_HALF, ROOT_HALF, ROOT_HALF, 1.0, 1.0, 1.0),
        noise=0.0,
        samples=1_000_000,
    ),
    rule=Approximation(margin=0.1),
    control=Control(
        "a constant that is 20 % larger", lambda e: e.assign(predicted=1.2 * e["predicted"])
    ),
    figure=drawn_by(f"{FIGURES}.baselines:gap_ratios"),
    cells=together("dim", "gamma"),
    shape=("length", "samples"),
    budget="samples",
    needs=("single-location/softmax-gap", "single-location/bayes-gap"),
    origin="ours",
)
def gap_constants(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    key, constants, dims = (
        key_for(seed, "single-location/gap-constants", "samples"),
        constants_of(cells),
        column(cells, "dim"),
    )
    gaps = (softmax_gaps(key, cells), bayes_gaps(key, cells))
    predicted = [log_softmax_asymptote(constants, dims), log_bayes_asymptote(constants, dims)]
    mean = np.exp([gap.log for gap in gaps])
    axes = ("predictor", "cell")
    evidence = xr.Dataset(
        {
            "predicted": (axes, np.exp(predicted)),
            "measured": (axes, mean),
            "error": (axes, mean * [gap.error for gap in gaps]),
        },
        coords={"predictor": ["softmax", "Bayes"]},
    )
    return evidence.transpose("cell", ...)


def softmax_gaps(key: Array, cells: Sequence[Setting]) -> LogEstimate:
    """The excess risk of softmax attention at inverse temperature m, in logarithm, [cell]."""
    return LogEstimate(
        *np.array([softmax_gap(task_of(cell), key, cell.samples) for cell in cells]).T
    )


def bayes_gaps(key: Array, cells: Sequence[Setting]) -> LogEstimate:
    """The excess risk of the Bayes predictor where the place is uniform, in logarithm, [cell]."""
    return LogEstimate(*np.array([bayes_gap(task_of(cell), key, cell.samples) for cell in cells]).T)


def gap_evidence(
    cells: Sequence[Setting],
    gaps: LogEstimate,
    exponent: Callable[[Any], Any],
    asymptote: Callable[..., Any],
) -> xr.Dataset:
    constants, dims = constants_of(cells), column(cells, "dim")
    lam = np.asarray([task_of(cell).best_lam() for cell in cells])
    return xr.Dataset(
        {
            "x": ("cell", np.exp(dims * np.asarray(exponent(constants.gamma)))),
            "measured": ("cell", np.exp(gaps.log)),
            "error": ("cell", np.exp(gaps.log) * gaps.error),
            "predicted": ("cell", np.exp(asymptote(constants, dims))),
            "erf": ("cell", over_cells(total_risk, constants, ORACLE, lam) - constants.noise**2),
        }
    )


@claim(
    "single-location/erf-gap",
    source="attlas",
    reference="Theorem 1 at the oracle's best sharpness",
    statement=r"With $k = k^*$, $v = v^*$ and the best $\lambda$, erf attention has the excess risk"
    r" $\gamma^2[1 - 2\,\mathrm{erf}(\lambda m/D) + \zeta(\lambda m, \lambda\gamma)] + (L-1)\,\zeta(0, \lambda)$, which at"
    r" $d = 400$ is 0.067 and not 0.",
    words="How far erf attention is from perfect at its best, in closed form: not far in the limit, but far at the paper's size.",
    hypotheses=(*TASK, SAMPLES),
    quick=Setting(
        dim=(10, 80, 400, 6400, 100_000), length=10, gamma=ROOT_HALF, noise=0.0, samples=100_000
    ),
    paper=Setting(
        dim=(10, 20, 80, 400, 1600, 6400, 100_000, 1_000_000),
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        samples=2_000_000,
    ),
    rule=Agreement(),
    control=Control(
        "one uninformative token less, L - 2 in place of L - 1",
        lambda e: e.assign(predicted=e["predicted"] - e["token_noise"]),
    ),
    figure=drawn_by(f"{FIGURES}.baselines:erf_gap_curve"),
    cells=together("dim"),
    shape=("length", "samples"),
    budget="samples",
    needs=("single-location/closed-form-risk",),
    origin="ours",
)
def erf_gap(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    constants = constants_of(cells)
    lam = np.asarray([task_of(cell).best_lam() for cell in cells])
    key = key_for(seed, "single-location/erf-gap", "samples")
    mean, error = sampled_over_cells(key, cells[0].samples, constants, ORACLE, lam)
    square = constants.noise**2
    return xr.Dataset(
        {
            "predicted": ("cell", over_cells(total_risk, constants, ORACLE, lam) - square),
            "measured": ("cell", mean - square),
            "error": ("cell", error),
            "token_noise": ("cell", zeta(np.zeros_like(lam), lam)),
            "lam": ("cell", lam),
        }
    )
