r"""Kernels, and attention that conditions: the conditional mean embedding (CME) of the values given the keys.

$$\mathrm{CME}(q; K, V) = V^\top (G + \text{ridge}\, I)^{-1} g_q, \qquad G_{ij} = k(k_i, k_j),\quad (g_q)_i = k(k_i, q).$$

It is kernel ridge regression of values on keys, the mean of a Gaussian process, and, for $v = z\,\phi(k) + \text{noise}$ with a
Gaussian $z$, the exact predictive mean (Zhang et al. 2022). `ridge` is everywhere that of the Gram matrix; Bayes' value is the
variance of the noise over that of the prior, and the ridge of the covariance operator is `ridge / length`.

A kernel is a function from points [*s n d] and [*s m d] to [*s n m]: one of those below, or the caller's own. `cme_attention`,
`cme_weights` and `cme_variance` are exact, differentiable and batched over leading axes (sequences, heads). `fit_cme` conditions
on one long context, exactly or approximately, and says what it did and how far off it may be.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.core import Tracer
from jaxtyping import Array, Float, Shaped

from attlas.errors import InputError, near, positive, whole
from attlas.gaussian import Real

Kernel = Callable[[Any, Any], Array]
"""From points [*s n d] and [*s m d] to the matrix [*s n m] of their kernel; symmetric and positive semi-definite."""

Numbers = Array | np.ndarray
Rows = Shaped[Numbers, "..."]
"""Queries [*s q d], keys [*s n d] or values [*s n k]; that they fit is checked, and said, by the functions."""


def _parameter(value: Any) -> Any:
    """Numbers as NumPy's: JAX would round them to single precision here, and a compiled program would hold them fixed."""
    return value if isinstance(value, jax.Array) else np.asarray(value, float)


def _products(x: Numbers, y: Numbers) -> Array:
    return jnp.asarray(x) @ jnp.swapaxes(y, -1, -2)


class _Tempered(eqx.Module):
    temperature: Any = eqx.field(converter=_parameter)

    def __check_init__(self) -> None:
        positive("temperature", self.temperature)

    def _over(self, x: Array) -> Array:
        """`x` [*s n m] over the temperature, which may differ between leading axes."""
        return x / jnp.asarray(self.temperature, x.dtype)[..., None, None]


class Exponential(_Tempered):
    r"""$e^{(\langle x, y\rangle - 1)/\text{temperature}}$, the kernel of softmax attention, scaled to 1 at $x = y$ on the sphere, where it
    equals `RBF`. Without the scale, $e^{\langle x, y\rangle/\text{temperature}}$ needs a ridge $e^{1/\text{temperature}}$ times as large."""

    def __call__(self, x: Numbers, y: Numbers) -> Array:
        return jnp.exp(self._over(_products(x, y) - 1))


class RBF(_Tempered):
    r"""$e^{-|x - y|^2 / (2\,\text{temperature})}$: the temperature is the squared bandwidth."""

    def __call__(self, x: Numbers, y: Numbers) -> Array:
        squares = (
            jnp.sum(x**2, -1)[..., :, None] + jnp.sum(y**2, -1)[..., None, :] - 2 * _products(x, y)
        )
        return jnp.exp(-self._over(jnp.maximum(squares, 0)) / 2)


class Polynomial(eqx.Module):
    r"""$(\langle x, y\rangle + \text{offset})^{\text{degree}}$."""

    degree: int = eqx.field(static=True, default=2)
    offset: Any = eqx.field(converter=_parameter, default=1.0)

    def __check_init__(self) -> None:
        whole("degree", self.degree, 1)

    def __call__(self, x: Numbers, y: Numbers) -> Array:
        products = _products(x, y)
        return (products + jnp.asarray(self.offset, products.dtype)) ** self.degree


class Linear(eqx.Module):
    r"""$\langle x, y\rangle$: Bayesian linear regression."""

    def __call__(self, x: Numbers, y: Numbers) -> Array:
        return _products(x, y)


