"""Claims about what training found: where its heads look, how large they are, and what certifies them."""

import dataclasses
import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from attlas.capacity import Capacity, class_of, collapsed_head, occam_samples
from attlas.claims.compat import (
    LEVEL,
    Approximation,
    Bound,
    Control,
    Convergence,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    product,
    together,
)
from attlas.errors import InputError
from attlas.gaussian import Real
from attlas.sparse_variables.claims.samples import DELTA, GAP
from attlas.sparse_variables.claims.shared import FIGURES
from attlas.sparse_variables.construction import Construction, sink_head, threshold_head
from attlas.sparse_variables.task import Batch, SparseBoolean
from attlas.sparse_variables.thresholds import LEVEL as SHARE
from attlas.sparse_variables.trained_heads import (
    SPREADS,
    Attention,
    Heads,
    certify,
    looked_at,
    noisy_errors,
    pac_bayes,
    pac_bayes_samples,
    rows_of,
)
from attlas.sparse_variables.training import (
    ATTENTION_SAMPLES,
    RECIPE_R,
    Outcome,
    first_model,
    train,
)
from attlas.sparse_variables.training_sets import TrainingSets, draw_sets

LINEAR = dataclasses.replace(
    RECIPE_R, architecture=dataclasses.replace(RECIPE_R.architecture, mlp=False)
)
"""The recipe without the MLP: a sum of linear heads."""

VALIDATION = 2000


def any_and(cell: Setting) -> SparseBoolean:
    return SparseBoolean(cell.length, tuple(range(cell.sparsity)), "and")


QUANTILES = (0.1, 0.5, 0.9)
EMBEDDED = Hypothesis("length > sparsity", lambda s: s.length > s.sparsity, defining=True)


ENOUGH = Hypothesis(
    "samples beyond the statistical floor", lambda s: s.samples > any_and(s).floor()
)


class Runs(NamedTuple):
    """The heads that networks of several trials are before and after training with the largest number of samples, and how the runs with every
    number of samples ended (`train`)."""

    sets: TrainingSets
    start: Heads
    heads: Heads
    ends: xr.Dataset

    @property
    def solved(self) -> Bool[np.ndarray, "trial samples"]:
        """Which runs were right on all validation sequences."""
        return (self.ends["status"] == "solved").values

    def attention(self, trial: int, weights: Float[np.ndarray, "m h places"]) -> Attention:
        """Where heads with these weights on the first validation sequences look."""
        bits, label = next(self.sets.validate(trial))
        return looked_at(
            weights,
            Batch(bits[:ATTENTION_SAMPLES], label[:ATTENTION_SAMPLES]),
            self.sets.tasks[trial],
        )

    def margins(self) -> Float[np.ndarray, " trial"]:
        """The least margin on the training set."""
        return (self.heads(rows_of(self.sets.bits)) * (2.0 * self.sets.label - 1)).min(-1)


def trained(
    length: int,
    sparsity: int,
    samples: tuple[int, ...],
    trials: int,
    steps: int,
    seed: int,
    coins: bool = False,
) -> Runs:
    """Runs of a fixed number of steps, which validation does not stop, on independent samples: no training set is thrown away. With `coins`,
    labels have nothing to do with the bits. Kept, since claims share them; those that ask at the same time wait for one of them to train."""
    with _TRAINING:
        return _trained(length, sparsity, samples, trials, steps, seed, coins)


_TRAINING = threading.Lock()


