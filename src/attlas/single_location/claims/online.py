"""Claims about online descent: its exact simulation on five overlaps, and the paper's Figure 4."""

from typing import Any

import numpy as np
import xarray as xr

from attlas.claims import (
    Control,
    Convergence,
    Draws,
    Hypothesis,
    SameLaw,
    Setting,
    Values,
    on,
    together,
)
from attlas.figure import Figure, Panels
from attlas.single_location.claims import single_location
from attlas.single_location.claims.runs import (
    SCHEDULE,
    band,
    outcomes,
    panels,
    run_panels,
    schedule_of,
)
from attlas.single_location.claims.shared import (
    ROOT_HALF,
    paper_task,
    random_heads,
    step_options,
    task_of,
)
from attlas.single_location.descent import sphere_start
from attlas.single_location.gates import ACTIVATIONS, as_head
from attlas.single_location.online import (
    TEST_SAMPLES,
    batch_risk,
    descend_online,
    simulate,
    simulate_vectors,
)
from attlas.single_location.population import Overlaps
from attlas.single_location.schedules import Constant, values_at

GATES = ("softmax", *(name for name in ACTIVATIONS if name != "step"))


@single_location.claim(
    kind="simulation",
    origin="ours",
    reference="online descent on five overlaps",
    statement=r"Online descent moves the five overlaps as a Markov chain that is simulated exactly"
    r" with $2L + 1$ Gaussians an example: after some steps all five, and the products $\kappa\nu$"
    r" and $\theta\eta$, have the law that descent on $d$-dimensional tokens gives them, for erf"
    r" and softmax heads.",
    words="A run on whole sequences and a run on five numbers have the same law, whatever the"
    " dimension.",
    hypotheses=(
        Hypothesis("draws >= 200", lambda s: s.draws >= 200, defining=True),
        Hypothesis(
            f"activation is one of {', '.join(GATES)}",
            lambda s: s.activation in GATES,
            defining=True,
        ),
    ),
    quick=Setting(
        dim=(4, 24),
        length=4,
        batch_size=(1, 2),
        step_size=(0.5, 0.05),
        steps=(1, 16),
        activation=("erf", "softmax"),
        lam=1.0,
        gamma=ROOT_HALF,
        noise=0.2,
        draws=1600,
    ),
    paper=dict(
        dim=(4, 5, 8, 12, 24, 40, 80),
        length=6,
        batch_size=(1, 1, 3, 2, 5, 5, 5),
        step_size=(0.5, 0.2, 0.05, 0.05, 0.02, 0.02, 0.01),
        steps=(1, 10, 20, 30, 40, 40, 64),
        activation=("erf", "erf", "erf", "softmax", "erf", "softmax", "erf"),
        draws=8000,
    ),
    cells=together("dim", "batch_size", "step_size", "steps", "activation"),
    budget="draws",
    rule=SameLaw(),
    control=Control(
        "the directions outside the span of k, v and the stars left out",
        lambda e: {"sample_a": e.without_complement},
    ),
    needs=("exact-reduction",),
)
def online_law(cell: Setting, draws: Draws) -> Values:
    task = task_of(cell)
    # A head far from the stars: the directions outside their span move its overlaps most.
    heads = np.pad(random_heads(draws("start"), 1), ((0, 0), (0, 0), (0, task.dim - 4)))
    k, v = np.repeat(heads, cell.draws, axis=1)
    head, schedules = as_head(cell.activation), (Constant(cell.lam), Constant(cell.step_size))
    run = (head, schedules, cell.batch_size, cell.steps)
    seeds = [draws.integer(f"batches {number}") for number in range(3)]
    start = Overlaps.of(k, v, task)
    exact, without = (
        simulate(task, start, *run, seed, cell.steps, complement=complement).last
        for seed, complement in zip(seeds, (True, False), strict=False)
    )
    walked = simulate_vectors(task, k, v, *run, seeds[2], cell.steps)
    plain = Overlaps(*(np.asarray(x[-1], float) for x in walked.observed))
    samples = {"sample_a": exact, "sample_b": plain, "without_complement": without}
    return {
        **on("statistic draw", **{name: statistics(x) for name, x in samples.items()}),
        "statistic": ["κ", "ν", "θ", "η", "ρ", "κν", "θη"],
    }


@online_law.figure
def quantiles_of_overlaps(evidence: xr.Dataset) -> Figure:
    one = evidence.isel(cell=-1)
    shown = {"sample_a": "five overlaps", "without_complement": "without the complement"}
    return (
        Figure(
            one[[*shown, "sample_b"]].quantile(np.linspace(0.01, 0.99, 50), "draw"),
            "Online descent on vectors and on five overlaps",
            f"quantiles from 1 % to 99 % after {int(one['steps'])} steps, d = {int(one['dim'])},"
            f" batches of {int(one['batch_size'])}",
            x="quantile, vectors",
            y="quantile, simulation",
        )
        .diagonal("sample_b", "sample_b")
        .points("sample_b", shown, size=12)
        .facet("statistic", columns=4, independent="xy", width=150, height=120)
    )


def statistics(x: Overlaps) -> np.ndarray:
    """All five and two products, to five digits: a head at rest rounds differently on vectors."""
    values = [*(np.asarray(part, float) for part in x), x.kappa * x.nu, x.theta * x.eta]
    return np.stack(values).round(5)


@single_location.claim(
    kind="training",
    origin="our reading",
    reference="Figure 4",
    statement=r"Online descent on batches of 5, at $d = 80$ from starts uniform on the sphere, with"
    r" $\lambda_t$ falling from 2 (as $2/(1 + 10^{-4}t)$ at the paper's scale, geometrically to 0.1"
    r" at the quick one), ends at the oracle ($|\kappa|, |\nu| > 0.9$, of one sign) in more than"
    r" 75 % of runs.",
    words="The head is found from the data as they come, one small batch at a time.",
    hypotheses=(SCHEDULE,),
    quick=paper_task(
        dim=80,
        noise=0.1,
        schedule="geometric",
        lam=2.0,
        rate=1e-4,
        end=0.1,
        step_size=1e-3,
        batch_size=5,
        steps=24_000,
        repeats=64,
    ),
    paper=dict(schedule="inverse", steps=200_000, repeats=48),
    budget="repeats",
    rule=Convergence(share=0.75),
    control=Control("a sharpness that stays at 2", setting=dict(schedule="constant")),
    needs=("online-law", "closed-form-risk"),
)
def online_run(cell: Setting, draws: Draws) -> Values:
    task, lam = task_of(cell), schedule_of(cell)
    path = train_online(cell, draws, lam, records=60)
    states = Overlaps(*(path[name].values.T for name in Overlaps._fields))
    lams = values_at(lam, path["step"].values)[:, None]
    tested = batch_risk(task, states, lams, draws("test batch"), TEST_SAMPLES) - task.noise**2
    arrived = outcomes(path)["oracle"]
    test_risk = (("band", "step"), band(tested.T))
    return panels(path, task, lam).assign(arrived=arrived, test_risk=test_risk)


@online_run.figure
def online_panels(evidence: xr.Dataset) -> Panels:
    return run_panels(evidence)


def train_online(
    cell: Setting, draws: Draws, lam: Any, activation: str = "erf", records: int = 40
) -> xr.Dataset:
    """Online descent from starts uniform on the sphere, recorded about `records` times."""
    task = task_of(cell)
    return descend_online(
        task,
        sphere_start(task, draws("start"), cell.repeats),
        batch_size=cell.batch_size,
        seed=draws.integer("batches"),
        activation=activation,
        **{**step_options(cell, records), "lam": lam},
    )