def cme_attention(
    queries: Rows,
    keys: Rows,
    values: Rows,
    *,
    ridge: Real,
    kernel: Kernel,
    mask: Rows | None = None,
    clip: Real | Literal["values"] | None = None,
) -> Float[Array, "*s q k"]:
    r"""$V^\top(G + \text{ridge}\,I)^{-1}g_q$ for each query, the conditional mean of the values as the kernel sees it.

    `ridge` [*s] and the kernel's temperature [*s] may differ between sequences or heads. A token outside `mask` [*s n] is as if it
    were not there, whatever it holds. Weights are signed and their sum of sizes grows as $\sqrt{n/(4\,\text{ridge})}$ off the
    support of the keys: `clip` brings the mean back, a number onto the ball of that radius (which never adds error where the true
    mean lies in it), "values" into the range of the context's values, coordinate by coordinate.
    Zhang et al. 2022; `fit_cme` serves contexts of more than some thousands of tokens.
    """
    _usable(kernel)
    queries, keys, values, mask = _checked(queries, keys, values, mask)
    if mask is not None:
        values = jnp.where(mask[..., None], values, 0)
    cross, factor = _conditioned(kernel, queries, keys, ridge, mask)
    mean = cross @ _solve(factor, values)
    if clip is None:
        return mean
    if isinstance(clip, str):
        if clip != "values":
            raise InputError(f"clip = {clip!r}: it must be a positive number or 'values'")
        seen = True if mask is None else mask[..., None]
        low, high = (
            f(values, -2, keepdims=True, where=seen, initial=end)
            for f, end in ((jnp.min, jnp.inf), (jnp.max, -jnp.inf))
        )
        return jnp.clip(mean, low, high)
    square = jnp.sum(mean**2, -1, keepdims=True)
    size = jnp.sqrt(jnp.where(square > 0, square, 1))  # whose gradient at 0 is finite
    return mean * jnp.where(square > positive("clip", clip) ** 2, clip / size, 1)


def cme_weights(
    queries: Rows,
    keys: Rows,
    *,
    ridge: Real,
    kernel: Kernel,
    mask: Rows | None = None,
    law: bool = False,
) -> Float[Array, "*s q n"]:
    r"""$(G + \text{ridge}\,I)^{-1}g_q$ for each query: what each token counts for. These weights are signed and need not sum to 1; with `law`
    the negative ones are dropped and the rest scaled to sum to 1, which makes them a conditional law of the values."""
    queries, keys, _, mask = _checked(queries, keys, None, mask)
    cross, factor = _conditioned(kernel, queries, keys, ridge, mask)
    weights = jnp.swapaxes(_solve(factor, jnp.swapaxes(cross, -1, -2)), -1, -2)
    if not law:
        return weights
    kept = jnp.maximum(weights, 0)
    total = kept.sum(-1, keepdims=True)
    return kept / jnp.where(total > 0, total, 1)


def cme_variance(
    queries: Rows,
    keys: Rows,
    *,
    ridge: Real,
    kernel: Kernel,
    prior: Real = 1.0,
    mask: Rows | None = None,
    joint: bool = False,
) -> Float[Array, "*s q"] | Float[Array, "*s q q"]:
    r"""Predictive variance of each coordinate of a value at each query, $\tau^2[\text{ridge} + k(q, q) - g_q^\top(G + \text{ridge}\,I)^{-1}g_q]$, where
    $\tau^2$ is `prior` and $\tau^2\,\text{ridge}$ the variance of the noise; without its first term, that of the conditional mean itself.

    Coordinates are independent. With `joint`, the covariance of new values at all queries, [*s q q].
    """
    queries, keys, _, mask = _checked(queries, keys, None, mask)
    cross, factor = _conditioned(kernel, queries, keys, ridge, mask)
    known = jax.lax.linalg.triangular_solve(
        factor, cross, left_side=False, lower=True, transpose_a=True
    )
    prior = jnp.asarray(positive("prior", prior))[..., None]
    noise = jnp.asarray(ridge)[..., None]
    if joint:
        spread = kernel(queries, queries) - _products(known, known)
        return prior[..., None] * (spread + noise[..., None] * jnp.eye(spread.shape[-1]))
    return prior * (noise + _diagonal(kernel, queries) - jnp.sum(known**2, -1))


def _diagonal(kernel: Kernel, points: Numbers) -> Array:
    """k(x, x) of each point, [*s n]."""
    return jax.vmap(lambda x: kernel(x[..., None, :], x[..., None, :])[..., 0, 0], -2, -1)(points)


