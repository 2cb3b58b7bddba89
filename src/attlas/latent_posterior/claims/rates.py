"""Claims about how attention finds the conditional mean as contexts grow: errors and rates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Approximation, Bound, Order, Rate
from attlas.figure import Figure
from attlas.kernels import Exponential
from attlas.latent_posterior import rates
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import DRAWS, defining, log_figure, mean_over_draws, root
from attlas.latent_posterior.sphere import Mix, draw_contexts, sphere_of, squared_errors

WEIGHTS = (0.0, 1.0, 0.7, 0.5)
"""Of the zonal harmonics of degrees 0 to 3 in the conditional mean."""
LINEAR = (0.0, 1.0)
SOFTMAX_SETTING = Setting(weights=WEIGHTS, fixed=0.25, noise=0.5)
"""The conditional mean, a temperature of softmax attention that stays, and the noise."""
SETTING = Setting(temperature=0.5, **SOFTMAX_SETTING)
"""The same with the temperature of CME attention."""

FAR = 10.0 ** np.array([6, 8, 10, 12, 14, 16])
"""Lengths at which only the formulas can be read."""

LADDER = defining(
    "length has at least two values, in ascending order",
    lambda s: len(s.length) >= 2 and list(s.length) == sorted(set(s.length)),
)
LONG_ENOUGH = Hypothesis(
    "length >= 32, and 0.8 times the effective dimension",
    lambda s: min(s.length) >= max(32, 0.8 * dimension_at(s)),
)


def dimension_at(s: Setting) -> float:
    """The effective dimension at the shortest length."""
    kernel = {"temperature": s.temperature, "dim": s.dim}
    return float(rates.effective_dimension(min(s.length), ridge=s.noise**2, **kernel))


def harmonics_of(cell: Setting, weights: Sequence[float] = ()) -> dict[str, Any]:
    r"""What the formulas read of a cell: powers $|m_l|^2 = w_l^2/N_l$ of its mean, or of one with
    other `weights`, and noise."""
    weights = weights or cell.weights
    counts = rates.multiplicity(np.arange(len(weights)), cell.dim)
    return {"dim": cell.dim, "powers": np.square(weights) / counts, "noise": cell.noise}


def errors_by_length(
    cell: Setting,
    draws: Draws,
    *,
    temperatures: list[Any],
    mix: list[Any],
    formulas: dict[str, Any],
    ridges: list[Any] | None = None,
    aims: list[Any] | None = None,
    weights: list[Any] | None = None,
) -> dict[str, Any]:
    """Squared errors of mechanisms at each length, on the same tokens, and what the formulas say.

    Arguments:
        temperatures, ridges: of the heads, each an array over the lengths of the cell.
        mix: the factors of the heads in each mechanism, those with a ridge first.
        formulas: the mean square error of each mechanism over the lengths, by its name.
        aims: 1 for mechanisms that estimate the conditional mean (default), 0 for those of 0.
        weights: of the conditional mean of each mechanism, if they differ from the cell's.
    """
    sphere = sphere_of(cell.dim, weights or cell.weights, cell.queries)
    drawn = draw_contexts(draws("contexts"), cell.draws, max(cell.length), sphere)
    kernels = np.transpose(ridges).tolist() if ridges else [()] * len(cell.length)
    heads = zip(cell.length, np.transpose(temperatures).tolist(), kernels, strict=True)
    squares = [
        squared_errors(
            drawn,
            length,
            sphere,
            noise=cell.noise,
            kernel=Exponential(cell.get("temperature", 1.0)),
            ridges=ridge,
            temperatures=temperature,
            mix=Mix(np.array(mix, float), np.array(aims or [1.0] * len(mix))),
        )
        for length, temperature, ridge in heads
    ]
    return {
        **on("length draw mechanism", square=np.array(squares)),
        **on("length mechanism", formula=np.sqrt(np.stack(list(formulas.values()), 1))),
        "mechanism": list(formulas),
        "length": list(cell.length),
        "s": cell.dim - 1,
    }


def errors_of(mechanism: str, evidence: xr.Dataset) -> dict[str, Any]:
    """The root mean square error of one mechanism beside its formula."""
    one = evidence.sel(mechanism=mechanism, drop=True)
    measured, error = root(mean_over_draws(one["square"]))
    read = {"measured": measured, "error": error, "predicted": one["formula"]}
    return {**read, "repetitions": evidence["draws"].variable}


def slopes_of(mechanism: str, evidence: xr.Dataset) -> dict[str, Any]:
    """What `Rate` reads of one mechanism.

    A draw's contexts of all lengths are made of the same tokens, so the error is that of the slope
    itself, draw by draw, shared out evenly over the lengths.
    """
    found = errors_of(mechanism, evidence)
    lengths = evidence["length"].astype(float)
    centred = np.log(lengths) - np.log(lengths).mean()
    weights = centred / (centred**2).sum()
    squares = evidence["square"].sel(mechanism=mechanism, drop=True)
    _, error = mean_over_draws((weights * squares / squares.mean("draw")).sum("length") / 2)
    found["error"] = found["measured"] * error / np.sqrt((weights**2).sum())
    return {**found, "x": lengths}


def larger_exponent(margin: float) -> Control:
    """Twice the margin more than the formula's exponent."""
    return Control(
        "an exponent that is {size:.2g} larger",
        lambda e, size: {"predicted": e.predicted * e.x**size},
        size=2 * margin,
    )


