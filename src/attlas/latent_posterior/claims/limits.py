"""Claims about softmax attention on long contexts: its rate, its floor, and its limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.special import roots_jacobi

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Agreement, Approximation, Rate
from attlas.figure import Figure, Panels, agreement, floored, row
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.rates import (
    BAYES,
    LADDER,
    PROOF,
    WEIGHTS,
    error_curves,
    errors_by_length,
    errors_of,
    harmonics_of,
    slopes_of,
)
from attlas.latent_posterior.claims.shared import DRAWS, SPHERE
from attlas.latent_posterior.rates import (
    HEAD,
    PAIR,
    cme_error,
    funk_hecke,
    mercer,
    optimal_temperature,
    softmax_bias,
    softmax_error,
    softmax_limit,
    zonal,
)

HEADS = {"one head, best γ": HEAD, "a pair, γ ~ L^(−2/(s+8))": PAIR, "one head, fixed γ": HEAD}
ONE_HEAD, TWO_HEADS, FIXED_HEAD = HEADS


def head_temperatures(cell: Setting, lengths: np.ndarray) -> Float[np.ndarray, "3 length"]:
    """Of each mechanism of `HEADS`.

    The pair's has the order at which its bias, of second order, balances the variance.
    """
    best = optimal_temperature(lengths, **harmonics_of(cell))
    pair = 0.5 * lengths ** (-2 / (cell.dim + 7))
    return np.stack([best, pair, np.full_like(lengths, cell.fixed)])


@latent_posterior.measurement(
    "softmax-rate",
    quick=Setting(
        length=(500, 8000),
        dim=(2, 3, 6),
        weights=WEIGHTS,
        fixed=0.25,
        noise=0.5,
        draws=64,
        queries=16,
    ),
    paper=dict(length=(500, 2000, 8000, 32_000), queries=32),
    hypotheses=(SPHERE, DRAWS, LADDER),
    cells=together("dim"),
    budget="draws",
)
def softmax_heads(cell: Setting, draws: Draws) -> Values:
    lengths = np.array(cell.length, float)
    given = harmonics_of(cell)
    one, two, fixed = head_temperatures(cell, lengths)
    formulas = {
        name: softmax_error(lengths, temperature=t, heads=heads, **given)
        for (name, heads), t in zip(HEADS.items(), (one, two, fixed), strict=True)
    }
    found = errors_by_length(
        cell,
        draws,
        temperatures=[one, two, 2 * two, fixed],
        mix=[[1, 0, 0, 0], [0, 2, -1, 0], [0, 0, 0, 1]],
        formulas=formulas,
    )
    return {**found, "floor": softmax_bias(cell.fixed, cell.dim, given["powers"])}


@latent_posterior.claim(
    kind="simulation",
    measured_by=softmax_heads,
    origin="ours",
    reference="rate of softmax attention",
    statement=r"With temperatures $\gamma \sim L^{-2/(s+4)}$ the root mean square error of softmax"
    r" attention falls with the exponent of the finite-length formula to 0.02; at great length that"
    r" is $-2/(s + 4)$.",
    words="Softmax attention finds the conditional mean if its temperature falls with the length,"
    " more slowly on larger spheres.",
    rule=Rate(margin=0.02, along="length"),
    control=Control(
        "an exponent that is 0.04 larger", lambda e: {"predicted": e.predicted * e.x**0.04}
    ),
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
    control=Control(
        "an exponent that is 0.06 larger", lambda e: {"predicted": e.predicted * e.x**0.06}
    ),
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
    statement=r"At a fixed temperature softmax attention keeps the error"
    r" $\sqrt{\sum_l(1 - a_l)^2|m_l|^2}$, $a_l = I_{l+p/2-1}(1/\gamma)/I_{p/2-1}(1/\gamma)$, at any"
    r" length: to 2 % at the longest.",
    words="Without a temperature that falls, more tokens do not help.",
    rule=Approximation(margin=0.02),
    control=Control("a floor that is 5 % higher", lambda e: {"predicted": 1.05 * e.predicted}),
    needs=("softmax-rate",),
)
def softmax_floor(evidence: xr.Dataset) -> Values:
    longest = evidence.isel(length=-1, drop=True)
    return {**errors_of(FIXED_HEAD, longest), "predicted": evidence["floor"]}


@softmax_floor.figure
def harmonics_kept(evidence: xr.Dataset) -> Panels:
    dim, fixed = (evidence[name].values[0].item() for name in ("dim", "fixed"))
    degrees = np.arange(13)
    eigenvalues = mercer(degrees, 0.5, dim)
    kept = {f"CME, L = {n:,}": eigenvalues / (eigenvalues + 0.25 / n) for n in (64, 1024, 16_384)}
    kept[f"softmax, γ = {fixed:g}"] = funk_hecke(degrees, fixed, dim)
    filters = xr.Dataset(
        {"kept": (("filter", "degree"), np.array([*kept.values()]))},
        {"filter": list(kept), "degree": degrees},
    )
    spectrum = Figure(
        filters, x="degree l", y="share of it that is kept", legend={"filter": None}, width=380
    ).lines("degree", "kept", color="filter", points=True)
    floors = (
        Figure(
            evidence.assign_coords(sphere=evidence["s"].astype(str)), x="s", y="error that stays"
        )
        .ticks("sphere", "predicted", size=40)
        .points("sphere", "measured", error="error", size=50)
    )
    floors.width = 160
    return row(
        spectrum,
        floors,
        title="What attention keeps of a harmonic",
        note="softmax has a fixed cut, CME attention's moves with the length; right: simulated"
        " (points) and Funk-Hecke's floor (bars)",
    )


# --- limits, in closed form --------------------------------------------------------------------

FAR = 10.0 ** np.arange(16, 21)


@latent_posterior.claim(
    kind="two routes",
    origin="ours",
    reference="rates at great length",
    statement=r"By the finite-length formulas the root mean square error falls, at great length,"
    r" like $L^{-2/(s+4)}$ for softmax attention, $L^{-4/(s+8)}$ for a pair of heads and $L^{-1/4}$"
    r" for CME attention with $\lambda = L^{3/4}$: from $10^{16}$ tokens on the exponents are these"
    r" to 0.01.",
    words="What the rates become when contexts are longer than any that will be read.",
    hypotheses=(SPHERE,),
    quick=Setting(dim=(2, 3, 6), weights=WEIGHTS, temperature=0.5, fixed=0.25, noise=0.5),
    paper=dict(dim=(2, 3, 4, 5, 6, 8)),
    cells=together("dim"),
    rule=Rate(margin=0.01, along="length"),
    control=Control("exponents that are 0.02 larger", lambda e: {"exponent": e.exponent + 0.02}),
    needs=("cme-error", "softmax-rate"),
)
def exponents(cell: Setting, draws: Draws) -> Values:
    s = cell.dim - 1
    lengths = 10.0 ** np.arange(2, 21)
    given = harmonics_of(cell)
    one, two, _ = head_temperatures(cell, lengths)
    squares = {
        ONE_HEAD: softmax_error(lengths, temperature=one, **given),
        TWO_HEADS: softmax_error(lengths, temperature=two, heads=PAIR, **given),
        PROOF: cme_error(lengths, ridge=lengths**0.75, temperature=cell.temperature, **given),
        BAYES: cme_error(lengths, ridge=cell.noise**2, temperature=cell.temperature, **given),
    }
    errors = np.sqrt(np.stack(list(squares.values()), 1))
    return {
        **on("length", x=FAR),
        **on("length mechanism", measured=errors[-len(FAR) :, :3]),
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
        legend={"attention": None},
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
    words="One number turns softmax attention's limit into the conditional mean, but only for the"
    " simplest of means.",
    hypotheses=(SPHERE,),
    quick=Setting(dim=(2, 3, 6), temperature=0.5),
    paper=dict(dim=(2, 3, 4, 6, 10)),
    cells=together("dim"),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "two degrees, or keys of another density",
        lambda e: {"measured": e.other, "predicted": 0.0},
    ),
    needs=("softmax-is-nadaraya-watson",),
)
def one_constant(cell: Setting, draws: Draws) -> Values:
    given: dict[str, Any] = {"temperature": cell.temperature, "dim": cell.dim}

    def mean(*degrees: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda t: sum(zonal(l, cell.dim, t) for l in degrees)

    degrees = (1, 2, 3)
    others: dict[str, tuple[Any, Any]] = {
        "degrees 1 and 2": (mean(1, 2), np.ones_like),
        "degrees 1 and 3": (mean(1, 3), np.ones_like),
        "degree 1, denser keys at e": (mean(1), lambda t: 1 + 0.5 * t),
    }
    single = [
        best_constant(softmax_limit(mean(l), ANGLES, **given), mean(l)(ANGLES)) for l in degrees
    ]
    residuals = [
        best_constant(softmax_limit(m, ANGLES, density=f, **given), m(ANGLES))[1]
        for m, f in others.values()
    ]
    constants = [[1 / funk_hecke(l, cell.temperature, cell.dim), 0.0] for l in degrees]
    return {
        **on("degree number", measured=np.array(single), predicted=constants),
        **on("case", other=residuals),
        "error": 0.0,
        "degree": list(degrees),
        "number": ["constant", "residual"],
        "case": list(others),
    }


def best_constant(limit: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """The best C in mean = C limit, and the share of the mean that it leaves."""
    best = limit @ mean / (limit @ limit)
    return float(best), float(np.linalg.norm(mean - best * limit) / np.linalg.norm(mean))


@one_constant.figure
def shares_left(evidence: xr.Dataset) -> Figure:
    single = evidence["measured"].sel(number="residual", drop=True).rename(degree="case")
    single["case"] = [f"degree {d}" for d in single["case"].values]
    left = xr.concat([single, evidence["other"]], "case")
    return Figure(
        evidence[["dim"]].assign(left=floored(left, 1e-16)),
        "One constant, for one degree",
        "between the limits of CME and softmax attention at a fixed temperature",
        x="conditional mean",
        y="share left by the best constant",
        log="y",
        legend={"dim": "dimension p"},
        width=760,
    ).points("case", "left", color="dim", size=60)


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="smoothing on the sphere of values",
    statement=r"$\int v\,e^{\langle v, b\rangle/\gamma}dv ="
    r" A\,b\int e^{\langle v, b\rangle/\gamma}dv$"
    r" over the unit sphere of $\mathbb{R}^d$, $|b| = 1$, with"
    r" $A = I_{d/2}(1/\gamma)/I_{d/2-1}(1/\gamma)$, which tends to 1 as $\gamma \to 0$.",
    words="The constant that a kernel on the values brings, and why it disappears when the"
    " temperature does.",
    hypotheses=(SPHERE,),
    quick=Setting(dim=(2, 3, 6)),
    paper=dict(dim=(2, 3, 4, 6, 10, 30)),
    cells=together("dim"),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the constant of one dimension more", lambda e: {"predicted": e.one_dimension_more}
    ),
    needs=("one-constant",),
)
def value_sphere(cell: Setting, draws: Draws) -> Values:
    temperatures = np.array([2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02])
    nodes, weights = roots_jacobi(400, (cell.dim - 3) / 2, (cell.dim - 3) / 2)
    tilted = weights * np.exp((nodes - 1) / temperatures[:, None])
    return {
        **on(
            "temperature",
            measured=tilted @ nodes / tilted.sum(1),
            predicted=funk_hecke(1, temperatures, cell.dim),
            one_dimension_more=funk_hecke(1, temperatures, cell.dim + 1),
        ),
        "error": 0.0,
        "temperature": temperatures,
    }


@value_sphere.figure
def constants_of_spheres(evidence: xr.Dataset) -> Figure:
    return agreement(
        evidence,
        "The constant of a sphere of values",
        what="constant",
        color="dim",
        legend={"dim": "dimension d"},
    )