@eqx.filter_jit
def _system(
    kernel: Kernel, queries: Numbers, keys: Numbers, ridge: Numbers, mask: Numbers | None
) -> tuple[Array, Array]:
    gram, cross = kernel(keys, keys), kernel(queries, keys)
    lift = jnp.broadcast_to(ridge[..., None], gram.shape[:-1])
    if mask is not None:
        gram = jnp.where(mask[..., :, None] & mask[..., None, :], gram, 0)
        cross = jnp.where(mask[..., None, :], cross, 0)
        lift = jnp.where(mask, lift, 1)  # any pivot will do for a token that nothing sees
    return cross, jnp.linalg.cholesky(
        gram + lift[..., None] * jnp.eye(gram.shape[-1], dtype=gram.dtype)
    )


def _conditioned(
    kernel: Kernel, queries: Numbers, keys: Numbers, ridge: Real, mask: Numbers | None
) -> tuple[Float[Array, "*s q n"], Float[Array, "*s n n"]]:
    r"""$g$ for each query, and the lower factor of $G + \text{ridge}\,I$."""
    if mask is not None:  # before the kernel, lest a gradient meet what a padded token holds
        keys = jnp.where(mask[..., None], keys, 0)
    ridge = _ridge(ridge)
    cross, factor = _system(kernel, queries, keys, jnp.asarray(ridge, keys.dtype), mask)
    wanted = (*queries.shape[:-1], keys.shape[-2])
    if cross.shape != wanted:
        raise InputError(
            f"the kernel gives the shape {cross.shape}: it must be {wanted}, queries by keys"
        )
    if not isinstance(factor, Tracer):
        pivots = np.diagonal(np.asarray(factor), axis1=-2, axis2=-1)
        pivots = pivots if mask is None else np.where(mask, pivots, pivots.max(-1, keepdims=True))
        _definite(pivots, ridge)
    return cross, factor


def _solve(factor: Array, right: Numbers) -> Array:
    return jax.scipy.linalg.cho_solve((factor, True), right)


def _ridge(ridge: Real) -> Real:
    if isinstance(ridge, Tracer):
        return ridge
    try:
        numbers = np.asarray(ridge, float)
    except (TypeError, ValueError) as error:
        raise InputError(f"ridge = {ridge!r}: it must be a number, 0 or more") from error
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= 0))]
    if wrong.size:
        raise InputError(
            f"ridge = {wrong[0]:g}: it must be a number, 0 or more, and 0 only where no key's kernel is a combination of the others'"
        )
    return ridge


def _definite(pivots: np.ndarray, ridge: Real) -> None:
    """Refuse a factor [..., n] that failed, or that rounding alone has carried through where there is no ridge."""
    pivots = np.atleast_2d(pivots)
    least, most = pivots.min(-1), pivots.max(-1)
    bare = np.broadcast_to(
        np.asarray(ridge) == 0 if not isinstance(ridge, Tracer) else False, least.shape
    )
    if np.any(bare & ~(least**2 > pivots.shape[-1] * np.finfo(pivots.dtype).eps * most**2)):
        raise InputError(
            "ridge = 0: the Gram matrix of the keys is singular, so that ridge must be positive"
        )
    if not np.isfinite(least).all():
        raise InputError(
            f"ridge = {np.min(np.asarray(ridge)):g}: the Gram matrix with it is not positive definite in {pivots.dtype}; ridge must be larger,"
            " or the kernel is not positive semi-definite"
        )


