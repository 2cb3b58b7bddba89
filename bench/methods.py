"""What the estimators are measured against on real data: each method is tuned on the training rows
alone, by folds or by its own likelihood.

A method is a function of training data that returns a function of test data. For bags and bits that
returns a score of each row, whose sign is the class; for conditional laws, `Prediction`.
"""

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special, stats
from sklearn.datasets import load_wine
from sklearn.ensemble import (
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from attlas.estimators import (
    ConditionalMeanRegressor,
    SingleLocationClassifier,
    SparseAttentionClassifier,
)
from attlas.estimators.resampling import balanced_folds
from attlas.padding import bucket, pad_axis
from attlas.quasi_newton import minimise
from attlas.single_location.bag_heads import Scaling

Fitted = Callable[..., Any]
SEED = 0


def folds(y: np.ndarray, count: int = 5) -> Any:
    """Folds within the training rows; fewer where a class has fewer rows."""
    least = int(np.bincount(y.astype(int)).min())
    return StratifiedKFold(max(2, min(count, least)), shuffle=True, random_state=SEED)


# --- bags --------------------------------------------------------------------------------------


def ours_on_bags(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
    return SingleLocationClassifier(random_state=SEED).fit(list(bags), y).decision_function


def ours_on_locations(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
    """What is said of bags, and which instance of each decides."""
    model = SingleLocationClassifier(random_state=SEED).fit(list(bags), y)
    return lambda new: (model.decision_function(new), model.predict_location(new, toward=1))


def one_by_one(method: Callable[..., Fitted]) -> Callable[..., Fitted]:
    """What a method says of bags; the instance that it would choose of each is the one of which,
    alone in a bag, it says most."""

    def fit(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
        fitted = method(bags, y)

        def say(new: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            alone = fitted([row[None] for bag in new for row in bag])
            parts = np.split(alone, np.cumsum([len(bag) for bag in new])[:-1])
            return fitted(new), np.array([int(np.argmax(part)) for part in parts])

        return say

    return fit


def means(bags: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([bag.mean(0) for bag in bags])


def extremes(bags: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([np.concatenate([bag.min(0), bag.max(0)]) for bag in bags])


def all_three(bags: Sequence[np.ndarray]) -> np.ndarray:
    return np.hstack([means(bags), extremes(bags)])


def svm_on(summary: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Callable[..., Fitted]:
    def fit(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
        fitted = svm(summary(bags), y)
        return lambda new: fitted(summary(new))

    return fit


def forest_on_bags(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
    fitted = forest(all_three(bags), y)
    return lambda new: fitted(all_three(new))


def similarities(
    pool: np.ufunc, bags: Sequence[np.ndarray], sharpness: float
) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """Pooled features of the instances of a bag: similarities to 300 of them, drawn at random."""
    flat = np.concatenate(bags)
    scaler = StandardScaler().fit(flat)
    lift = Nystroem(
        gamma=sharpness / flat.shape[1], n_components=min(300, len(flat)), random_state=SEED
    )
    lift.fit(scaler.transform(flat))

    def pooled(some: Sequence[np.ndarray]) -> np.ndarray:
        rows = scaler.transform(np.concatenate(some))
        lifted = (
            lift.transform(rows)
            if pool is np.add
            else rbf_kernel(rows, lift.components_, gamma=lift.gamma)
        )
        lengths = np.array([len(bag) for bag in some])
        total = pool.reduceat(lifted, np.cumsum(lengths) - lengths)
        return total / lengths[:, None] if pool is np.add else total

    return pooled


def pooled_similarities(pool: np.ufunc, made: Any) -> Callable[..., Fitted]:
    """A linear classifier on pooled similarities; sharpness and C by folds."""

    def fit(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
        tried: list[tuple[float, Any, Any]] = []
        for sharpness in (0.1, 0.3, 1, 3):
            pooled = similarities(pool, bags, sharpness)
            grid = {"svc__C": np.geomspace(0.01, 1000, 6)}
            steps = Pipeline([("scale", StandardScaler()), ("svc", made)])
            search = GridSearchCV(steps, grid, cv=folds(y)).fit(pooled(bags), y)
            tried.append((search.best_score_, search, pooled))
        _, best, summarised = max(tried, key=lambda one: one[0])
        return lambda new: best.decision_function(summarised(new))

    return fit


class Laid(NamedTuple):
    """Instances of bags one after the other, padded by instances of a last bag without weight."""

    tokens: Any  # [N, d]
    bag: Any  # [N]
    target: Any  # [bags]
    weight: Any  # [lane, bags]
    penalty: Any  # [lane]


class Gated(NamedTuple):
    """Gated attention: an embedding, two gates, a score and a read-out, each with a leading axis of
    lanes."""

    embed: Any  # [lane, d, e]
    tanh: Any  # [lane, e, g]
    sigmoid: Any  # [lane, e, g]
    score: Any  # [lane, g]
    read: Any  # [lane, e]
    offset: Any  # [lane, 1]


EMBED, GATES = 32, 16


def gated_parts(net: Gated, data: Laid) -> Float[Array, "N lane"]:
    r"""What each instance adds, $p_lw^\top h_l$ with $h = \tanh(xE)$ and $p =
    \mathrm{softmax}_l(a^\top[\tanh(h_lT)\odot\sigma(h_lS)])$ (Ilse et al. 2018)."""
    h = jnp.tanh(jnp.einsum("nd,ade->nae", data.tokens, net.embed))
    gate = jnp.tanh(jnp.einsum("nae,aeg->nag", h, net.tanh)) * jax.nn.sigmoid(
        jnp.einsum("nae,aeg->nag", h, net.sigmoid)
    )
    scores, bags = jnp.einsum("nag,ag->na", gate, net.score), len(data.target)
    top = jax.ops.segment_max(scores, data.bag, bags, indices_are_sorted=True)
    powers = jnp.exp(scores - jax.lax.stop_gradient(top)[data.bag])
    below = jax.ops.segment_sum(powers, data.bag, bags, indices_are_sorted=True)
    return powers / below[data.bag] * jnp.einsum("nae,ae->na", h, net.read)


def gated_output(net: Gated, data: Laid) -> Float[Array, "bags lane"]:
    """The sum of what the instances add, and the offset."""
    parts, bags = gated_parts(net, data), len(data.target)
    return net.offset.T + jax.ops.segment_sum(parts, data.bag, bags, indices_are_sorted=True)


def gated_objective(net: Gated, data: Laid) -> Float[Array, " lane"]:
    said = gated_output(net, data)
    fit = ((jax.nn.softplus(said) - data.target[:, None] * said) * data.weight.T).sum(0)
    size = sum((x**2).reshape(x.shape[0], -1).sum(-1) for x in net[:-1])
    return fit + data.penalty * size


GATED_PENALTIES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)


def gated_attention(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
    fitted = gated_locations(bags, y)
    return lambda new: fitted(new)[0]


def gated_locations(bags: Sequence[np.ndarray], y: np.ndarray) -> Fitted:
    """With the penalty by five folds; scaled as ours are, by the same optimiser. It names the
    instance that adds most."""
    scaling = Scaling.of(bags, np.ones(len(y)))
    dim, n = bags[0].shape[1], len(y)
    fold = balanced_folds(y.tolist(), 5)

    def laid_out(some: Sequence[np.ndarray], lanes: int) -> Laid:
        laid, _ = scaling(some)
        size, rows = bucket(len(some) + 1), bucket(len(laid.tokens))
        bag = np.full(rows, size - 1, np.int32)
        bag[: len(laid.bag)] = laid.bag
        tokens = pad_axis(laid.tokens.astype(np.float32), rows)
        zeros = np.zeros((lanes, size), np.float32)
        return Laid(tokens, bag, np.zeros(size, np.float32), zeros, zeros[:, 0])

    rng = np.random.default_rng(SEED)
    drawn = [
        rng.normal(size=shape) / shape[0] ** 0.5
        for shape in ((dim, EMBED), (EMBED, GATES), (EMBED, GATES), (GATES,), (EMBED,))
    ]
    start = Gated(*(np.repeat(x[None], 6, 0).astype(np.float32) for x in (*drawn, np.zeros(1))))
    data = laid_out(bags, 6)
    data.target[:n] = y
    for k in range(6):
        data.weight[k, :n] = (fold != k) / (fold != k).sum()
    best, kept = np.inf, None
    for penalty in GATED_PENALTIES:
        data = data._replace(penalty=np.full(6, penalty, np.float32))
        found = minimise(gated_objective, start, data, trips=100, tolerance=1e-3)
        said = np.asarray(_gated_output(found.point, data), float)[:n]
        held = said[np.arange(n), fold]
        loss = float((np.logaddexp(0, held) - y * held).mean())
        if loss < best:
            best, kept = loss, jax.tree.map(lambda x: x[-1:], found.point)

    def say(new: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        laid, ends = laid_out(new, 1), np.cumsum([len(bag) for bag in new])
        parts = np.split(np.asarray(_gated_parts(kept, laid))[: ends[-1], 0], ends[:-1])
        said = np.asarray(_gated_output(kept, laid), float)[: len(new), 0]
        return said, np.array([int(np.argmax(part)) for part in parts])

    return say


_gated_output, _gated_parts = jax.jit(gated_output), jax.jit(gated_parts)

ON_BAGS: dict[str, Callable[..., Fitted]] = {
    "single location": ours_on_bags,
    "SVM on means": svm_on(means),
    "SVM on extremes": svm_on(extremes),
    "forest on means and extremes": forest_on_bags,
    "MI kernel": pooled_similarities(np.add, SVC(kernel="linear", max_iter=20_000)),
    "MILES": pooled_similarities(
        np.maximum, LinearSVC(penalty="l1", dual=False, max_iter=300, random_state=SEED)
    ),
    "gated attention": gated_attention,
}
"""`MI kernel` is a support vector machine with the mean of an RBF kernel over pairs of instances
(Gartner et al. 2002), `MILES` the L1 machine on largest similarities (Chen et al. 2006)."""


ON_LOCATIONS: dict[str, Callable[..., Fitted]] = {
    name: one_by_one(method) for name, method in ON_BAGS.items()
} | {"single location": ours_on_locations, "gated attention": gated_locations}


# --- bits --------------------------------------------------------------------------------------


def sparse(x: np.ndarray, y: np.ndarray) -> SparseAttentionClassifier:
    return SparseAttentionClassifier(random_state=SEED).fit(x, y)


def svm(x: np.ndarray, y: np.ndarray) -> Fitted:
    grid = {"svc__C": [0.1, 1, 10, 100], "svc__gamma": np.array([0.1, 0.3, 1, 3]) / x.shape[1]}
    return (
        GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=folds(y))
        .fit(x, y)
        .decision_function
    )


def forest(x: np.ndarray, y: np.ndarray) -> Fitted:
    """Out-of-bag accuracy chooses."""
    made = [
        RandomForestClassifier(
            300, max_features=share, min_samples_leaf=leaf, oob_score=True, random_state=SEED
        ).fit(x, y)
        for share in ("sqrt", 0.3)
        for leaf in (1, 3)
    ]
    best = max(made, key=lambda model: model.oob_score_)
    return lambda new: best.predict_proba(new)[:, 1] - 0.5


def logistic_l1(x: np.ndarray, y: np.ndarray) -> LogisticRegressionCV:
    model = LogisticRegressionCV(
        Cs=np.geomspace(0.03, 30, 10),
        cv=folds(y),
        l1_ratios=(1.0,),
        solver="liblinear",
        use_legacy_attributes=False,
    )
    return model.fit(x, y)


def tree(x: np.ndarray, y: np.ndarray) -> DecisionTreeClassifier:
    grid = {"max_depth": [1, 2, 3, 5, 8, None], "min_samples_leaf": [1, 3, 5]}
    search = GridSearchCV(DecisionTreeClassifier(random_state=SEED), grid, cv=folds(y))
    return search.fit(x, y).best_estimator_


def cut_finer(x: np.ndarray, y: np.ndarray) -> SparseAttentionClassifier:
    return SparseAttentionClassifier(n_thresholds=3, random_state=SEED).fit(x, y)


def by_tree(x: np.ndarray, y: np.ndarray) -> Fitted:
    best = tree(x, y)
    return lambda new: best.predict_proba(new)[:, 1] - 0.5


ON_BITS: dict[str, Callable[..., Fitted]] = {
    "sparse attention": lambda x, y: sparse(x, y).decision_function,
    "sparse attention, three cuts": lambda x, y: cut_finer(x, y).decision_function,
    "L1 logistic": lambda x, y: logistic_l1(x, y).decision_function,
    "forest": forest,
    "SVM": svm,
    "tree": by_tree,
}

SUPPORTS: dict[str, Callable[..., set[int]]] = {
    "sparse attention": lambda x, y: set(sparse(x, y).support_.tolist()),
    "sparse attention, three cuts": lambda x, y: set(cut_finer(x, y).support_.tolist()),
    "L1 logistic": lambda x, y: set(np.flatnonzero(logistic_l1(x, y).coef_[0]).tolist()),
    "tree": lambda x, y: set(np.flatnonzero(tree(x, y).feature_importances_).tolist()),
}
"""The columns that a fitted method reads; a forest and a machine on distances read all."""


def first_wine() -> tuple[np.ndarray, np.ndarray]:
    """Whether a wine is of the first of three kinds, of 13 numbers."""
    x, y = load_wine(return_X_y=True)
    return x, (y == 0).astype(float)


# --- conditional laws --------------------------------------------------------------------------

LEVELS = np.arange(1, 20) / 20


class Prediction(NamedTuple):
    """At each test row: quantiles at `LEVELS`, mean, the log density of the target, or None where a
    method has none, and the interval for 90 %: the outer quantiles, unless a method has a way of
    its own."""

    quantiles: Float[np.ndarray, "n 19"]
    mean: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " n"] | None
    own: Float[np.ndarray, "n 2"] | None = None

    @property
    def interval(self) -> Float[np.ndarray, "n 2"]:
        return self.quantiles[:, [0, -1]] if self.own is None else self.own


def ours_on_laws(attention: str) -> Callable[..., Fitted]:
    def fit(x: np.ndarray, y: np.ndarray) -> Fitted:
        model = ConditionalMeanRegressor(attention=attention, random_state=SEED).fit(x, y)
        return lambda new, target: Prediction(
            model.predict_quantile(new, LEVELS),
            model.predict(new),
            model.log_density(new, target),
            model.predict_interval(new, 0.9),
        )

    return fit


def normal(mean: np.ndarray, deviation: Any, target: np.ndarray) -> Prediction:
    deviation = np.broadcast_to(deviation, mean.shape)
    return Prediction(
        mean[:, None] + deviation[:, None] * special.ndtri(LEVELS),
        mean,
        stats.norm.logpdf(target, mean, deviation),
    )


def gaussian_process(x: np.ndarray, y: np.ndarray) -> Fitted:
    """Homoscedastic, a bandwidth for each feature, by its evidence, from two starts."""
    kernel = ConstantKernel(1, (1e-2, 1e3)) * RBF(np.ones(x.shape[1]), (1e-2, 1e3)) + WhiteKernel(
        0.1, (1e-5, 10)
    )
    scaler = StandardScaler().fit(x)
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=1, random_state=SEED
    )
    model.fit(scaler.transform(x), y)

    def predict(new: np.ndarray, target: np.ndarray) -> Prediction:
        mean, deviation = model.predict(scaler.transform(new), return_std=True)
        return normal(mean, deviation, target)

    return predict


def quantile_boosting(x: np.ndarray, y: np.ndarray) -> Fitted:
    """One model a level; depth by three folds, by the pinball loss of two levels."""

    def made(level: float, depth: int) -> Any:
        return GradientBoostingRegressor(
            loss="quantile",
            alpha=level,
            max_depth=depth,
            n_estimators=60,
            learning_rate=0.07,
            min_samples_leaf=5,
            random_state=SEED,
        )

    def lost(depth: int) -> float:
        total = 0.0
        for level in (0.1, 0.9):
            held = cross_val_predict(
                made(level, depth), x, y, cv=KFold(3, shuffle=True, random_state=SEED)
            )
            total += float(pinball(held, y, level).mean())
        return total

    depth = min((1, 3), key=lost)
    models = [made(level, depth).fit(x, y) for level in LEVELS]

    def predict(new: np.ndarray, target: np.ndarray) -> Prediction:
        quantiles = np.sort(np.stack([model.predict(new) for model in models], 1), 1)
        return Prediction(quantiles, quantiles.mean(1), None)

    return predict


def quantile_forest(x: np.ndarray, y: np.ndarray) -> Fitted:
    """Quantiles of the training targets with the weights of a forest (Meinshausen 2006); the leaf's
    size by out-of-bag error."""
    made = [
        RandomForestRegressor(300, min_samples_leaf=leaf, oob_score=True, random_state=SEED).fit(
            x, y
        )
        for leaf in (3, 5, 10, 20)
    ]
    best = max(made, key=lambda model: model.oob_score_)
    leaves, order = best.apply(x), np.argsort(y)

    def predict(new: np.ndarray, target: np.ndarray) -> Prediction:
        same = best.apply(new)[:, None, :] == leaves[None]
        weights = (same / same.sum(1, keepdims=True)).mean(-1)
        steps = np.cumsum(weights[:, order], 1)
        quantiles = np.stack(
            [y[order][np.minimum((steps < level - 1e-9).sum(1), len(y) - 1)] for level in LEVELS], 1
        )
        return Prediction(quantiles, weights @ y, None)

    return predict


NGBOOST = """
import sys, numpy as np
from ngboost import NGBRegressor
x, y, new = (np.load(f"{sys.argv[1]}/{name}.npy") for name in ("x", "y", "new"))
made = lambda rounds: NGBRegressor(n_estimators=rounds, learning_rate=0.05, verbose=False,
                                   random_state=0)
held, seen = np.split(np.random.default_rng(0).permutation(len(y)), [len(y) // 4])
laws = made(200).fit(x[seen], y[seen]).staged_pred_dist(x[held])
rounds = 1 + int(np.argmin([-law.logpdf(y[held]).sum() for law in laws]))
law = made(rounds).fit(x, y).pred_dist(new)
np.save(f"{sys.argv[1]}/law.npy", [law.loc, law.scale])
"""
"""Duan et al. 2020, a normal law by trees of depth 3; rounds by a quarter that is held out. Of
training rows, targets and new rows in a folder it makes the means and deviations."""
PEERS = Path(__file__).parents[1] / "build" / "ngboost" / "bin" / "python"


def natural_gradient_boosting(x: np.ndarray, y: np.ndarray) -> Fitted:
    """In the environment of `make bench-data`; the work is that of another process."""

    def predict(new: np.ndarray, target: np.ndarray) -> Prediction:
        with tempfile.TemporaryDirectory() as folder:
            for name, values in {"x": x, "y": y, "new": new}.items():
                np.save(f"{folder}/{name}.npy", values)
            subprocess.run([PEERS, "-c", NGBOOST, folder], check=True)
            mean, deviation = np.load(f"{folder}/law.npy")
            return normal(mean, deviation, target)

    return predict


def pinball(said: np.ndarray, target: np.ndarray, level: Any) -> np.ndarray:
    return np.maximum(level * (target - said), (level - 1) * (target - said))


ON_LAWS: dict[str, Callable[..., Fitted]] = {
    "CME attention": ours_on_laws("cme"),
    "softmax attention": ours_on_laws("softmax"),
    "Gaussian process": gaussian_process,
    "quantile boosting": quantile_boosting,
    "quantile forest": quantile_forest,
    "NGBoost": natural_gradient_boosting,
}
