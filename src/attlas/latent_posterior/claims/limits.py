"""Claims about softmax attention on long contexts: its rate, its floor, its limits, its law."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.linalg import solve
from scipy.special import ndtr, softmax

from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, together
from attlas.claims.rules import Agreement, Approximation, Rate
from attlas.figure import Figure, Panels, row
from attlas.gaussian import Estimate
from attlas.latent_posterior import rates
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.rates import (
    BAYES,
    LADDER,
    PROOF,
    SETTING,
    SOFTMAX_SETTING,
    error_curves,
    errors_by_length,
    errors_of,
    harmonics_of,
    larger_exponent,
    larger_root,
    slopes_of,
)
from attlas.latent_posterior.claims.shared import DRAWS, LEGENDS, log_figure, root
from attlas.rademacher import mean_of

ONE_HEAD, TWO_HEADS, FIXED_HEAD = (
    "one head, best γ",
    "a pair, γ ~ L^(−2/(s+8))",
    "one head, fixed γ",
)


def falling_temperatures(cell: Setting, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of one head, the best, and of a pair, whose bias of second order balances the variance."""
    best = rates.optimal_temperature(lengths, **harmonics_of(cell))
    return best, 0.5 * lengths ** (-2 / (cell.dim + 7))


@latent_posterior.measurement(
    "softmax-rate",
    quick=Setting(
        length=(500, 1000, 2000, 4000, 8000), dim=(2, 3, 6), draws=48, queries=16, **SOFTMAX_SETTING
    ),
    paper=dict(length=(500, 1000, 2000, 4000, 8000, 16_000, 32_000), draws=64, queries=32),
    hypotheses=(DRAWS, LADDER),
    cells=together("dim"),
    budget="draws",
)
def softmax_heads(cell: Setting, draws: Draws) -> Values:
    lengths = np.array(cell.length, float)
    given = harmonics_of(cell)
    one, two = falling_temperatures(cell, lengths)
    fixed = np.full_like(lengths, cell.fixed)
    formulas = {
        ONE_HEAD: rates.softmax_error(lengths, temperature=one, **given),
        TWO_HEADS: rates.softmax_error(lengths, temperature=two, heads=rates.PAIR, **given),
        FIXED_HEAD: rates.softmax_error(lengths, temperature=fixed, **given),
    }
    found = errors_by_length(
        cell,
        draws,
        temperatures=[one, two, 2 * two, fixed],
        mix=[[1, 0, 0, 0], [0, 2, -1, 0], [0, 0, 0, 1]],
        formulas=formulas,
    )
    return {**found, "floor": rates.softmax_bias(cell.fixed, cell.dim, given["powers"])}


@latent_posterior.claim(
    kind="simulation",
    measured_by=softmax_heads,
    origin="ours",
    reference="rate of softmax attention",
    statement=r"With temperatures $\gamma \sim L^{-2/(s+4)}$ the root mean square error of softmax"
    r" attention falls with the exponent of the finite-length formula to 0.025; at great length"
    r" that is $-2/(s + 4)$.",
    words="Softmax attention finds the conditional mean if its temperature falls with the length,"
    " more slowly on larger spheres.",
    rule=Rate(margin=0.025, along="length"),
    control=larger_exponent(0.025),
    needs=("softmax-is-nadaraya-watson",),
)
def softmax_rate(evidence: xr.Dataset) -> Values:
    return slopes_of(ONE_HEAD, evidence)


@latent_posterior.claim(
    kind="simulation",
    measured_by=softmax_heads,
    origin="ours",
    reference="two heads that cancel the leading bias",
    statement=r"$2\,\mathrm{attn}_\gamma - \mathrm{attn}_{2\gamma}$ with $\gamma \sim L^{-2/(s+8)}$"
    r" has an error that falls with the exponent of its finite-length formula to 0.03, at great"
    r" length $-4/(s + 8)$.",
    words="A second head of twice the temperature, subtracted, makes softmax attention converge"
    " faster.",
    rule=Rate(margin=0.03, along="length"),
    control=larger_exponent(0.03),
    needs=("softmax-rate",),
)
def temperature_pairs(evidence: xr.Dataset) -> Values:
    return slopes_of(TWO_HEADS, evidence)