def larger_root(size: float) -> Control:
    return Control(
        "a root that is {size:.1%} larger",
        lambda e, size: {"predicted": (1 + size) * e.predicted},
        size=size,
    )


def error_curves(evidence: xr.Dataset, title: str, note: str) -> Figure:
    measured, error = root(mean_over_draws(evidence["square"]))
    figure = log_figure(
        evidence.assign(rmse=measured, rmse_error=error),
        title,
        note,
        y="root mean square error",
        format={"x": "~s"},
    )
    figure.lines("length", "formula", color="mechanism")
    figure.points("length", "rmse", error="rmse_error", color="mechanism")
    return figure.facet("s = {s}", columns=3, width=200, height=260)


# --- five mechanisms ---------------------------------------------------------------------------

BAYES, ROOT, PROOF, BEST, FIXED, PROVED = MECHANISMS = (
    "CME, λ = σ²",
    "CME, λ = √L",
    "CME, λ = L^¾",
    "softmax, best γ",
    "softmax, fixed γ",
    "CME, λ = L^¾, linear mean",
)


@latent_posterior.measurement(
    "cme-error",
    quick=Setting(length=(32, 64, 128, 256, 512), dim=(2, 3, 6), draws=64, queries=32, **SETTING),
    paper=dict(length=(32, 64, 128, 256, 512, 1024)),
    hypotheses=(DRAWS, LADDER),
    cells=together("dim"),
    budget="draws",
)
def five_mechanisms(cell: Setting, draws: Draws) -> Values:
    lengths = np.array(cell.length, float)
    given = harmonics_of(cell)
    softmax = [rates.optimal_temperature(lengths, **given), np.full_like(lengths, cell.fixed)]
    ridges = [np.full_like(lengths, cell.noise**2), np.sqrt(lengths), lengths**0.75]
    formulas = [
        *(rates.cme_error(lengths, ridge=r, temperature=cell.temperature, **given) for r in ridges),
        *(rates.softmax_error(lengths, temperature=t, **given) for t in softmax),
        proved_error(cell, lengths),
    ]
    return errors_by_length(
        cell,
        draws,
        temperatures=softmax,
        ridges=ridges,
        mix=[*np.eye(5).tolist(), [0, 0, 1, 0, 0]],
        formulas=dict(zip(MECHANISMS, formulas, strict=True)),
        weights=[cell.weights] * 5 + [np.eye(len(cell.weights))[1]],
    )


def proved_error(cell: Setting, lengths: Float[np.ndarray, " n"]) -> Any:
    """The mean square error of the proof's ridge where the conditional mean is linear."""
    given = harmonics_of(cell, LINEAR)
    return rates.cme_error(lengths, ridge=lengths**0.75, temperature=cell.temperature, **given)


@latent_posterior.claim(
    kind="simulation",
    measured_by=five_mechanisms,
    origin="ours",
    reference="finite-length error of CME attention",
    statement=r"For uniform keys on $S^{p-1}$ CME attention with $\lambda = \sigma^2$ has the mean"
    r" square error $\left\{\frac{\sigma^2}{L}d_2 + \sum_l\left(\frac{\kappa}{\mu_l +"
    r" \kappa}\right)^2|m_l|^2\right\}/(1 - \frac{d_2}{L})$, $d_2 = \sum_l"
    r" N_l\left(\frac{\mu_l}{\mu_l + \kappa}\right)^2$, where $\kappa = \frac{\lambda}{L} +"
    r" \frac{\kappa}{L}\sum_l\frac{N_l\mu_l}{\mu_l + \kappa}$, to 5 % of its root for $p = 2, 3,"
    r" 6$ where $L$ is at least 32 and 0.8 times the effective dimension.",
    words="The mean square error of CME attention on a finite context, from the eigenvalues of"
    " its kernel.",
    hypotheses=(LONG_ENOUGH,),
    rule=Approximation(margin=0.05),
    control=larger_root(0.1),
    needs=("cme-is-posterior-mean",),
)
def cme_error(evidence: xr.Dataset) -> Values:
    return errors_of(BAYES, evidence)


