"""Claims about other gates than erf: the risk for any of them, and which is best."""

import itertools
import math

import numpy as np
import xarray as xr

from attlas.claims import (
    Agreement,
    Approximation,
    Control,
    Draws,
    Hypothesis,
    Order,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, agreement
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    SAMPLES,
    overlaps_of,
    paper_task,
    random_heads,
    task_of,
)
from attlas.single_location.gates import (
    ACTIVATIONS,
    Gate,
    best_gate_excess,
    oracle_excess,
    tuned_gate,
)
from attlas.single_location.population import risk_terms, sampled_risk

WITHIN_REACH = Hypothesis(
    "the best gate has an excess of 1e-25 or more: below, gates err further out than the quadrature"
    " reaches",
    lambda s: best_gate_excess(task_of(s)) >= 1e-25,
)


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="Theorem 1 for any gate",
    statement=r"For every pointwise gate $g$ the risk of"
    r" $\sum_l g(\lambda\langle X_l, k\rangle - c)\langle X_l, v\rangle$ depends on the five"
    r" overlaps alone; for a sigmoid, ReLU, a threshold and others the quadrature agrees with"
    r" simulation.",
    words="Nothing in the theorem is special to erf, except that its integrals have a name.",
    hypotheses=(
        SAMPLES,
        Hypothesis(
            f"activation is one of {', '.join(ACTIVATIONS)}",
            lambda s: s.activation in ACTIVATIONS,
            defining=True,
        ),
    ),
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
    paper=dict(
        dim=400,
        length=10,
        gamma=ROOT_HALF,
        points=16,
        samples=1_000_000,
        activation=("tanh", "sigmoid", "relu", "step", "identity"),
    ),
    cells=together("activation"),
    budget="samples",
    rule=Agreement(),
    control=Control(
        "the term that couples two tokens is dropped",
        lambda e: {"predicted": e.predicted - e.coupling},
    ),
    needs=("closed-form-risk",),
)
def gate_risk(cell: Setting, draws: Draws) -> Values:
    overlaps = overlaps_of(random_heads(draws("heads"), cell.points))
    task, gate = task_of(cell), Gate(cell.activation, cell.offset)
    terms = risk_terms(task, overlaps, cell.lam, gate)
    return on(
        "point",
        predicted=np.sum(terms, axis=0),
        measured=sampled_risk(task, overlaps, cell.lam, draws("samples"), cell.samples, gate),
        coupling=terms.coupling,
    )


