"""Claims that compare softmax, linear and erf attention on the task: at their best, and trained."""

import itertools
from collections.abc import Sequence

import jax
import numpy as np
import xarray as xr

from attlas.claims.compat import (
    Agreement,
    Control,
    Convergence,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.single_location.baselines import (
    LogEstimate,
    linear_attention,
    softmax_gap,
    tuned_softmax,
)
from attlas.single_location.claims.bayes import bayes_gaps
from attlas.single_location.claims.runs import band, outcomes
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    ROOT_HALF,
    SAMPLES,
    STEP,
    TASK,
    column,
    overlaps_of,
    random_heads,
    stream_of,
    task_of,
)
from attlas.single_location.descent import sphere_start
from attlas.single_location.gates import ACTIVATIONS, Gate, best_gate_excess
from attlas.single_location.online import descend_online
from attlas.single_location.population import Overlaps, at_points, sampled_risk, total_risk

HEADS = ("Bayes", "softmax", "best gate", "linear attention", "erf", "best linear")


@claim(
    "single-location/heads-in-order",
    source="attlas",
    reference="normalised, gated, linear",
    statement=r"Each at its best and with $k = k^*$, $v = v^*$, the excess risks are in the order: Bayes, softmax attention, the"
    r" best pointwise gate, linear attention, erf attention, the best linear predictor; at every $d$ and $L$ tested, for"
    r" $\gamma^2 = \frac12$.",
    words="Normalising the weights is worth more than any gate; erf attention loses to attention without a gate.",
    hypotheses=(
        *TASK,
        SAMPLES,
        Hypothesis("temperature > 0", lambda s: s.temperature > 0, defining=True),
        Hypothesis("gamma < 1: at 1 softmax is Bayes", lambda s: s.gamma < 1),
        Hypothesis("the softmax is tuned (temperature = 1)", lambda s: s.temperature == 1),
    ),
    quick=Setting(
        dim=(20, 40, 80, 400),
        length=(10,),
        gamma=ROOT_HALF,
        noise=0.0,
        temperature=1.0,
        samples=16_000,
    ),
    paper=Setting(
        dim=(10, 20, 40, 80, 160, 400, 80, 80, 80, 80),
        length=(10, 10, 10, 10, 10, 10, 2, 5, 30, 100),
        gamma=ROOT_HALF,
        noise=0.0,
        temperature=1.0,
        samples=40_000,
    ),
    rule=Order(),
    control=Control(
        "a softmax ten times too hot, which averages where it should choose",
        lambda s: s.replace(temperature=10.0),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.heads:heads_order"),
    cells=together("dim", "length"),
    shape=("length", "samples"),
    budget="samples",
    needs=("single-location/softmax-gap", "single-location/bayes-gap", "single-location/best-gate"),
    origin="ours",
)
def heads_in_order(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    id = "single-location/heads-in-order"
    bayes = bayes_gaps(key_for(seed, id, "bayes"), cells)
    betas, softmax = zip(
        *(best_softmax(cell, key_for(seed, id, "softmax")) for cell in cells), strict=True
    )
    tasks = [task_of(cell) for cell in cells]
    square = column(cells, "noise") ** 2
    excess = np.stack(
        [
            np.exp(bayes.log),
            np.exp([gap.log for gap in softmax]),
            [best_gate_excess(task) for task in tasks],
            [linear_attention(task)[1] for task in tasks],
            [float(task.oracle_risk(task.best_lam())) for task in tasks] - square,
            [task.linear_risk() for task in tasks] - square,
        ],
        axis=1,
    )
    error = np.zeros_like(excess)
    error[:, 0], error[:, 1] = (
        excess[:, 0] * bayes.error,
        excess[:, 1] * [gap.error for gap in softmax],
    )
    pairs = [f"{a} below {b}" for a, b in itertools.pairwise(HEADS)]
    return xr.Dataset(
        {
            "lower": (("cell", "pair"), excess[:, :-1]),
            "upper": (("cell", "pair"), excess[:, 1:]),
            "error": (("cell", "pair"), np.hypot(error[:, :-1], error[:, 1:])),
            "excess": (("cell", "head"), excess),
            "excess_error": (("cell", "head"), error),
            "beta": ("cell", [beta / task.m for beta, task in zip(betas, tasks, strict=True)]),
        },
        coords={"pair": pairs, "head": list(HEADS)},
    )


def best_softmax(cell: Setting, key: jax.Array) -> tuple[float, LogEstimate]:
    """The softmax head at `temperature` times its best one: its inverse temperature and its gap."""
    task = task_of(cell)
    beta, gap = tuned_softmax(task, key, cell.samples)
    if cell.temperature != 1:
        beta /= cell.temperature
        gap = softmax_gap(task, key, cell.samples, beta)
    return beta, gap


@claim(
    "single-location/linear-attention-swaps",
    source="attlas",
    reference="the symmetry of linear attention",
    statement=r"The risk of linear attention $\lambda\sum_l\langle X_l, k\rangle\langle X_l, v\rangle$ does not change when $k$ and $v$"
    r" are exchanged, $(\kappa, \nu, \theta, \eta, \rho) \mapsto (\theta, \eta, \kappa, \nu, \rho)$: it has the swapped point for a"
    r" second optimum.",
    words="Without a gate nothing tells the vector that looks from the vector that reads.",
    hypotheses=(*TASK, HEAD, Hypothesis("points >= 2", lambda s: s.points >= 2, defining=True)),
    quick=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=0.1, points=200),
    paper=Setting(dim=400, length=10, gamma=ROOT_HALF, noise=0.0, lam=0.1, points=2000),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "erf attention of the same sharpness, whose two vectors do different things",
        lambda e: e.assign(predicted=e["erf"], measured=e["erf_swapped"]),
    ),
    figure=drawn_by(f"{FIGURES}.heads:swap_agreement"),
    budget="points",
    needs=("single-location/gate-quadrature", "single-location/swapped-attractor"),
    origin="ours",
)
def linear_attention_swaps(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    heads = overlaps_of(
        random_heads(key_for(seed, "single-location/linear-attention-swaps", "heads"), cell.points)
    )
    swapped = Overlaps(heads.theta, heads.eta, heads.kappa, heads.nu, heads.rho)
    values = {
        "predicted": (heads, Gate("identity")),
        "measured": (swapped, Gate("identity")),
        "erf": (heads, None),
        "erf_swapped": (swapped, None),
    }
    c, axes = task_of(cell).constants, ("cell", "point")
    risks = {
        name: (axes, at_points(total_risk, c, x, cell.lam, gate)[None])
        for name, (x, gate) in values.items()
    }
    return xr.Dataset(risks | {"error": 0.0})


TRAINED = (
    *TASK,
    HEAD,
    STEP,
    Hypothesis("batch_size >= 1", lambda s: s.batch_size >= 1, defining=True),
)
MILD = Hypothesis(
    "0.5 <= lam <= 1: a sharper softmax hardly learns from a random start",
    lambda s: 0.5 <= s.lam <= 1,
)


def at_papers_size(s: Setting) -> bool:
    return s.dim == 80 and s.length == 10 and abs(s.gamma**2 - 0.5) < 1e-9


GATED = Hypothesis(
    f"activation is softmax or one of {', '.join(ACTIVATIONS)}",
    lambda s: s.activation == "softmax" or s.activation in ACTIVATIONS,
    defining=True,
)


@claim(
    "single-location/softmax-training",
    source="attlas",
    reference="training of the softmax head",
    statement=r"Online descent of the softmax head at a constant inverse temperature from 0.5 to 1, from starts uniform on the sphere at $d = 80$ with ten tokens,"
    r" ends at the oracle ($\kappa, \nu > 0.9$) by the time $\alpha t = 40$ in more than 90 % of runs: no schedule, no swapped branch.",
    words="With normalised weights no random start goes astray, and no schedule is needed.",
    hypotheses=(
        *TRAINED,
        GATED,
        Hypothesis("the weights are a softmax", lambda s: s.activation == "softmax"),
        MILD,
        Hypothesis("dim = 80, length = 10 and gamma^2 = 1/2", at_papers_size),
        Hypothesis("step_size * steps >= 40", lambda s: s.step_size * s.steps >= 40 * (1 - 1e-9)),
    ),
    quick=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.1,
        activation="softmax",
        lam=1.0,
        step_size=1e-2,
        batch_size=5,
        steps=4_000,
        repeats=128,
    ),
    paper=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.1,
        activation="softmax",
        lam=1.0,
        step_size=5e-3,
        batch_size=5,
        steps=20_000,
        repeats=512,
    ),
    rule=Convergence(share=0.9),
    control=Control(
        "erf in place of softmax, at its own best sharpness: the same training, without the normalisation",
        lambda s: s.replace(activation="erf", lam=task_of(s).best_lam()),
        on="setting",
    ),
    figure=drawn_by(f"{FIGURES}.heads:trained_paths"),
    budget="repeats",
    needs=("single-location/online-law",),
    origin="ours",
)
def softmax_training(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "single-location/softmax-training"
    path = trained(cell, cell.activation, cell.lam, seed, id)
    few = path[["kappa", "nu", "eta", "theta"]].isel(repeat=slice(24)).rename(repeat="run")
    ends = outcomes(path)
    arrived = ends["oracle"].values
    risks = band(path["risk"] - cell.noise**2)
    return (
        few.assign(arrived=("repeat", arrived), excess=(("band", "step"), risks))
        .assign_coords(band=["low", "mean", "high"])
        .expand_dims("cell")
    )


def trained(cell: Setting, activation: str, lam: float, seed: int, id: str) -> xr.Dataset:
    task = task_of(cell)
    start = sphere_start(task, key_for(seed, id, "start"), cell.repeats)
    stream = stream_of(seed, id, "batches")
    return descend_online(
        task,
        start,
        batch_size=cell.batch_size,
        lam=lam,
        step_size=cell.step_size,
        steps=cell.steps,
        seed=stream,
        record_every=max(1, cell.steps // 40),
        activation=activation,
    )


@claim(
    "single-location/trained-heads",
    source="attlas",
    reference="three heads trained alike",
    statement=r"After the same online training from the same starts the softmax head, at an inverse temperature from 0.5 to 1, has a smaller mean"
    r" risk than linear attention and than erf attention, each at the sharpness that is best for it at the oracle.",
    words="The order of what the heads can do is the order of what they do after training.",
    hypotheses=(*TRAINED, SAMPLES, MILD),
    quick=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.1,
        lam=1.0,
        step_size=1e-2,
        batch_size=5,
        steps=4_000,
        repeats=16,
        samples=16_000,
    ),
    paper=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.1,
        lam=1.0,
        step_size=5e-3,
        batch_size=5,
        steps=20_000,
        repeats=128,
        samples=50_000,
    ),
    rule=Order(),
    control=Control(
        "a softmax head of inverse temperature 0.02, which averages all tokens",
        lambda e: e.assign(lower=e["averaging"], error=e["averaging_error"]),
    ),
    figure=drawn_by(f"{FIGURES}.heads:trained_risks"),
    budget="repeats",
    needs=("single-location/softmax-training", "single-location/heads-in-order"),
    origin="ours",
)
def trained_heads(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    task, id = task_of(cell), "single-location/trained-heads"
    sharpness = {"identity": linear_attention(task)[0], "erf": task.best_lam()}
    runs = {name: trained(cell, name, lam, seed, id) for name, lam in sharpness.items()}
    softmax, averaging = (trained(cell, "softmax", lam, seed, id) for lam in (cell.lam, 0.02))
    paths = {
        name: run["risk"] - task.noise**2 for name, run in {"softmax": softmax, **runs}.items()
    }
    others = np.stack([paths[name].isel(step=-1).values for name in runs])
    found = {}
    for name, run, lam in (("lower", softmax, cell.lam), ("averaging", averaging, 0.02)):
        # The batch on which a run reports its softmax risk is too small for the comparison.
        states = Overlaps(*(run[name].values[:, -1] for name in Overlaps._fields))
        mean, error = sampled_risk(
            task, states, lam, key_for(seed, id, "test"), cell.samples, "softmax"
        )
        gaps = others - (mean - task.noise**2)
        # All repeats share the test samples, so that their error does not average out over repeats.
        spread = np.hypot(gaps.std(1, ddof=1) / np.sqrt(cell.repeats), error.mean())
        found[name] = (("cell", "pair"), np.full((1, 2), mean.mean() - task.noise**2))
        found["error" if name == "lower" else f"{name}_error"] = (("cell", "pair"), spread[None])
    return xr.Dataset(
        {
            **found,
            "upper": (("cell", "pair"), others.mean(1)[None]),
            "repetitions": ("cell", [cell.repeats]),
            "excess": (("cell", "head", "band", "step"), [[band(path) for path in paths.values()]]),
        },
        coords={
            "pair": ["softmax below linear attention", "softmax below erf"],
            "head": ["softmax", "linear attention", "erf"],
            "band": ["low", "mean", "high"],
            "step": paths["erf"]["step"].values,
        },
    )