@softmax_rate.figure
@temperature_pairs.figure
def errors_of_heads(evidence: xr.Dataset) -> Figure:
    return error_curves(
        evidence,
        "Softmax attention on long contexts",
        "points: simulated; lines: the formula; s is the sphere's dimension",
    )


@latent_posterior.claim(
    kind="simulation",
    measured_by=softmax_heads,
    origin="ours",
    reference="softmax attention at a fixed temperature",
    statement=r"At a fixed temperature softmax attention keeps the error $\sqrt{\sum_l(1 -"
    r" a_l)^2|m_l|^2}$, $a_l = I_{l+p/2-1}(1/\gamma)/I_{p/2-1}(1/\gamma)$, at any length; at"
    r" the longest one tested the error is this to 2 %.",
    words="At a fixed temperature softmax attention keeps an error that more tokens do not remove.",
    rule=Approximation(margin=0.02),
    control=larger_root(0.05),
    needs=("softmax-rate",),
)
def softmax_floor(evidence: xr.Dataset) -> Values:
    longest = evidence.isel(length=-1, drop=True)
    return {**errors_of(FIXED_HEAD, longest), "predicted": evidence["floor"]}


@softmax_floor.figure
def harmonics_kept(evidence: xr.Dataset) -> Panels:
    dim, fixed = (evidence[name].values[0].item() for name in ("dim", "fixed"))
    degrees = np.arange(13)
    eigenvalues = rates.mercer(degrees, 0.5, dim)
    kept = {f"CME, L = {n:,}": eigenvalues / (eigenvalues + 0.25 / n) for n in (64, 1024, 16_384)}
    kept[f"softmax, γ = {fixed:g}"] = rates.funk_hecke(degrees, fixed, dim)
    filters = xr.Dataset(
        {"kept": (("filter", "degree"), np.array([*kept.values()]))},
        {"filter": list(kept), "degree": degrees},
    )
    spectrum = Figure(
        filters, x="degree l", y="share of it that is kept", legend={"filter": None}, width=380
    ).lines("degree", "kept", color="filter", points=True)
    spheres = evidence.assign_coords(sphere=evidence["s"].astype(str))
    floors = Figure(spheres, x="dimension s of the sphere", y="error that stays", width=160)
    floors.ticks("sphere", "predicted", size=40)
    floors.points("sphere", "measured", error="error", size=50)
    return row(
        spectrum,
        floors,
        title="What attention keeps of a harmonic",
        note="softmax has a fixed cut, CME attention's moves with the length; second panel:"
        " simulated (points) and Funk-Hecke's floor (bars)",
    )


# --- limits, in closed form --------------------------------------------------------------------


@latent_posterior.claim(
    kind="two routes",
    origin="ours",
    reference="rates at great length",
    statement=r"By the finite-length formulas the root mean square error falls, at great"
    r" length, like $L^{-2/(s+4)}$ for softmax attention, $L^{-4/(s+8)}$ for a pair of heads"
    r" and $L^{-1/4}$ for CME attention with $\lambda = L^{3/4}$: from $10^{16}$ tokens on the"
    r" exponents are these to 0.01, at temperatures from $\frac1{10}$ to $\frac12$ in up to 8"
    r" dimensions; beyond these, the last exponent is reached at greater lengths only.",
    words="The exponents with which three kinds of attention converge from 10¹⁶ tokens on, by"
    " the finite-length formulas.",
    hypotheses=(
        Hypothesis(
            "0.1 <= temperature <= 0.5 and dim <= 8: beyond, the exponent 1/4 comes later",
            lambda s: 0.1 <= s.temperature <= 0.5 and s.dim <= 8,
        ),
    ),
    quick=Setting(dim=(2, 3, 6), **SETTING),
    paper=dict(dim=(2, 3, 4, 5, 6, 8)),
    cells=together("dim"),
    rule=Rate(margin=0.01, along="length"),
    control=Control(
        "exponents that are {size:.2g} larger",
        lambda e, size: {"exponent": e.exponent + size},
        size=0.02,
    ),
    needs=("cme-error", "softmax-rate"),
)
def exponents(cell: Setting, draws: Draws) -> Values:
    s = cell.dim - 1
    lengths = 10.0 ** np.arange(2, 21)
    given = harmonics_of(cell)
    one, two = falling_temperatures(cell, lengths)
    squares = {
        ONE_HEAD: rates.softmax_error(lengths, temperature=one, **given),
        TWO_HEADS: rates.softmax_error(lengths, temperature=two, heads=rates.PAIR, **given),
        PROOF: rates.cme_error(lengths, ridge=lengths**0.75, temperature=cell.temperature, **given),
        BAYES: rates.cme_error(lengths, ridge=cell.noise**2, temperature=cell.temperature, **given),
    }
    errors = np.sqrt(np.stack(list(squares.values()), 1))
    far = lengths >= 1e16
    return {
        **on("length", x=lengths[far]),
        **on("length mechanism", measured=errors[far, :3]),
        **on("place every", local=np.gradient(np.log(errors), np.log(lengths), axis=0)),
        **on("mechanism", exponent=[-2 / (s + 4), -4 / (s + 8), -1 / 4]),
        "error": 0.0,
        "mechanism": list(squares)[:3],
        "every": list(squares),
        "place": np.log10(lengths),
        "s": s,
    }


