"""Claims about other gates than erf: the risk for any of them, and which is best."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy import special

from attlas.claims.compat import (
    Agreement,
    Approximation,
    Control,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import Real
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    ROOT_HALF,
    SAMPLES,
    TASK,
    overlaps_of,
    random_heads,
    task_of,
)
from attlas.single_location.gates import (
    ACTIVATIONS,
    ERF,
    Gate,
    best_gate_excess,
    kind_of,
    named_gate,
    oracle_excess,
    tuned_gate,
)
from attlas.single_location.population import (
    Overlaps,
    RiskTerms,
    at_points,
    partials_of_risk,
    sampled_risk,
    terms_of_risk,
    total_risk,
)
from attlas.single_location.task import Constants

WITHIN_REACH = Hypothesis(
    "the best gate has an excess of 1e-25 or more: below, gates err further out than the quadrature reaches",
    lambda s: best_gate_excess(task_of(s)) >= 1e-25,
)
POINTS = Hypothesis("points >= 2", lambda s: s.points >= 2, defining=True)
NAMED = Hypothesis(
    f"activation is one of {', '.join(ACTIVATIONS)}",
    lambda s: s.activation in ACTIVATIONS,
    defining=True,
)


@claim(
    "single-location/gate-quadrature",
    source="attlas",
    reference="Theorem 1 by quadrature",
    statement=r"The quadrature that serves every gate gives the closed form of erf, risk and all five derivatives, to"
    r" $10^{-8}$, from a gate far softer than the tokens ($\lambda = 0.01$) to one far sharper ($\lambda = 100$).",
    words="The numerical route to the risk, checked where the exact one is known.",
    hypotheses=(*TASK, HEAD, POINTS),
    quick=Setting(
        dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=(0.01, 0.1, 1.0, 10.0, 100.0), points=32
    ),
    paper=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.0,
        lam=(0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
        points=200,
    ),
    rule=Agreement(rounding=1e-8),
    control=Control(
        "64 Gauss-Hermite nodes, whatever the sharpness", lambda e: e.assign(measured=e["hermite"])
    ),
    figure=drawn_by(f"{FIGURES}.heads:quadrature_errors"),
    cells=together("lam"),
    needs=("single-location/closed-form-risk",),
    origin="ours",
)
def gate_quadrature(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    overlaps = overlaps_of(
        random_heads(key_for(seed, "single-location/gate-quadrature", "heads"), cell.points)
    )
    c = task_of(cell).constants
    closed, quadrature = (
        np.stack(
            [
                at_points(total_risk, c, overlaps, cell.lam, gate),
                *at_points(partials_of_risk, c, overlaps, cell.lam, gate),
            ]
        )
        for gate in (None, ERF)
    )
    hermite = with_derivatives(hermite_risk, c, overlaps, cell.lam)
    axes = ("cell", "quantity", "point")
    return xr.Dataset(
        {
            "predicted": (axes, closed[None]),
            "measured": (axes, quadrature[None]),
            "hermite": (axes, hermite[None]),
            "error": 0.0,
        },
        coords={"quantity": ["risk", *(f"in {name}" for name in Overlaps._fields)]},
    )


def with_derivatives(
    risk: Callable[..., np.ndarray], c: Constants, overlaps: Overlaps, lam: float
) -> Float[np.ndarray, "6 point"]:
    """An analytic risk and its five derivatives, by steps into the complex plane, which no rounding limits."""
    ahead = [overlaps._replace(**{name: x + 1e-30j}) for name, x in overlaps._asdict().items()]
    return np.stack([risk(c, overlaps, lam), *(risk(c, x, lam).imag / 1e-30 for x in ahead)])


def hermite_risk(c: Constants, overlaps: Overlaps, lam: float) -> np.ndarray:
    """The risk with its Gaussian expectations by Gauss-Hermite quadrature, as one would write it first."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    kappa, nu, theta, eta, rho = (x[..., None] for x in overlaps)
    mu, gamma = c.m * theta, c.gamma
    g, h = special.erf(lam * (c.m * kappa + gamma * nodes)), special.erf(lam * nodes)
    mean_b = mu + gamma * rho * nodes
    product = g * (mean_b * gamma * eta * nodes + gamma**2 * (nu - rho * eta))
    square = g**2 * (mean_b**2 + gamma**2 * (1 - rho**2))
    own = c.noise**2 + gamma**2 + ((square - 2 * product) * weights).sum(-1)
    other = (h**2 * (rho**2 * nodes**2 + 1 - rho**2) * weights).sum(-1)
    here, elsewhere = (g * mean_b * weights).sum(-1), (rho * h * nodes * weights).sum(-1)
    return own + (c.length - 1) * (other + elsewhere * (2 * here + (c.length - 2) * elsewhere))


