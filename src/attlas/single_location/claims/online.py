"""Claims about online descent: its exact simulation on five overlaps, and the paper's Figure 4."""

from collections.abc import Sequence

import jax
import numpy as np
import xarray as xr
from scipy import special

from attlas.claims.compat import (
    Agreement,
    Control,
    Convergence,
    Hypothesis,
    SameLaw,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.single_location.claims.runs import KINDS, band, outcomes, panels, schedule_of
from attlas.single_location.claims.shared import (
    FIGURES,
    HEAD,
    PAPER,
    ROOT_HALF,
    SAMPLES,
    STEP,
    TASK,
    random_heads,
    sequences,
    stream_of,
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
from attlas.single_location.population import Overlaps, heads_with, risk
from attlas.single_location.schedules import Constant, InverseDecay, values_at
from attlas.single_location.task import SingleLocation

BATCH = Hypothesis("batch_size >= 1", lambda s: s.batch_size >= 1, defining=True)
GATES = ("softmax", *(name for name in ACTIVATIONS if name != "step"))
TRAINABLE = Hypothesis(
    f"activation is one of {', '.join(GATES)}", lambda s: s.activation in GATES, defining=True
)
DRAWS = Hypothesis("draws >= 200", lambda s: s.draws >= 200, defining=True)


@claim(
    "single-location/online-law",
    source="attlas",
    reference="online descent on five overlaps",
    statement=r"Online descent moves the five overlaps as a Markov chain that is simulated exactly with $2L + 1$ Gaussians an"
    r" example: after some steps all five, and the products $\kappa\nu$ and $\theta\eta$, have the law that descent on"
    r" $d$-dimensional tokens gives them, for erf and softmax heads.",
    words="A run on whole sequences and a run on five numbers have the same law, whatever the dimension.",
    hypotheses=(*TASK, HEAD, STEP, BATCH, DRAWS, TRAINABLE),
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
    paper=Setting(
        dim=(4, 5, 8, 12, 24, 40, 80),
        length=6,
        batch_size=(1, 1, 3, 2, 5, 5, 5),
        step_size=(0.5, 0.2, 0.05, 0.05, 0.02, 0.02, 0.01),
        steps=(1, 10, 20, 30, 40, 40, 64),
        activation=("erf", "erf", "erf", "softmax", "erf", "softmax", "erf"),
        lam=1.0,
        gamma=ROOT_HALF,
        noise=0.2,
        draws=8000,
    ),
    rule=SameLaw(),
    control=Control(
        "the directions outside the span of k, v and the stars left out",
        lambda e: e.assign(sample_a=e["without_complement"]),
    ),
    figure=drawn_by(f"{FIGURES}.descent:law_quantiles"),
    cells=together("dim", "batch_size", "step_size", "steps", "activation"),
    budget="draws",
    needs=("single-location/exact-reduction",),
    origin="ours",
)
def online_law(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id, task = "single-location/online-law", task_of(cell)
    # A head far from the origin, which the directions outside the stars pull back to it: there the law shows them.
    heads = np.pad(random_heads(key_for(seed, id, "start"), 1), ((0, 0), (0, 0), (0, task.dim - 4)))
    k, v = np.repeat(heads, cell.draws, axis=1)
    start = Overlaps.of(k, v, task)
    streams = [stream_of(seed, id, f"batches {number}") for number in range(3)]
    head, schedules = as_head(cell.activation), (Constant(cell.lam), Constant(cell.step_size))
    exact, without = (
        simulate(
            task,
            start,
            head,
            schedules,
            cell.batch_size,
            cell.steps,
            stream,
            cell.steps,
            complement=whole,
        ).last
        for stream, whole in ((streams[0], True), (streams[1], False))
    )
    walked = simulate_vectors(
        task, k, v, head, schedules, cell.batch_size, cell.steps, streams[2], cell.steps
    )
    plain = Overlaps(*(np.asarray(x[-1], float) for x in walked.observed))
    samples = {"sample_a": exact, "sample_b": plain, "without_complement": without}
    return xr.Dataset(
        {name: (("cell", "statistic", "draw"), statistics(x)[None]) for name, x in samples.items()},
        coords={"statistic": ["κ", "ν", "θ", "η", "ρ", "κν", "θη"]},
    )


def statistics(x: Overlaps) -> np.ndarray:
    """To five digits: a head that a batch does not move stands still, but rounds otherwise on vectors."""
    return np.stack(
        [*(np.asarray(part, float) for part in x), x.kappa * x.nu, x.theta * x.eta]
    ).round(5)


@claim(
    "single-location/online-run",
    source=PAPER,
    reference="Figure 4",
    statement=r"Online descent on batches of 5, at $d = 80$ from starts uniform on the sphere, with $\lambda_t$ falling from 2"
    r" (as $2/(1 + 10^{-4}t)$ at the paper's scale, geometrically to 0.1 at the quick one), ends at the oracle ($|\kappa|, |\nu| > 0.9$, of one sign) in more than 75 % of runs.",
    words="The head is found from the data as they come, one small batch at a time.",
    hypotheses=(
        *TASK,
        HEAD,
        STEP,
        BATCH,
        Hypothesis("rate >= 0", lambda s: s.rate >= 0, defining=True),
        Hypothesis("end > 0", lambda s: s.end > 0, defining=True),
        Hypothesis(
            f"schedule is one of {', '.join(KINDS)}", lambda s: s.schedule in KINDS, defining=True
        ),
    ),
    quick=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
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
    paper=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.1,
        schedule="inverse",
        lam=2.0,
        rate=1e-4,
        end=0.1,
        step_size=1e-3,
        batch_size=5,
        steps=200_000,
        repeats=48,
    ),
    rule=Convergence(share=0.75),
    control=Control(
        "a sharpness that stays at 2", lambda s: s.replace(schedule="constant"), on="setting"
    ),
    figure=drawn_by(f"{FIGURES}.descent:run_panels"),
    budget="repeats",
    needs=("single-location/online-law", "single-location/closed-form-risk"),
    origin="our reading",
)
def online_run(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id, task, lam = "single-location/online-run", task_of(cell), schedule_of(cell)
    start = sphere_start(task, key_for(seed, id, "start"), cell.repeats)
    stream = stream_of(seed, id, "batches")
    path = descend_online(
        task,
        start,
        batch_size=cell.batch_size,
        lam=lam,
        step_size=cell.step_size,
        steps=cell.steps,
        seed=stream,
        record_every=max(1, cell.steps // 60),
    )
    states = Overlaps(*(path[name].values.T for name in Overlaps._fields))
    lams = values_at(lam, path["step"].values)[:, None]
    tested = (
        batch_risk(task, states, lams, key_for(seed, id, "test batch"), TEST_SAMPLES)
        - task.noise**2
    )
    shown = panels(path, task, lam).assign(test_risk=(("band", "step"), band(tested.T)))
    return shown.assign(arrived=outcomes(path)["oracle"]).expand_dims("cell")


@claim(
    "single-location/online-risk",
    source="attlas",
    reference="Theorem 1 along an online run",
    statement=r"Along an online run the closed form of the risk at the five overlaps is the mean loss on fresh sequences of"
    r" $d$-dimensional tokens.",
    words="The risk need not be estimated on a test batch: it is known.",
    hypotheses=(*TASK, HEAD, STEP, BATCH, SAMPLES),
    quick=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.3,
        lam=2.0,
        rate=4e-4,
        step_size=4e-3,
        batch_size=5,
        steps=20_000,
        repeats=4,
        samples=20_000,
    ),
    paper=Setting(
        dim=80,
        length=10,
        gamma=ROOT_HALF,
        noise=0.3,
        lam=2.0,
        rate=1e-4,
        step_size=1e-3,
        batch_size=5,
        steps=200_000,
        repeats=8,
        samples=100_000,
    ),
    rule=Agreement(),
    control=Control(
        "the variance of the label noise left out",
        lambda e: e.assign(predicted=e["predicted"] - e["noise"] ** 2),
    ),
    figure=drawn_by(f"{FIGURES}.descent:online_risk_agreement"),
    budget="samples",
    needs=("single-location/closed-form-risk", "single-location/online-law"),
    origin="ours",
)
def online_risk(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id, task, lam = "single-location/online-risk", task_of(cell), InverseDecay(cell.lam, cell.rate)
    start = sphere_start(task, key_for(seed, id, "start"), cell.repeats)
    stream = stream_of(seed, id, "batches")
    path = descend_online(
        task,
        start,
        batch_size=cell.batch_size,
        lam=lam,
        step_size=cell.step_size,
        steps=cell.steps,
        seed=stream,
        record_every=max(1, cell.steps // 4),
    )
    lams = values_at(lam, path["step"].values)
    states = Overlaps(*(path[name].values for name in Overlaps._fields))
    mean, error = token_losses(task, states, lams, key_for(seed, id, "tokens"), cell.samples)
    axes = ("cell", "repeat", "step")
    return xr.Dataset(
        {
            "predicted": (axes, np.asarray(risk(task, states, lams))[None]),
            "measured": (axes, mean[None]),
            "error": (axes, error[None]),
        },
        coords={"step": path["step"].values},
    )


def token_losses(
    task: SingleLocation, states: Overlaps, lams: np.ndarray, key: jax.Array, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean loss, and its standard error, of heads with these overlaps [repeat, step] on whole sequences, in blocks."""
    k, v = (x.reshape(-1, task.dim) for x in heads_with(states, task.dim))
    sharpness = np.broadcast_to(lams, np.shape(states.kappa)).ravel()
    total, square, block = np.zeros(len(k)), np.zeros(len(k)), 4000
    for number in range(-(-samples // block)):
        tokens, target = sequences(task, stream(key, number), block)
        # [sample, length, head]
        loss = (
            (special.erf(sharpness * (tokens @ k.T)) * (tokens @ v.T)).sum(1) - target[:, None]
        ) ** 2
        total, square = total + loss.sum(0), square + (loss**2).sum(0)
    n = block * -(-samples // block)
    mean = total / n
    shape = np.shape(states.kappa)
    return mean.reshape(shape), np.sqrt((square / n - mean**2) / n).reshape(shape)
