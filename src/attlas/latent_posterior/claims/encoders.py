"""Claims about encoders that were trained: what the state at a masked token holds of a sequence."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Approximation, Bound, Order
from attlas.figure import Figure
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.runs import RUNS, over_runs, sides
from attlas.latent_posterior.claims.shared import defining, random_topics
from attlas.latent_posterior.claims.variants import hardest, nearest
from attlas.latent_posterior.encoders import (
    Encoder,
    Recipe,
    Trained,
    excess_risk,
    explained,
    random_encoders,
    represent,
    train_encoders,
)
from attlas.latent_posterior.latent_tasks import (
    Data,
    Locations,
    Mixtures,
    Topics,
    draw_runs,
)
from attlas.surface import public

DATA = ("topics", "locations", "mixtures")
RATIOS = (0.25, 1.0, 4.0)
"""Lengths at which encoders are asked, in units of the length that they were trained at."""
PUSHES = ("decay, noise and dropout", "a narrow state", "a narrow state, untrained")
"""What might make a state forget, and what has hardly room before it is trained."""
VARIANTS = ("the likeliest latent", "shuffled targets", "a latent that changes", "no training")
"""What is not the Bayes predictor: who names a latent, and networks that saw other sequences."""
LOOKS = 5
"""How often encoders are looked at while they are trained."""
DIM, SPREAD = 3, 2.0
"""Of the tokens of locations and mixtures, whose latents are normal of variance 1."""


def tasks(cell: Setting, draws: Draws) -> Any:
    """Random topics for each run, of which one more word is to be predicted; Gaussian tokens about
    a location that is to be told; or about the mean of a class that is to be told."""
    rng, length = draws.stream("topics"), np.full(cell.runs, cell.length)
    if cell.data != "topics":
        centres, noise = (
            rng.standard_normal((cell.runs, cell.latents, DIM)),
            np.full(cell.runs, SPREAD),
        )
        if cell.data == "locations":
            return Locations(centres[:, 0], np.ones(cell.runs), noise, length)
        return Mixtures(np.full(centres.shape[:2], 1 / cell.latents), centres, noise, length)
    models = [random_topics(rng, cell.latents, cell.vocabulary) for _ in range(cell.runs)]
    words = np.stack([model.words for model in models])
    words = (words + cell.smoothing) / (1 + cell.smoothing * cell.vocabulary)
    prior = np.stack([model.prior for model in models])
    return Topics(prior, words, words, length)


class Spoilt(NamedTuple):
    """A task whose sequences are as they are (`way` 0), have the targets of others (1), or begin
    with tokens of another latent up to a random place (2; words have none)."""

    task: Any
    way: Int[Any, " run"]

    @property
    def length(self) -> Int[Any, " run"]:
        return self.task.length

    @property
    def outputs(self) -> int:
        return self.task.outputs

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        keys = jax.random.split(key, 3)
        here, other = (self.task.draw(k, samples, longest) for k in keys[:2])
        here = here._replace(target=jnp.where(self.way == 1, other.target, here.target))
        if here.tokens is None:
            return here
        change = jax.random.randint(keys[2], (samples, 1, 1), 0, self.task.length)
        before = (jnp.arange(longest)[:, None] < change) & (self.way == 2)
        return here._replace(tokens=jnp.where(before, other.tokens, here.tokens))

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        """Of the task as it is."""
        return self.task.bayes(seen)


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
        defining(f"data is one of {', '.join(DATA)}", lambda s: s.data in DATA),
        defining(f"steps is a multiple of {LOOKS}", lambda s: s.steps % LOOKS == 0),
    ),
    quick=Setting(
        data=DATA,
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
        steps=(1600, 400, 600),
        batch=(48, 32, 32),
        rate=0.012,
        runs=24,
        sequences=500,
    ),
    paper=dict(
        latents=4,
        vocabulary=12,
        layers=2,
        width=32,
        narrow=6,
        steps=(2000, 800, 800),
        rate=0.005,
        sequences=1000,
    ),
    cells=together("data", "steps", "batch"),
    budget="runs",
    precision="float32",
    long=True,
)
def trained_encoders(cell: Setting, draws: Draws) -> Values:
    """What encoders hold of sequences of three lengths, while they are trained on fresh ones; what
    those keep of words at the end that were pushed to forget; and what other predictors lose."""
    task, words = tasks(cell, draws), cell.data == "topics"
    dim = cell.vocabulary if words else DIM

    def trained(width: int, recipes: list[tuple[float, float, float, int]]) -> Trained:
        """As many networks of each run as there are recipes: decay, noise, dropout and the way in
        which the data are spoilt."""
        shape: dict[str, Any] = {"layers": cell.layers, "attention": cell.attention}
        keys = [jax.random.split(draws(name), cell.runs) for name in ("weights", "training")]
        weights, training = (jnp.concatenate([key] * len(recipes)) for key in keys)
        *rates, way = (np.repeat(x, cell.runs) for x in np.transpose(recipes))
        repeated = jax.tree.map(lambda x: np.concatenate([x] * len(recipes)), task)
        return train_encoders(
            random_encoders(weights, dim, task.outputs, width=width, **shape),
            Spoilt(repeated, way.astype(np.int32)),
            training,
            Recipe(cell.steps, cell.batch, cell.rate, *rates),
            record_every=max(1, cell.steps // LOOKS),
        )

    def some(found: Any, number: int) -> Any:
        return jax.tree.map(lambda x: x[number * cell.runs : (number + 1) * cell.runs], found)

    plain, shuffled, changing = ((0.0, 0.0, 0.0, way) for way in range(3))
    push = (cell.decay, cell.noise, cell.dropout, 0)
    other = {"topics": push, "locations": changing, "mixtures": shuffled}[cell.data]
    wide = trained(cell.width, [plain, other])
    looks = [
        some(jax.tree.map(lambda leaf, i=i: leaf[i], wide.path), 0) for i in range(len(wide.steps))
    ]
    rows = [asked_at(cell, draws, task, looks, ratio) for ratio in RATIOS]
    joined = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    ends, finite = [some(wide.encoders, 1)], wide.finite.reshape(-1, cell.runs)
    if words:
        narrow = trained(cell.narrow, [plain])
        ends += [narrow.encoders, jax.tree.map(lambda leaf: leaf[0], narrow.path)]
        finite = np.concatenate([finite, narrow.finite[None]])
    asked, none = asked_at(cell, draws, task, ends, 1.0), np.full(cell.runs, np.nan)

    def of_variants(name: str, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """NaN where a kind of data has no such variant."""
        spoilt = [asked[name][0] if other is way else none for way in (shuffled, changing)]
        return np.stack([first, *spoilt, last])

    def of_pushes(name: str) -> np.ndarray:
        return asked[name] if words else np.stack([none] * len(PUSHES))

    here = {name: joined[name][RATIOS.index(1.0)] for name in joined}
    return {
        **on("ratio run", **{name: joined[name] for name in ("information", "likeliest")}),
        **on("ratio step run", **{name: joined[name] for name in ("excess", "posterior", "kept")}),
        **on("push run", pushed=of_pushes("kept"), pushed_excess=of_pushes("excess")),
        **on("variant run", lost=of_variants("excess", here["likeliest"], here["excess"][0])),
        **on("variant run", read=of_variants("posterior", none, here["posterior"][0])),
        **on("run", finite=finite.min(0).astype(float)),
        "ratio": list(RATIOS),
        "step": list(100.0 * wide.steps / cell.steps),
        "push": list(PUSHES),
        "variant": list(VARIANTS),
    }


def asked_at(
    cell: Setting, draws: Draws, task: Any, looks: list[Encoder], ratio: float
) -> dict[str, np.ndarray]:
    """What encoders hold at every look of sequences of another length [step, run], beside what
    these say about the answer and what the likeliest latent alone would lose [run]."""
    length = max(1, round(ratio * cell.length))
    here = task._replace(length=np.full(cell.runs, length))
    keys = jax.random.split(jax.random.fold_in(draws("asked"), length), cell.runs)
    seen = draw_runs(here, keys, 2 * cell.sequences)
    bayes = task.bayes(seen)
    information, likeliest, posterior, known, asked = facts(task, seen, bayes)
    states = [np.asarray(represent(encoders, seen)[:, -1], float) for encoders in looks]
    return {
        "information": information,
        "likeliest": likeliest,
        "excess": np.stack([excess_risk(encoders, task, seen, bayes) for encoders in looks]),
        "posterior": np.stack([explained(x, posterior) for x in states]),
        "kept": np.stack([kept_beside(x, known, asked) for x in states]),
    }


def facts(task: Any, seen: Data, bayes: Float[np.ndarray, "run n o"]) -> Any:
    """What sequences say about the answer, and what the likeliest latent alone would lose [run];
    the posterior, or its mean; that with more functions of it; and what it does not see."""
    if isinstance(task, Topics):
        counts, posterior, scores = np.asarray(seen.counts), task.posterior(seen), task.scores(seen)
        marginal = task.prior[:, None] @ task.answers
        hard = np.take_along_axis(task.answers, posterior.argmax(-1)[..., None], 1)
        likeliest = (bayes * np.log(bayes / hard)).sum(-1).mean(-1)
        scores -= scores.mean(-1, keepdims=True)
        known = np.concatenate([posterior, scores, scores**2], -1)
        asked = [n @ unseen_directions(w) for n, w in zip(counts, task.words, strict=True)]
        information = (bayes * np.log(bayes / marginal)).sum(-1).mean(-1)
        return information, likeliest, posterior, known, np.stack(asked)
    tokens = np.asarray(seen.tokens, float)
    mean = tokens.mean(-2)
    off = tokens - mean[:, :, None]
    spread = (off.swapaxes(-1, -2) @ off)[..., *np.triu_indices(DIM)] / tokens.shape[-2]
    known = np.concatenate([bayes, mean, mean**2], -1)
    if isinstance(task, Locations):
        information = ((bayes - task.centre[:, None]) ** 2).sum(-1).mean(-1)
        likeliest = ((bayes - mean) ** 2).sum(-1).mean(-1)  # the one that makes tokens likeliest
    else:
        information = (bayes * np.log(bayes / task.prior[:, None])).sum(-1).mean(-1)
        likeliest = np.full(len(bayes), np.nan)  # all of it: it says 0 of what may be
    return information, likeliest, bayes, known, spread


def curves(evidence: xr.Dataset, name: str, title: str, note: str, y: str) -> Figure:
    """Means over runs while encoders are trained, for each length at which they are asked."""
    shown = evidence[[name]].mean("run")
    shown = shown.assign_coords(asked=("ratio", [f"{r:g} L" for r in shown.ratio.values]))
    legend = {"asked": "asked at length"}
    figure = Figure(shown, title, note, x="training, % of the steps", y=y, legend=legend)
    return figure.lines("step", name, points=True, color="asked")


def with_variants(full: xr.DataArray, lost: xr.DataArray, of_wrong: xr.DataArray) -> Values:
    """What is left of what there is to have, in mean over runs, beside false variants."""
    trained, wrong = full - lost, full - of_wrong
    return {
        "predicted": full.where(lost.notnull()).mean("run"),
        "measured": trained.mean("run"),
        **over_runs(lost),
        "wrong": wrong.mean("run"),
        "error_of_wrong": over_runs(of_wrong)["error"],
    }


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="prediction by the posterior, on trained networks",
    statement=r"An encoder of attention that was trained to predict a masked word of sequences"
    r" from topics takes from the other words, at the length of training, what they say of it,"
    r" $I = E\,KL(P(y \mid X)\,\|\,P(y))$ with $P(y \mid X) = \sum_z \pi_X(z)P(y \mid z)$, to 5 %:"
    r" $I - E\,KL(P(y \mid X)\,\|\,\text{network}) \approx I$. So does one that was trained to tell"
    r" the class of a mixture of Gaussians, and one that tells the location of Gaussian tokens,"
    r" with mean squares in place of divergences.",
    words="Trained on nothing but examples, a network comes to predict nearly as Bayes' rule does."
    " It averages over the latent: to name the likeliest and predict by it would lose many times as"
    " much. Networks that were trained on sequences whose latent changes on the way, which are not"
    " exchangeable, are not Bayes' rule for those whose latent stays.",
    measured_by=trained_encoders,
    rule=Approximation(margin=0.05),
    control=Control(
        "{size:.0%} of the way to a predictor that names the likeliest latent, to networks without"
        " training, trained on shuffled targets, or on a latent that changes: to the one of them,"
        " and on the data, where it is hardest to tell",
        nearest,
        size=1.0,
    ),
    needs=("predictive",),
)
def trained_predictor(evidence: xr.Dataset) -> Values:
    here = evidence[["information", "excess"]].sel(ratio=1.0, drop=True)
    lost = here["excess"].isel(step=-1, drop=True)
    return with_variants(here["information"], lost, evidence["lost"])


@trained_predictor.figure
def excess_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "On the way to the Bayes predictor", "mean over runs; 0 is Bayes' rule"
    shares = evidence.assign(share=evidence["excess"] / evidence["information"])
    y = "distance from Bayes, of what X says"
    figure = curves(shares.isel(step=slice(1, None)), "share", title, note, y)
    return figure.facet("{data}", width=190, height=150)


@latent_posterior.claim(
    kind="training",
    origin="our reading",
    reference="sufficiency, on trained networks",
    statement=r"At the length of training a linear probe of the state at the masked token reads the"
    r" posterior $\pi_X$ of the latent, of topics, classes of a mixture of Gaussians and, as its"
    r" mean, of locations of Gaussian tokens: it explains its variance to 2 % (fitted to other"
    r" sequences than it is judged on).",
    words="What a trained encoder holds of a sequence is sufficient: the belief about the latent"
    " can be read off by a linear map.",
    measured_by=trained_encoders,
    rule=Approximation(margin=0.02),
    control=Control(
        "{size:.0%} of the way to encoders without training, or trained on shuffled targets: to the"
        " one of them, and on the data, where it is hardest to tell",
        nearest,
        size=1.0,
    ),
    needs=("sufficient", "trained-predictor"),
)
def trained_sufficient(evidence: xr.Dataset) -> Values:
    lost = 1 - evidence["posterior"].sel(ratio=1.0, drop=True).isel(step=-1, drop=True)
    wrong = 1 - evidence["read"].sel(variant=["shuffled targets", "no training"])
    return with_variants(xr.ones_like(lost), lost, wrong)


@trained_sufficient.figure
def posterior_while_training(evidence: xr.Dataset) -> Figure:
    title, note = "The belief that a linear probe reads", "mean over runs; 1: exactly the posterior"
    figure = curves(evidence, "posterior", title, note, "explained variance of the posterior")
    return figure.facet("{data}", width=190, height=150)


@latent_posterior.claim(
    kind="training",
    origin="ours",
    reference="minimality, on trained networks",
    statement=r"The state of an encoder that was trained on topics is not minimal at the length of"
    r" training: of the counts of words in directions that neither $\pi_X$ nor the length sees, a"
    r" linear probe of it explains more than a quarter of what the posterior leaves open, and less"
    r" than before training (geometric means of what it leaves open). Weight decay, noise on the"
    r" state and dropout together take away less than half of that; a state that is hardly wider"
    r" than the posterior keeps less than a wide one, and less than it kept before training.",
    words="Training forgets some of what the latent does not need, and is far from having forgotten"
    " all. Decay, noise and dropout do not make it forget; a state with hardly more room than the"
    " posterior cannot hold as much. A task that reads those counts profits from what is left.",
    measured_by=trained_encoders,
    quick=dict(data="topics", steps=1600, batch=48),
    paper=dict(steps=2000),
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
    decay, narrow, empty = (evidence["pushed"].sel(push=name, drop=True) for name in PUSHES)
    open_before: Any = np.log(1 - untrained)
    open_after: Any = np.log(1 - trained)
    found = sides(
        ("a quarter: trained", xr.full_like(trained, 0.25), trained),
        ("log of what is left open, untrained: trained", open_before, open_after),
        ("half of it: with decay, noise and dropout", trained / 2, decay),
        ("a narrow state: a wide one", narrow, trained),
        ("a narrow state: untrained", narrow, empty),
    )
    # Each inequality has its own false variant: a state that keeps nothing of what it should keep,
    # or one that training did not change.
    names = found["upper"]["inequality"]
    keeps = [str(name).startswith(("a quarter", "half of it")) for name in names.values]
    return {**found, "keeps": xr.DataArray(np.array(keeps, float), dims="inequality")}


@trained_not_minimal.figure
def kept_while_training(evidence: xr.Dataset) -> Figure:
    title = "What the latent does not need"
    note = "mean over runs; 0: a minimal state; dashed: at the end of other trainings, at length L"
    here = evidence.isel(cell=0)
    figure = curves(here, "kept", title, note, "explained share beside the posterior")
    for name, level in here["pushed"].mean("run").to_series().items():
        figure.rule(float(level), str(name))
    return figure


@latent_posterior.claim(
    kind="two routes",
    origin="our reading",
    reference="regret in context (Proposition 4.2 of the sequel)",
    statement=r"Words of a topic $z$ are predicted one after the other by the predictive law of"
    r" those before. The mean regret to $P(\cdot \mid z)$ over t words is at most"
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
    rule=Bound(),
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