def _checked(queries: Any, keys: Any, values: Any, mask: Any) -> tuple[Array, Array, Any, Any]:
    """The arrays, broadcast to one set of leading axes, once they are seen to fit."""
    named = {"queries": queries, "keys": keys} | ({} if values is None else {"values": values})
    arrays = {name: jnp.asarray(x) for name, x in named.items()}
    for name, x in arrays.items():
        if x.ndim < 2 or 0 in x.shape[-2:]:
            what = (
                "the context is empty"
                if name == "keys" and x.ndim > 1 and x.shape[-2] == 0
                else "it must be rows of numbers"
            )
            raise InputError(f"{name} has the shape {x.shape}: {what}")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            arrays[name] = x.astype(float)
    queries, keys, values = arrays["queries"], arrays["keys"], arrays.get("values")
    if queries.shape[-1] != keys.shape[-1]:
        raise InputError(
            f"queries have the width {queries.shape[-1]} and keys {keys.shape[-1]}: they must be equal"
        )
    length = keys.shape[-2]
    if values is not None and values.shape[-2] != length:
        raise InputError(
            f"there are {values.shape[-2]} values and {length} keys: there must be one value for each key"
        )
    if mask is not None and (jnp.ndim(mask) == 0 or jnp.shape(mask)[-1] != length):
        raise InputError(
            f"the mask has the shape {jnp.shape(mask)}: its last axis must be {length} long, one for each token"
        )
    try:
        leading = jnp.broadcast_shapes(
            *(x.shape[:-2] for x in arrays.values()), () if mask is None else jnp.shape(mask)[:-1]
        )
    except ValueError as error:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
        raise InputError(
            f"the leading axes of {shapes} do not fit: they must be equal, or 1"
        ) from error
    if mask is not None:
        mask = jnp.broadcast_to(jnp.asarray(_boolean(mask), bool), (*leading, length))
        if not isinstance(mask, Tracer) and not np.asarray(mask).any(-1).all():
            raise InputError(
                "the mask admits no token: it must admit at least one of each sequence"
            )
    arrays = {name: jnp.broadcast_to(x, (*leading, *x.shape[-2:])) for name, x in arrays.items()}
    for name, x in arrays.items():
        if not isinstance(x, Tracer) and not isinstance(mask, Tracer):
            _finite(
                name, np.asarray(x), None if mask is None or name == "queries" else np.asarray(mask)
            )
    return arrays["queries"], arrays["keys"], arrays.get("values"), mask


def _boolean(mask: Any) -> Any:
    """A mask of truth values; one that is added to scores, 0 and minus infinity, would say the contrary."""
    if not isinstance(mask, Tracer) and not np.isin(np.asarray(mask), (0, 1)).all():
        raise InputError(
            "the mask has other entries than true and false: it must be true where a token counts (of one that is added to scores, mask == 0)"
        )
    return mask


def _usable(kernel: Any) -> None:
    if not callable(kernel) or isinstance(kernel, type):
        raise InputError(
            f"kernel = {kernel!r}: it must be a function of two sets of rows, such as RBF(1.0)"
        )


def _finite(name: str, x: np.ndarray, mask: np.ndarray | None = None) -> None:
    good = np.isfinite(x).all(-1)
    bad = np.argwhere(~good if mask is None else ~good & mask)
    if len(bad):
        where = ", ".join(map(str, bad[0]))
        raise InputError(
            f"{name} has a NaN or an infinity in row {where}: all numbers must be finite"
        )


METHODS = ("auto", "exact", "nystrom", "conjugate")
ROWS = 4096
"""Tokens whose kernel is held at a time."""
SAMPLE, POOL = 128, 4096
"""Keys drawn at random: those at which the error is estimated, and, apart from them, those among which centres are chosen."""
MOST = 2048
"""Centres at most, unless the caller asks for more."""
CUT = 1e-12
"""Share of the largest pivot below which what is left of a kernel matrix is rounding."""
SHORT, LONGEST = 5_000, 200_000
"""Tokens up to which "auto" solves exactly at once, which takes a second or so, and up to which it uses conjugate gradients, each step of
which computes the kernel of all pairs."""
REFINEMENTS = 3
"""Corrections at most of the solution on the centres; none is needed unless the ridge is minute."""


