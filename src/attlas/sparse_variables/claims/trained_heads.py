"""Claims about trained heads: where they look, how large they are, and what certifies them."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from attlas.capacity import Capacity, occam_samples
from attlas.claims import Control, Draws, Hypothesis, Setting, Values, on, product, together
from attlas.claims.rules import LEVEL, Approximation, Bound, Convergence, Order
from attlas.errors import InputError
from attlas.figure import Figure
from attlas.gaussian import Real
from attlas.rademacher import mean_of
from attlas.sparse_variables.claims import sparse_variables
from attlas.sparse_variables.claims.shared import LENGTH, SPARSE, first_places
from attlas.sparse_variables.construction import Construction, sink_head, threshold_head
from attlas.sparse_variables.task import Batch
from attlas.sparse_variables.thresholds import LEVEL as SHARE
from attlas.sparse_variables.trained_heads import (
    SPREADS,
    Heads,
    certify,
    noisy_errors,
    pac_bayes,
    pac_bayes_samples,
    support_mass,
)
from attlas.sparse_variables.training import RECIPE_R, Outcome, first_model, train
from attlas.sparse_variables.training_sets import TrainingSets, draw_sets

LINEAR = dataclasses.replace(
    RECIPE_R, architecture=dataclasses.replace(RECIPE_R.architecture, mlp=False)
)
"""The recipe without the MLP: a sum of linear heads."""

ATTENTION_SAMPLES = 256
"""Validation sequences over which attention is averaged."""
GAP, DELTA = 0.5, 0.05
"""The excess error and the confidence for which bounds ask for samples."""

VALIDATION = 2000
ASKED = "samples, log10"
SIZES = ("|u| of the sharpest head", "sum of |v| over the margin", ASKED)


class Runs(NamedTuple):
    """Networks of several trials.

    `start` and `heads` are their heads before and after training with the most samples, `margins`
    the least on their training sets; `ends` says how the runs with every number of samples ended
    (`train`).
    """

    sets: TrainingSets
    start: Heads
    heads: Heads
    margins: Float[np.ndarray, " trial"]
    ends: xr.Dataset

    @property
    def solved(self) -> Bool[np.ndarray, "trial samples"]:
        """Which runs were right on all validation sequences."""
        return (self.ends["status"] == "solved").values

    @property
    def learned(self) -> Int[np.ndarray, " solved"]:
        """The trials whose network has learned the function."""
        return np.flatnonzero(self.solved[:, -1] & (self.margins > 0))

    def support_mass(self, trial: int, head: Heads | Construction) -> Float[np.ndarray, " label"]:
        """Attention on the support by label, in validation sequences; of several heads, that of the
        one with the most where the label is 0."""
        batch = Batch(*(x[:ATTENTION_SAMPLES] for x in next(self.sets.validate(trial))))
        weights = head.weights(batch.bits).reshape(len(batch.bits), -1, self.sets.length + 1)
        mass = support_mass(weights, batch, self.sets.tasks[trial])
        return mass[:, mass[0].argmax()]


@functools.lru_cache(maxsize=8)
def train_heads(
    length: int,
    sparsity: int,
    samples: tuple[int, ...],
    trials: int,
    steps: int,
    seed: int,
    coins: bool = False,
) -> Runs:
    """Runs of so many steps, which validation does not stop, on independent samples.

    No training set is thrown away. With `coins`, labels have nothing to do with the bits. Claims
    share the runs.
    """
    key = Draws("sparse-variables/learned-head", seed)("coins" if coins else "runs")
    data, start = jax.random.split(key)
    task: dict[str, Any] = {"sparsity": sparsity, "unique": False, "coins": coins}
    sets = draw_sets(data, length, samples, trials, validation=VALIDATION, **task)
    found: list[Outcome] = []
    options: dict[str, Any] = {"steps": steps, "every": steps, "stop": False}
    ends = train(sets, LINEAR, key=start, finished=found.append, **options)
    trained = {end.trial: end.model for end in found if end.samples == max(samples)}
    first = [first_model(LINEAR, start, trial, length) for trial in range(trials)]
    last = [trained[trial] for trial in range(trials)]
    begun, heads = (
        Heads.stacked(Heads.of(model).nearest() for model in models) for models in (first, last)
    )
    margins = (heads(sets.bits) * (2.0 * sets.label - 1)).min(-1)
    return Runs(sets, begun, heads, margins, ends)


@sparse_variables.measurement(
    "learned-head",
    quick=Setting(length=(50, 200), samples=(80, 80), sparsity=3, repeats=24, steps=150),
    paper=dict(length=(50, 100, 200, 400, 800), samples=(80, 80, 96, 96, 128), steps=200),
    origin="ours",
    hypotheses=(
        SPARSE,
        Hypothesis(
            "samples beyond the statistical floor", lambda s: s.samples > first_places(s).floor()
        ),
    ),
    cells=together("length", "samples"),
    budget="repeats",
)
def trained_beside_constructed(cell: Setting, draws: Draws) -> Values:
    """Attention on the support, norms, and samples asked for, of trained and constructed heads."""
    size = (cell.length, cell.sparsity, (cell.samples,), cell.repeats)
    runs = train_heads(*size, cell.steps, draws.seed)
    task, learned = runs.sets.tasks[0], runs.learned
    built = (threshold_head(task), sink_head(task))
    start, mass = (
        [runs.support_mass(trial, heads) for trial, heads in enumerate(networks.each())]
        for networks in (runs.start, runs.heads)
    )
    sizes = np.full((cell.repeats, len(SIZES)), np.nan)
    if len(learned):
        heads, margins = jax.tree.map(lambda x: x[learned], (runs.heads, runs.margins))
        score, value = heads.norms()
        asked = decades(heads.capacity(), margins)
        sizes[learned] = np.stack([score.max(1), value.sum(1) / margins, asked], 1)
    return {
        **on("repeat label", mass=mass, mass_at_start=start),
        **on("head label", constructed=[runs.support_mass(0, head) for head in built]),
        **on("repeat quantity", sizes=sizes),
        **on("head quantity", sizes_built=[sizes_of(head) for head in built]),
        "label": [0, 1],
        "head": ["threshold", "sink"],
        "quantity": list(SIZES),
    }


def sizes_of(head: Construction) -> list[float]:
    """The quantities `SIZES` of a construction."""
    asked = decades(head.capacity("sharp", count_parameters=False), head.margin)
    return [head.score_norm, head.value_norms.sum() / head.margin, asked]


def decades(capacity: Capacity, margin: Real) -> Any:
    """Decimal logarithm of the samples that the bound asks for."""
    return capacity.log_samples_for(GAP, margin=margin, delta=DELTA) / math.log(10)


@sparse_variables.claim(
    kind="training",
    measured_by=trained_beside_constructed,
    reference="trained heads beside the constructed ones",
    statement=r"After 150 steps (200 at the paper's scale) on $m$ samples of an AND of $s$"
    r" bits, a head puts more than $\frac{cs}{cs+1}$, $c = 2$, of its attention on the support"
    r" when the label is 0, what the constructed threshold head puts there; in more than half"
    r" of the runs, at every length (recipe R without MLP).",
    words="Training ends with a head that looks at the relevant bits, and at little else, when one"
    " of them is 0.",
    rule=Convergence(share=0.5),
    control=Control(
        "the heads before training, which look everywhere alike",
        lambda e: {"arrived": e.arrived_at_start},
    ),
    needs=("threshold-margin", "sink-margin"),
)
def learned_head(evidence: xr.Dataset) -> Values:
    s, names = evidence["sparsity"], ["mass", "mass_at_start"]
    looks = evidence[names].sel(label=0, drop=True) > 2 * s / (2 * s + 1)
    return {"arrived": looks["mass"], "arrived_at_start": looks["mass_at_start"]}


@learned_head.figure
def attention_against_length(evidence: xr.Dataset) -> Figure:
    return (
        Figure(
            evidence,
            "Learned heads look at the support, and when",
            "points: of each run, the head with most attention on the support at label 0; strokes:"
            " constructed heads; some look away at label 1, as the sink head does",
            x="",
            y="attention on the support",
            domain={"y": (0, 1)},
            legend={"head": "constructed"},
        )
        .points("T = {length}", "mass", ink="#999999", opacity=0.6, size=28)
        .ticks("T = {length}", "constructed", color="head", theory=False, size=40)
        .facet("where the label is {label}", width=300, height=280)
    )


@sparse_variables.claim(
    kind="training",
    measured_by=trained_beside_constructed,
    reference="trained heads beside the constructed ones",
    statement="For the norms and the margin of a network that has learned the AND of $s$ bits,"
    " the bound of this map asks for as many samples as for the constructed threshold head, to"
    " a factor of ten in the geometric mean over runs, at every length (recipe R without MLP;"
    " 150 steps, 200 at the paper's scale).",
    words="The bound asks for about as many samples for learned heads as for constructed ones: its"
    " looseness does not come from the construction.",
    rule=Approximation(margin=1.0, relative=False),
    control=Control(
        "a construction for which it asks for $10^{{{size:.2g}}}$ times as many samples",
        lambda e, size: {"predicted": e.predicted + size},
        size=2.0,
    ),
    needs=("learned-head", "complexity-bound"),
)
def learned_norms(evidence: xr.Dataset) -> Values:
    """Over the runs that have learned the function."""
    asked = evidence["sizes"].sel(quantity=ASKED, drop=True)
    learned = asked.notnull().sum("repeat")
    if (learned < 2).any():
        worst = evidence.isel(cell=int(learned.values.argmin()))
        count, runs = int(learned.min()), asked.sizes["repeat"]
        raise too_few_learned(int(worst["samples"]), int(worst["steps"]), count, runs)
    return {
        "predicted": evidence["sizes_built"].sel(head="threshold", quantity=ASKED, drop=True),
        "measured": asked.mean("repeat"),
        "error": asked.std("repeat", ddof=1) / np.sqrt(learned),
        "repetitions": learned,
    }


def too_few_learned(samples: object, steps: int, learned: int, runs: int) -> InputError:
    return InputError(
        f"samples = {samples}, steps = {steps}: {learned} of {runs} runs learn the function; ask"
        " for more"
    )


@learned_norms.figure
def norms_against_length(evidence: xr.Dataset) -> Figure:
    quantiles = evidence["sizes"].quantile([0.1, 0.5, 0.9], "repeat")
    low, middle, high = quantiles.drop_vars("quantile")
    heads = [middle.expand_dims(head=["learned"]), evidence["sizes_built"]]
    return (
        Figure(
            xr.Dataset({"size": xr.concat(heads, "head"), "low": low, "high": high}),
            "Learned heads are as large as the constructed ones",
            "median of the runs that learned, with the middle four fifths; unit tokens; last panel:"
            " what the bound for these norms asks for",
            x=LENGTH,
            y="",
            log="x",
            zero="-y",
        )
        .lines("length", "size", color="head", points=True)
        .spans("length", "low", "high", width=1)
        .facet("quantity", columns=3, independent="y", width=200, height=220)
    )


@sparse_variables.claim(
    kind="training",
    reference="PAC-Bayes for trained heads",
    origin="ours",
    statement=r"Heads with normal noise on scores and values err with probability at most"
    r" $\mathrm{kl}^{-1}(\hat e, \frac1m(\frac{|u-u_0|^2}{2\sigma_u^2} +"
    r" \frac{|v-v_0|^2}{2\sigma_v^2} + \ln\frac{2\sqrt m}{\delta}))$, with $\hat e$ an upper"
    r" limit of their error on the $m$ training samples, $u_0, v_0$ the heads with which"
    r" training began, and $\sigma$ from 25 pairs that share $\delta$. This holds for heads"
    r" that have learned and for heads that have memorised coin flips.",
    words="The distance over which training has moved a head, relative to the noise that the"
    " head bears, bounds its error without further data: with 1,024 samples by about a half,"
    " with 64 by nothing useful.",
    hypotheses=(SPARSE,),
    quick=Setting(
        length=(50, 50),
        samples=(80, 1024),
        coins=(True, False),
        sparsity=3,
        trials=4,
        steps=150,
        draws=200,
    ),
    paper=dict(
        length=(100, 100, 100, 400),
        samples=(64, 64, 1024, 1024),
        coins=(True, False, False, False),
        trials=6,
        steps=200,
        draws=1000,
    ),
    cells=together("length", "samples", "coins"),
    budget="draws",
    rule=Bound(),
    control=Control(
        "heads without noise, and the way that training has moved them not counted",
        lambda e: {"bound": e.uncounted, "measured": e.noiseless},
    ),
    needs=("learned-head",),
)
def learned_certificate(cell: Setting, draws: Draws) -> Values:
    size = (cell.length, cell.sparsity, (cell.samples,), cell.trials)
    runs = train_heads(*size, cell.steps, draws.seed, cell.coins)
    sets, count = runs.sets, cell.draws
    delta = LEVEL / 1000  # the chance that any of the bounds fails, far below the rule's level
    batch = Batch(sets.bits, sets.label)
    found = certify(runs.heads, runs.start, batch, draws("noise"), delta=delta, draws=count)
    each = [
        jax.tree.map(lambda *x: np.concatenate(x), *sets.validate(i)) for i in range(cell.trials)
    ]
    fresh = jax.tree.map(lambda *x: np.stack(x), *each)
    key, spread = draws("validation"), found.spread[:, None]
    errors = noisy_errors(runs.heads, fresh, spread, key, count)[:, 0]
    own, noiseless = (
        1 - runs.ends[name].values[:, -1] for name in ("train_accuracy", "best_accuracy")
    )
    return on(
        "trial",
        bound=found.error,
        measured=errors.mean(-1),
        # That of the draws, and that of the sequences, which all draws share.
        error=np.sqrt(errors.var(-1) / count + 0.25 / VALIDATION),
        noiseless=noiseless,
        uncounted=pac_bayes(own, 0.0, cell.samples, delta),
    )


@learned_certificate.figure
def certificates(evidence: xr.Dataset) -> Figure:
    names = {
        "bound": "noisy heads, certified",
        "measured": "noisy heads, measured",
        "uncounted": "heads as if given, certified",
        "noiseless": "heads, measured",
    }
    shown = evidence[list(names)].rename(names).to_array("what").to_dataset(name="rate")
    labels = np.where(evidence["coins"], "coins", "and")
    return Figure(
        shown.assign_coords(labels=("cell", labels)),
        "A certificate from the training set alone",
        "where labels are coins nothing can be learned: a bound that takes the heads as if they"
        " were given is broken",
        x="error",
        y="",
        domain={"x": (0, 1)},
        legend={"what": None},
        height=60 * evidence.sizes["cell"],
    ).points("rate", "{labels}, T = {length}, m = {samples:,}", color="what", opacity=0.8, size=45)


@sparse_variables.claim(
    kind="training",
    reference="a ledger of what was needed and what is asked for",
    origin="ours",
    statement=r"Samples with which at least 0.8 of the runs are right on all of validation <"
    r" samples at which a PAC-Bayes bound, with the distances and the noise that training ended"
    r" with, would certify an error below a half < samples that the bound for the class of the"
    r" learned norms asks for, in the geometric mean over runs and at every length; and Occam's"
    r" bound for the finite class asks for fewer than PAC-Bayes.",
    words="Training needs little more than the statistical floor. A PAC-Bayes bound would"
    " certify the learned head with some ten times as many samples; the bound for its norms"
    " asks for more than any data set has.",
    hypotheses=(
        SPARSE,
        Hypothesis(
            "the largest of samples exceeds the statistical floor by a half",
            lambda s: max(s.samples) > 1.5 * first_places(s).floor(),
        ),
    ),
    quick=Setting(length=(50, 200), samples=(80,), sparsity=3, trials=24, steps=150, draws=200),
    paper=dict(length=(50, 200, 800), samples=(32, 64, 128), trials=10, steps=200, draws=1000),
    cells=product("length"),
    budget="trials",
    rule=Order(),
    control=Control(
        "PAC-Bayes that does not count what training has moved", lambda e: {"upper": e.uncounted}
    ),
    needs=("learned-certificate", "learned-norms", "statistical-floor"),
)
def learned_ledger(cell: Setting, draws: Draws) -> Values:
    size = (cell.length, cell.sparsity, cell.samples, cell.trials)
    runs = train_heads(*size, cell.steps, draws.seed)
    sets, learned, task = runs.sets, runs.learned, first_places(cell)
    if len(learned) < 2:
        raise too_few_learned(cell.samples, cell.steps, len(learned), cell.trials)
    shares = zip(sets.samples, runs.solved.mean(0), strict=True)
    needed = min((m for m, share in shares if share >= SHARE), default=math.inf)
    options: dict[str, Any] = {"gap": GAP, "delta": DELTA, "draws": cell.draws}
    of_runs = (runs.heads, runs.start, Batch(sets.bits, sets.label), runs.margins)
    heads, start, batch, margins = jax.tree.map(lambda x: x[learned], of_runs)
    found = certify(heads, start, batch, draws("noise"), **options)
    free = pac_bayes_samples(found.empirical, 0.0, GAP, DELTA / 2 / len(SPREADS) ** 2)
    asked = decades(heads.capacity(), margins)
    built = sink_head(sets.tasks[0])
    score, value = (x[None] for x in Heads.of_construction(built))
    # Errors do not see the scale of the values; that of the learned ones has noise of these sizes.
    sink = Heads(score, value * np.median(margins) / built.margin)
    own = Batch(sets.bits[:1], sets.label[:1])
    none = jax.tree.map(np.zeros_like, sink)
    constructed = certify(sink, none, own, draws("noise"), **options)
    occam = float(occam_samples(task.log_hypotheses, GAP, DELTA))
    rows = {
        "norms, constructed": 10 ** float(sizes_of(threshold_head(task))[-1]),
        "norms, learned": 10 ** float(np.median(asked)),
        "PAC-Bayes, constructed": float(constructed.samples[0]),
        "PAC-Bayes, learned": float(np.median(found.samples)),
        "needed": needed,
        "Occam's bound": occam,
        "statistical floor": task.floor(),
    }
    # Logarithms to base 10; bounds are numbers of each run, with mean and error over the runs.
    ours, uncounted = np.log10(found.samples), np.log10(free).mean()
    pairs = {
        "needed < PAC-Bayes": (math.log10(needed), uncounted, *mean_of(ours)),
        "Occam < PAC-Bayes": (math.log10(occam), uncounted, *mean_of(ours)),
        "PAC-Bayes < norms": (ours.mean(), asked.mean(), asked.mean(), mean_of(asked - ours).error),
    }
    lower, without, upper, error = np.array(list(pairs.values())).T
    return {
        **on("pair", lower=lower, upper=upper, uncounted=without, error=error),
        "repetitions": len(learned),
        "samples": ("row", list(rows.values())),
        "pair": list(pairs),
        "row": list(rows),
    }


@learned_ledger.figure
def ledger(evidence: xr.Dataset) -> Figure:
    counts = evidence["samples"]
    shown = evidence.assign(samples=counts.where(np.isfinite(counts)))
    floor = shown.sel(row=["statistical floor"])
    return (
        Figure(
            shown.drop_sel(row="statistical floor"),
            "From what a bound asks for to what learning takes",
            "bounds: until the error is below a half; needed: until 80 % of runs are right on every"
            " validation sequence; dashed: statistical floor",
            x=LENGTH,
            y="samples",
            log="xy",
            legend={"row": None},
            height=380,
        )
        .lines("length", "samples", color="row", points=True)
        .lines("length", "samples", theory=True, data=floor)
    )
