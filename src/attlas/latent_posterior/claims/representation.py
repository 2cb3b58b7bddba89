"""Claims about what a sequence says of its latent: exchangeable laws, sufficiency, prediction."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.special import logsumexp

from attlas.claims import Control, Draws, Setting, Values, on, together
from attlas.claims.rules import Agreement, Bound
from attlas.figure import Figure, agreement, floored
from attlas.latent_posterior.claims import latent_posterior
from attlas.latent_posterior.claims.shared import (
    FLOOR,
    LEGENDS,
    TOKENS,
    defining,
    log_figure,
    on_sphere,
    random_topics,
)
from attlas.latent_posterior.inference import (
    asymmetry,
    beta_coins,
    chain_law,
    classes,
    conditional_information,
    likelihoods,
    mixture_law,
    sequences,
    urn_distance,
    urn_law,
    urn_log_probability,
)
from attlas.latent_posterior.models import (
    BayesianRegression,
    FiniteLatent,
    FiniteModel,
    GaussianLocation,
    GaussianMixture,
    categorical_from_uniform,
    compositions,
    normal_log_density,
    posterior_of,
)


@latent_posterior.claim(
    kind="identity",
    reference="exchangeability",
    origin="our reading",
    statement=r"Tokens that are independent given a latent, draws from Polya's urn and draws"
    r" without replacement are exchangeable: $P(x_1, \dots, x_L) = P(x_{\sigma(1)}, \dots,"
    r" x_{\sigma(L)})$ for every sequence and permutation.",
    words="The probability of a sequence does not depend on the order of its tokens where they"
    " are independent given a latent, drawn from Polya's urn, or drawn without"
    " replacement.",
    hypotheses=(
        TOKENS,
        defining("length <= 10: the urn holds twenty balls", lambda s: s.length <= 10),
    ),
    quick=Setting(length=(2, 4, 6), letters=3),
    paper=dict(length=(2, 4, 6, 8, 10)),
    cells=together("length"),
    rule=Agreement(),
    control=Control(
        "a chain of letters that stay with probability 0.7", lambda e: {"measured": e.chain}
    ),
)
def exchangeable(cell: Setting, draws: Draws) -> Values:
    topics = random_topics(draws.stream("topics"), 3, cell.letters)
    balls = np.full(cell.letters, 20.0) / np.arange(1, cell.letters + 1)
    laws = {
        "topics": mixture_law(topics, cell.length),
        "Polya's urn": urn_law(balls, cell.length),
        "without replacement": urn_law(np.floor(balls), cell.length, -1),
    }
    return {
        **on("law", measured=[asymmetry(law) for law in laws.values()]),
        "predicted": 0.0,
        "error": 0.0,
        "chain": asymmetry(chain_law(0.7, max(cell.length, 3))),
        "law": list(laws),
    }


@exchangeable.figure
def asymmetries(evidence: xr.Dataset) -> Figure:
    chain = evidence.chain.expand_dims(law=["a chain, which is not"])
    values = xr.concat([floored(evidence.measured, FLOOR), chain], "law")
    return log_figure(
        values.to_dataset(name="value"),
        "Exchangeable laws, and a chain",
        f"over all sequences; values below {FLOOR:g}, exact zeros among them, are drawn there",
        y="total variation when two tokens are exchanged",
        format={"y": "~e"},
    ).lines("length", "value", points=True, color="law")


@latent_posterior.claim(
    kind="two routes",
    reference="de Finetti's theorem",
    origin="our reading",
    statement=r"Draws from Polya's urn are coin tosses given a latent bias of law Beta(a, b),"
    r" whatever their number:"
    r" $\prod_i P(x_i \mid x_1, \dots, x_{i-1}) = \int\prod_i P(x_i \mid z)\,dP(z)$.",
    words="Draws from Polya's urn, each of which depends on all before, are independent draws"
    " given a latent bias.",
    hypotheses=(defining("a > 0", lambda s: s.a > 0), defining("b > 0", lambda s: s.b > 0)),
    quick=Setting(length=(1, 5, 40), a=2.0, b=3.5, draws=100),
    paper=dict(length=(1, 5, 40, 200, 1000), draws=400),
    cells=together("length"),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "a first parameter a of Beta(a, b) that is larger by {size:.1g} of its value",
        lambda e, size: {"measured": e.measured + size / 0.05 * (e.shifted - e.measured)},
        size=0.05,
    ),
    needs=("exchangeable",),
)
def de_finetti(cell: Setting, draws: Draws) -> Values:
    shares = np.linspace(0.02, 0.98, cell.draws)[:, None]
    drawn = (draws.stream("draws").random((cell.draws, cell.length)) < shares).astype(int)

    def mixture(a: float) -> Float[np.ndarray, " sequence"]:
        coins = beta_coins(a, cell.b, cell.length)
        return logsumexp(np.log(coins.prior) + coins.log_likelihood(drawn), axis=-1)

    return {
        **on(
            "sequence",
            predicted=urn_log_probability([cell.b, cell.a], drawn),
            measured=mixture(cell.a),
            shifted=mixture(1.05 * cell.a),
        ),
        "error": 0.0,
    }


@de_finetti.figure
def urn_against_mixture(evidence: xr.Dataset) -> Figure:
    return agreement(
        evidence,
        "Polya's urn is a mixture of coins",
        what="log probability",
        color="length",
        legend={"length": "draws"},
    )


@latent_posterior.claim(
    kind="two routes",
    reference="Diaconis and Freedman 1980, for finitely many tokens",
    origin="our reading",
    source="attlas",
    statement=r"Of $N$ exchangeable tokens over $c$ letters, the first $k$ are a mixture of"
    r" independent ones up to the total variation $\min\{ck, \frac{k(k-1)}{2}\}/N$ (half the"
    r" sum of all differences; Diaconis and Freedman count the whole sum). Where all $N$ tokens"
    r" differ it is nearly attained.",
    words="A small part of a finite exchangeable sequence is nearly a mixture of independent"
    " tokens.",
    hypotheses=(
        defining("draws >= 2", lambda s: s.draws >= 2),
        defining("draws <= balls", lambda s: s.draws <= s.balls),
        defining(
            "letters <= 4, or as many as balls", lambda s: s.letters <= 4 or s.letters == s.balls
        ),
    ),
    quick=Setting(
        balls=(20, 100, 400, 2000, 100, 400, 2000),
        letters=(2, 2, 2, 2, 100, 400, 2000),
        draws=10,
    ),
    paper=dict(
        balls=(20, 100, 400, 2000, 10_000, 40, 200, 1000, 10_000, 100, 1000, 10_000),
        letters=(2, 2, 2, 2, 2, 3, 3, 3, 3, 100, 1000, 10_000),
    ),
    cells=together("balls", "letters"),
    rule=Bound(),
    control=Control(
        "a bound that is {size:.1%} smaller",
        lambda e, size: {"bound": (1 - size) * e.bound},
        size=0.05,
    ),
    needs=("de-finetti",),
)
def finite_length(cell: Setting, draws: Draws) -> Values:
    # Urns are the extreme points of the exchangeable laws.
    drawn = np.arange(cell.draws)
    found = {
        "bound": min(1.0, min(cell.letters * cell.draws, drawn.sum()) / cell.balls),
        "chain": asymmetry(chain_law(0.7, cell.draws)) / 2,
        "error": 0.0,
    }
    if cell.letters == cell.balls:
        # Without replacement no ball comes twice; given that, the two laws are one.
        distance = 1 - np.prod(1 - drawn / cell.balls)
        return {"measured": distance, "even": distance, **found}
    # Tried are all proportions in steps of a twentieth, an urn of nearly one colour, an even one.
    urns = np.floor(compositions(20, cell.letters) * cell.balls / 20)
    rare = np.ones((1, cell.letters))
    even = np.floor(np.full((1, cell.letters), cell.balls / cell.letters))
    tried = np.concatenate([urns, rare, even])
    tried[:, 0] += cell.balls - tried.sum(1)
    distances = [urn_distance(urn, cell.draws) for urn in tried]
    return {"measured": max(distances[:-1]), "even": distances[-1], **found}


@finite_length.figure
def urn_distances(evidence: xr.Dataset) -> Figure:
    names = {
        "measured": "the worst urn",
        "even": "an even urn",
        "bound": "the bound",
        "chain": "a chain, at least",
    }
    return log_figure(
        evidence,
        "A finite exchangeable sequence is nearly a mixture",
        f"the first {int(evidence.draws[0])} of N draws without replacement against draws with it,"
        " exactly",
        x="tokens in all, N",
        y="total variation",
        format={"y": "~e"},
    ).lines("balls", names, points=True, color="series", dash="{letters} letters")


TOPIC_MODELS = Setting(length=(2, 3, 4), latents=3, vocabulary=6, models=6)


@latent_posterior.claim(
    kind="identity",
    reference="the posterior is sufficient",
    origin="our reading",
    statement=r"$I(y; X \mid \pi_X) = 0$ for every label $y$ that is independent of $X$ given $z$,"
    r" where $\pi_X$ is the posterior of $z$; so too for the counts of the words.",
    words="The posterior of the latent says as much as the whole sequence about anything that"
    " depends on the sequence through its latent.",
    hypotheses=(TOKENS,),
    quick=TOPIC_MODELS,
    paper=dict(length=(2, 3, 4, 5), models=20),
    cells=together("length"),
    rule=Agreement(),
    control=Control(
        "the most probable latent, or the first token, in place of the posterior",
        lambda e: {"measured": e.coarse},
    ),
    needs=("de-finetti",),
)
def sufficient(cell: Setting, draws: Draws) -> Values:
    tokens = sequences(cell.vocabulary, cell.length)
    found = []
    for model in range(cell.models):
        topics = random_topics(draws.stream(f"topics {model}"), cell.latents, cell.vocabulary)
        label = draws.stream(f"labels {model}").dirichlet(np.ones(4), cell.latents)
        joint = likelihoods(topics, cell.length) * topics.prior
        posterior = topics.posterior(tokens)
        statistics = posterior, topics.counts(tokens), posterior.argmax(1)[:, None], tokens[:, :1]
        partitions = [classes(statistic) for statistic in statistics]
        joints = joint, joint @ label
        found.append([[conditional_information(one, p) for one in joints] for p in partitions])
    kept, lost = np.split(np.array(found), 2, axis=1)
    return {
        **on("model statistic label", measured=kept, coarse=lost),
        "predicted": 0.0,
        "error": 0.0,
        "statistic": ["posterior", "counts"],
        "label": ["the latent", "a random label"],
    }


@sufficient.figure
def information(evidence: xr.Dataset) -> Figure:
    coarse = evidence.coarse.assign_coords(statistic=["most probable latent", "first token"])
    left = xr.concat([evidence.measured, coarse], "statistic")
    return Figure(
        xr.Dataset({"left": floored(left, FLOOR)}),
        "The posterior is sufficient, less is not",
        f"random topic models and labels, by enumeration; values below {FLOOR:g} are drawn there",
        x="statistic S",
        y="I(y; X | S), nats",
        log="y",
        format={"y": "~e"},
        legend=LEGENDS,
    ).points("statistic", "left", color="length", opacity=0.7)


@latent_posterior.claim(
    kind="identity",
    reference="the posterior is minimal",
    origin="our reading",
    statement=r"$\pi_X = \pi_{X'}$ if and only if $P(X \mid z)/P(X' \mid z)$ is the same for all"
    r" $z$: two sequences that a sufficient statistic must tell apart are just those with different"
    r" posteriors.",
    words="Two sequences have the same posterior exactly if a sufficient statistic need not"
    " tell them apart: the posterior is minimal.",
    hypotheses=(TOKENS, defining("vocabulary >= 3", lambda s: s.vocabulary >= 3)),
    quick=TOPIC_MODELS,
    paper=dict(length=(2, 4, 6), models=20),
    cells=together("length"),
    rule=Agreement(),
    control=Control(
        "the counts, which tell apart words that say the same about z",
        lambda e: {"measured": e.counts},
    ),
    needs=("sufficient",),
)
def minimal(cell: Setting, draws: Draws) -> Values:
    counts = compositions(cell.length, cell.vocabulary).astype(float)
    found = []
    for model in range(cell.models):
        rng = draws.stream(f"topics {model}")
        topics = split_last_word(random_topics(rng, cell.latents, cell.vocabulary - 1))
        likelihood = topics.log_likelihood_of_counts(counts)
        partition = classes(np.log(posterior_of(topics.prior, likelihood)))
        ratios = likelihood[:, None] - likelihood
        constant = np.ptp(ratios, axis=-1) < 1e-9
        found.append([constant.sum(), (np.bincount(partition) ** 2).sum()])
    constant, equal = np.array(found, float).T
    return {
        **on(
            "model",
            predicted=constant,
            measured=equal,
            counts=np.full(cell.models, float(len(counts))),
        ),
        "error": 0.0,
    }


@minimal.figure
def pairs_of_counts(evidence: xr.Dataset) -> Figure:
    counts = {"measured": "with equal posteriors", "counts": "with equal counts"}
    figure = log_figure(
        evidence,
        "Equal posteriors, constant likelihood ratios",
        "dashed: pairs with a constant likelihood ratio; in each random topic model two words say"
        " the same about the latent",
        y="pairs of counts",
    )
    figure.lines("length", "predicted", theory=True, detail="model")
    return figure.points("length", counts, detail="model", size=60)


def split_last_word(topics: FiniteLatent) -> FiniteLatent:
    """The last word replaced by two that say the same about z, with 0.3 and 0.7 of its chances."""
    halves = topics.words[:, -1:] * [[0.3, 0.7]]
    return FiniteLatent(topics.prior, np.hstack([topics.words[:, :-1], halves]))


CLUSTERS = GaussianMixture([0.5, 0.3, 0.2], [[0.0, 0.0], [1.0, 0.5], [-0.5, 1.0]])


@latent_posterior.claim(
    kind="identity",
    reference="prediction by the posterior",
    origin="our reading",
    statement=r"$P(x' \mid X) = \int P(x' \mid z)\,d\pi_X(z)$ is the conditional law"
    r" $P(X, x')/P(X)$, for a location, a regression, topics and a mixture.",
    words="The best prediction of the next token is the prediction given the latent, averaged"
    " over the posterior of the latent.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(2, 8), samples=50),
    paper=dict(length=(2, 8, 32, 128), samples=400),
    cells=together("length"),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the most probable latent, as if it were known", lambda e: {"measured": e.plugged}
    ),
    needs=("sufficient",),
)
def predictive(cell: Setting, draws: Draws) -> Values:
    routes = {
        "location": location_routes,
        "regression": regression_routes,
        "topics": topics_routes,
        "mixture": mixture_routes,
    }
    found = [route(draws.stream(name), cell.samples, cell.length) for name, route in routes.items()]
    posterior, ratio, plugged = np.swapaxes(found, 0, 1)
    return {
        **on("model sequence", predicted=posterior, measured=ratio, plugged=plugged),
        "error": 0.0,
        "model": list(routes),
    }


@predictive.figure
def predictive_densities(evidence: xr.Dataset) -> Figure:
    left = float(abs(evidence.measured - evidence.predicted).max())
    routes = {"measured": "ratio of joint laws", "plugged": "most probable latent"}
    figure = Figure(
        evidence,
        "Prediction is the average over the posterior",
        f"ratio of joint laws: off by at most {left:.1e}",
        x="log probability of the next token, average over the posterior",
        y="the same by another route",
    )
    return figure.diagonal().points("predicted", routes, opacity=0.75)


Routes = Float[np.ndarray, "3 n"]
"""Log probability of the last token given the others: by the posterior, by the ratio of joint laws,
and by the most probable latent."""


def location_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    model = GaussianLocation(1, noise=0.8, scale=1.5)
    signal = 1.5 * rng.standard_normal((samples, 1, 1))
    x = signal + 0.8 * rng.standard_normal((samples, length + 1, 1))
    mean, variance = map(np.asarray, model.predictive(x[:, :-1]))
    covariance = 1.5**2 + 0.8**2 * np.eye(length + 1)
    return gaussian_routes(x, mean, variance, 0.8, covariance[None])


def regression_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    model = BayesianRegression(2, noise=0.5, scale=1.2)
    places = on_sphere(rng, samples, length + 1, 2)
    signal = places @ (1.2 * rng.standard_normal((samples, 2, 1)))
    x = signal + 0.5 * rng.standard_normal((samples, length + 1, 1))
    mean, variance = map(np.asarray, model.predictive(places[:, :-1], x[:, :-1], places[:, -1:]))
    covariance = 1.2**2 * places @ places.transpose(0, 2, 1) + 0.5**2 * np.eye(length + 1)
    return gaussian_routes(x, mean[:, 0], variance[:, 0], 0.5, covariance)


def gaussian_routes(
    x: np.ndarray, mean: np.ndarray, variance: Any, noise: float, covariance: np.ndarray
) -> Routes:
    """From the predictive mean and variance of the last of the numbers x, and their covariance."""

    def joint(k: int) -> Float[np.ndarray, " n"]:
        """Log density of the first k numbers."""
        part, block = x[:, :k], np.broadcast_to(covariance[:, :k, :k], (len(x), k, k))
        squares = (part * np.linalg.solve(block, part)).sum((1, 2))
        return -(squares + np.linalg.slogdet(block)[1] + k * np.log(2 * np.pi)) / 2

    posterior, plugged = (
        normal_log_density(x[:, -1], mean, spread) for spread in (np.sqrt(variance), noise)
    )
    return np.stack([posterior, joint(x.shape[1]) - joint(x.shape[1] - 1), plugged])


def topics_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    model = random_topics(rng, 3, 6)
    z = categorical_from_uniform(rng.random(samples), model.prior)
    x = categorical_from_uniform(rng.random((samples, length + 1)), model.words[z][:, None])
    following = np.take_along_axis(model.predictive(x[:, :-1]), x[:, -1:], 1)[:, 0]
    return class_routes(model, x, np.log(following), np.log(model.words)[:, x[:, -1]].T)


def mixture_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    z = categorical_from_uniform(rng.random(samples), CLUSTERS.prior)
    x = CLUSTERS.means[z][:, None] + CLUSTERS.noise * rng.standard_normal((samples, length + 1, 2))
    last = normal_log_density(x[:, -1, None], CLUSTERS.means, CLUSTERS.noise)
    return class_routes(CLUSTERS, x, CLUSTERS.predictive(x[:, :-1]).log_density(x[:, -1]), last)


def class_routes(
    model: FiniteModel, x: np.ndarray, posterior: np.ndarray, last: Float[np.ndarray, "n m"]
) -> Routes:
    """From the log density of the last token by the posterior, and given each latent."""
    joint, before = (
        logsumexp(np.log(model.prior) + model.log_likelihood(tokens), axis=-1)
        for tokens in (x, x[:, :-1])
    )
    best = model.posterior(x[:, :-1]).argmax(1)
    return np.stack([posterior, joint - before, last[np.arange(len(x)), best]])
