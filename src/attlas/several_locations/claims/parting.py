"""Claims about heads that part: whether two heads come to read one informative token each."""

import numpy as np
import xarray as xr

from attlas.claims import Control, Convergence, Draws, Hypothesis, Setting, Values, on
from attlas.claims.setting import whole
from attlas.figure import Figure
from attlas.order_parameters import descend_online
from attlas.several_locations.claims import several_locations
from attlas.several_locations.claims.order import first_time
from attlas.several_locations.task import heads_problem, random_starts


def parted_by(data: xr.Dataset) -> np.ndarray:
    """How far two heads have parted [repeat, step]: by how much more of the values each reads its
    own than the other one's."""
    own = data["m"].isel(column=[1, 3], direction=[1, 3]).values
    straight, crossed = own[..., 0, 0] + own[..., 1, 1], own[..., 0, 1] + own[..., 1, 0]
    return abs(straight - crossed) / 2


@several_locations.claim(
    kind="training",
    origin="ours",
    reference="specialisation of heads",
    statement=r"Two softmax heads in online descent from small random starts, with free norms and"
    r" steps of size $2/d \le 3/(4\lambda^2s^2)$: more than half of the runs end with one head for"
    r" each of two equally strong informative tokens (overlaps of values that differ by more than"
    r" 0.5).",
    words="Heads that begin alike mostly part by themselves: one for each token. The runs that"
    " do not part, about one in five at the quick scale, end in another minimum of the risk,"
    " where both heads look at both tokens. Longer steps can prevent it: with steps of 8/d at d"
    " = 400 none of 2,048 runs parted.",
    hypotheses=(
        Hypothesis("ratio = 1", lambda s: s.ratio == 1),
        Hypothesis("signal >= 2.5", lambda s: s.signal >= 2.5),
        Hypothesis(
            "rate lam^2 signal^2 <= 0.75 dim: longer steps carry both heads away together",
            lambda s: s.rate * (s.lam * s.signal) ** 2 <= 0.75 * s.dim,
        ),
    ),
    quick=Setting(
        signal=4.0,
        ratio=1.0,
        lam=1.0,
        dim=100,
        length=6,
        batch_size=8,
        rate=2.0,
        time=24.0,
        start=0.1,
        runs=192,
    ),
    paper=dict(dim=400, runs=512),
    cells=whole,
    budget="runs",
    rule=Convergence(share=0.5),
    control=Control(
        "heads as they are before training",
        lambda e: {"arrived": (e.parted.isel(step=0) > 0.5).astype(int)},
    ),
    needs=("two-heads-suffice",),
)
def heads_part(cell: Setting, draws: Draws) -> Values:
    step_size = cell.rate / cell.dim
    steps = round(cell.time / step_size)
    data = descend_online(
        heads_problem(cell.length, (cell.signal, cell.ratio * cell.signal), lam=cell.lam),
        random_starts(draws.stream("start"), cell.runs, 4, 4, cell.dim, cell.start),
        dim=cell.dim,
        batch_size=cell.batch_size,
        step_size=step_size,
        steps=steps,
        seed=draws.integer("batches"),
        record_every=max(1, steps // 40),
        points=256,
    )
    parted = parted_by(data)
    arrived = (parted[:, -1] > 0.5).astype(int)
    times = first_time(parted, data["step"].values * step_size)
    return {
        "share": arrived.mean(),
        "when": np.median(np.minimum(times, cell.time)),
        **on("repeat", arrived=arrived),
        **on("repeat step", risk=data["risk"], parted=parted),
        "step": data["step"].values,
    }


@heads_part.figure
def plateau_and_parting(evidence: xr.Dataset) -> Figure:
    title, note = "The heads part", "runs in grey; median risk and how far the heads have parted"
    shown = evidence.isel(cell=0)
    middle = shown[["risk", "parted"]].median("repeat")
    figure = Figure(middle, title, note, x="step", y="")
    some = shown[["risk"]].isel(repeat=slice(0, 12))
    figure.lines("step", "risk", detail="repeat", data=some, opacity=0.3, ink="#888888")
    return figure.lines("step", {"risk": "risk, median", "parted": "parted, median"})