@gate_risk.figure
def risks_of_gates(evidence: xr.Dataset) -> Figure:
    title, legend = "Risk of other gates against simulation", {"activation": "gate"}
    return agreement(evidence, title, what="risk", color="activation", legend=legend)


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="the best pointwise gate",
    statement=r"With $k = k^*$ and $v = v^*$ the best pointwise gate is a sigmoid of log odds,"
    r" $\ln\frac{\gamma^2p_1}{(L-1)p_0}$ with the densities $p_1$ and $p_0$ of the score $a$ of the"
    r" informative token and of another. At $\gamma = 1$ it is $\sigma(\lambda a - c)$ with"
    r" $\lambda = m$ and $c = \frac{m^2}2 + \ln(L - 1)$, and its excess risk is"
    r" $\int\frac{p_1\,(L-1)p_0}{p_1 + (L-1)p_0}\,da$.",
    words="Of all gates that look at one token at a time, a sigmoid with the right threshold is the"
    " best.",
    hypotheses=(
        Hypothesis("gamma = 1: the log odds are linear", lambda s: s.gamma == 1),
        WITHIN_REACH,
    ),
    quick=Setting(dim=(10, 80, 400), length=(10, 10, 50), gamma=1.0, noise=0.0),
    paper=dict(dim=(10, 20, 80, 160, 400, 400), length=(10, 2, 10, 10, 50, 10)),
    cells=together("dim", "length"),
    rule=Approximation(margin=1e-8),
    control=Control(
        "a threshold that does not count the tokens, without ln(L - 1)",
        lambda e: {"measured": e.without_count},
    ),
)
def best_gate(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    without_count = Gate("sigmoid", task.m**2 / 2)
    best = Gate("sigmoid", task.m**2 / 2 + math.log(task.length - 1))
    score = np.linspace(-3, task.m + 3, 90)
    curves = {
        "gate": best.values(score, task.m),
        "other tokens": np.exp(-(score**2) / 2),
        "informative token": np.exp(-((score - task.m) ** 2) / 2),
    }
    return {
        "predicted": best_gate_excess(task),
        "measured": float(oracle_excess(task, task.m, best)),
        "without_count": float(oracle_excess(task, task.m, without_count)),
        "error": 0.0,
        **on("along", score=score),
        **on("curve along", height=np.stack(list(curves.values()))),
        "curve": list(curves),
    }


@best_gate.figure
def gate_between_two_laws(evidence: xr.Dataset) -> Figure:
    note = "the laws of the score, each scaled to height 1, and the sigmoid between them"
    return (
        Figure(evidence, "The best gate", note, x="⟨x, k*⟩", y="height", legend={"curve": None})
        .lines("score", "height", color="curve")
        .facet("d={dim}, L={length}", columns=3, independent="x", width=180, height=170)
    )


ORDER = ("sigmoid", "step", "relu", "identity", "erf", "tanh")
WITH_OFFSET = ("sigmoid", "step", "relu")


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="which gate solves the task",
    statement=r"From $d = 40$ on, for $0.3 \le \gamma \le 0.9$ and up to 100 tokens, with its best"
    r" sharpness and threshold, each gate has a smaller excess risk at the oracle than the next, by"
    r" $10^{-7}$ of it or more: the best gate of all, sigmoid, threshold, ReLU, linear attention,"
    r" erf, tanh.",
    words="A gate that can stay shut beats one that only saturates, and erf is not even better than"
    " no gate at all.",
    hypotheses=(
        Hypothesis(
            "dim >= 40 and length <= 100: elsewhere ReLU can beat a threshold",
            lambda s: s.dim >= 40 and s.length <= 100,
        ),
        Hypothesis(
            "0.3 <= gamma <= 0.9: at 1 a sigmoid is the best gate, and with a wide token erf can"
            " beat linear attention",
            lambda s: 0.3 <= s.gamma <= 0.9,
        ),
        WITHIN_REACH,
    ),
    quick=paper_task(dim=(40, 80, 400), offset=True),
    paper=dict(dim=(40, 60, 80, 120, 160, 250, 400)),
    cells=together("dim"),
    # A gate's excess and the best one's come from two quadratures that agree to some ten digits.
    rule=Order(rounding=1e-7),
    control=Control(
        "no thresholds: every gate centred at 0, where the sigmoid passes half of every token",
        setting=dict(offset=False),
    ),
    needs=("best-gate", "gate-risk"),
)
def gates_in_order(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    offset = {name: cell.offset and name in WITH_OFFSET for name in ORDER}
    tuned = [tuned_gate(task, name, offset=offset[name]).excess for name in ORDER]
    excess = np.array([best_gate_excess(task), *tuned])
    return {
        **on("pair", lower=excess[:-1], upper=excess[1:]),
        **on("gate", excess=excess[1:]),
        "error": 0.0,
        "pair": [f"{a} below {b}" for a, b in itertools.pairwise(("best", *ORDER))],
        "gate": list(ORDER),
    }


@gates_in_order.figure
def excess_of_gates(evidence: xr.Dataset) -> Figure:
    names = [{"identity": "linear attention"}.get(name, name) for name in ORDER]
    figure = Figure(
        evidence.assign_coords(gate=names),
        "Six gates at their best",
        "k = k*, v = v*",
        x="d",
        y="excess risk",
        log="xy",
        format={"y": ".0e"},
        legend={"gate": None},
    )
    return figure.lines("dim", "excess", points=True, color="gate")