@functools.lru_cache(maxsize=8)
def _trained(
    length: int,
    sparsity: int,
    samples: tuple[int, ...],
    trials: int,
    steps: int,
    seed: int,
    coins: bool,
) -> Runs:
    key = key_for(seed, "sparse-variables/learned-head", "coins" if coins else "runs")
    data, start = jax.random.split(key)
    options: dict[str, Any] = {
        "sparsity": sparsity,
        "validation": VALIDATION,
        "unique": False,
        "coins": coins,
    }
    sets = draw_sets(data, length, samples, trials, **options)
    found: dict[tuple[int, int], Any] = {}

    def keep(outcome: Outcome) -> None:
        found[outcome.trial, outcome.samples] = outcome.model

    ends = train(
        sets,
        LINEAR,
        key=start,
        steps=steps,
        every=steps,
        stop=False,
        attention=False,
        finished=keep,
    )
    first = [first_model(LINEAR, start, trial, length) for trial in range(trials)]
    last = [found[trial, max(samples)] for trial in range(trials)]
    begun, heads = (
        Heads.stacked(Heads.of(model).nearest() for model in models) for models in (first, last)
    )
    return Runs(sets, begun, heads, ends)


# --- where it looks --------------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/learned-head",
    source="attlas",
    reference="trained heads beside the constructed ones",
    statement=r"After 150 steps (200 at the paper's scale) on m samples of an AND of s bits, a head puts more than $\frac{cs}{cs+1}$, $c = 2$, of its attention on the support when the label is 0,"
    r" what the constructed threshold head puts there; in more than half of the runs, at every length (recipe R without MLP).",
    words="Training ends with a head that looks at the relevant bits, and at little else, when one of them is 0.",
    hypotheses=(EMBEDDED, ENOUGH),
    quick=Setting(length=(50, 200), samples=(80, 80), sparsity=3, repeats=24, steps=150),
    paper=Setting(
        length=(50, 100, 200, 400, 800),
        samples=(80, 80, 96, 96, 128),
        sparsity=3,
        repeats=24,
        steps=200,
    ),
    rule=Convergence(share=0.5),
    control=Control(
        "the heads before training, which look everywhere alike",
        lambda e: e.assign(arrived=e["arrived_at_start"]),
    ),
    figure=drawn_by(f"{FIGURES}.learned:attention_against_length"),
    cells=together("length", "samples"),
    needs=(
        "sparse-variables/threshold-margin",
        "sparse-variables/sink-margin",
    ),
    budget="repeats",
    origin="ours",
)
def learned_head(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    runs = trained(cell.length, cell.sparsity, (cell.samples,), cell.repeats, cell.steps, seed)
    bits = [next(runs.sets.validate(t)).bits[:ATTENTION_SAMPLES] for t in range(cell.repeats)]
    start, found = (
        [runs.attention(t, heads.weights(bits[t])) for t, heads in enumerate(networks.each())]
        for networks in (runs.start, runs.heads)
    )
    mass, before = (
        np.stack([each.mass[:, each.mass[0].argmax()] for each in looks])
        for looks in (found, start)
    )
    share = 2 * cell.sparsity / (2 * cell.sparsity + 1)
    built = [
        h.weights(bits[0])
        for h in (threshold_head(runs.sets.tasks[0]), sink_head(runs.sets.tasks[0]))
    ]
    constructed = np.stack([runs.attention(0, weights[:, None]).mass[:, 0] for weights in built])
    axes = ("cell", "repeat")
    return xr.Dataset(
        {
            "arrived": (axes, (mass[:, 0] > share)[None]),
            "arrived_at_start": (axes, (before[:, 0] > share)[None]),
            "mass": ((*axes, "label"), mass[None]),
            "mass_at_start": ((*axes, "label"), before[None]),
            "constructed": (("cell", "head", "label"), constructed[None]),
            "solved": (axes, runs.solved[None, :, -1]),
            "read_off": (
                axes,
                [
                    [
                        each.places == task.support
                        for each, task in zip(found, runs.sets.tasks, strict=True)
                    ]
                ],
            ),
        },
        coords={"label": [0, 1], "head": ["threshold", "sink"]},
    )


# --- how large it is -------------------------------------------------------------------------------------------------


def spread_of(values: Float[np.ndarray, " run"]) -> float:
    """Standard error of a mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def enough_solved(
    runs: Runs, margins: Float[np.ndarray, " trial"], cell: Setting
) -> Int[np.ndarray, " solved"]:
    """The runs that have learned the function; of fewer than two nothing can be said."""
    solved = np.flatnonzero(runs.solved[:, -1] & (margins > 0))
    if len(solved) < 2:
        raise InputError(
            f"samples = {cell.samples}, steps = {cell.steps}: {len(solved)} of {len(margins)} runs learn the function; ask for more"
        )
    return solved


def decades(capacity: Capacity, margin: Real) -> Any:
    """Decimal logarithm of the samples that the bound asks for."""
    return capacity.log_samples_for(GAP, margin=margin, delta=DELTA) / math.log(10)


def blunter(head: Construction) -> Capacity:
    """The bound for a construction of the same values whose scores are a tenth as large."""
    value = math.sqrt(2) * float(np.linalg.norm(head.read @ head.mix @ head.out))
    return class_of(collapsed_head(head.score_norm / 10, value, head.task.length, constant="sharp"))


@claim(
    "sparse-variables/learned-norms",
    source="attlas",
    reference="trained heads beside the constructed ones",
    statement=r"For the norms and the margin of a network that has learned the AND of s bits, the bound of this map asks for as many samples as for the constructed threshold head,"
    r" to a factor of ten in the geometric mean over runs, at every length (recipe R without MLP; 150 steps, 200 at the paper's scale).",
    words="The theory is not loose because its heads are larger than learned ones: training finds heads of about that size.",
    hypotheses=(EMBEDDED, ENOUGH),
    quick=Setting(length=(50, 200), samples=(80, 80), sparsity=3, repeats=24, steps=150),
    paper=Setting(
        length=(50, 100, 200, 400, 800),
        samples=(80, 80, 96, 96, 128),
        sparsity=3,
        repeats=24,
        steps=200,
    ),
    rule=Approximation(margin=1.0, relative=False),
    control=Control(
        "a construction whose scores are a tenth as large",
        lambda e: e.assign(predicted=e["blunter"]),
    ),
    figure=drawn_by(f"{FIGURES}.learned:norms_against_length"),
    cells=together("length", "samples"),
    needs=("sparse-variables/learned-head", "sparse-variables/implied-samples"),
    budget="repeats",
    origin="ours",
)
def learned_norms(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    runs = trained(cell.length, cell.sparsity, (cell.samples,), cell.repeats, cell.steps, seed)
    margins = runs.margins()
    solved = enough_solved(runs, margins, cell)
    heads = Heads(runs.heads.score[solved], runs.heads.value[solved])
    score, value = heads.norms()
    asked = decades(heads.capacity(), margins[solved])
    built, sink = threshold_head(runs.sets.tasks[0]), sink_head(runs.sets.tasks[0])
    # A run that was not solved counts for nothing; the figure shows the median of the others.
    return xr.Dataset(
        {
            "predicted": (
                "cell",
                [decades(built.capacity("sharp", count_parameters=False), built.margin)],
            ),
            "blunter": ("cell", [decades(blunter(built), built.margin)]),
            "sink": (
                "cell",
                [decades(sink.capacity("sharp", count_parameters=False), sink.margin)],
            ),
            "measured": ("cell", [asked.mean()]),
            "error": ("cell", [spread_of(asked)]),
            "repetitions": ("cell", [len(asked)]),
            "asked": (("cell", "quantile"), np.quantile(asked, QUANTILES)[None]),
            "score_norm": (("cell", "quantile"), np.quantile(score.max(1), QUANTILES)[None]),
            "value_norm": (
                ("cell", "quantile"),
                np.quantile(value.sum(1) / margins[solved], QUANTILES)[None],
            ),
            "score_norm_built": (("cell", "head"), [[built.score_norm, sink.score_norm]]),
            "value_norm_built": (
                ("cell", "head"),
                [[h.value_norms.sum() / h.margin for h in (built, sink)]],
            ),
        },
        coords={"quantile": list(QUANTILES), "head": ["threshold", "sink"]},
    )


# --- what certifies it -----------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/learned-certificate",
    source="attlas",
    reference="PAC-Bayes for trained heads",
    statement=r"Heads with normal noise on scores and values err with probability at most $\mathrm{kl}^{-1}(\hat e, \frac1m(\frac{|u-u_0|^2}{2\sigma_u^2} + \frac{|v-v_0|^2}{2\sigma_v^2} + \ln\frac{2\sqrt m}{\delta}))$,"
    r" with $\hat e$ an upper limit of their error on the m training samples, $u_0, v_0$ the heads with which training began, and $\sigma$ from 25 pairs that share $\delta$:"
    r" those that have learned and those that have memorised coins.",
    words="How far training has moved a head, against the noise that the head bears, certifies its error without a look at other data: with 1,024 samples an error of about a half, with 64 nothing.",
    hypotheses=(EMBEDDED,),
    quick=Setting(
        length=(50, 50),
        samples=(80, 1024),
        coins=(True, False),
        sparsity=3,
        trials=4,
        steps=150,
        draws=200,
    ),
    paper=Setting(
        length=(100, 100, 100, 400),
        samples=(64, 64, 1024, 1024),
        coins=(True, False, False, False),
        sparsity=3,
        trials=6,
        steps=200,
        draws=1000,
    ),
    rule=Bound(),
    control=Control(
        "heads without noise, and the way that training has moved them not counted",
        lambda e: e.assign(bound=e["uncounted"], measured=e["noiseless"]),
    ),
    figure=drawn_by(f"{FIGURES}.learned:certificates"),
    cells=together("length", "samples", "coins"),
    budget="draws",
    needs=("sparse-variables/learned-head",),
    origin="ours",
)
def learned_certificate(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/learned-certificate"
    runs = trained(
        cell.length, cell.sparsity, (cell.samples,), cell.trials, cell.steps, seed, cell.coins
    )
    sets = runs.sets
    # One chance in a thousand of the rule's level that any of the bounds fails.
    delta = LEVEL / 1000
    found = certify(
        runs.heads,
        runs.start,
        Batch(sets.bits, sets.label),
        key_for(seed, id, "noise"),
        delta=delta,
        draws=cell.draws,
    )
    drawn = [zip(*sets.validate(trial), strict=True) for trial in range(cell.trials)]
    fresh = Batch(
        *(
            np.stack(x)
            for x in zip(*(map(np.concatenate, batches) for batches in drawn), strict=True)
        )
    )
    errors = noisy_errors(
        runs.heads, fresh, found.spread[:, None], key_for(seed, id, "validation"), cell.draws
    )[:, 0]
    own, noiseless = (
        1 - runs.ends[name].values[:, -1] for name in ("train_accuracy", "best_accuracy")
    )
    axes = ("cell", "trial")
    return xr.Dataset(
        {
            "bound": (axes, found.error[None]),
            "measured": (axes, errors.mean(-1)[None]),
            # That of the draws, and that of the sequences, which all draws share.
            "error": (axes, np.sqrt(errors.var(-1) / cell.draws + 0.25 / VALIDATION)[None]),
            "noiseless": (axes, noiseless[None]),
            "uncounted": (axes, pac_bayes(own, 0.0, cell.samples, delta)[None]),
            "empirical": (axes, found.empirical[None]),
            "nats": (axes, found.nats[None]),
        }
    )


# --- the ledger ------------------------------------------------------------------------------------------------------


@claim(
    "sparse-variables/learned-ledger",
    source="attlas",
    reference="a ledger of what was needed and what is asked for",
    statement=r"Samples with which at least 0.8 of the runs are right on all of validation < samples at which a PAC-Bayes bound, with the distances and the noise that training ended with,"
    r" would certify an error below a half < samples that the bound for the class of the learned norms asks for, in the geometric mean over runs and at every length; and Occam's bound"
    r" for the finite class asks for fewer than PAC-Bayes.",
    words="What learning takes is near the floor, what its outcome's own noise tolerance certifies is some ten times that, and what its norms certify is beyond any data set.",
    hypotheses=(
        EMBEDDED,
        Hypothesis(
            "the largest of samples exceeds the statistical floor by a half",
            lambda s: max(s.samples) > 1.5 * any_and(s).floor(),
        ),
    ),
    quick=Setting(length=(50, 200), samples=(80,), sparsity=3, trials=24, steps=150, draws=200),
    paper=Setting(
        length=(50, 200, 800), samples=(32, 64, 128), sparsity=3, trials=10, steps=200, draws=1000
    ),
    rule=Order(),
    control=Control(
        "PAC-Bayes that does not count what training has moved",
        lambda e: e.assign(upper=e["uncounted"]),
    ),
    figure=drawn_by(f"{FIGURES}.learned:ledger"),
    cells=product("length"),
    budget="trials",
    needs=(
        "sparse-variables/learned-certificate",
        "sparse-variables/learned-norms",
        "sparse-variables/statistical-floor",
    ),
    origin="ours",
)
def learned_ledger(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "sparse-variables/learned-ledger"
    runs = trained(cell.length, cell.sparsity, cell.samples, cell.trials, cell.steps, seed)
    sets, task, margins = runs.sets, any_and(cell), runs.margins()
    enough = [
        m for m, share in zip(sets.samples, runs.solved.mean(0), strict=True) if share >= SHARE
    ]
    solved = enough_solved(runs, margins, cell)
    heads, start = (Heads(x.score[solved], x.value[solved]) for x in (runs.heads, runs.start))
    batch = Batch(sets.bits[solved], sets.label[solved])
    found = certify(
        heads, start, batch, key_for(seed, id, "noise"), gap=GAP, delta=DELTA, draws=cell.draws
    )
    share = DELTA / 2 / len(SPREADS) ** 2
    free = pac_bayes_samples(found.empirical, 0.0, GAP, share)
    learned = decades(heads.capacity(), margins[solved])
    built = threshold_head(task)
    sink = Heads.of_construction(sink_head(sets.tasks[0]))
    # Errors do not see the scale of the values; that of the learned ones has noise of the same sizes.
    sink = Heads(
        sink.score[None], sink.value[None] * np.median(margins[solved]) / sink_head(task).margin
    )
    own = Batch(sets.bits[:1], sets.label[:1])
    none = Heads(np.zeros_like(sink.score), np.zeros_like(sink.value))
    constructed = certify(
        sink, none, own, key_for(seed, id, "noise"), gap=GAP, delta=DELTA, draws=cell.draws
    )
    floor, occam = task.floor(), float(occam_samples(task.log_hypotheses, GAP, DELTA))
    needed = min(enough, default=math.inf)
    rows = {
        "statistical floor": floor,
        "Occam's bound": occam,
        "needed": needed,
        "PAC-Bayes, learned": float(np.median(found.samples)),
        "PAC-Bayes, constructed": float(constructed.samples[0]),
        "norms, learned": 10 ** float(np.median(learned)),
        "norms, constructed": 10
        ** float(decades(built.capacity("sharp", count_parameters=False), built.margin)),
    }
    # Logarithms to base 10, and for the bounds, which are numbers of each run, mean and standard error over the runs.
    ours, uncounted, norms = (np.log10(found.samples), np.log10(free), learned)
    pairs = {
        "needed < PAC-Bayes": (math.log10(needed), ours.mean(), uncounted.mean(), spread_of(ours)),
        "Occam < PAC-Bayes": (math.log10(occam), ours.mean(), uncounted.mean(), spread_of(ours)),
        "PAC-Bayes < norms": (ours.mean(), norms.mean(), norms.mean(), spread_of(norms - ours)),
    }
    lower, upper, without, error = np.array(list(pairs.values())).T
    axes = ("cell", "pair")
    return xr.Dataset(
        {
            "lower": (axes, lower[None]),
            "upper": (axes, upper[None]),
            "uncounted": (axes, without[None]),
            "error": (axes, error[None]),
            "repetitions": ("cell", [len(solved)]),
            "samples": (("cell", "row"), np.array(list(rows.values()))[None]),
            "solved": (("cell", "m"), runs.solved.mean(0)[None]),
        },
        coords={"pair": list(pairs), "row": list(rows), "m": list(sets.samples)},
    )