@exponents.figure
def local_exponents(evidence: xr.Dataset) -> Figure:
    evidence = evidence.set_coords("s")
    reached = evidence.assign(tokens=10.0 ** evidence["place"]).rename(every="attention")
    ends = evidence[["exponent"]].rename(mechanism="attention")
    ends = ends.assign(tokens=("end", [1e2, 1e20]))
    figure = Figure(
        reached,
        "Rates are reached late",
        "lines: slopes of the formulas; dashed: what they tend to",
        x="tokens L",
        y="local exponent of the error",
        log="x",
        format={"x": "~e"},
        legend=LEGENDS,
    )
    figure.lines("tokens", "local", color="attention")
    figure.lines("tokens", "exponent", color="attention", theory=True, data=ends)
    return figure.facet("s = {s}", columns=3, width=200, height=260)


ANGLES = np.cos(np.linspace(0.05, 3.09, 41))


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="the constant between the limits of softmax and CME attention",
    statement=r"The limits of CME and softmax attention at a fixed temperature are proportional,"
    r" $m = C\lim\mathrm{attn}_\gamma$, where keys are uniform on the sphere and $m$ has a single"
    r" degree $l$; then $C = 1/a_l$.",
    words="One number turns softmax attention's limit into the conditional mean, but only for"
    " the simplest of means: a mean of two degrees is a counterexample to the sequel's"
    " Proposition 4.3 (arXiv 2305.19420), which states one constant for all means.",
    quick=Setting(dim=(2, 3, 6), temperature=0.5),
    paper=dict(dim=(2, 3, 4, 6, 10)),
    cells=together("dim"),
    rule=Agreement(rounding=1e-9),
    control=Control("a mean of the degrees $l$ and $l + 1$", lambda e: {"measured": e.two}),
    needs=("softmax-is-nadaraya-watson",),
)
def one_constant(cell: Setting, draws: Draws) -> Values:
    given: dict[str, Any] = {"temperature": cell.temperature, "dim": cell.dim}

    def fit(*degrees: int, density: Any = np.ones_like) -> tuple[float, float]:
        """The best C in mean = C limit, for a mean of these degrees, and the share it leaves."""

        def mean(t: Any) -> Any:
            return sum(rates.zonal(l, cell.dim, t) for l in degrees)

        limit = rates.softmax_limit(mean, ANGLES, density=density, **given)
        best = limit @ mean(ANGLES) / (limit @ limit)
        left = np.linalg.norm(mean(ANGLES) - best * limit) / np.linalg.norm(mean(ANGLES))
        return float(best), float(left)

    degrees = [1, 2, 3]
    return {
        **on(
            "degree number",
            predicted=[[1 / rates.funk_hecke(l, **given), 0.0] for l in degrees],
            measured=[fit(l) for l in degrees],
            two=[fit(l, l + 1) for l in degrees],
            denser=[fit(l, density=lambda t: 1 + 0.5 * t) for l in degrees],
        ),
        "error": 0.0,
        "degree": degrees,
        "number": ["constant", "residual"],
    }


