"""Claims about encoders that were trained: what the state at a masked token holds of a sequence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Approximation, Bound, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs, sides
from attlas.latent_posterior.claims.shared import defining, random_topics
from attlas.latent_posterior.claims.variants import hardest
from attlas.latent_posterior.encoders import (
    Encoder,
    Recipe,
    Trained,
    excess_of_few,
    excess_risk,
    explained,
    random_encoders,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import Topics, draw_runs

RATIOS = (0.25, 1.0, 4.0)
"""Lengths at which encoders are asked, in units of the length that they were trained at."""
PUSHES = (
    "weight decay and noise",
    "dropout",
    "a quarter of the steps",
    "a narrow state",
    "a narrow state, untrained",
)
"""What might make a state forget, less training, and what has hardly room before it is trained."""
READ = ("the trained state", "the untrained state", "the counts", "the exact posterior")
ASKED = ("counts that the posterior does not see", "the posterior")
ORDERED = [(READ[0], READ[3]), (READ[1], READ[0]), (READ[2], READ[1]), (READ[0], READ[2]), READ[:2]]
"""What is read with a lower and with a higher risk, three for the first and two for the second."""
LABEL_NOISE = 0.5
"""Its standard deviation, in units of that of what is asked for."""
SETS, DIRECTIONS = 8, 8
"""Sets of labels with which each probe of few labels is fitted, and directions that are asked."""
LOOKS = 5
"""How often encoders are looked at while they are trained."""


def tasks(cell: Setting, draws: Draws) -> Topics:
    """Random topics for each run; what is to be predicted is one more word."""
    rng = draws.stream("topics")
    models = [random_topics(rng, cell.latents, cell.vocabulary) for _ in range(cell.runs)]
    words = np.stack([model.words for model in models])
    words = (words + cell.smoothing) / (1 + cell.smoothing * cell.vocabulary)
    prior = np.stack([model.prior for model in models])
    return Topics(prior, words, words, np.full(cell.runs, cell.length))


def unseen_directions(words: Float[Any, "m vocabulary"]) -> Float[np.ndarray, "vocabulary u"]:
    """An orthonormal basis of the directions of the counts that neither the posterior nor the
    length sees: orthogonal to all differences of log probabilities, and to the sum."""
    contrasts = np.concatenate([np.log(words) - np.log(words).mean(0), np.ones((1, len(words.T)))])
    _, sizes, axes = np.linalg.svd(contrasts)
    return axes[np.sum(sizes > 1e-9 * sizes[0]) :].T


def kept_beside(
    states: Float[Any, "run n width"], known: Float[Any, "run n p"], asked: Float[Any, "run n u"]
) -> Float[np.ndarray, " run"]:
    """The share of what is asked, and cannot be had from what is known, that states add."""
    both = explained(np.concatenate([known, states], -1), asked)
    return 1 - (1 - both) / (1 - explained(known, asked))


@latent_posterior.measurement(
    "trained-encoders",
    hypotheses=(
        RUNS,
        defining("latents >= 2 and vocabulary >= 2", lambda s: min(s.latents, s.vocabulary) >= 2),
        defining("smoothing >= 0", lambda s: s.smoothing >= 0),
        defining("steps >= 4: a quarter of them is a training too", lambda s: s.steps >= 4),
        defining(
            "vocabulary > latents: some counts are not seen", lambda s: s.vocabulary > s.latents
        ),
        defining(
            f"labels >= 2 width, and {SETS} sets of them fewer than all sequences",
            lambda s: 2 * s.width <= s.labels < 2 * s.sequences / SETS,
        ),
    ),
    quick=Setting(
        latents=3,
        vocabulary=8,
        smoothing=0.02,
        length=10,
        attention="softmax",
        layers=1,
        width=16,
        narrow=4,
        decay=0.1,
        noise=0.1,
        dropout=0.1,
        labels=100,
        steps=2400,
        batch=32,
        rate=0.006,
        runs=24,
        sequences=1000,
    ),
    paper=dict(latents=4, vocabulary=12, layers=2, width=32, narrow=6, steps=5000, rate=0.003),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_encoders(cell: Setting, draws: Draws) -> Values:
    """What encoders hold of sequences of three lengths, while they are trained on fresh ones; and
    what those keep at the end that were pushed to forget."""
    topics = tasks(cell, draws)

    shape: dict[str, Any] = {"layers": cell.layers, "attention": cell.attention}

    def trained(steps: int, width: int = cell.width, **pushes: Any) -> tuple[Encoder, Trained]:
        """Encoders of every run before and after training, with as many of each run as there are
        values of a push."""
        number = max(map(len, pushes.values()), default=1)
        keys = [jax.random.split(draws(name), cell.runs) for name in ("weights", "training")]
        weights, training = (jnp.concatenate([key] * number) for key in keys)
        rates = {name: np.repeat(np.float32(x), cell.runs) for name, x in pushes.items()}
        start = random_encoders(weights, cell.vocabulary, cell.vocabulary, width=width, **shape)
        return start, train_encoders(
            start,
            jax.tree.map(lambda x: np.concatenate([x] * number), topics),
            training,
            Recipe(steps, cell.batch, cell.rate, **rates),
            record_every=max(1, steps // LOOKS),
        )

    def some(found: Any, number: int) -> Any:
        return jax.tree.map(lambda x: x[number * cell.runs : (number + 1) * cell.runs], found)

    start, wide = trained(cell.steps)
    _, pushed = trained(
        cell.steps, decay=(cell.decay, 0.0), noise=(cell.noise, 0.0), dropout=(0.0, cell.dropout)
    )
    _, less = trained(cell.steps // 4)
    before, narrow = trained(cell.steps, cell.narrow)
    looks = [jax.tree.map(lambda leaf, i=i: leaf[i], wide.path) for i in range(len(wide.steps))]
    rows = [asked_at(cell, draws, topics, looks, ratio) for ratio in RATIOS]
    joined = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    others = (*(some(pushed.encoders, i) for i in (0, 1)), less.encoders, narrow.encoders, before)
    ends = asked_at(cell, draws, topics, list(others), 1.0)
    finite = pushed.finite.reshape(-1, cell.runs).min(0) & wide.finite & less.finite & narrow.finite
    over_steps = ("excess", "posterior", "log_posterior", "kept")
    few = with_few_labels(cell, draws, topics, wide.encoders, start)
    return {
        **on("ratio run", **{name: joined[name] for name in ("information", "likeliest")}),
        **on("ratio step run", **{name: joined[name] for name in over_steps}),
        **on("push run", pushed=ends["kept"], pushed_excess=ends["excess"]),
        **on("asked read run", few=few),
        **on("run", finite=finite.astype(float)),
        "ratio": list(RATIOS),
        "step": wide.steps,
        "push": list(PUSHES),
        "asked": list(ASKED),
        "read": list(READ),
    }


def with_few_labels(
    cell: Setting, draws: Draws, topics: Topics, after: Encoder, before: Encoder
) -> Float[np.ndarray, "asked read run"]:
    """Excess risks of linear probes with few labels, in units of the variance of what is asked for:
    random directions of the counts that the posterior does not see, or of the posterior."""
    keys = jax.random.split(draws("labelled"), cell.runs)
    seen = draw_runs(topics, keys, 2 * cell.sequences)
    counts, posterior = np.asarray(seen.counts, float), topics.posterior(seen)
    bases = [unseen_directions(words) for words in topics.words]
    rng, found = draws.stream("labels"), []
    for basis, of in ((bases, counts), ([np.eye(cell.latents)] * cell.runs, posterior)):
        ways = [b @ rng.standard_normal((b.shape[1], DIRECTIONS)) for b in basis]
        target = of @ np.stack(ways)
        target = (target - target.mean(1, keepdims=True)) / target.std(1, keepdims=True)
        labels = target + LABEL_NOISE * rng.standard_normal(target.shape)
        states = (np.asarray(represent(x, seen)[:, -1], float) for x in (after, before))
        read = (*states, counts, posterior)
        found.append([excess_of_few(x, labels, target, cell.labels, SETS) for x in read])
    return np.array(found)


def asked_at(
    cell: Setting, draws: Draws, topics: Topics, looks: list[Encoder], ratio: float
) -> dict[str, np.ndarray]:
    """What encoders hold at every look of sequences of another length [step, run], beside what
    these say about the answer and what the likeliest latent alone would lose [run]."""
    length = max(1, round(ratio * cell.length))
    here = topics._replace(length=np.full(cell.runs, length))
    keys = jax.random.split(jax.random.fold_in(draws("asked"), length), cell.runs)
    seen = draw_runs(here, keys, 2 * cell.sequences)
    counts, posterior, scores = np.asarray(seen.counts), topics.posterior(seen), topics.scores(seen)
    bayes, marginal = posterior @ topics.answers, topics.prior[:, None] @ topics.answers
    hard = np.take_along_axis(topics.answers, posterior.argmax(-1)[..., None], 1)
    scores -= scores.mean(-1, keepdims=True)
    known = np.concatenate([posterior, scores, scores**2], -1)
    asked = np.stack([n @ unseen_directions(w) for n, w in zip(counts, topics.words, strict=True)])
    states = [np.asarray(represent(encoders, seen)[:, -1], float) for encoders in looks]
    return {
        "information": (bayes * np.log(bayes / marginal)).sum(-1).mean(-1),
        "likeliest": (bayes * np.log(bayes / hard)).sum(-1).mean(-1),
        "excess": np.stack([excess_risk(encoders, topics, seen) for encoders in looks]),
        "posterior": np.stack([explained(x, posterior) for x in states]),
        "log_posterior": np.stack([explained(x, scores) for x in states]),
        "kept": np.stack([kept_beside(x, known, asked) for x in states]),
    }


def curves(evidence: xr.Dataset, name: str, title: str, note: str, y: str) -> Figure:
    """Means over runs while encoders are trained, for each length at which they are asked."""
    shown = evidence[[name]].mean("run").isel(cell=0)
    shown = shown.assign_coords(asked=("ratio", [f"{r:g} L" for r in shown.ratio.values]))
    legend = {"asked": "asked at length"}
    figure = Figure(shown, title, note, x="training steps", y=y, legend=legend)
    return figure.lines("step", name, points=True, color="asked")


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="prediction by the posterior, on trained networks",
    statement=r"An encoder of attention that was trained to predict a masked word of sequences"
    r" from topics takes from the other words, at the length of training, what they say of it,"
    r" $I = E\,KL(P(y \mid X)\,\|\,P(y))$ with $P(y \mid X) = \sum_z \pi_X(z)P(y \mid z)$, to 5 %:"
    r" $I - E\,KL(P(y \mid X)\,\|\,\text{network}) \approx I$.",
    words="Trained on nothing but masked words, a network comes to predict nearly as Bayes' rule"
    " does. It averages over the latent: to name the likeliest and predict by it would lose many"
    " times as much.",
    measured_by=trained_encoders,
    rule=Approximation(margin=0.05),
    control=Control(
        "a predictor that names the likeliest latent",
        lambda e: {"measured": e.of_likeliest, "error": e.error_of_likeliest},
    ),
    needs=("predictive",),
)
def trained_predictor(evidence: xr.Dataset) -> Values:
    here = evidence.sel(ratio=1.0, drop=True)
    trained, hard = here["excess"].isel(step=-1), here["likeliest"]
    return {
        "predicted": here["information"].mean("run"),
        "measured": (here["information"] - trained).mean("run"),
        **over_runs(trained),
        "of_likeliest": (here["information"] - hard).mean("run"),
        "error_of_likeliest": over_runs(hard)["error"],
    }


@trained_predictor.figure
def excess_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "On the way to the Bayes predictor", "mean over runs; 0 is Bayes' rule"
    shares = evidence.assign(share=evidence["excess"] / evidence["information"])
    y = "divergence from Bayes, of what X says"
    return curves(shares.isel(step=slice(1, None)), "share", title, note, y)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="sufficiency, on trained networks",
    statement=r"At the length of training a linear probe of the state at the masked token reads"
    r" the posterior $\pi_X$ of the latent: it leaves less than 2 % of its variance unexplained"
    r" (geometric mean over networks; fitted to other sequences than it is judged on).",
    words="What a trained encoder holds of a sequence is sufficient: the belief about the latent"
    " can be read off by a linear map.",
    measured_by=trained_encoders,
    rule=Order(),
    control=Control(
        "encoders that are {size:.0%} of the way back to what they left before training",
        lambda e, size: {"lower": e.lower + size * (e.untrained - e.lower)},
        size=1.0,
    ),
    needs=("sufficient", "trained-predictor"),
)
def trained_sufficient(evidence: xr.Dataset) -> Values:
    # Logarithms, since runs differ by factors.
    missed: Any = np.log(1 - evidence["posterior"].sel(ratio=1.0, drop=True))
    trained, untrained = missed.isel(step=-1, drop=True), missed.isel(step=0, drop=True)
    found = sides(("trained: 2 %", trained, xr.full_like(trained, np.log(0.02))))
    return {**found, "untrained": xr.zeros_like(found["lower"]) + untrained.mean("run")}


@trained_sufficient.figure
def posterior_while_training(evidence: xr.Dataset) -> Figure:
    missed = 1 - evidence[["posterior", "log_posterior"]].mean("run").isel(cell=0)
    missed = missed.assign_coords(asked=("ratio", [f"{r:g} L" for r in missed.ratio.values]))
    figure = Figure(
        missed,
        "What a linear probe misses of the belief",
        "mean over runs; dashed: of the logarithm of the posterior, centred",
        x="training steps",
        y="unexplained share of the variance",
        log="y",
        legend={"asked": "asked at length"},
    )
    figure.lines("step", "log_posterior", color="asked", theory=True)
    return figure.lines("step", "posterior", points=True, color="asked")


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="minimality, on trained networks",
    statement=r"The state of a trained encoder is not minimal at the length of training: of the"
    r" counts of words in directions that neither $\pi_X$ nor the length sees, a linear probe of it"
    r" explains more than a quarter of what the posterior leaves open, and less than before"
    r" training. It is more than half of what a quarter of the steps leaves there. Weight decay and"
    r" noise on the state together take away less than half, and so does dropout on the state; a"
    r" state that is hardly wider than the posterior keeps less than a wide one, and less than it"
    r" kept before training.",
    words="Training removes from the state some of what the posterior does not need, and leaves"
    " much of it; four times as many steps remove less than half of the rest, and so do weight"
    " decay and noise, or dropout. A state hardly wider than the posterior keeps less.",
    measured_by=trained_encoders,
    rule=Order(),
    control=Control(
        "states that are {size:.0%} of the way to one that keeps nothing where they should keep,"
        " and to one that exchanges the sides where they should forget; at the inequality where it"
        " is hardest to tell",
        lambda e, size: hardest(
            e,
            e.lower + size * (e.upper - e.lower) * (1 - e.keeps),
            e.upper + size * (e.lower - e.upper) * (1 - e.keeps) - size * e.upper * e.keeps,
        ),
        size=1.0,
    ),
    needs=("minimal", "trained-sufficient"),
)
def trained_not_minimal(evidence: xr.Dataset) -> Values:
    kept = evidence["kept"].sel(ratio=1.0, drop=True)
    trained, untrained = kept.isel(step=-1, drop=True), kept.isel(step=0, drop=True)
    decay, dropout, less, narrow, empty = (
        evidence["pushed"].sel(push=name, drop=True) for name in PUSHES
    )
    found = sides(
        ("a quarter: trained", xr.full_like(trained, 0.25), trained),
        ("trained: untrained", trained, untrained),
        ("half of that after a quarter of the steps: trained", less / 2, trained),
        ("half of it: with weight decay and noise", trained / 2, decay),
        ("half of it: with dropout", trained / 2, dropout),
        ("a narrow state: a wide one", narrow, trained),
        ("a narrow state: untrained", narrow, empty),
    )
    # Each inequality has its own false variant: a state that keeps nothing of what it should keep,
    # or one that training did not change.
    keeps = found["upper"]["inequality"].isin(
        [
            "a quarter: trained",
            "half of that after a quarter of the steps: trained",
            "half of it: with weight decay and noise",
            "half of it: with dropout",
        ]
    )
    return {**found, "keeps": keeps.astype(float)}


@trained_not_minimal.figure
def kept_while_training(evidence: xr.Dataset) -> Figure:
    title = "What the latent does not need"
    pushed = evidence["pushed"].isel(cell=0).mean("run").values
    names = ("decay and noise", "dropout", "a quarter of the steps", "narrow", "narrow, untrained")
    ends = ", ".join(f"{name} {level:.2f}" for name, level in zip(names, pushed, strict=True))
    note = f"mean over runs; 0: a minimal state; dashed, at L: {ends}"
    figure = curves(evidence, "kept", title, note, "explained share beside the posterior")
    for level in pushed:
        figure.rule(float(level))
    return figure


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="what a minimal state would cost a task",
    statement=r"A task asks for a direction of the counts that neither $\pi_X$ nor the length"
    r" sees, and has few noisy labels. A linear probe of the state of a trained encoder has a lower"
    r" excess risk than one of the exact posterior, which is all that a minimal state holds; a"
    r" higher one than a probe of the state before training, and that a higher one than a probe of"
    r" the counts."
    r" Where the task asks for a direction of $\pi_X$ itself, the probe of the trained state has a"
    r" lower excess risk than those of the counts and of the untrained state (geometric means over"
    r" networks).",
    words="A task may ask for what a sufficient state should have forgotten. It profits from what a"
    " trained state still holds, and would profit more from a state that was never trained, and"
    " most from the counts themselves. Training pays for tasks that ask for the posterior.",
    measured_by=trained_encoders,
    rule=Order(),
    control=Control(
        "the two sides exchanged to {size:.0%} of the way, at the inequality where that is hardest"
        " to tell",
        lambda e, size: hardest(
            e, e.lower + size * (e.upper - e.lower), e.upper + size * (e.lower - e.upper)
        ),
        size=1.0,
    ),
    needs=("minimal", "trained-not-minimal"),
)
def trained_serves_others(evidence: xr.Dataset) -> Values:
    # Logarithms, since runs differ by factors.
    logs: Any = np.log(evidence["few"])
    other, own = (logs.sel(asked=name, drop=True) for name in ASKED)
    rows = []
    for task, source in zip((other, other, other, own, own), ORDERED, strict=True):
        low, high = (task.sel(read=name, drop=True) for name in source)
        rows.append((f"{ASKED[task is own]}: {', '.join(source)}", low, high))
    return sides(*rows)


@trained_serves_others.figure
def risks_with_few_labels(evidence: xr.Dataset) -> Figure:
    logs: Any = np.log(evidence["few"])
    shown = np.exp(logs.isel(cell=0).mean("run")).to_dataset(name="few")
    figure = Figure(
        shown,
        "A task that asks for what the posterior does not need",
        "geometric mean over runs, in units of the variance of what is asked for",
        x="a probe with few labels reads",
        y="excess risk",
        log="y",
        legend={"asked": "the task asks for"},
    )
    return figure.points("read", "few", color="asked", size=60)


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="regret in context (Proposition 4.2 of the sequel)",
    statement=r"Words of a topic $z$ are predicted one after the other by the predictive law of"
    r" those before. The mean regret to $P(\cdot \mid z)$ over $t$ words is at most"
    r" $\ln(1/p(z))/t$ with $p$ the prior.",
    words="Over all words together Bayes' rule loses at most the logarithm of one over the"
    " prior of the latent against a predictor that knows it, however many words there are.",
    hypotheses=(
        defining("latents >= 2", lambda s: s.latents >= 2),
        defining("length <= 200: counts are summed over", lambda s: s.length <= 200),
        defining("vocabulary <= 4: counts are summed over", lambda s: s.vocabulary <= 4),
    ),
    quick=Setting(latents=3, vocabulary=3, length=(1, 4, 16, 64)),
    paper=dict(length=(1, 4, 16, 64, 160)),
    cells=together("length"),
    # Where topics are told apart the bound is reached to rounding: a sum over 200 words of laws of
    # counts, each as exact as ln 200! = 863 in doubles.
    rule=Bound(rounding=200 * 863 * 1.2e-16),
    control=Control(
        "a bound that is {size:.1%} smaller",
        lambda e, size: {"bound": (1 - size) * e.bound},
        size=0.5,
    ),
    needs=("predictive",),
)
def regret_in_context(cell: Setting, draws: Draws) -> Values:
    model = random_topics(draws.stream("topics"), cell.latents, cell.vocabulary)
    regret = np.zeros(cell.latents)
    for seen in range(cell.length):
        if seen:
            _, law, posterior = model.counted(seen)
        else:
            law, posterior = np.ones(1), model.prior[None]
        given = law[:, None] * posterior / model.prior  # of the counts, for each latent
        predicted = np.log(posterior @ model.words)
        regret += (model.words * np.log(model.words)).sum(-1) - np.einsum(
            "kz,zw,kw->z", given, model.words, predicted
        )
    return {
        **on("latent", measured=regret / cell.length, bound=-np.log(model.prior) / cell.length),
        "error": 0.0,
    }


@regret_in_context.figure
def regrets(evidence: xr.Dataset) -> Figure:
    title, note = "Regret of the Bayes predictor", "each latent; dashed: its bound"
    figure = Figure(evidence, title, note, x="words t", y="mean regret, nats", log="xy")
    figure.lines("length", "bound", color="latent {latent}", theory=True)
    return figure.points("length", "measured", color="latent {latent}")
