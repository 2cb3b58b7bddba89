"""Claims that compare softmax, linear and erf attention on the task: at their best, and trained."""

import itertools

import jax
import numpy as np
import pandas as pd
import xarray as xr

from attlas.claims import (
    Control,
    Convergence,
    Draws,
    Hypothesis,
    Order,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, Panels, floored, row
from attlas.single_location.baselines import (
    LogEstimate,
    bayes_gap,
    linear_attention,
    softmax_gap,
    tuned_softmax,
)
from attlas.single_location.claims import single_location
from attlas.single_location.claims.online import train_online
from attlas.single_location.claims.runs import band, outcomes
from attlas.single_location.claims.shared import SAMPLES, paper_task, task_of
from attlas.single_location.gates import ACTIVATIONS, best_gate_excess
from attlas.single_location.population import Overlaps, sampled_risk

HEADS = ("Bayes", "softmax", "best gate", "linear attention", "erf", "best linear")


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="normalised, gated, linear",
    statement=r"Each at its best and with $k = k^*$, $v = v^*$, the excess risks are in the order:"
    r" the Bayes predictor $E[Y \mid X]$, softmax attention, the best pointwise gate, linear"
    r" attention, erf attention, the best linear predictor; at every $d$ and $L$ tested, for"
    r" $\gamma^2 = \frac12$.",
    words="Normalising the weights is worth more than any gate; erf attention loses to attention"
    " without a gate, and beats every linear model.",
    hypotheses=(
        SAMPLES,
        Hypothesis("temperature > 0", lambda s: s.temperature > 0, defining=True),
        Hypothesis("gamma < 1: at 1 softmax is Bayes", lambda s: s.gamma < 1),
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
    softmax = best_softmax(cell, draws("softmax"))
    excess = np.array(
        [
            np.exp(bayes.log),
            np.exp(softmax.log),
            best_gate_excess(task),
            linear_attention(task)[1],
            float(task.oracle_risk(task.best_lam())) - square,
            task.linear_risk() - square,
        ]
    )
    error = excess * [bayes.error, softmax.error, 0, 0, 0, 0]
    return {
        **on("pair", lower=excess[:-1], upper=excess[1:], error=np.hypot(error[:-1], error[1:])),
        **on("head", excess=excess),
        "pair": [f"{a} below {b}" for a, b in itertools.pairwise(HEADS)],
        "head": list(HEADS),
    }


@heads_in_order.figure
def excess_of_heads(evidence: xr.Dataset) -> Panels:
    frame = evidence["excess"].to_dataframe().reset_index()
    panels = []
    for name, other, symbols in (("dim", "length", "dL"), ("length", "dim", "Ld")):
        fixed = frame[other].mode()[0]
        shown = frame[frame[other] == fixed].sort_values(name, kind="stable")
        figure = Figure(
            shown,
            x=f"{symbols[0]}, at {symbols[1]} = {fixed}",
            y="excess risk",
            log="xy",
            format={"y": ".0e"},
            legend={"head": None},
            width=280,
        )
        if shown[name].nunique() > 1:
            panels.append(figure.lines(name, "excess", points=True, color="head"))
    note = "each at its best, with k = k* and v = v*"
    return row(*panels, title="What each head can do", note=note, shared="color")


def best_softmax(cell: Setting, key: jax.Array) -> LogEstimate:
    """The gap of the softmax head at `temperature` times its best temperature."""
    task = task_of(cell)
    beta, gap = tuned_softmax(task, key, cell.samples)
    if cell.temperature == 1:
        return gap
    return softmax_gap(task, key, cell.samples, beta / cell.temperature)


MILD = Hypothesis(
    "0.5 <= lam <= 1: a sharper softmax hardly learns from a random start",
    lambda s: 0.5 <= s.lam <= 1,
)


@single_location.claim(
    kind="training",
    origin="ours",
    reference="training of the softmax head",
    statement=r"Online descent of the softmax head at a constant inverse temperature from 0.5 to 1,"
    r" from starts uniform on the sphere at $d = 80$ with ten tokens, ends at the oracle"
    r" ($\kappa, \nu > 0.9$) by the time $\alpha t = 40$ in more than 90 % of runs: no schedule, no"
    r" swapped branch.",
    words="With normalised weights no random start goes astray, and no schedule is needed.",
    hypotheses=(
        Hypothesis(
            f"activation is softmax or one of {', '.join(ACTIVATIONS)}",
            lambda s: s.activation == "softmax" or s.activation in ACTIVATIONS,
            defining=True,
        ),
        Hypothesis("the weights are a softmax", lambda s: s.activation == "softmax"),
        MILD,
        Hypothesis(
            "dim = 80, length = 10 and gamma^2 = 1/2",
            lambda s: s.dim == 80 and s.length == 10 and abs(s.gamma**2 - 0.5) < 1e-9,
        ),
        Hypothesis("step_size * steps >= 40", lambda s: s.step_size * s.steps >= 40 * (1 - 1e-9)),
    ),
    quick=paper_task(
        dim=80,
        noise=0.1,
        activation="softmax",
        lam=1.0,
        step_size=1e-2,
        batch_size=5,
        steps=4_000,
        repeats=128,
    ),
    paper=dict(step_size=5e-3, steps=20_000, repeats=512),
    budget="repeats",
    rule=Convergence(share=0.9),
    control=Control(
        "erf in place of softmax, at its own best sharpness: the same training, without the"
        " normalisation",
        setting=lambda s: {"activation": "erf", "lam": task_of(s).best_lam()},
    ),
    needs=("online-law",),
)
def softmax_training(cell: Setting, draws: Draws) -> Values:
    path = train_online(cell, draws, cell.lam, cell.activation)
    return {
        **on("repeat", arrived=outcomes(path)["oracle"].values),
        **on("run step", kappa=path["kappa"].values[:24], nu=path["nu"].values[:24]),
        **on("band step", excess=band(path["risk"] - cell.noise**2)),
        "band": ["low", "mean", "high"],
        "step": path["step"].values,
    }


@softmax_training.figure
def paths_and_excess(evidence: xr.Dataset) -> Panels:
    one = evidence.isel(cell=0)
    square = {"x": (-1, 1), "y": (-1, 1)}
    paths = (
        Figure(one, x="κ", y="ν", domain=square, width=290)
        .lines("kappa", "nu", detail="run", order="step", opacity=0.7)
        .points("kappa", "nu", data=pd.DataFrame({"kappa": [1], "nu": [1]}), theory="solid")
    )
    note = (
        f"left: {one.sizes['run']} runs, first the value (ν) and then the place (κ);"
        " right: mean and 95 % band of all"
    )
    return row(paths, excess_bands(one, width=290), title="Training the softmax head", note=note)


def excess_bands(
    one: xr.Dataset, title: str = "", note: str = "", color: str | None = None, width: int = 460
) -> Figure:
    """Mean and 95 % band over runs of the excess risk, values below 1e-4 drawn there."""
    bands = floored(one["excess"], 1e-4).to_dataset("band")
    figure = Figure(
        bands, title, note, x="step", y="excess risk", log="y", legend={"head": None}, width=width
    )
    return figure.band("step", "low", "high", color=color).lines("step", "mean", color=color)


@single_location.claim(
    kind="training",
    origin="ours",
    reference="three heads trained alike",
    statement=r"After the same online training from the same starts the softmax head, at an inverse"
    r" temperature from 0.5 to 1, has a smaller mean risk than linear attention and than erf"
    r" attention, each at the sharpness that is best for it at the oracle.",
    words="The order of what the heads can do is the order of what they do after training.",
    hypotheses=(SAMPLES, MILD),
    quick=paper_task(
        dim=80,
        noise=0.1,
        lam=1.0,
        step_size=1e-2,
        batch_size=5,
        steps=4_000,
        repeats=16,
        samples=16_000,
    ),
    paper=dict(step_size=5e-3, steps=20_000, repeats=128, samples=50_000),
    budget="repeats",
    rule=Order(),
    control=Control(
        "a softmax head of inverse temperature 0.02, which averages all tokens",
        lambda e: {"lower": e.averaging, "error": e.averaging_error},
    ),
    needs=("softmax-training", "heads-in-order"),
)
def trained_heads(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    sharpness = {
        "softmax": cell.lam,
        "identity": linear_attention(task)[0],
        "erf": task.best_lam(),
    }
    runs = {name: train_online(cell, draws, lam, name) for name, lam in sharpness.items()}
    paths = [run["risk"] - task.noise**2 for run in runs.values()]
    others = np.stack([path.values[:, -1] for path in paths[1:]])
    lower, error = excess_and_error(cell, draws, runs["softmax"], cell.lam, others)
    hot = train_online(cell, draws, 0.02, "softmax")
    averaging, averaging_error = excess_and_error(cell, draws, hot, 0.02, others)
    return {
        "lower": lower,
        "averaging": averaging,
        **on("pair", upper=others.mean(1), error=error, averaging_error=averaging_error),
        **on("head band step", excess=np.stack([band(path) for path in paths])),
        "repetitions": cell.repeats,
        "pair": ["softmax below linear attention", "softmax below erf"],
        "head": ["softmax", "linear attention", "erf"],
        "band": ["low", "mean", "high"],
        "step": runs["erf"]["step"].values,
    }


@trained_heads.figure
def excess_in_training(evidence: xr.Dataset) -> Figure:
    note = "mean and 95 % band of the runs"
    return excess_bands(evidence.isel(cell=0), "Three heads trained alike", note, color="head")


def excess_and_error(
    cell: Setting, draws: Draws, run: xr.Dataset, lam: float, others: np.ndarray
) -> tuple[float, np.ndarray]:
    """Mean excess risk at the end of a softmax run, and the error of its difference to `others`.

    The batch on which a run reports its softmax risk is too small for the comparison. All repeats
    share the test samples, so their error does not average out over repeats.
    """
    states = Overlaps(*(run[name].values[:, -1] for name in Overlaps._fields))
    mean, error = sampled_risk(task_of(cell), states, lam, draws("test"), cell.samples, "softmax")
    gaps = others - (mean - cell.noise**2)
    spread = np.hypot(gaps.std(1, ddof=1) / np.sqrt(cell.repeats), error.mean())
    return mean.mean() - cell.noise**2, spread