@one_constant.figure
def shares_left(evidence: xr.Dataset) -> Figure:
    names = {
        "measured": "degree l",
        "two": "degrees l and l + 1",
        "denser": "degree l, denser keys at e",
    }
    left = evidence[list(names)].sel(number="residual", drop=True)
    return Figure(
        left.clip(min=1e-16).assign_coords(dim=evidence["dim"]),
        "One constant, for one degree",
        "between the limits of CME and softmax attention at a fixed temperature",
        x="degree l of the conditional mean",
        y="share left by the best constant",
        log="y",
        legend=LEGENDS,
    ).points("degree", names, detail="dim", size=60)


# --- a forecast of the whole law ---------------------------------------------------------------

LETTERS = np.array([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
TILT = 0.9 / len(LETTERS)
"""Letter j has the probability 1/4 + TILT <k, LETTERS_j> at the key k.

The cumulative probabilities are linear in k as well.
"""


@latent_posterior.claim(
    kind="simulation",
    reference="softmax attention as a conditional law",
    origin="ours",
    statement=r"Softmax weights are an estimate $\hat P(v \mid q) = \sum_i w_i\delta_{v_i}$ of the"
    r" conditional law; the expected excess of its CRPS, $\sum_j(\hat F_j - F_j)^2$, is the sum of"
    r" the finite-length errors of the cumulative probabilities, to 10 % of its root.",
    words="Softmax weights are also a forecast of the whole law of the value; the error of that"
    " forecast at finite length has a formula.",
    hypotheses=(DRAWS, Hypothesis("length >= 64", lambda s: s.length >= 64)),
    quick=Setting(length=(64, 256), fixed=2.0, draws=400, queries=32),
    paper=dict(length=(64, 256, 1024)),
    cells=together("length"),
    budget="draws",
    rule=Approximation(margin=0.1),
    control=Control("the bias alone", lambda e: {"predicted": e.bias}),
    needs=("softmax-rate",),
)
def law_crps(cell: Setting, draws: Draws) -> Values:
    """Attention to the letters of tokens as an estimate of the law of a letter at a query."""
    powers, noise = cumulative_powers()
    best = float(rates.optimal_temperature(cell.length, dim=3, powers=powers, noise=noise))
    # The Bayes ridge of a Gaussian process: noise over the variance of the tilts.
    ridge = noise**2 / powers[1]
    shape = (cell.draws, cell.queries + cell.length, 4)
    contexts = draws.stream("contexts").standard_normal(shape)
    found = [excess_crps(one, cell.queries, ridge, (best, cell.fixed), 0.5) for one in contexts]
    crps = mean_of(np.transpose(found))
    formula = rates.softmax_error(cell.length, temperature=best, dim=3, powers=powers, noise=noise)
    return {
        **on("law", crps=crps),
        "measured": root(Estimate(crps.mean[0], crps.error[0])),
        "predicted": np.sqrt(formula),
        "formula": formula,
        "bias": rates.softmax_bias(best, 3, powers),
        "law": ["softmax", "CME, signed", "CME, clipped", "softmax, fixed γ"],
    }


def cumulative_powers() -> tuple[Float[np.ndarray, " degree"], float]:
    """Powers of the cumulative probabilities by degree, and their noise, summed over letters."""
    height = np.arange(1, len(LETTERS)) / len(LETTERS)
    tilts = TILT**2 * (np.cumsum(LETTERS, 0)[:-1] ** 2).sum(1) / 3
    noise = float(np.sqrt((height - height**2 - tilts).sum()))
    return np.stack([height**2, tilts]).sum(1), noise


def excess_crps(
    drawn: Float[np.ndarray, "token 4"],
    queries: int,
    ridge: float,
    temperatures: tuple[float, float],
    kernel: float,
) -> Float[np.ndarray, " law"]:
    """Excess CRPS of each estimated law over the true one, means over queries.

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
    return (np.cumsum(off, -1)[..., :-1] ** 2).sum(-1).mean(-1)


@law_crps.figure
def excess_of_the_forecast(evidence: xr.Dataset) -> Figure:
    figure = log_figure(
        evidence,
        "Attention as a forecast of a law",
        "dashed: the formula for softmax",
        y="excess CRPS",
    )
    figure.lines("length", "crps", points=True, error="crps_error", color="law")
    return figure.lines("length", "formula", theory=True)