@claim(
    "single-location/gate-risk",
    source="attlas",
    reference="Theorem 1 for any gate",
    statement=r"For every pointwise gate $g$ the risk of $\sum_l g(\lambda\langle X_l, k\rangle - c)\langle X_l, v\rangle$ depends on"
    r" the five overlaps alone; for a sigmoid, ReLU, a threshold and others the quadrature agrees with simulation.",
    words="Nothing in the theorem is special to erf, except that its integrals have a name.",
    hypotheses=(*TASK, HEAD, POINTS, SAMPLES, NAMED),
    quick=Setting(
        dim=40,
        length=5,
        gamma=0.8,
        noise=0.1,
        lam=0.7,
        offset=0.5,
        points=6,
        samples=60_000,
        activation=("sigmoid", "relu", "step"),
    ),
    paper=Setting(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        noise=0.1,
        lam=0.7,
        offset=0.5,
        points=16,
        samples=1_000_000,
        activation=("tanh", "sigmoid", "relu", "step", "identity"),
    ),
    rule=Agreement(),
    control=Control(
        "the term that couples two tokens is dropped",
        lambda e: e.assign(predicted=e["predicted"] - e["coupling"]),
    ),
    figure=drawn_by(f"{FIGURES}.heads:gate_agreement"),
    cells=together("activation"),
    budget="samples",
    needs=("single-location/gate-quadrature",),
    origin="ours",
)
def gate_risk(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "single-location/gate-risk"
    overlaps = overlaps_of(random_heads(key_for(seed, id, "heads"), cell.points))
    task, gate = task_of(cell), Gate(cell.activation, cell.offset)
    terms = named_terms(task.constants, overlaps, cell.lam, kind_of(cell.activation), cell.offset)
    mean, error = sampled_risk(
        task, overlaps, cell.lam, key_for(seed, id, "samples"), cell.samples, gate
    )
    axes = ("cell", "point")
    return xr.Dataset(
        {
            "predicted": (axes, np.sum(terms, axis=0)[None]),
            "measured": (axes, mean[None]),
            "error": (axes, error[None]),
            "coupling": (axes, np.asarray(terms.coupling)[None]),
        }
    )


@jax.jit
def named_terms(
    c: Constants, overlaps: Overlaps, lam: Real, kind: int | Array, offset: Real
) -> RiskTerms:
    """The risk's parts by quadrature, with the named gate of this kind."""
    return terms_of_risk(c, overlaps, lam, named_gate(kind, offset))


@claim(
    "single-location/best-gate",
    source="attlas",
    reference="the best pointwise gate",
    statement=r"With $k = k^*$ and $v = v^*$ the best pointwise gate is a sigmoid of log odds, $\ln\frac{\gamma^2p_1}{(L-1)p_0}$ with the densities $p_1$ and"
    r" $p_0$ of the score $a$ of the informative token and of another. At $\gamma = 1$ it is $\sigma(\lambda a - c)$ with $\lambda = m$ and"
    r" $c = \frac{m^2}2 + \ln(L - 1)$, and its excess risk is $\int\frac{p_1\,(L-1)p_0}{p_1 + (L-1)p_0}\,da$.",
    words="Of all gates that look at one token at a time, a sigmoid with the right threshold is the best.",
    hypotheses=(
        *TASK,
        Hypothesis("gamma = 1: the log odds are linear", lambda s: s.gamma == 1),
        WITHIN_REACH,
    ),
    quick=Setting(dim=(10, 80, 400), length=(10, 10, 50), gamma=1.0, noise=0.0),
    paper=Setting(
        dim=(10, 20, 80, 160, 400, 400), length=(10, 2, 10, 10, 50, 10), gamma=1.0, noise=0.0
    ),
    rule=Approximation(margin=1e-8),
    control=Control(
        "a threshold that does not count the tokens, without ln(L - 1)",
        lambda e: e.assign(measured=e["without_count"]),
    ),
    figure=drawn_by(f"{FIGURES}.heads:best_gate_shape"),
    cells=together("dim", "length"),
    origin="ours",
)
def best_gate(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    count = math.log(task.length - 1)
    offsets = {"measured": task.m**2 / 2 + count, "without_count": task.m**2 / 2}
    found = {
        name: oracle_excess(task, task.m, Gate("sigmoid", offset))
        for name, offset in offsets.items()
    }
    values = {"predicted": best_gate_excess(task), **found, "error": 0.0}
    score = np.linspace(-3, task.m + 3, 90)
    curves = {
        "gate": Gate("sigmoid", offsets["measured"]).values(score, task.m),
        "other tokens": np.exp(-(score**2) / 2),
        "informative token": np.exp(-((score - task.m) ** 2) / 2),
    }
    return xr.Dataset(
        {name: ("cell", [float(value)]) for name, value in values.items()}
        | {
            "score": (("cell", "along"), score[None]),
            "height": (("cell", "curve", "along"), [list(curves.values())]),
        },
        coords={"curve": list(curves)},
    )


ORDER = ("sigmoid", "step", "relu", "identity", "erf", "tanh")
WITH_OFFSET = ("sigmoid", "step", "relu")


@claim(
    "single-location/gates-in-order",
    source="attlas",
    reference="which gate solves the task",
    statement=r"From $d = 40$ on, for $0.3 \le \gamma \le 0.9$ and up to 100 tokens, with its best sharpness and threshold, each gate"
    r" has a smaller excess risk at the oracle than the next, by $10^{-7}$ of it or more: the best gate of all, sigmoid, threshold,"
    r" ReLU, linear attention, erf, tanh.",
    words="A gate that can stay shut beats one that only saturates, and erf is not even better than no gate at all.",
    hypotheses=(
        *TASK,
        Hypothesis(
            "dim >= 40 and length <= 100: elsewhere ReLU can beat a threshold",
            lambda s: s.dim >= 40 and s.length <= 100,
        ),
        Hypothesis(
            "0.3 <= gamma <= 0.9: at 1 a sigmoid is the best gate, and with a wide token erf can beat linear attention",
            lambda s: 0.3 <= s.gamma <= 0.9,
        ),
        WITHIN_REACH,
    ),
    quick=Setting(dim=(40, 80, 400), length=10, gamma=ROOT_HALF, noise=0.0, offset=True),
    paper=Setting(
        dim=(40, 60, 80, 120, 160, 250, 400), length=10, gamma=ROOT_HALF, noise=0.0, offset=True
    ),
    # A gate's excess is computed by quadrature, the best one's by another rule: they agree to some ten digits.
    rule=Order(rounding=1e-7),
    control=Control(
        "no thresholds: every gate centred at 0, where the sigmoid passes half of every token",
        lambda s: s.replace(offset=False),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.heads:gate_order"),
    cells=together("dim"),
    needs=("single-location/best-gate", "single-location/gate-quadrature"),
    origin="ours",
)
def gates_in_order(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task = task_of(cell)
    tuned = [tuned_gate(task, name, offset=cell.offset and name in WITH_OFFSET) for name in ORDER]
    excess = [best_gate_excess(task), *(one.excess for one in tuned)]
    pairs = [f"{a} below {b}" for a, b in itertools.pairwise(("best", *ORDER))]
    return xr.Dataset(
        {
            "lower": (("cell", "pair"), [excess[:-1]]),
            "upper": (("cell", "pair"), [excess[1:]]),
            "error": 0.0,
            "excess": (("cell", "gate"), [excess[1:]]),
            "lam": (("cell", "gate"), [[one.lam for one in tuned]]),
            "threshold": (("cell", "gate"), [[one.gate.offset / one.lam for one in tuned]]),
            "best": ("cell", [best_gate_excess(task)]),
        },
        coords={"pair": pairs, "gate": list(ORDER)},
    )