@dataclass(frozen=True)
class CME:
    r"""The conditional mean of values given keys, $\hat m(q) = \sum_j k(q, z_j)\,c_j$, conditioned on one context by `fit_cme`.

    `error` estimates how far $\hat m$ is from the exact CME: the root mean square of $V - (G + \text{ridge}\,I)\alpha$ over a random sample of
    keys, as a share of that of the values, with $\alpha = (V - \hat m(K)) / \text{ridge}$ (or the coefficients themselves). Over all keys this
    bounds the root mean square of the difference at the keys, rounding included, because the two differ by a matrix whose norm is at
    most 1; queries far from every key are not covered. `reached` says whether it met the tolerance that was asked for.
    """

    kernel: Kernel
    ridge: float
    centres: Float[np.ndarray, "m d"] = field(repr=False)
    coefficients: Float[np.ndarray, "m k"] = field(repr=False)
    method: str
    error: float
    tolerance: float
    basis: Float[np.ndarray, "b d"] = field(repr=False)
    triangle: Float[np.ndarray, "b b"] | None = field(repr=False)
    factor: Float[np.ndarray, "b b"] = field(repr=False)
    residuals: tuple[float, ...] = ()
    """Of conjugate gradients, before each step and after the last, as shares of the root mean square of the values."""

    @property
    def reached(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        way = {
            "exact": f"exactly, by a Cholesky factor of {len(self.centres):,} tokens",
            "nystrom": f"by Nystrom's method with {len(self.basis):,} centres",
            "conjugate": f"by {len(self.residuals) - 1} conjugate gradients, preconditioned by {len(self.basis):,} centres",
        }[self.method]
        verdict = "within" if self.reached else "which misses"
        return f"solved {way}; estimated error {self.error:.1e}, {verdict} the tolerance {self.tolerance:g}"

    def mean(self, queries: Rows) -> Float[np.ndarray, "q k"]:
        """The conditional mean at each query."""
        with jax.enable_x64(True):
            return _apply(self.kernel, self._queries(queries), self.centres, self.coefficients)

    def variance(self, queries: Rows, prior: float = 1.0) -> Float[np.ndarray, " q"]:
        """Predictive variance of a value at each query, as `cme_variance` has it. After Nystrom's method and conjugate gradients it is that of
        the model in which the kernel of two keys is what the centres say of it, and a query's own is exact."""
        queries, prior = self._queries(queries), positive("prior", prior)
        with jax.enable_x64(True):
            own = np.asarray(_own(self.kernel, queries))
            cross = _matrix(self.kernel, queries, self.basis).T
        if self.triangle is None:
            known = np.sum(_under(self.factor, cross) ** 2, 0)
        else:
            features = _under(self.triangle, cross)
            known = np.sum(features**2 - self.ridge * _under(self.factor, features) ** 2, 0)
        return prior * (self.ridge + own - known)

    def weights(self, queries: Rows, keys: Rows) -> Float[np.ndarray, "q n"]:
        """What each of the context's `keys` counts for, as `cme_weights` has it, without solving again. After Nystrom's method and conjugate
        gradients it is that of the model in which the kernel of two keys is what the centres say of it."""
        queries, keys = self._queries(queries), self._queries(keys)
        with jax.enable_x64(True):
            cross = _matrix(self.kernel, queries, self.basis).T
            if self.triangle is None:
                return _solve_with(self.factor, cross).T
            inner = _under(
                self.triangle,
                _solve_with(self.factor, _under(self.triangle, cross)),
                transpose=True,
            )
            return _apply(self.kernel, keys, self.basis, inner).T

    def _queries(self, queries: Any) -> np.ndarray:
        queries = np.asarray(queries, float)
        if queries.ndim != 2 or queries.shape[1] != self.centres.shape[1]:
            raise InputError(
                f"queries has the shape {queries.shape}: it must be rows of {self.centres.shape[1]} numbers"
            )
        _finite("queries", queries)
        return queries


def _under(triangle: np.ndarray, right: np.ndarray, transpose: bool = False) -> np.ndarray:
    """T^-1 right, or with the transpose of the lower triangle T."""
    return scipy.linalg.solve_triangular(
        triangle, right, lower=True, trans=int(transpose), check_finite=False
    )


def fit_cme(
    keys: Rows,
    values: Rows,
    *,
    ridge: float,
    kernel: Kernel,
    mask: Rows | None = None,
    method: str = "auto",
    tolerance: float = 1e-3,
    centres: int | None = None,
    memory: float = 1.5e9,
    iterations: int = 100,
    seed: int = 0,
) -> CME:
    r"""CME attention conditioned on one context of any length, to be asked at any queries.

    - "exact": Cholesky; $n^3/3$ operations and one matrix [n n].
    - "nystrom": functions in the span of `centres` keys, chosen among `POOL` drawn at random by a Cholesky factor with pivots, cut off
      where the rest is rounding; $n\,\text{centres}^2$ operations. Without `centres`, about as many as `tolerance` asks for.
    - "conjugate": conjugate gradients on $G + \text{ridge}\,I$, whose products compute the kernel of all pairs and store none,
      preconditioned by the Nystrom approximation, until the residual is within `tolerance` or after `iterations`.
    - "auto": exact up to `SHORT` tokens; beyond, Nystrom; and where that misses `tolerance`, exact if its matrix fits in
      `memory` (bytes), else conjugate gradients up to `LONGEST` tokens.

    `tolerance` and the estimate `CME.error` are shares of the root mean square of the values. For keys in single precision the Gram matrix of
    all pairs is computed in it; vectors and whatever is whitened, which would magnify rounding, stay in double precision.
    """
    _usable(kernel)
    keys, values, ridge = _context(keys, values, ridge, mask)
    positive("tolerance", tolerance)
    if method not in METHODS:
        raise InputError(
            f"method = {method!r}: it must be one of {', '.join(METHODS)}.{near(method, METHODS)}"
        )
    if method in ("nystrom", "conjugate"):
        positive("ridge", ridge)
    if centres is not None:
        whole("centres", centres, 1)
    draw = np.random.default_rng(whole("seed", seed, 0)).permutation(len(keys))
    apart = SAMPLE if len(keys) > 4 * SAMPLE else 0  # a short context is sampled whole
    task = _Task(
        kernel,
        keys,
        values,
        ridge,
        tolerance,
        draw[:SAMPLE] if apart else draw,
        draw[apart:][:POOL],
    )
    auto = method == "auto"
    with jax.enable_x64(True):
        if method == "exact" or (auto and len(keys) <= SHORT):
            return task.exact()
        rough = task.nystrom(centres, max(tolerance, 0.1) if method == "conjugate" else tolerance)
        if method == "nystrom" or (auto and rough.reached):
            return rough
        if auto and len(keys) ** 2 * keys.itemsize <= memory:
            return task.exact()
        return (
            rough
            if auto and len(keys) > LONGEST
            else task.conjugate(rough, whole("iterations", iterations, 1))
        )


@dataclass(frozen=True)
class _Task:
    """One context to be solved, each method a way to do so. Everything runs in a scope of double precision."""

    kernel: Kernel
    keys: np.ndarray
    values: np.ndarray
    ridge: float
    tolerance: float
    sample: np.ndarray
    pool: np.ndarray

    @property
    def scale(self) -> float:
        return float(np.sqrt(np.mean(self.values**2))) or 1.0

    @functools.cached_property
    def fine(self) -> np.ndarray:
        return self.keys.astype(float)

    def exact(self) -> CME:
        length = len(self.keys)
        gram = np.empty((length, length), self.keys.dtype)
        for rows in _blocks(length):
            gram[rows] = _matrix(self.kernel, self.keys[rows], self.keys)
        gram[np.diag_indices(length)] += self.ridge
        try:  # the transpose of a symmetric matrix is the column-major one that LAPACK overwrites in place
            factor, _ = scipy.linalg.cho_factor(
                gram.T, lower=True, overwrite_a=True, check_finite=False
            )
        except np.linalg.LinAlgError:
            factor = np.full((1, 1), np.nan, gram.dtype)
        _definite(np.diagonal(factor), self.ridge)
        alpha = _solve_with(factor, self.values.astype(gram.dtype)).astype(float)
        return self.result(
            alpha,
            method="exact",
            centres=self.fine,
            coefficients=alpha,
            basis=self.fine,
            triangle=None,
            factor=factor,
        )

    def spread(self) -> tuple[np.ndarray, np.ndarray]:
        r"""Keys $Z$ of the pool, each the one about which those before it say least, and the factor of $k(Z, Z) = TT^\top$ (Cholesky with
        pivots). It ends where what is left is rounding: there one key more would make $k(Z, Z)$ singular."""
        pool = self.fine[self.pool]
        gram = _matrix(self.kernel, pool, pool)
        if (
            not np.isfinite(gram).all()
            or not (gram.diagonal() >= 0).all()
            or not gram.diagonal().any()
        ):
            raise InputError(
                "the kernel of a key with itself is not a positive number, or some other is not finite: it must be positive semi-definite"
            )
        factor, order, rank, _ = scipy.linalg.lapack.dpstrf(
            gram.T, tol=CUT * gram.diagonal().max(), lower=1
        )
        return pool[order[:rank] - 1], np.tril(factor[:rank, :rank])

    def enough(self, pivots: np.ndarray, tolerance: float) -> int:
        r"""How many centres should make the error `tolerance`: the first $m$ with $\sqrt{n/m}\,p_{m+1} / \text{ridge} \le 3\,\text{tolerance}$, as if what
        the centres leave of the kernel were the next pivot $p_{m+1}$ among the $n/m$ nearest tokens, and the values noise; measured errors
        are a fourth to an eighth of that."""
        counts = np.arange(32, min(MOST, len(pivots)), 32)
        rest = np.sqrt(len(self.keys) / counts) * pivots[counts] / self.ridge
        return int(next(iter(counts[rest <= 3 * tolerance]), min(MOST, len(pivots))))

    def nystrom(self, count: int | None, tolerance: float) -> CME:
        r"""With features $F = k(K, Z)T^{-\top}$: $\hat m = F y$ and $(F^\top F + \text{ridge}\,I)y = F^\top V$."""
        centres, triangle = self.spread()
        count = min(len(centres), count or self.enough(np.diagonal(triangle) ** 2, tolerance))
        centres, triangle = centres[:count], triangle[:count, :count]
        whiten = _under(triangle, np.eye(count)).T
        square, right = self.ridge * np.eye(count), np.zeros((count, self.values.shape[1]))
        for rows in _blocks(len(self.keys)):
            features = _matrix(self.kernel, self.fine[rows], centres) @ whiten
            square += features.T @ features
            right += features.T @ self.values[rows]
        factor = scipy.linalg.cholesky(square, lower=True, check_finite=False)
        y = _solve_with(factor, right)
        for _ in range(REFINEMENTS):
            alpha, back = self._rest(centres, _under(triangle, y, transpose=True))
            step = self.ridge * _solve_with(factor, _under(triangle, back) - y)
            if np.linalg.norm(step) <= 1e-8 * np.linalg.norm(y):
                break
            y += step
        return self.result(
            alpha,
            method="nystrom",
            centres=centres,
            coefficients=_under(triangle, y, transpose=True),
            basis=centres,
            triangle=triangle,
            factor=factor,
        )

    def _rest(self, centres: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""$\alpha = (V - k(K, Z)c) / \text{ridge}$ and $k(Z, K)\alpha$, in double precision."""
        alpha, back = np.empty_like(self.values), np.zeros_like(coefficients)
        for rows in _blocks(len(self.keys)):
            block = _matrix(self.kernel, self.fine[rows], centres)
            alpha[rows] = (self.values[rows] - block @ coefficients) / self.ridge
            back += block.T @ alpha[rows]
        return alpha, back

    def conjugate(self, rough: CME, iterations: int) -> CME:
        r"""Every column of values by its own conjugate gradients; the preconditioner is $(x - F(F^\top F + \text{ridge}\,I)^{-1}F^\top x)/\text{ridge}$."""
        triangle = rough.triangle
        assert triangle is not None

        def precondition(x: np.ndarray) -> np.ndarray:
            y = _solve_with(
                rough.factor, _under(triangle, _apply(self.kernel, rough.basis, self.fine, x))
            )
            return (
                x - _apply(self.kernel, self.fine, rough.basis, _under(triangle, y, transpose=True))
            ) / self.ridge

        alpha, left = np.zeros_like(self.values), self.values.copy()
        residuals = [float(np.sqrt(np.mean(left**2))) / self.scale]
        towards = along = precondition(left)
        power = np.sum(left * towards, 0)
        # Half of the tolerance, because the error is estimated from a sample of the keys.
        while len(residuals) <= iterations and residuals[-1] > self.tolerance / 2:
            image = _apply(self.kernel, self.keys, self.keys, along) + self.ridge * along
            size = power / _nonzero(np.sum(along * image, 0))
            alpha, left = alpha + size * along, left - size * image
            residuals.append(float(np.sqrt(np.mean(left**2))) / self.scale)
            towards = precondition(left)
            before, power = power, np.sum(left * towards, 0)
            along = towards + power / _nonzero(before) * along
        return self.result(
            alpha,
            method="conjugate",
            centres=self.fine,
            coefficients=alpha,
            basis=rough.basis,
            triangle=triangle,
            factor=rough.factor,
            residuals=tuple(residuals),
        )

    def result(self, alpha: np.ndarray, **parts: Any) -> CME:
        return CME(
            kernel=self.kernel,
            ridge=self.ridge,
            error=self.error(alpha),
            tolerance=self.tolerance,
            **parts,
        )

    def error(self, alpha: np.ndarray) -> float:
        rows = self.sample
        image = _apply(self.kernel, self.fine[rows], self.fine, alpha) + self.ridge * alpha[rows]
        return float(np.sqrt(np.mean((self.values[rows] - image) ** 2))) / self.scale


@eqx.filter_jit
def _block(kernel: Kernel, x: Numbers, y: Numbers) -> Array:
    return kernel(x, y)


@eqx.filter_jit
def _own(kernel: Kernel, x: Numbers) -> Array:
    return _diagonal(kernel, x)


@eqx.filter_jit
def _mixed(kernel: Kernel, x: Numbers, y: Numbers, right: Numbers) -> Array:
    return kernel(x, y) @ right


def _nonzero(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, 1, x)  # a column that is solved stays as it is


def _solve_with(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    return scipy.linalg.cho_solve((factor, True), right, check_finite=False)


def _blocks(length: int, size: int = ROWS) -> Iterator[slice]:
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


LEAST = 512
"""Rows that a compiled block of a kernel has at least; it has a power of two of them, so that few programs serve all contexts and queries."""


def _padded(x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    size = max(LEAST, 1 << (len(x) - 1).bit_length())
    return np.concatenate([x, np.broadcast_to(fill, (size - len(x), x.shape[1]))])


def _matrix(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(_block(kernel, _padded(x, x[:1]), _padded(y, y[:1])))[: len(x), : len(y)]


def _apply(kernel: Kernel, x: np.ndarray, y: np.ndarray, right: np.ndarray) -> np.ndarray:
    """k(x, y) @ right, tile by tile; the sum over tiles is in double precision."""
    result = np.zeros((len(x), right.shape[1]))
    right = right.astype(x.dtype)
    for rows in _blocks(len(x)):
        for columns in _blocks(len(y)):
            here, there, sums = x[rows], y[columns], right[columns]
            found = _mixed(
                kernel,
                _padded(here, here[:1]),
                _padded(there, there[:1]),
                _padded(sums, 0 * sums[:1]),
            )
            result[rows] += np.asarray(found)[: len(here)]
    return result


def _context(keys: Any, values: Any, ridge: Any, mask: Any) -> tuple[np.ndarray, np.ndarray, float]:
    if isinstance(keys, Tracer) or isinstance(values, Tracer):
        raise InputError(
            "fit_cme takes numbers, not what is traced: inside jit or grad use cme_attention"
        )
    keys, values = np.asarray(keys), np.asarray(values, float)
    for name, x in (("keys", keys), ("values", values)):
        if x.ndim != 2 or 0 in x.shape[1:]:
            raise InputError(
                f"{name} has the shape {x.shape}: it must be rows of numbers, one for each token"
            )
    if len(keys) == 0:
        raise InputError(f"keys has the shape {keys.shape}: the context is empty")
    if len(keys) != len(values):
        raise InputError(
            f"there are {len(values)} values and {len(keys)} keys: there must be one value for each key"
        )
    if mask is not None:
        mask = np.asarray(_boolean(mask), bool)
        if mask.shape != (len(keys),):
            raise InputError(
                f"the mask has the shape {mask.shape}: it must be ({len(keys)},), one for each token"
            )
        if not mask.any():
            raise InputError("the mask admits no token: it must admit at least one")
        keys, values = keys[mask], values[mask]
    keys = keys if keys.dtype == np.float32 else keys.astype(float)
    _finite("keys", keys)
    _finite("values", values)
    return keys, values, float(_ridge(ridge))
