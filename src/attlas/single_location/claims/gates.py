"""Claims about which gate, and which head, solves the task best."""

import itertools
import math
from typing import Any

import numpy as np
import xarray as xr

from attlas.claims import (
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
from attlas.figure import Figure, Panels, row
from attlas.single_location.baselines import bayes_gap, linear_attention, softmax_gap, tuned_softmax
from attlas.single_location.claims import single_location
from attlas.single_location.claims.shared import SAMPLES, paper_task, task_of
from attlas.single_location.gates import Gate, best_gate_excess, oracle_excess, tuned_gate

WITHIN_REACH = Hypothesis(
    "the best gate has an excess of 1e-17 or more: below, gates err further out than the quadrature"
    " reaches",
    lambda s: best_gate_excess(task_of(s)) >= 1e-17,
)


@single_location.claim(
    kind="two routes",
    origin="ours",
    reference="the best pointwise gate",
    statement=r"With $k = k^*$ and $v = v^*$ the best pointwise gate is a sigmoid of log odds,"
    r" $\ln\frac{\gamma^2p_1}{(L-1)p_0}$ with the densities $p_1$ and $p_0$ of the score $a$ of the"
    r" informative token and of another. At $\gamma = 1$ it is $\sigma(\lambda a - c)$ with"
    r" $\lambda = m$ and $c = \frac{m^2}2 + \ln(L - 1)$, and its excess risk is"
    r" $\int\frac{p_1\,(L-1)p_0}{p_1 + (L-1)p_0}\,da$.",
    words="Of all gates that look at one token at a time, a sigmoid of the log odds is the"
    " best. At γ = 1 the log odds are linear in the score.",
    hypotheses=(
        Hypothesis("gamma = 1: the log odds are linear", lambda s: s.gamma == 1),
        WITHIN_REACH,
    ),
    quick=Setting(dim=(10, 80, 400), length=(10, 10, 50), gamma=1.0, noise=0.0),
    paper=dict(dim=(10, 20, 80, 160, 400, 400), length=(10, 2, 10, 10, 50, 10)),
    cells=together("dim", "length"),
    rule=Approximation(margin=1e-8),
    control=Control(
        "{size:.2g} of the way to a threshold that does not count the tokens, without ln(L - 1)",
        lambda e, size: {"measured": e.measured + size * (e.without_count - e.measured)},
        size=1e-5,
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
    options: dict[str, Any] = dict(x="⟨x, k*⟩", y="height", legend={"curve": None})
    figure = Figure(evidence, "The best gate", note, **options)
    figure.lines("score", "height", color="curve")
    return figure.facet("d={dim}, L={length}", columns=3, independent="x", width=180, height=170)


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
    words="Gates that can be near 0 on uninformative tokens have the smaller excess risks. Erf"
    " has a larger one than linear attention, which has no gate.",
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
    words = {"identity": "linear attention", "step": "threshold", "relu": "ReLU"}
    names = [words.get(name, name) for name in ORDER]
    shown, texts = evidence.assign_coords(gate=names), ("Six gates at their best", "k = k*, v = v*")
    return excess_lines(shown, "dim", *texts, x="dimension d", color="gate")


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="normalised, gated, linear",
    statement=r"Each at its best and with $k = k^*$, $v = v^*$, the excess risks are in the order:"
    r" the Bayes predictor $E[Y \mid X]$, softmax attention, the best pointwise gate, linear"
    r" attention, erf attention, the best linear predictor; at every $d$ and $L$ tested, for"
    r" $\gamma^2 = \frac12$.",
    words="Softmax attention has a smaller excess risk than the best pointwise gate. Erf"
    " attention has a larger one than linear attention, and a smaller one than the best linear"
    " predictor.",
    hypotheses=(
        SAMPLES,
        Hypothesis("temperature > 0", lambda s: s.temperature > 0, defining=True),
        Hypothesis("dim >= 10", lambda s: s.dim >= 10),
        Hypothesis("gamma^2 = 1/2", lambda s: abs(s.gamma**2 - 0.5) < 1e-9),
        Hypothesis("the softmax is tuned (temperature = 1)", lambda s: s.temperature == 1),
    ),
    quick=paper_task(dim=(20, 40, 80, 400), length=(10,), temperature=1.0, samples=16_000),
    paper=dict(
        dim=(10, 20, 40, 80, 160, 400, 80, 80, 80, 80),
        length=(10, 10, 10, 10, 10, 10, 2, 5, 30, 100),
        samples=40_000,
    ),
    cells=together("dim", "length"),
    budget="samples",
    rule=Order(),
    control=Control(
        "a softmax ten times too hot, which averages where it should choose",
        setting=dict(temperature=10.0),
    ),
    needs=("gap-exponents", "best-gate", "best-linear"),
)
def heads_in_order(cell: Setting, draws: Draws) -> Values:
    task, square = task_of(cell), cell.noise**2
    bayes = bayes_gap(task, draws("bayes"), cell.samples)
    beta, softmax = tuned_softmax(task, draws("softmax"), cell.samples)
    if cell.temperature != 1:
        softmax = softmax_gap(task, draws("softmax"), cell.samples, beta / cell.temperature)
    heads = {
        "Bayes": np.exp(bayes.log),
        "softmax": np.exp(softmax.log),
        "best gate": best_gate_excess(task),
        "linear attention": linear_attention(task)[1],
        "erf": float(task.oracle_risk(task.best_lam())) - square,
        "best linear": task.linear_risk() - square,
    }
    excess = np.array(list(heads.values()))
    error = excess * [bayes.error, softmax.error, 0, 0, 0, 0]
    return {
        **on("pair", lower=excess[:-1], upper=excess[1:], error=np.hypot(error[:-1], error[1:])),
        **on("head", excess=excess),
        "pair": [f"{a} below {b}" for a, b in itertools.pairwise(heads)],
        "head": list(heads),
    }


@heads_in_order.figure
def excess_of_heads(evidence: xr.Dataset) -> Panels:
    frame = evidence["excess"].to_dataframe().reset_index()
    panels = []
    for name, other, symbols in (("dim", "length", "dL"), ("length", "dim", "Ld")):
        fixed = frame[other].mode()[0]
        shown = frame[frame[other] == fixed].sort_values(name, kind="stable")
        if shown[name].nunique() > 1:
            title = f"{symbols[0]}, at {symbols[1]} = {fixed}"
            panels.append(excess_lines(shown, name, x=title, color="head", width=280))
    note = "each at its best, with k = k* and v = v*"
    return row(*panels, title="What each head can do", note=note, shared="color")


def excess_lines(data: Any, name: str, *texts: str, color: str, **options: Any) -> Figure:
    """Excess risks against a parameter, both on logarithms, a line for each head or gate."""
    options |= {"y": "excess risk", "log": "xy", "format": {"y": ".0e"}, "legend": {color: None}}
    return Figure(data, *texts, **options).lines(name, "excess", points=True, color=color)
