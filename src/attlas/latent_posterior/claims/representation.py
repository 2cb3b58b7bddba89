"""Claims about what a sequence says: exchangeable laws, the posterior as a statistic, and what is lost by less than it."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy.special import logsumexp

from attlas.attention import softmax_attention
from attlas.claims.compat import (
    Agreement,
    Bound,
    Control,
    Hypothesis,
    Order,
    Setting,
    claim,
    drawn_by,
    key_for,
    together,
)
from attlas.gaussian import stream
from attlas.latent_posterior.claims.shared import (
    FIGURES,
    PAPER,
    TOKENS,
    on_sphere,
    random_laws,
    random_topics,
)
from attlas.latent_posterior.inference import (
    asymmetry,
    beta_coins,
    both,
    chain_law,
    classes,
    conditional_information,
    likelihoods,
    mixture_law,
    null_space,
    sequences,
    urn_distance,
    urn_law,
    urn_log_probability,
)
from attlas.latent_posterior.models import (
    BayesianRegression,
    FiniteLatent,
    GaussianLocation,
    GaussianMixture,
    Model,
    compositions,
    drawn_at,
    normal_log_density,
    posterior_of,
    simulated,
)

ENOUGH = Hypothesis("samples >= 1000", lambda s: s.samples >= 1000, defining=True)
SPREADS = (
    Hypothesis("noise > 0", lambda s: s.noise > 0, defining=True),
    Hypothesis("scale > 0", lambda s: s.scale > 0, defining=True),
)

# --- exchangeable sequences ------------------------------------------------------------------------------------------


@claim(
    "latent-posterior/exchangeable",
    source=PAPER,
    reference="exchangeability",
    statement=r"Tokens that are independent given a latent, draws from Polya's urn and draws without replacement are exchangeable:"
    r" $P(x_1, \dots, x_L) = P(x_{\sigma(1)}, \dots, x_{\sigma(L)})$ for every sequence and permutation.",
    words="Where tokens carry their own place, the order in which they are listed says nothing.",
    hypotheses=(
        TOKENS,
        Hypothesis(
            "length <= 10: the urn holds twenty balls", lambda s: s.length <= 10, defining=True
        ),
    ),
    quick=Setting(length=(2, 4, 6), letters=3),
    paper=Setting(length=(2, 4, 6, 8, 10), letters=3),
    rule=Agreement(),
    control=Control(
        "a chain of letters that stay with probability 0.7",
        lambda e: e.assign(measured=e["chain"] + 0 * e["measured"]),
    ),
    figure=drawn_by(f"{FIGURES}.representation:asymmetries"),
    cells=together("length"),
    origin="our reading",
)
def exchangeable(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    topics = random_topics(
        key_for(seed, "latent-posterior/exchangeable", "topics"), 3, cell.letters
    )
    balls = np.full(cell.letters, 20.0) / np.arange(1, cell.letters + 1)
    laws = {
        "topics": mixture_law(topics, cell.length),
        "Polya's urn": urn_law(balls, cell.length),
        "without replacement": urn_law(np.floor(balls), cell.length, -1),
    }
    return xr.Dataset(
        {
            "measured": (("cell", "law"), [[asymmetry(law) for law in laws.values()]]),
            "predicted": ("cell", [0.0]),
            "error": 0.0,
            "chain": ("cell", [asymmetry(chain_law(0.7, max(cell.length, 3)))]),
        },
        coords={"law": list(laws)},
    )


@claim(
    "latent-posterior/order-free",
    source=PAPER,
    reference="attention on exchangeable tokens",
    statement=r"The posterior mean $\sum_i w_i(q)\,v_i$ of a regression and softmax attention are unchanged when the pairs of position and content"
    r" $(k_i, v_i)$ are listed in another order.",
    words="Attention sees a set of tokens, as the posterior does.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(4, 32), queries=20),
    paper=Setting(length=(4, 32, 256, 1024), queries=50),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "the contents move and the positions stay", lambda e: e.assign(measured=e["apart"])
    ),
    figure=drawn_by(f"{FIGURES}.representation:order_agreement"),
    cells=together("length"),
    needs=("latent-posterior/exchangeable",),
    origin="our reading",
)
def order_free(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/order-free"
    rng = stream(key_for(seed, id, "context"))
    queries, keys = np.split(
        on_sphere(key_for(seed, id, "places"), cell.queries + cell.length, 3), [cell.queries]
    )
    values = rng.standard_normal((cell.length, 1))
    # By a cycle, so that every content leaves its place.
    order = np.roll(rng.permutation(cell.length), 1)
    origin = np.roll(order, -1)
    axes = ("cell", "mechanism", "query")
    return xr.Dataset(
        {
            "predicted": (axes, answers(keys, values, queries)),
            "measured": (axes, answers(keys[order], values[order], queries)),
            "apart": (axes, answers(keys[origin], values[order], queries)),
            "error": 0.0,
        },
        coords={"mechanism": ["posterior mean", "softmax attention"]},
    )


def answers(keys: Any, values: Any, queries: Any) -> Float[np.ndarray, "1 2 q"]:
    posterior = (
        BayesianRegression(3, kernel=exponential, noise=0.5).predictive(keys, values, queries).mean
    )
    attention = np.asarray(attended(queries, keys, values))
    return np.stack([posterior[:, 0], attention[:, 0]])[None]


@jax.jit
def attended(queries: Any, keys: Any, values: Any) -> Float[Array, "q 1"]:
    return softmax_attention(queries, keys, values, temperature=0.25)


def exponential(a: Float[Array, "*n i d"], b: Float[Array, "*n j d"]) -> Float[Array, "*n i j"]:
    r"""$e^{(\langle a, b\rangle - 1)/\gamma}$ with $\gamma = 1/2$, on the sphere."""
    return jnp.exp(2 * (a @ jnp.swapaxes(b, -1, -2) - 1))


@claim(
    "latent-posterior/de-finetti",
    source=PAPER,
    reference="de Finetti's theorem",
    statement=r"Draws from Polya's urn are coin tosses given a latent bias of law Beta(a, b), whatever their number:"
    r" $\prod_i P(x_i \mid x_1, \dots, x_{i-1}) = \int\prod_i P(x_i \mid z)\,dP(z)$.",
    words="A sequence in which every draw depends on all before is a mixture of sequences in which none does.",
    hypotheses=(
        Hypothesis("a > 0", lambda s: s.a > 0, defining=True),
        Hypothesis("b > 0", lambda s: s.b > 0, defining=True),
    ),
    quick=Setting(length=(1, 5, 40), a=2.0, b=3.5, draws=100),
    paper=Setting(length=(1, 5, 40, 200, 1000), a=2.0, b=3.5, draws=400),
    rule=Agreement(rounding=1e-10),
    control=Control("a larger by 5 %", lambda e: e.assign(measured=e["shifted"])),
    figure=drawn_by(f"{FIGURES}.representation:urn_agreement"),
    cells=together("length"),
    needs=("latent-posterior/exchangeable",),
    origin="our reading",
)
def de_finetti(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    key = key_for(seed, "latent-posterior/de-finetti", "draws")
    shares = np.linspace(0.02, 0.98, cell.draws)[:, None]
    drawn = (stream(key).random((cell.draws, cell.length)) < shares).astype(int)

    def mixture(a: float) -> np.ndarray:
        coins = beta_coins(a, cell.b, cell.length)
        return logsumexp(np.log(coins.prior) + coins.log_likelihood(drawn), axis=-1)

    axes = ("cell", "sequence")
    return xr.Dataset(
        {
            "predicted": (axes, urn_log_probability([cell.b, cell.a], drawn)[None]),
            "measured": (axes, mixture(cell.a)[None]),
            "shifted": (axes, mixture(1.05 * cell.a)[None]),
            "error": 0.0,
        }
    )


@claim(
    "latent-posterior/finite-length",
    source="attlas",
    reference="Diaconis and Freedman 1980, for finitely many tokens",
    statement=r"Of $N$ exchangeable tokens over $c$ letters, the first $k$ are a mixture of independent ones up to the total variation $2ck/N$.",
    words="A finite exchangeable sequence is nearly a mixture, as long as one looks at a small part of it.",
    hypotheses=(
        Hypothesis("draws <= balls", lambda s: s.draws <= s.balls, defining=True),
        Hypothesis("letters <= 4", lambda s: s.letters <= 4, defining=True),
    ),
    quick=Setting(balls=(20, 100, 400, 2000), letters=(2,), draws=10),
    paper=Setting(
        balls=(20, 100, 400, 2000, 10_000, 40, 200, 1000, 10_000),
        letters=(2, 2, 2, 2, 2, 3, 3, 3, 3),
        draws=10,
    ),
    rule=Bound(),
    control=Control("a sixth of the bound", lambda e: e.assign(bound=e["bound"] / 6)),
    figure=drawn_by(f"{FIGURES}.representation:urn_distances"),
    cells=together("balls", "letters"),
    needs=("latent-posterior/de-finetti",),
    origin="our reading",
)
def finite_length(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    # Urns are the extreme points of the exchangeable laws: all proportions in steps of a twentieth, and one of nearly one colour.
    shapes = compositions(20, cell.letters)
    urns = np.floor(shapes * cell.balls / 20)
    urns[:, 0] += cell.balls - urns.sum(1)
    rare = np.ones((1, cell.letters))
    rare[0, 0] = cell.balls - cell.letters + 1
    even = np.floor(np.full(cell.letters, cell.balls / cell.letters))
    even[0] += cell.balls - even.sum()
    return xr.Dataset(
        {
            "measured": (
                "cell",
                [max(urn_distance(urn, cell.draws) for urn in np.concatenate([urns, rare]))],
            ),
            "bound": ("cell", [min(1.0, 2 * cell.letters * cell.draws / cell.balls)]),
            "even": ("cell", [urn_distance(even, cell.draws)]),
            "chain": ("cell", [asymmetry(chain_law(0.7, cell.draws)) / 2]),
            "error": 0.0,
        }
    )


@claim(
    "latent-posterior/no-mixture",
    source="attlas",
    reference="a finite exchangeable law that is no mixture",
    statement=r"Two draws without replacement from an urn of $N$ balls, half of them white, have a negative covariance, $-\frac{1}{4(N-1)}$; given a latent, independent"
    r" and alike, they would have $\mathrm{Var}\,E[x \mid z] \ge 0$.",
    words="Places that are each used once are exchangeable and yet have no latent: at finite length de Finetti's theorem only nearly holds.",
    hypotheses=(
        Hypothesis("balls >= 2", lambda s: s.balls >= 2, defining=True),
        Hypothesis("balls is even", lambda s: s.balls % 2 == 0),
    ),
    quick=Setting(balls=(2, 10, 100, 10_000)),
    paper=Setting(balls=(2, 10, 100, 10_000, 1_000_000)),
    rule=Order(),
    control=Control("Polya's urn, which is a mixture", lambda e: e.assign(lower=e["polya"])),
    figure=drawn_by(f"{FIGURES}.representation:covariances"),
    cells=together("balls"),
    shape=(),
    needs=("latent-posterior/finite-length",),
    origin="ours",
)
def no_mixture(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    def covariance(balls: int, added: float) -> float:
        law = urn_law([balls / 2] * 2, 2, added)
        return float(law[1, 1] - law[1].sum() * law[:, 1].sum())

    return xr.Dataset(
        {
            "lower": ("cell", [covariance(cell.balls, -1.0) for cell in cells]),
            "upper": ("cell", [0.0 for _ in cells]),
            "polya": ("cell", [covariance(cell.balls, 1.0) for cell in cells]),
            "formula": ("cell", [1 / (4 * (cell.balls - 1)) for cell in cells]),
            "error": 0.0,
        }
    )


# --- the posterior as a statistic ------------------------------------------------------------------------------------


def draws_of(seed: int, id: str, purpose: str, models: int) -> list[Array]:
    return [key_for(seed, id, f"{purpose} {model}") for model in range(models)]


@claim(
    "latent-posterior/sufficient",
    source=PAPER,
    reference="the posterior is sufficient",
    statement=r"$I(y; X \mid \pi_X) = 0$ for every label $y$ that is independent of $X$ given $z$, where $\pi_X$ is the posterior of $z$; so too for the counts"
    r" of the words.",
    words="What a sequence says about anything that its latent decides, the posterior of the latent says.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(2, 3, 4), latents=3, vocabulary=6, models=6),
    paper=Setting(length=(2, 3, 4, 5), latents=3, vocabulary=6, models=20),
    rule=Agreement(),
    control=Control(
        "the most probable latent in place of the posterior",
        lambda e: e.assign(measured=e["coarse"].isel(coarser=0)),
    ),
    figure=drawn_by(f"{FIGURES}.representation:information"),
    cells=together("length"),
    needs=("latent-posterior/de-finetti",),
    origin="our reading",
)
def sufficient(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/sufficient"
    tokens = sequences(cell.vocabulary, cell.length)
    kept, lost = [], []
    for model, label in zip(
        draws_of(seed, id, "topics", cell.models),
        draws_of(seed, id, "labels", cell.models),
        strict=True,
    ):
        topics = random_topics(model, cell.latents, cell.vocabulary)
        labels = {"z": np.eye(cell.latents), "y": random_laws(label, cell.latents, 4)}
        posterior = topics.posterior(tokens)
        statistics = [posterior, topics.counts(tokens), posterior.argmax(1)[:, None], tokens[:, :1]]
        partitions = [classes(statistic) for statistic in statistics]
        joint = likelihoods(topics, cell.length) * topics.prior
        found = [
            [conditional_information(joint @ law, p) for law in labels.values()] for p in partitions
        ]
        kept.append(found[:2])
        lost.append(found[2:])
    return xr.Dataset(
        {
            "predicted": ("cell", [0.0]),
            "measured": (("cell", "model", "statistic", "label"), [kept]),
            "coarse": (("cell", "model", "coarser", "label"), [lost]),
            "error": 0.0,
        },
        coords={
            "statistic": ["posterior", "counts"],
            "coarser": ["most probable latent", "first token"],
            "label": ["the latent", "a random label"],
        },
    )


@claim(
    "latent-posterior/minimal",
    source=PAPER,
    reference="the posterior is minimal",
    statement=r"$\pi_X = \pi_{X'}$ if and only if $P(X \mid z)/P(X' \mid z)$ is the same for all $z$: two sequences that a sufficient statistic must tell apart are"
    r" just those with different posteriors.",
    words="No statistic that says as much can say less than the posterior.",
    hypotheses=(TOKENS, Hypothesis("vocabulary >= 3", lambda s: s.vocabulary >= 3, defining=True)),
    quick=Setting(length=(2, 3, 4), latents=3, vocabulary=6, models=6),
    paper=Setting(length=(2, 4, 6), latents=3, vocabulary=6, models=20),
    rule=Agreement(),
    control=Control(
        "the counts, which tell apart words that say the same about z",
        lambda e: e.assign(measured=e["counts"] + 0 * e["measured"]),
    ),
    figure=drawn_by(f"{FIGURES}.representation:class_counts"),
    cells=together("length"),
    needs=("latent-posterior/sufficient",),
    origin="our reading",
)
def minimal(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    counts = compositions(cell.length, cell.vocabulary).astype(float)
    found = []
    for key in draws_of(seed, "latent-posterior/minimal", "topics", cell.models):
        topics = tied(random_topics(key, cell.latents, cell.vocabulary - 1))
        likelihood = topics.log_likelihood_of_counts(counts)
        posterior = np.log(posterior_of(topics.prior, likelihood))
        ratios = (likelihood[:, None] - likelihood[None]).reshape(-1, cell.latents)
        found.append([(np.ptp(ratios, axis=1) < 1e-9).sum(), pairs(classes(posterior))])
    constant, equal = np.array(found, float).T
    axes = ("cell", "model")
    return xr.Dataset(
        {
            "predicted": (axes, constant[None]),
            "measured": (axes, equal[None]),
            "counts": ("cell", [float(len(counts))]),
            "error": 0.0,
        }
    )


def tied(topics: FiniteLatent) -> FiniteLatent:
    """The last word replaced by two that say the same about z: said 0.3 and 0.7 of the times."""
    return FiniteLatent(
        topics.prior, np.hstack([topics.words[:, :-1], topics.words[:, -1:] * [[0.3, 0.7]]])
    )


def pairs(partition: np.ndarray) -> float:
    """Ordered pairs that lie in one class."""
    return float((np.bincount(partition) ** 2).sum())


@claim(
    "latent-posterior/null-space",
    source="attlas",
    reference="what the contrasts see",
    statement=r"With m latents the posterior sees the counts of the words through $m - 1$ contrasts $\ln P_z - \ln P_1$: counts moved in their null space,"
    r" of dimension $V - m + 1$, leave it unchanged.",
    words="However large the vocabulary, a posterior over a few latents reads a few numbers.",
    hypotheses=(
        Hypothesis("vocabulary >= latents", lambda s: s.vocabulary >= s.latents, defining=True),
    ),
    quick=Setting(vocabulary=(6, 50), latents=3, moves=20),
    paper=Setting(vocabulary=(6, 50, 1000), latents=5, moves=100),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "moved as far in a random direction", lambda e: e.assign(measured=e["elsewhere"])
    ),
    figure=drawn_by(f"{FIGURES}.representation:moved_posteriors"),
    cells=together("vocabulary"),
    needs=("latent-posterior/minimal",),
    origin="ours",
)
def unseen_directions(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/null-space"
    topics = random_topics(key_for(seed, id, "topics"), cell.latents, cell.vocabulary)
    rng = stream(key_for(seed, id, "moves"))
    counts = rng.multinomial(
        8, topics.words[drawn_at(rng.random(cell.moves), topics.prior)]
    ).astype(float)
    unseen = null_space(topics.contrasts)
    move = rng.standard_normal((cell.moves, unseen.shape[1])) @ unseen.T
    other = rng.standard_normal(move.shape)
    other *= np.linalg.norm(move, axis=1, keepdims=True) / np.linalg.norm(
        other, axis=1, keepdims=True
    )

    def posterior(counts: np.ndarray) -> np.ndarray:
        # Counts moved below 0 are no counts, but the formula does not know.
        return posterior_of(topics.prior, counts @ np.log(topics.words).T)[None]

    axes = ("cell", "move", "latent")
    return xr.Dataset(
        {
            "predicted": (
                axes,
                posterior_of(topics.prior, topics.log_likelihood_of_counts(counts))[None],
            ),
            "measured": (axes, posterior(counts + move)),
            "elsewhere": (axes, posterior(counts + other)),
            "error": 0.0,
        }
    )


@claim(
    "latent-posterior/equal-statistics",
    source="attlas",
    reference="the minimal statistic of a regression",
    statement=r"Contexts with the same $\Phi^\top\Phi$ and $\Phi^\top V$ have the same predictive law at every query: so have $(\Phi, V)$ and"
    r" $(O\Phi, OV)$ for orthogonal $O$.",
    words="All of a context of pairs is two matrices, whose size does not grow with it.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(4, 64), dim=5, queries=20),
    paper=Setting(length=(4, 64, 1000), dim=5, queries=100),
    rule=Agreement(rounding=1e-10),
    control=Control(
        "the features rotated and the values not", lambda e: e.assign(measured=e["apart"])
    ),
    figure=drawn_by(f"{FIGURES}.representation:rotated_contexts"),
    cells=together("length"),
    needs=("latent-posterior/minimal",),
    origin="ours",
)
def equal_statistics(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/equal-statistics"
    model = BayesianRegression(cell.dim, noise=0.5)
    rng = stream(key_for(seed, id, "context"))
    queries, keys = np.split(
        on_sphere(key_for(seed, id, "places"), cell.queries + cell.length, cell.dim), [cell.queries]
    )
    values = keys @ rng.standard_normal((cell.dim, 1)) + model.noise * rng.standard_normal(
        (cell.length, 1)
    )
    turn = np.linalg.qr(rng.standard_normal((cell.length, cell.length)))[0]

    def law(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        mean, variance = map(np.asarray, model.predictive(keys, values, queries))
        return np.stack([mean[:, 0], variance])[None]

    axes = ("cell", "moment", "query")
    return xr.Dataset(
        {
            "predicted": (axes, law(keys, values)),
            "measured": (axes, law(turn @ keys, turn @ values)),
            "apart": (axes, law(turn @ keys, values)),
            "error": 0.0,
        },
        coords={"moment": ["mean", "variance"]},
    )


@claim(
    "latent-posterior/restricted-tasks",
    source="attlas",
    reference="sufficiency for a family of labels",
    statement=r"Labels with $P(y \mid z) = B_{yz}$ need $B\pi_X$ and no more: $I(y; X \mid B\pi_X) = 0$. Where the latent is a pair and $B$ reads its first half, that half's"
    r" posterior suffices.",
    words="Who asks fewer questions may forget more: minimal means minimal for all labels.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(2, 3), models=6),
    paper=Setting(length=(2, 3, 4), models=20),
    rule=Agreement(),
    control=Control("the whole latent as the label", lambda e: e.assign(measured=e["latent"])),
    figure=drawn_by(f"{FIGURES}.representation:task_information"),
    cells=together("length"),
    needs=("latent-posterior/sufficient",),
    origin="ours",
)
def restricted_tasks(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/restricted-tasks"
    found = []
    for key in draws_of(seed, id, "topics", cell.models):
        halves = [random_topics(jax.random.fold_in(key, size), 2, size) for size in (3, 2)]
        topics = both(*halves)
        tokens = sequences(topics.vocabulary, cell.length)
        reads = np.kron(np.eye(2), np.ones(2))  # which first half each latent has
        label = random_laws(jax.random.fold_in(key, 7), 2, 3)
        partition = classes(topics.posterior(tokens) @ reads.T)
        joint = likelihoods(topics, cell.length) * topics.prior
        found.append(
            [
                conditional_information(joint @ law, partition)
                for law in (reads.T @ label, np.eye(4))
            ]
        )
    task, latent = np.array(found).T
    axes = ("cell", "model")
    return xr.Dataset(
        {
            "predicted": ("cell", [0.0]),
            "measured": (axes, task[None]),
            "latent": (axes, latent[None]),
            "error": 0.0,
        }
    )


# --- prediction ------------------------------------------------------------------------------------------------------

CLUSTERS = GaussianMixture([0.5, 0.3, 0.2], [[0.0, 0.0], [1.0, 0.5], [-0.5, 1.0]])
POINTS = np.stack([np.cos([0.0, 1.0, 2.5]), np.sin([0.0, 1.0, 2.5])], 1)


@claim(
    "latent-posterior/predictive",
    source=PAPER,
    reference="prediction by the posterior",
    statement=r"$P(x' \mid X) = \int P(x' \mid z)\,d\pi_X(z)$ is the conditional law $P(X, x')/P(X)$, for a location, a regression, topics and a mixture.",
    words="The best guess of what comes next is the average over what the latent may be.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(2, 8), samples=50),
    paper=Setting(length=(2, 8, 32, 128), samples=400),
    rule=Agreement(rounding=1e-9),
    control=Control(
        "the most probable latent, as if it were known", lambda e: e.assign(measured=e["plugged"])
    ),
    figure=drawn_by(f"{FIGURES}.representation:predictive_densities"),
    cells=together("length"),
    needs=("latent-posterior/sufficient",),
    origin="our reading",
)
def predictive(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/predictive"
    routes = {
        "location": location_routes,
        "regression": regression_routes,
        "topics": topics_routes,
        "mixture": mixture_routes,
    }
    found = np.stack(
        [
            route(stream(key_for(seed, id, name)), cell.samples, cell.length)
            for name, route in routes.items()
        ]
    )
    axes = ("cell", "model", "sequence")
    names = ("predicted", "measured", "plugged")
    return xr.Dataset(
        {name: (axes, found[None, :, i]) for i, name in enumerate(names)} | {"error": 0.0},
        coords={"model": list(routes)},
    )


Routes = Float[np.ndarray, "3 n"]
"""Log probability of the last token given the others: by the posterior, by the ratio of joint laws, by the most probable latent."""


def location_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    model = GaussianLocation(1, noise=0.8, scale=1.5)
    x = 1.5 * rng.standard_normal((samples, 1, 1)) + 0.8 * rng.standard_normal(
        (samples, length + 1, 1)
    )
    mean, variance = map(np.asarray, model.predictive(x[:, :-1]))
    covariance = 1.5**2 + 0.8**2 * np.eye(length + 1)
    by_posterior, plugged = (
        normal_log_density(x[:, -1], mean, noise) for noise in (np.sqrt(variance), 0.8)
    )
    return np.stack([by_posterior, joint_ratio(x[..., 0], covariance[None]), plugged])


def regression_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    model = BayesianRegression(2, noise=0.5, scale=1.2)
    places = rng.standard_normal((samples, length + 1, 2))
    places /= np.linalg.norm(places, axis=-1, keepdims=True)
    signal, noise = (
        places @ (1.2 * rng.standard_normal((samples, 2, 1))),
        rng.standard_normal((samples, length + 1, 1)),
    )
    x = signal + 0.5 * noise
    mean, variance = map(np.asarray, model.predictive(places[:, :-1], x[:, :-1], places[:, -1:]))
    covariance = 1.2**2 * places @ places.transpose(0, 2, 1) + 0.5**2 * np.eye(length + 1)
    by_posterior, plugged = (
        normal_log_density(x[:, -1], mean[:, 0], noise) for noise in (np.sqrt(variance[:, 0]), 0.5)
    )
    return np.stack([by_posterior, joint_ratio(x[..., 0], covariance), plugged])


def joint_ratio(
    x: Float[np.ndarray, "n k"], covariance: Float[np.ndarray, "#n k k"]
) -> Float[np.ndarray, " n"]:
    """Log density of the last of jointly Gaussian numbers given the others, as the ratio of two joint densities."""

    def log_density(k: int) -> np.ndarray:
        part, block = x[:, :k, None], np.broadcast_to(covariance[:, :k, :k], (len(x), k, k))
        squares = (part * np.linalg.solve(block, part)).sum((1, 2))
        return -(squares + np.linalg.slogdet(block)[1] + k * np.log(2 * np.pi)) / 2

    return log_density(x.shape[1]) - log_density(x.shape[1] - 1)


def topics_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    model = FiniteLatent((1 / 3 + rng.dirichlet(np.ones(3))) / 2, rng.dirichlet(np.ones(6), 3))
    z = drawn_at(rng.random(samples), model.prior)
    x = drawn_at(rng.random((samples, length + 1)), model.words[z][:, None])
    following = np.take_along_axis(model.predictive(x[:, :-1]), x[:, -1:], 1)[:, 0]
    return class_routes(model, x, np.log(following), np.log(model.words)[:, x[:, -1]].T)


def mixture_routes(rng: np.random.Generator, samples: int, length: int) -> Routes:
    z = drawn_at(rng.random(samples), CLUSTERS.prior)
    x = CLUSTERS.means[z][:, None] + CLUSTERS.noise * rng.standard_normal((samples, length + 1, 2))
    last = normal_log_density(x[:, -1, None], CLUSTERS.means, CLUSTERS.noise)
    return class_routes(CLUSTERS, x, CLUSTERS.predictive(x[:, :-1]).log_density(x[:, -1]), last)


def class_routes(model: Any, x: np.ndarray, by_posterior: np.ndarray, last: np.ndarray) -> Routes:
    evidence = [
        logsumexp(np.log(model.prior) + model.log_likelihood(s), axis=-1) for s in (x, x[:, :-1])
    ]
    best = model.posterior(x[:, :-1]).argmax(1)
    return np.stack(
        [by_posterior, evidence[0] - evidence[1], np.take_along_axis(last, best[:, None], 1)[:, 0]]
    )


@claim(
    "latent-posterior/bayes-risk",
    source="attlas",
    reference="exact Bayes risks",
    statement=r"The least mean square error with which the latent is told from $L$ tokens: $\frac{d\,\sigma^2\tau^2}{\sigma^2 + L\tau^2}$ for a location, a sum over counts for a"
    r" regression on finitely many keys and for topics, a quadrature for a mixture.",
    words="How well anything can do, known exactly, for four models.",
    hypotheses=(ENOUGH,),
    quick=Setting(length=(4,), samples=16_384),
    paper=Setting(length=(2, 8, 32), samples=100_000),
    rule=Agreement(),
    control=Control("one token more", lambda e: e.assign(predicted=e["longer"])),
    figure=drawn_by(f"{FIGURES}.representation:bayes_risks"),
    cells=together("length"),
    budget="samples",
    needs=("latent-posterior/predictive",),
    origin="ours",
)
def bayes_risks(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/bayes-risk"
    models: dict[str, Model] = {
        "location": GaussianLocation(2, noise=0.8, scale=1.5),
        "regression": BayesianRegression(2, noise=0.5, points=POINTS),
        "topics": random_topics(key_for(seed, id, "topics"), 3, 4),
        "mixture": CLUSTERS,
    }
    key = key_for(seed, id, "samples")
    sampled = [
        model.sampled_bayes_risk(cell.length, key, cell.samples) for model in models.values()
    ]
    axes = ("cell", "model")
    return xr.Dataset(
        {
            "predicted": (
                axes,
                [[float(model.bayes_risk(cell.length)) for model in models.values()]],
            ),
            "longer": (
                axes,
                [[float(model.bayes_risk(cell.length + 1)) for model in models.values()]],
            ),
            "measured": (axes, [[float(s.mean) for s in sampled]]),
            "error": (axes, [[float(s.error) for s in sampled]]),
        },
        coords={"model": list(models)},
    )


# --- pooling ---------------------------------------------------------------------------------------------------------


@claim(
    "latent-posterior/pooling-excess",
    source="attlas",
    reference="mean pooling of a Gaussian location",
    statement=r"The mean of the tokens errs more than the posterior mean by $\frac{\sigma^4}{L(\sigma^2 + L\tau^2)}$ per coordinate, which falls like $L^{-2}$.",
    words="Averaging tokens forgets the prior, and the longer the sequence the less it matters.",
    hypotheses=(ENOUGH, *SPREADS),
    quick=Setting(length=(1, 4, 16), dim=3, noise=1.0, scale=0.7, samples=65_536),
    paper=Setting(length=(1, 4, 16, 64, 256), dim=3, noise=1.0, scale=0.7, samples=200_000),
    rule=Agreement(),
    control=Control(
        "its leading order, σ⁴/(Lτ)², in its place", lambda e: e.assign(predicted=e["leading"])
    ),
    figure=drawn_by(f"{FIGURES}.representation:pooling_curve"),
    cells=together("length"),
    budget="samples",
    needs=("latent-posterior/bayes-risk",),
    origin="ours",
)
def pooling_excess(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    model = GaussianLocation(cell.dim, cell.noise, cell.scale)
    key = key_for(seed, "latent-posterior/pooling-excess", "samples")

    def excess(key: Array, samples: int) -> Float[np.ndarray, " n"]:
        drawn = model.sample(key, samples, cell.length)
        return ((drawn.tokens.mean(-2) - drawn.latent) ** 2).sum(-1) - model.squared_errors(drawn)

    sampled = simulated(excess, key, cell.samples)
    return xr.Dataset(
        {
            "predicted": ("cell", [float(model.pooling_excess(cell.length))]),
            "measured": ("cell", [float(sampled.mean)]),
            "error": ("cell", [float(sampled.error)]),
            "leading": ("cell", [cell.dim * cell.noise**4 / (cell.length * cell.scale) ** 2]),
            "bayes": ("cell", [float(model.bayes_risk(cell.length))]),
        }
    )


@claim(
    "latent-posterior/sums-not-means",
    source="attlas",
    reference="what attention must be told to infer a posterior",
    statement=r"Attention averages: with equal scores its output on the log likelihoods of the tokens is $\bar\ell$, and $\pi_X = \mathrm{softmax}(L\bar\ell + \ln p)$."
    r" The length $L$ has to be passed on.",
    words="An average of the evidence does not say how much of it there was.",
    hypotheses=(TOKENS,),
    quick=Setting(length=(2, 8, 32), samples=50),
    paper=Setting(length=(2, 8, 32, 512), samples=400),
    rule=Agreement(rounding=1e-10),
    control=Control("the length not passed on", lambda e: e.assign(measured=e["average"])),
    figure=drawn_by(f"{FIGURES}.representation:averaged_evidence"),
    cells=together("length"),
    needs=("latent-posterior/predictive",),
    origin="ours",
)
def sums_not_means(cells: Sequence[Setting], seed: int) -> xr.Dataset:
    (cell,) = cells
    id = "latent-posterior/sums-not-means"
    topics = random_topics(key_for(seed, id, "topics"), 3, 6)
    rng = stream(key_for(seed, id, "words"))
    z = drawn_at(rng.random(cell.samples), topics.prior)
    tokens = drawn_at(rng.random((cell.samples, cell.length)), topics.words[z][:, None])
    mean = np.asarray(averaged(np.log(topics.words).T[tokens]))
    axes = ("cell", "sequence", "latent")
    return xr.Dataset(
        {
            "predicted": (axes, topics.posterior(tokens)[None]),
            "measured": (axes, posterior_of(topics.prior, cell.length * mean)[None]),
            "average": (axes, posterior_of(topics.prior, mean)[None]),
            "error": 0.0,
        }
    )


@jax.jit
def averaged(evidence: Any) -> Float[Array, "n m"]:
    """Attention with equal scores."""
    nothing = jnp.zeros((*evidence.shape[:2], 1))
    return softmax_attention(nothing[:, :1], nothing, evidence)[:, 0]