@latent_posterior.claim(
    kind="simulation",
    measured_by=five_mechanisms,
    origin="our reading",
    reference="CME attention tends to the conditional mean",
    statement=r"CME attention with $\lambda = \sigma^2$ tends to $m(q) = E[v \mid k = q]$: its root"
    r" mean square error falls with the exponent of the finite-length formula, to 0.02 where $L$ is"
    r" at least 32 and 0.8 times the effective dimension.",
    words="The error of CME attention with Bayes' ridge vanishes as the context grows, with the"
    " exponent of its finite-length formula.",
    hypotheses=(LONG_ENOUGH,),
    rule=Rate(margin=0.02, along="length"),
    control=larger_exponent(0.02),
    needs=("cme-error",),
)
def cme_converges(evidence: xr.Dataset) -> Values:
    return slopes_of(BAYES, evidence)


@latent_posterior.claim(
    kind="simulation",
    measured_by=five_mechanisms,
    origin="ours",
    reference="ridges that grow with the length",
    statement=r"For $\sigma \le 3/4$ CME attention errs less with $\lambda = \sigma^2$, and"
    r" with $\lambda = \sqrt{L}$, than with $\lambda = L^{3/4}$, at every length tested.",
    words="With the ridge of the proof, the length to the power 3/4, CME attention errs more"
    " than with the Bayes ridge, the variance of the noise, which does not grow with the"
    " length.",
    hypotheses=(Hypothesis("noise <= 0.75", lambda s: s.noise <= 0.75),),
    rule=Order(),
    control=Control(
        "the other two err less even if their mean square errors are made {size:.0%} larger",
        lambda e, size: schedules_ordered(e, 1 + size),
    ),
    needs=("cme-error",),
)
def bayes_ridge(evidence: xr.Dataset) -> Values:
    return schedules_ordered(evidence)


def schedules_ordered(evidence: xr.Dataset, times: float = 1.0) -> Values:
    """Mean squares of two schedules, so many `times`, below that of the proof, draw by draw."""
    two = evidence["square"].sel(mechanism=[BAYES, ROOT]).drop_vars("mechanism")
    lower = times * two.rename(mechanism="schedule")
    upper = evidence["square"].sel(mechanism=PROOF, drop=True)
    return {
        "lower": lower.mean("draw"),
        "upper": upper.mean("draw"),
        "error": mean_over_draws(upper - lower).error,
        "repetitions": evidence["draws"].variable,
    }


@cme_error.figure
@cme_converges.figure
@bayes_ridge.figure
def errors_against_length(evidence: xr.Dataset) -> Figure:
    return error_curves(
        evidence.drop_sel(mechanism=PROVED),
        "Attention and the conditional mean",
        "points: simulated; lines: the formulas; uniform keys on a sphere of dimension s",
    )


@latent_posterior.claim(
    kind="simulation",
    measured_by=five_mechanisms,
    origin="our reading",
    reference="rate of CME attention",
    statement=r"With $\lambda = L^{3/4}$ CME attention errs by at most $C L^{-1/4}$ in root"
    r" mean square, $C^2 = \sum_l|m_l|^2/\mu_l^2 + \sigma^2/4$, for a linear conditional mean."
    r" At the lengths simulated it errs by half of that; by the finite-length formula, which no"
    r" simulation reaches so far out, $C$ is attained to 1 % at $10^{16}$ tokens.",
    words="With the ridge that the proof takes, CME attention stays within the error that is"
    " proved: at half of it, at lengths that can be simulated.",
    rule=Bound(),
    control=Control(
        "a constant that is {size:.1%} smaller",
        lambda e, size: {"bound": (1 - size) * e.bound},
        size=0.7,
    ),
    needs=("cme-error",),
)
def proof_schedule(evidence: xr.Dataset) -> Values:
    r"""$\mathrm{RMSE}^2 \le \rho^2\sum_l|m_l|^2/\mu_l^2 + \sigma^2/(4\rho L)$, $\rho = L^{-1/4}$.

    Because $x^2/(1 + x)^2 \le x/4$ and $\sum_l N_l\mu_l = 1$; a linear mean has $|m_1|^2 = 1/p$.
    Beside the bound at the simulated lengths, bound and formula at these and far beyond them.
    """
    tokens = np.concatenate([evidence["length"].values, FAR])
    given = zip(*(evidence[name].values for name in ("dim", "temperature", "noise")), strict=True)
    cells = [Setting(dim=int(d), temperature=t, noise=s) for d, t, s in given]
    constants = np.sqrt(
        [1 / c.dim / rates.mercer(1, c.temperature, c.dim) ** 2 + c.noise**2 / 4 for c in cells]
    )
    bounds = constants[:, None] * tokens**-0.25
    formula = np.sqrt([proved_error(cell, tokens) for cell in cells])
    return {
        **errors_of(PROVED, evidence),
        **on("cell length", bound=bounds[:, : -len(FAR)]),
        **on("cell size", proved=bounds, formula_of_proof=formula),
        **on("size", tokens=tokens),
    }


