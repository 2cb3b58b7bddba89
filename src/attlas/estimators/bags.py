r"""Bags of instances of which one decides: regression and classification by heads of softmax
attention, with a companion that reads the whole bag.

A bag is a set of instances with one target, and nobody says which instance the target comes from:
conformations of a molecule, regions of an image, calls in a recording.
`attlas.single_location.bag_mixture.fit_mixture` does the work; Marion et al. 2025 is the theory of
it.
"""

import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit, softmax, xlogy
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    OneToOneFeatureMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from attlas.errors import check_memory
from attlas.estimators.instances import SingleRowsWarning, TowardAClass, of_bags, read_bags
from attlas.estimators.resampling import (
    balanced_folds,
    checked_weight,
    distinct,
    few_threads,
    seed_of,
    warn_once,
)
from attlas.estimators.saving import Saved
from attlas.progress import aloud
from attlas.single_location.bag_heads import Scaling
from attlas.single_location.bag_mixture import Mixture, fit_mixture
from attlas.single_location.bag_starts import moment_ratio
from attlas.single_location.bags import FOLDS, SAME_FUNCTION, Selection, linear_aside


class WeakMomentsWarning(UserWarning):
    """The moments from which the fit begins are no larger than those of shuffled targets."""


class _SingleLocation(Saved, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """What the two estimators share."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "penalty": [None, Interval(Real, 0, None, closed="neither")],
        "n_heads": [None, Interval(Integral, 1, 6, closed="both")],
        "use_norm": ["boolean"],
        "features": [StrOptions({"auto", "linear", "kernel"})],
        "whole": ["boolean", StrOptions({"auto"})],
        "verbose": ["verbose"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }
    _loss: ClassVar[str]

    def __init__(
        self,
        *,
        penalty: float | None = None,
        n_heads: int | None = None,
        use_norm: bool = True,
        features: str = "auto",
        whole: bool | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.penalty = penalty
        self.n_heads = n_heads
        self.use_norm = use_norm
        self.features = features
        self.whole = whole
        self.verbose = verbose
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "mixture_")  # a fit that failed leaves other attributes behind

    # --- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None, bags: Any = None) -> Any:
        """Fit to bags X with one target each.

        Parameters
        ----------
        X : array [bags, instances, features], list of arrays [instances, features], or rows [N,
            features]
            Rows are bags of one instance, unless `bags` says which rows belong together.
        y : one target a bag, or with `bags` one a row, equal within a bag
            With `bags`, bags are in the order in which they first occur.
        sample_weight : one weight a bag, or with `bags` one a row, equal within a bag
        bags : one id a row, of any kind
        """
        self._validate_params()
        instances = self._instances(X, bags, reset=True)
        if bags is None and all(len(bag) == 1 for bag in instances):
            warn_once(
                f"each of the {len(instances):,} rows is taken as a bag of one instance: pass "
                "bags= with the bag of each row, or an array [bags, instances, features], or a "
                "list of arrays",
                SingleRowsWarning,
            )
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        y = self._targets(of_bags("y", y, bags, len(instances)))
        check_consistent_length(instances, y)
        sample_weight = of_bags("sample_weight", sample_weight, bags, len(instances))
        weight, seed = checked_weight(sample_weight, y, "bag"), seed_of(self.random_state)
        weight = weight * self._class_weight(y)
        contents = (x.tobytes() + repr(t).encode() for x, t in zip(instances, y, strict=True))
        rows, weight = distinct(contents, weight, seed)
        kept, target = [instances[i] for i in rows], self._columns(y[rows])
        fold = balanced_folds(list(y[rows]) if self._loss == "logistic" else [0] * len(rows), FOLDS)
        count, dim = sum(map(len, kept)), kept[0].shape[1]
        check_memory(
            f"{count:,} instances with {dim:,} features",
            24 * count * dim,
            ": reduce the features first",
        )
        with few_threads(count), aloud(type(self).__name__, self.verbose):
            self.mixture_: Mixture = fit_mixture(
                kept,
                target,
                loss=self._loss,
                weight=weight,
                fold=fold,
                features=self.features,
                whole=self.whole,
                seed=seed,
                penalty=self.penalty,
                heads=self.n_heads,
                norm=self.use_norm,
                trips=self.max_iter,
                tolerance=self.tol,
            )
            self.n_iter_ = max(1, self.selection_.steps)
            self.selector_ = self.selection_.heads.select
            self.value_ = self.selection_.heads.value
            self.attention_ = self.attention(X, bags=bags)
            # Least squares on 0 and 1 says yes above a half, a logit above 0.
            above = 0.5 if self._loss == "logistic" and target.shape[1] == 1 else 0.0
            linear = linear_aside(kept, target, weight, fold) - above
            self.held_out_score_, self.linear_score_ = (
                float(type(self)._metric(y[rows], self._decided(said), sample_weight=weight))
                for said in (self.mixture_.aside, linear)
            )
            centred = target - target.mean(0)
            lead = np.linalg.svd(centred, full_matrices=False)[2][0]
            laid, _ = Scaling.of(kept, weight)(kept)
            self.moment_ratio_ = moment_ratio(laid, centred @ lead, weight, seed)
        if not np.ptp(target):
            warnings.warn(
                "every bag has the same target: nothing can be learnt but that number", stacklevel=2
            )
        elif self.moment_ratio_ < 1:
            warn_once(
                "the moments of the bags are no larger than those of shuffled targets "
                "(moment_ratio_ below 1): they cannot tell which direction selects, and the fit "
                "rests on other starts; more bags would help",
                WeakMomentsWarning,
            )
        return self

    def _class_weight(self, y: np.ndarray) -> Any:
        return 1.0

    def _instances(self, X: Any, ids: Any, reset: bool = False) -> list[np.ndarray]:
        """The bags as arrays, after scikit-learn has looked at their rows."""
        flat, lengths = read_bags(X, ids)
        least = 2 if reset and not len(lengths) else 1
        flat = validate_data(self, flat, reset=reset, dtype=np.float64, ensure_min_samples=least)
        if reset and len(lengths) == 1:
            raise ValueError("X holds 1 sample, one bag: at least 2 are needed")
        ends = np.cumsum(lengths)[:-1] if len(lengths) else np.arange(1, len(flat))
        return np.split(flat, ends)

    @property
    def selection_(self) -> Selection:
        """The heads, and how their fit went."""
        return self.mixture_.selection

    # --- what was found

    def attention(self, X: Any, bags: Any = None) -> Any:
        """The attention that each instance of a bag gets, averaged over the heads with their
        shares in the output as weights; `selection_.attention` has that of each head.

        Parameters
        ----------
        X, bags : as in `fit`, here and below

        Returns an array [bags, instances] if all have the same length, else a list of arrays.
        """
        check_is_fitted(self)
        shares = self._shares(self._instances(X, bags))
        return np.array(shares) if len({len(w) for w in shares}) == 1 else shares

    def predict_location(self, X: Any, bags: Any = None) -> Int[np.ndarray, " n"]:
        """Which instance of each bag decides, counted from 0 within the bag: the one with the
        largest share of attention."""
        return np.array([int(np.argmax(w)) for w in self.attention(X, bags)])

    def transform(self, X: Any, bags: Any = None) -> Float[np.ndarray, "n d"]:
        """Each bag as one instance: the mean of its instances with their shares of attention; a
        data frame has the ids of `bags` as its index."""
        check_is_fitted(self)
        instances = self._instances(X, bags)
        spoken = np.stack([w @ x for w, x in zip(self._shares(instances), instances, strict=True)])
        if bags is None or _get_output_config("transform", self)["dense"] != "pandas":
            return spoken
        import pandas as pd

        # scikit-learn would take the index of the rows, of which there are more.
        ids = np.asarray(bags)
        return pd.DataFrame(spoken, index=ids[np.sort(np.unique(ids, return_index=True)[1])])

    def _shares(self, instances: list[np.ndarray]) -> list[np.ndarray]:
        return [w @ self.selection_.loudness for w in self.mixture_.attention(instances)]

    def instance_scores(self, X: Any, bags: Any = None) -> Any:
        """What each instance adds to the output of the heads for its bag, [length] or [length, k],
        in the units of `predict` or of the log odds; they sum to that output. One array
        [bags, ...] if all have the same length, else a list."""
        check_is_fitted(self)
        spoken = [self._unscaled(x, 0) for x in self.mixture_.speak(self._instances(X, bags))]
        spoken = [x[:, 0] if x.shape[1] == 1 else x for x in spoken]
        return np.array(spoken) if len({len(x) for x in spoken}) == 1 else spoken

    def _unscaled(self, said: np.ndarray, offset: Any = None) -> np.ndarray:
        """Outputs in the units of the target."""
        return said

    def fit_transform(
        self, X: Any, y: Any = None, sample_weight: Any = None, bags: Any = None
    ) -> Any:
        """`fit`, then `transform` of the same bags."""
        return self.fit(X, y, sample_weight, bags).transform(X, bags)

    def _respond(self, X: Any, ids: Any) -> Float[np.ndarray, "n k"]:
        check_is_fitted(self)
        return self.mixture_.respond(self._instances(X, ids))

    def explain(self, top: int = 3) -> str:
        """What was found, in words: over how many instances attention spreads, which features
        select and which are read (the `top` of each), whether the two could be exchanged, and
        what is gained over the best linear predictor."""
        check_is_fitted(self)
        found, mixed, score = self.selection_, self.mixture_, self._score_name
        shares = self.attention_ if isinstance(self.attention_, list) else list(self.attention_)
        most = np.mean([w.max() for w in shares])
        active = np.mean([np.exp(-xlogy(w, w).sum()) for w in shares])
        length = np.mean([len(w) for w in shares])
        names = getattr(self, "feature_names_in_", None)
        names = [f"feature {i}" for i in range(self.n_features_in_)] if names is None else names
        count = len(found.chosen)
        how = "" if count == 1 else " fitted together" if found.together else " averaged"
        lines = [
            f"{count} {'head' if count == 1 else 'heads'}{how}, from "
            f"{', '.join(dict.fromkeys(found.chosen))}; penalty {found.penalty:.2g}.",
            f"Of {length:.1f} instances a bag, {active:.1f} speak; the loudest has {most:.0%} of "
            "the attention.",
        ]
        lines += self._about_parts()
        loudest = np.argsort(-found.loudness)[: count if found.together else 1]
        if mixed.features is not None:
            loudest = loudest[:0]  # weights of similarities say nothing of features
        for i, head in enumerate(loudest):
            which = f"Head {i + 1}: " if found.together else ""
            value = found.heads.value[head]
            speaks = value[:, 0] if value.shape[1] == 1 else np.linalg.norm(value, axis=1)
            for word, weights in (("Selects", found.heads.select[head]), ("Speaks", speaks)):
                order = np.argsort(-abs(weights))[:top]
                listed = ", ".join(f"{names[i]} ({weights[i]:+.2g})" for i in order)
                lines.append(f"{which}{word}: {listed}, per standard deviation.")
        lines.append(self._about_swap())
        gained = (1 - self.linear_score_) / max(1 - self.held_out_score_, 1e-300)
        lines.append(
            f"Held out, {score} {self.held_out_score_:.3f}; the best linear predictor of the bag's "
            f"mean has {self.linear_score_:.3f}: "
            + (f"{gained:.1f} times the error." if gained > 1 else "nothing is gained over it.")
            + " What is chosen for a bag is chosen by the losses of other folds."
        )
        if not found.settled and mixed.features is None:  # of similarities some are stopped early
            lines.append("The fit was stopped before it settled: raise max_iter.")
        return "\n".join(lines)

    def _about_parts(self) -> list[str]:
        """What instances are seen through, and whether one of them decides or the whole bag."""
        mixed, lines = self.mixture_, []
        losses = [x for name, x in mixed.tried.items() if name.startswith("similarities")]
        if mixed.features is not None:
            lines.append(
                f"Selects and speaks by similarity to {len(mixed.features.centres)} instances, of "
                f"sharpness {mixed.features.sharpness:g} (held-out loss {min(losses):.3g}"
                + (f", linear {mixed.tried['linear']:.3g})." if "linear" in mixed.tried else ").")
            )
        elif losses:
            lines.append(
                f"Linear in the features (held-out loss {mixed.tried['linear']:.3g}): similarities "
                f"to instances are no better ({min(losses):.3g})."
            )
        before, after = (mixed.tried.get(f"{word} the whole") for word in ("without", "with"))
        if mixed.whole is not None:
            one, all_ = mixed.sizes / max(mixed.sizes.sum(), 1e-300)
            verdict = "instances decide" if one > 0.5 else "the whole counts more"
            lines.append(
                f"What is said is {one:.0%} of the deciding instances and {all_:.0%} of the whole "
                f"bag, by its {mixed.whole.summary} (held-out loss {before:.3g} without, "
                f"{after:.3g} with): {verdict}."
            )
        elif after is not None:
            lines.append(
                "The deciding instances say everything: the whole bag adds nothing (held-out loss "
                f"{before:.3g} without, {after:.3g} with)."
            )
        return lines

    def _about_swap(self) -> str:
        """Whether the direction that selects and the one that speaks could have exchanged their
        roles."""
        if self.moment_ratio_ == float("inf"):
            return "Every bag has one instance: nothing selects."
        right, swapped = (self.selection_.starts[name] for name in ("moments", "swapped"))
        begun = "Begun with exchanged roles of what selects and what speaks, "
        if self.selection_.alike > SAME_FUNCTION:
            return begun + "the fit comes to the same function: the solution is not swapped."
        if abs(right - swapped) <= 0.01 * max(abs(right), abs(swapped)):
            return (
                f"{begun}another function fits as well: which of the two selects cannot be told "
                "from these bags."
            )
        names = ("as the moments have them", "exchanged")
        better, worse = names if right < swapped else names[::-1]
        low, high = sorted((right, swapped))
        return (
            f"The roles of what selects and what speaks fit better {better} (loss {low:.3g}) than "
            f"{worse} ({high:.3g}): the better is kept, and the solution is not swapped."
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None, bags: Any = None) -> float:
        """R² of the predictions of a regressor, the accuracy of those of a classifier."""
        said = self.predict(X, bags)
        y = of_bags("y", y, bags, len(said))
        weight = of_bags("sample_weight", sample_weight, bags, len(said))
        return float(type(self)._metric(y, said, sample_weight=weight))

    _score_name: ClassVar[str]
    _metric: ClassVar[Callable[..., float]]
    _targets: Callable[[Any], np.ndarray]
    """One number for each bag, or k, from what was passed as y."""
    _columns: Callable[[np.ndarray], np.ndarray]
    """Targets of the fit [n, k]."""
    _decided: Callable[[np.ndarray], np.ndarray]
    """What outputs [n, k] say of the numbers."""


class SingleLocationRegressor(RegressorMixin, _SingleLocation):
    r"""Regression on bags of which one instance decides.

    $\hat y = b + \sum_l p_l\langle x_l, v\rangle$ with
    $p = \mathrm{softmax}_l(\langle x_l, u\rangle + q|x_l|^2)$: a head of attention that selects by
    $u$ and reads by $v$. Features are standardised; starts come from moments; five folds
    choose the penalty $\lambda(|u|^2 + q^2 + |v|^2)$ and the number of heads.

    Bags held out decide whether instances are seen as they are or through similarities to 128 of
    them, for scores and values that are not linear, and whether a predictor of the whole bag is
    added: kernel ridge regression on the mean of the bag, its extremes, or both. `explain()`
    says which part decided. With fewer than 20 bags there is one linear head and nothing else.

    Do not use it with fewer than some tens of bags, or where a count of instances decides.

    Parameters
    ----------
    penalty : float or None
        $\lambda$; chosen by five folds if None.
    n_heads : int or None
        The largest number of heads: folds decide between one, several from different starts
        averaged, and several fitted together, each to what the others leave. If None, at most three
        averaged or four together.
    use_norm : bool
        Whether the square norm of an instance may select too.
    features : "auto", "linear" or "kernel"
        What scores and values are linear in: the features of an instance, or its similarities to
        others; "auto": similarities if they lower the held-out loss by 2 %.
    whole : "auto", True or False
        Whether to add the predictor of the whole bag; "auto": if the held-out loss falls by 2 %.
    max_iter, tol : of L-BFGS, for each start.
    random_state : of the folds, of two random starts and of the centres of similarities.
    verbose : bool
        Whether a line is printed after each part of the fit.

    Attributes
    ----------
    selector_ [heads, features], value_ [heads, features, outputs] : the two directions, per
        standard deviation of a feature, or of a similarity where these are seen.
    mixture_ : the parts, their shares, and the held-out loss of everything that was tried.
    attention_ : shares of the instances of the training bags.
    held_out_score_, linear_score_ : R² on bags held out, and that of the best linear predictor of
        the bag's mean. A bag's predictor is chosen without its fold: noise scores as noise.
    moment_ratio_ : the moment's size over that for shuffled targets; below 1 the moments tell
        nothing, and a warning says so.
    selection_ : the heads, and how their fit went.

    Examples
    --------
    >>> import numpy as np
    >>> from attlas.estimators import SingleLocationRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 5, 4))
    >>> place = rng.integers(5, size=300)
    >>> X[np.arange(300), place, 0] += 5
    >>> y = X[np.arange(300), place, 1]
    >>> model = SingleLocationRegressor(random_state=0).fit(X, y)
    >>> bool((model.predict_location(X) == place).mean() > 0.9)
    True
    """

    _loss = "squared"
    _score_name = "R²"
    score = _SingleLocation.score  # scikit-learn's mixin has one without `bags`
    _metric = staticmethod(r2_score)

    def predict(self, X: Any, bags: Any = None) -> Float[np.ndarray, " n"]:
        """The target of each bag, or its k targets."""
        return self._decided(self._respond(X, bags))

    def _targets(self, y: Any) -> np.ndarray:
        y = np.asarray(y)
        if y.ndim != 2 or y.shape[1] < 2:
            y = column_or_1d(y, warn=True)
        if y.dtype.kind not in "biuf":
            y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise ValueError(
                "Input y contains NaN or infinity: every target must be a finite number."
            )
        return y.astype(np.float64)

    def _columns(self, y: np.ndarray) -> np.ndarray:
        """Several targets count alike, whatever their units."""
        if y.ndim == 1:
            self.centres_, self.units_ = np.zeros(1), np.ones(1)
            return y[:, None]
        self.centres_, spread = y.mean(0), y.std(0)
        self.units_ = np.where(spread > 0, spread, 1)
        return (y - self.centres_) / self.units_

    def _unscaled(self, said: np.ndarray, offset: Any = None) -> np.ndarray:
        return said * self.units_ + (self.centres_ if offset is None else offset)

    def _decided(self, said: np.ndarray) -> np.ndarray:
        said = self._unscaled(said)
        return said[:, 0] if said.shape[1] == 1 else said


class SingleLocationClassifier(TowardAClass, ClassifierMixin, _SingleLocation):
    r"""Classification of bags by the one instance that decides.

    As `SingleLocationRegressor`, with the logistic loss: the log odds are
    $b + \sum_l p_l\langle x_l, v\rangle$; with three classes or more, each class has its own $v$
    and all share the selection.

    Probabilities are calibrated on bags held out; with `class_weight` they are of weighted classes.

    Do not use it with fewer than some tens of bags, or where a count of instances decides.

    Parameters
    ----------
    class_weight : dict, "balanced" or None
        Weights of the classes, which multiply those of bags.
    penalty, n_heads, use_norm, features, whole, max_iter, tol, random_state, verbose : as in
        `SingleLocationRegressor`.

    Attributes as there; `held_out_score_` and `linear_score_` are accuracies; `value_` is [heads,
    features, 1 or classes].

    Examples
    --------
    >>> import numpy as np
    >>> from attlas.estimators import SingleLocationClassifier
    >>> rng = np.random.default_rng(0)
    >>> bags = [rng.normal(size=(rng.integers(2, 9), 3)) for _ in range(200)]
    >>> y = np.array(["no", "yes"])[[int(bag[:, 0].max() > 1.4) for bag in bags]]
    >>> model = SingleLocationClassifier(random_state=0).fit(bags, y)
    >>> bool(model.score(bags, y) > 0.9)
    True
    """

    _loss = "logistic"
    _score_name = "accuracy"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_SingleLocation._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        *,
        penalty: float | None = None,
        n_heads: int | None = None,
        use_norm: bool = True,
        features: str = "auto",
        whole: bool | str = "auto",
        class_weight: Any = None,
        max_iter: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            penalty=penalty,
            n_heads=n_heads,
            use_norm=use_norm,
            features=features,
            whole=whole,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def _class_weight(self, y: np.ndarray) -> Any:
        return compute_sample_weight(self.class_weight, self.classes_[y])

    score = _SingleLocation.score  # scikit-learn's mixin has one without `bags`
    _metric = staticmethod(accuracy_score)

    def decision_function(self, X: Any, bags: Any = None) -> np.ndarray:
        """Log odds of the second of two classes, or one logit for each of more."""
        said = self._respond(X, bags)
        return said[:, 0] if said.shape[1] == 1 else said

    def predict_proba(self, X: Any, bags: Any = None) -> Float[np.ndarray, "n classes"]:
        """The probability of each class."""
        logits = self.decision_function(X, bags)
        if logits.ndim == 2:
            return softmax(logits, axis=1)
        return np.stack([expit(-logits), expit(logits)], 1)

    def predict(self, X: Any, bags: Any = None) -> np.ndarray:
        """The class of each bag."""
        chosen = self._decided(self._respond(X, bags))  # which says so where it is not fitted
        return self.classes_[chosen]

    def _targets(self, y: Any) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds one class, {self.classes_.tolist()[0]!r}: a classifier needs at least 2 "
                "classes"
            )
        return labels

    def _columns(self, y: np.ndarray) -> np.ndarray:
        if len(np.unique(y)) < 2:
            raise ValueError(
                "y holds one class among the bags with weight: a classifier needs at least 2 "
                "classes"
            )
        if len(self.classes_) == 2:
            return y[:, None].astype(float)
        return (y[:, None] == np.arange(len(self.classes_))).astype(float)

    def _decided(self, said: np.ndarray) -> np.ndarray:
        return (said[:, 0] > 0).astype(int) if said.shape[1] == 1 else said.argmax(1)