@proof_schedule.figure
def bound_of_the_proof(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence,
        "The ridge of the proof",
        "points: simulated; lines: the formula; dashed: the bound, which falls like L⁻⁰·²⁵",
        y="root mean square error",
        format={"x": "~s"},
    )
    figure.lines("tokens", "proved", color="s = {s}", theory=True)
    figure.lines("tokens", "formula_of_proof", color="s = {s}")
    return figure.points("length", "measured", error="error", color="s = {s}")


# --- the difference ----------------------------------------------------------------------------

DIFFERENCE = "softmax − CME"


@latent_posterior.measurement(
    "softmax-cme-difference",
    quick=Setting(length=(64, 128, 256, 384, 512), dim=(2, 3), draws=160, queries=16, **SETTING),
    paper=dict(length=(64, 128, 256, 384, 512, 1024), draws=200, queries=32),
    hypotheses=(
        DRAWS,
        LADDER,
        Hypothesis(
            "length >= 3 times the effective dimension",
            lambda s: min(s.length) >= 3 * dimension_at(s),
        ),
    ),
    cells=together("dim"),
    budget="draws",
)
def two_ways_apart(cell: Setting, draws: Draws) -> Values:
    lengths = np.array(cell.length, float)
    given = harmonics_of(cell)
    best, ridge = rates.optimal_temperature(lengths, **given), np.full_like(lengths, cell.noise**2)
    return errors_by_length(
        cell,
        draws,
        temperatures=[best],
        ridges=[ridge],
        mix=[[1, 0], [0, 1], [-1, 1]],
        aims=[1, 1, 0],
        formulas={
            BAYES: rates.cme_error(lengths, ridge=ridge, temperature=cell.temperature, **given),
            BEST: rates.softmax_error(lengths, temperature=best, **given),
            DIFFERENCE: rates.difference_error(
                lengths, ridge=ridge, kernel=cell.temperature, temperature=best, **given
            ),
        },
    )


@latent_posterior.claim(
    kind="simulation",
    measured_by=two_ways_apart,
    origin="ours",
    reference="finite-length difference of softmax and CME attention",
    statement=r"CME attention with $\lambda = \sigma^2$ is a function with $|f_l|^2 ="
    r" \left(\frac{\mu_l}{\mu_l + \kappa}\right)^2(|m_l|^2 + \frac{N_l}{L}(\sigma^2 +"
    r" \mathrm{MSE}))$, where MSE is its mean square error, and its residuals have the"
    r" harmonics $\frac{\lambda}{L\mu_l}f_l$. Softmax attention at the best temperature smooths"
    r" both, and differs from it in mean square by $\sum_l\{a_l(1 + \frac{\lambda}{L\mu_l}) -"
    r" 1\}^2|f_l|^2$ and the spread of $f$ among the tokens averaged, to 12 % of its root where"
    r" $L$ is three times the effective dimension or more.",
    words="The mean square difference of softmax and CME attention on a finite context, from"
    " the eigenvalues of the kernel.",
    rule=Approximation(margin=0.12),
    control=larger_root(0.25),
    needs=("cme-error", "softmax-rate"),
)
def softmax_cme_difference(evidence: xr.Dataset) -> Values:
    return errors_of(DIFFERENCE, evidence)


@latent_posterior.claim(
    kind="simulation",
    measured_by=two_ways_apart,
    origin="our reading",
    reference="agreement of softmax and CME attention",
    statement=r"The difference of softmax attention at the best temperature and CME attention"
    r" with $\lambda = \sigma^2$ vanishes with the exponent of its finite-length formula, to"
    r" 0.06 where $L$ is three times the effective dimension or more; at great length that is"
    r" $-2/(s + 4)$. On the circle the formula has $-0.34$ at the lengths tested, and"
    r" $-\frac13$ is not excluded there.",
    words="The longer the context, the smaller the difference of softmax attention at its best"
    " temperature and CME attention, with a known exponent.",
    rule=Rate(margin=0.06, along="length"),
    control=larger_exponent(0.06),
    needs=("softmax-cme-difference",),
)
def difference_vanishes(evidence: xr.Dataset) -> Values:
    return slopes_of(DIFFERENCE, evidence)


@softmax_cme_difference.figure
@difference_vanishes.figure
def difference_against_length(evidence: xr.Dataset) -> Figure:
    return error_curves(
        evidence,
        "Softmax and CME attention agree",
        "their difference and the errors of both; lines: the formulas",
    )
