"""CME attention conditioned on one long context: exactly, on centres, or by conjugate gradients."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from attlas.errors import InputError, near, positive, whole
from attlas.kernels.attention import Rows
from attlas.kernels.checks import as_context, check_finite, check_pivots, check_ridge
from attlas.kernels.functions import Kernel, Numbers, check_kernel, diagonal
from attlas.padding import padded_jit
from attlas.surface import public

METHODS = ("auto", "exact", "nystrom", "conjugate")
"""Of `fit_cme`."""
TILE = 4096
"""Tokens whose kernel is in memory at a time."""
EXACT_TILE = 1024
"""Rows and columns of the tiles of the exact matrix, of which only one triangle is computed."""
SMALLEST_TILE = 512
"""Tokens to which fewer are padded, so that few programs are compiled."""
SAMPLE, POOL = 128, 4096
"""Random keys at which the error is estimated, and, apart from them, among which centres are
chosen."""
FEWEST_CENTRES, MAX_CENTRES = 32, 2048
"""Centres, unless the caller asks for others."""
LATE = 1e-6
"""Share of the largest pivot down to which products of kernels may be whitened afterwards: their
rounding is magnified by its inverse, relative to the least of them by its square."""
CUT = 1e-12
"""Share of the largest pivot below which what is left of a kernel matrix is rounding."""
MAX_EXACT, MAX_CONJUGATE = 5_000, 200_000
"""Tokens up to which "auto" solves exactly at once (a second or so), and up to which it uses
conjugate gradients, each step of which computes the kernel of all pairs."""
REFINEMENTS = 3
"""Corrections at most of the solution on the centres; a tiny ridge needs them."""


@dataclass(frozen=True)
class CME:
    r"""The conditional mean of values given keys, $\hat m(q) = \sum_j k(q, z_j)\,c_j$, made by
    `fit_cme`.

    `error` estimates how far $\hat m$ is from the exact CME: the root mean square of
    $V - (G + \text{ridge}\,I)\alpha$ over a random sample of keys, as a share of that of the
    values, with $\alpha = (V - \hat m(K)) / \text{ridge}$ (or the coefficients themselves). Over
    all keys this bounds the root mean square of the difference at the keys, rounding included,
    because the two differ by a matrix of norm at most 1. It does not cover queries far from every
    key.

    Arguments:
        kernel, ridge, method, tolerance: as in `fit_cme`; `method` is the one that was used.
        centres, coefficients: $z_j$ and $c_j$.
        basis, triangle, factor: centres, and factors of their matrices, from which the variance
            comes.
        residuals: of the conjugate gradients, step by step.
    """

    kernel: Kernel
    ridge: float
    method: str
    error: float
    tolerance: float
    centres: Float[np.ndarray, "m d"] = field(repr=False)
    coefficients: Float[np.ndarray, "m k"] = field(repr=False)
    basis: Float[np.ndarray, "b d"] = field(repr=False)
    triangle: Float[np.ndarray, "b b"] | None = field(repr=False)
    factor: Float[np.ndarray, "b b"] = field(repr=False)
    residuals: tuple[float, ...] = ()
    """Of conjugate gradients, before each step and after the last, as shares of the values' size.
    """

    @property
    def reached(self) -> bool:
        """Whether `error` is within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        way = {
            "exact": f"exactly, by a Cholesky factor of {len(self.centres):,} tokens",
            "nystrom": f"by Nystrom's method with {len(self.basis):,} centres",
            "conjugate": f"by {len(self.residuals) - 1} conjugate gradients, "
            f"preconditioned by {len(self.basis):,} centres",
        }[self.method]
        verdict = "within" if self.reached else "which misses"
        return (
            f"solved {way}; estimated error {self.error:.1e}, "
            f"{verdict} the tolerance {self.tolerance:g}"
        )

    def mean(self, queries: Rows) -> Float[np.ndarray, "q k"]:
        """The conditional mean at each query [q d]."""
        with jax.enable_x64(True):
            return _multiply(self.kernel, self._check(queries), self.centres, self.coefficients)

    def variance(self, queries: Rows, prior: float = 1.0) -> Float[np.ndarray, " q"]:
        """Predictive variance of a value at each query [q d], as in `cme_variance`.

        After "nystrom" and "conjugate" it is that of the model in which the kernel of two keys is
        its projection on the centres; the kernel of a query with itself is exact.
        """
        queries, prior = self._check(queries), positive("prior", prior)
        with jax.enable_x64(True):
            own = _kernel_diagonal(self.kernel, queries)
            cross = kernel_matrix(self.kernel, queries, self.basis).T
        if self.triangle is None:
            known = np.sum(_solve_triangular(self.factor, cross) ** 2, 0)
        else:
            features = _solve_triangular(self.triangle, cross)
            shrunk = _solve_triangular(self.factor, features)
            known = np.sum(features**2 - self.ridge * shrunk**2, 0)
        return prior * (self.ridge + own - known)

    def weights(self, queries: Rows, keys: Rows) -> Float[np.ndarray, "q n"]:
        """The weight of each of the context's `keys` [n d] at each query [q d].

        After "nystrom" and "conjugate" they are those of the model that `variance` describes.
        """
        queries, keys = self._check(queries), self._check(keys)
        with jax.enable_x64(True):
            cross = kernel_matrix(self.kernel, queries, self.basis).T
            if self.triangle is None:
                return _solve(self.factor, cross).T
            inner = _solve(self.factor, _solve_triangular(self.triangle, cross))
            inner = _solve_triangular(self.triangle, inner, transpose=True)
            return _multiply(self.kernel, keys, self.basis, inner).T

    def _check(self, queries: Any) -> np.ndarray:
        queries, width = np.asarray(queries, float), self.centres.shape[1]
        if queries.ndim != 2 or queries.shape[1] != width:
            raise InputError(
                f"queries has the shape {queries.shape}: it must be rows of {width} numbers"
            )
        check_finite("queries", queries)
        return queries


@public
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
    r"""CME attention conditioned on one context of any length, to be evaluated at any queries.

    Arguments:
    - `keys` [n d], `values` [n k], `mask` [n]: the context. For keys in float32 the Gram matrix of
      all pairs is computed in float32; vectors and whitened features, which magnify rounding, are
      in float64.
    - `ridge`: of the Gram matrix; positive unless the method is "exact".
    - `method`: one of
        - "exact": Cholesky; $n^3/3$ operations and one matrix [n n].
        - "nystrom": functions in the span of `centres` keys, chosen among `POOL` random ones by
          Cholesky with pivots, up to where the rest is rounding; $n\,\text{centres}^2$ operations.
        - "conjugate": conjugate gradients on $G + \text{ridge}\,I$, preconditioned by "nystrom".
          Each step computes the kernel of all pairs and stores none of it.
        - "auto": "exact" up to `MAX_EXACT` tokens; beyond, "nystrom"; where that misses
          `tolerance`, "exact" if its matrix fits in `memory`, else "conjugate" up to
          `MAX_CONJUGATE` tokens.
    - `tolerance`: of `CME.error`, as a share of the root mean square of the values.
    - `centres`: their number; by default about as many as `tolerance` asks for.
    - `memory`: bytes. `iterations`: steps at most of conjugate gradients. `seed`: of the random
      keys.
    - `kernel`: as in `cme_attention`.

    >>> import numpy as np
    >>> from attlas.kernels import CME, METHODS, RBF, fit_cme
    >>> keys = np.random.default_rng(0).uniform(size=(5000, 1))
    >>> fitted = fit_cme(keys, np.sin(3 * keys), ridge=1e-2, kernel=RBF(0.1))
    >>> print(isinstance(fitted, CME), fitted.method in METHODS, fitted.reached)
    True True True
    >>> print(f"{fitted.mean(np.array([[0.5]])).item():.3f} for {np.sin(1.5):.3f}")
    0.998 for 0.997
    """
    check_kernel(kernel)
    keys, values = as_context(keys, values, mask)
    ridge = float(check_ridge(ridge))
    positive("tolerance", tolerance)
    if method not in METHODS:
        raise InputError(
            f"method = {method!r}: it must be one of {', '.join(METHODS)}.{near(method, METHODS)}"
        )
    if method in ("nystrom", "conjugate"):
        positive("ridge", ridge)
    if centres is not None:
        whole("centres", centres, 1)
    order = np.random.default_rng(whole("seed", seed, 0)).permutation(len(keys))
    apart = SAMPLE if len(keys) > 4 * SAMPLE else 0  # a short context is sampled whole
    sample, pool = order[:SAMPLE] if apart else order, order[apart:][:POOL]
    system = _System(kernel, keys, values, ridge, tolerance, sample, pool)
    auto = method == "auto"
    with jax.enable_x64(True):
        if method == "exact" or (auto and len(keys) <= MAX_EXACT):
            return system.solve_exactly()
        wanted = max(tolerance, 0.1) if method == "conjugate" else tolerance
        rough = system.solve_on_centres(centres, wanted)
        if method == "nystrom" or (auto and rough.reached):
            return rough
        if auto and len(keys) ** 2 * keys.itemsize <= memory:
            return system.solve_exactly()
        if auto and len(keys) > MAX_CONJUGATE:
            return rough
        return system.iterate(rough, whole("iterations", iterations, 1))


@dataclass(frozen=True)
class _System:
    """(G + ridge I) alpha = V of one context, with three ways to solve it, in double precision."""

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
    def keys64(self) -> np.ndarray:
        return self.keys.astype(float)

    def solve_exactly(self) -> CME:
        length = len(self.keys)
        gram = np.zeros((length, length), self.keys.dtype)
        for rows in _tiles(length, EXACT_TILE):
            for columns in _tiles(length, EXACT_TILE, rows.start):
                gram[rows, columns] = kernel_matrix(
                    self.kernel, self.keys[rows], self.keys[columns]
                )
        gram[np.diag_indices(length)] += self.ridge
        try:  # the transpose is column-major, and LAPACK overwrites its lower triangle in place
            factor, _ = scipy.linalg.cho_factor(
                gram.T, lower=True, overwrite_a=True, check_finite=False
            )
        except np.linalg.LinAlgError:
            factor = np.full((1, 1), np.nan, gram.dtype)
        check_pivots(np.diagonal(factor), self.ridge)
        alpha = _solve(factor, self.values.astype(gram.dtype)).astype(float)
        return self._result("exact", alpha, self.keys64, alpha, self.keys64, None, factor)

    def choose_centres(self, least: float, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Some of the first `size` keys of the pool, and the factor of their Gram matrix, as long
        as it is regular and its pivots are not below `least`."""
        pool = self.keys64[self.pool[:size]]
        gram = kernel_matrix(self.kernel, pool, pool)
        own = gram.diagonal()
        if not np.isfinite(gram).all() or not (own >= 0).all() or not own.any():
            raise InputError(
                "the kernel of a key with itself is not a positive number, or some other is not "
                "finite: it must be positive semi-definite"
            )
        order, triangle = pivoted_cholesky(gram.T, max(CUT, least / own.max()))
        return pool[order], triangle

    def count_centres(self, pivots: np.ndarray, tolerance: float) -> int:
        r"""How many centres should make the error `tolerance`.

        The first $m$ with $\sqrt{n/m}\,p_{m+1} / \text{ridge} \le 3\,\text{tolerance}$, as if what
        the centres leave of the kernel were the next pivot $p_{m+1}$ among the $n/m$ nearest
        tokens, and the values noise; measured errors are a fourth to an eighth of that.
        """
        counts = np.arange(FEWEST_CENTRES, min(MAX_CENTRES, len(pivots)), 32)
        rest = np.sqrt(len(self.keys) / counts) * pivots[counts] / self.ridge
        return int(next(iter(counts[rest <= 3 * tolerance]), min(MAX_CENTRES, len(pivots))))

    def solve_on_centres(self, count: int | None, tolerance: float) -> CME:
        r"""Nystrom's method. With features $F = k(K, Z)T^{-\top}$, $k(Z, Z) = TT^\top$:
        $\hat m = F y$ and $(F^\top F + \text{ridge}\,I)y = F^\top V$."""
        # Pivots below the least that `count_centres` can ask for need not be found.
        least = 3 * tolerance * self.ridge * np.sqrt(FEWEST_CENTRES / len(self.keys))
        for size in (POOL // 2, POOL):
            centres, triangle = self.choose_centres(0.0 if count else least, size)
            found = count or self.count_centres(np.diagonal(triangle) ** 2, tolerance)
            if 4 * found <= size:  # enough keys to choose each centre from
                break
        found = min(len(centres), found)
        centres, triangle = centres[:found], triangle[:found, :found]
        factor, y = self._normal_equations(centres, triangle)
        alpha, norm = np.empty_like(self.values), self.scale * np.sqrt(self.values.size)
        for _ in range(REFINEMENTS):
            coefficients, back = _solve_triangular(triangle, y, transpose=True), np.zeros_like(y)
            for rows in _tiles(len(self.keys)):
                cross = kernel_matrix(self.kernel, self.keys64[rows], centres)
                alpha[rows] = (self.values[rows] - cross @ coefficients) / self.ridge
                back += cross.T @ alpha[rows]
            # F times this is what the system leaves within the span of the features.
            missed = _solve_triangular(triangle, back) - y
            if np.linalg.norm(factor.T @ missed) <= 1e-3 * tolerance * norm:
                break
            y += self.ridge * _solve(factor, missed)
        coefficients = _solve_triangular(triangle, y, transpose=True)
        return self._result("nystrom", alpha, centres, coefficients, centres, triangle, factor)

    def _normal_equations(
        self, centres: np.ndarray, triangle: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""The lower factor of $F^\top F + \text{ridge}\,I$, and the solution $y$.

        In one pass over the keys. Kernels are whitened after they are multiplied, for a third of
        the work, unless a tiny pivot would magnify the rounding of the products.
        """
        whiten = _solve_triangular(triangle, np.eye(len(centres))).T
        late = np.ptp(np.log(np.diagonal(triangle))) <= -np.log(LATE) / 2
        square, right = np.zeros_like(whiten), np.zeros((len(centres), self.values.shape[1]))
        for rows in _tiles(len(self.keys)):
            features = kernel_matrix(self.kernel, self.keys64[rows], centres)
            features = features if late else features @ whiten
            square += features.T @ features
            right += features.T @ self.values[rows]
        if late:
            square, right = whiten.T @ square @ whiten, whiten.T @ right
        square[np.diag_indices(len(centres))] += self.ridge
        factor = scipy.linalg.cholesky(square, lower=True, check_finite=False)
        return factor, _solve(factor, right)

    def iterate(self, rough: CME, iterations: int) -> CME:
        r"""Conjugate gradients for every column of values, preconditioned by
        $(x - F(F^\top F + \text{ridge}\,I)^{-1}F^\top x)/\text{ridge}$."""
        triangle, basis = rough.triangle, rough.basis
        assert triangle is not None

        def precondition(x: np.ndarray) -> np.ndarray:
            inner = _solve_triangular(triangle, _multiply(self.kernel, basis, self.keys64, x))
            inner = _solve_triangular(triangle, _solve(rough.factor, inner), transpose=True)
            return (x - _multiply(self.kernel, self.keys64, basis, inner)) / self.ridge

        alpha, left = np.zeros_like(self.values), self.values.copy()
        residuals = [float(np.sqrt(np.mean(left**2))) / self.scale]
        towards = along = precondition(left)
        power = np.sum(left * towards, 0)
        # Half of the tolerance, because the error is estimated from a sample of the keys.
        while len(residuals) <= iterations and residuals[-1] > self.tolerance / 2:
            image = _multiply(self.kernel, self.keys, self.keys, along) + self.ridge * along
            size = power / _nonzero(np.sum(along * image, 0))
            alpha, left = alpha + size * along, left - size * image
            residuals.append(float(np.sqrt(np.mean(left**2))) / self.scale)
            towards = precondition(left)
            before, power = power, np.sum(left * towards, 0)
            along = towards + power / _nonzero(before) * along
        parts = (self.keys64, alpha, basis, triangle, rough.factor, tuple(residuals))
        return self._result("conjugate", alpha, *parts)

    def _result(self, method: str, alpha: np.ndarray, *parts: Any) -> CME:
        rows = self.sample
        image = _multiply(self.kernel, self.keys64[rows], self.keys64, alpha)
        missed = self.values[rows] - (image + self.ridge * alpha[rows])
        error = float(np.sqrt(np.mean(missed**2))) / self.scale
        return CME(self.kernel, self.ridge, method, error, self.tolerance, *parts)


@padded_jit({"x": "n", "y": "m"}, "nm", least=SMALLEST_TILE)
def kernel_matrix(kernel: Kernel, x: Numbers, y: Numbers) -> Array:
    """The matrix [n m] of the kernel of points [n d] and [m d], as a NumPy array."""
    return kernel(x, y)


@padded_jit({"x": "n"}, "n", least=SMALLEST_TILE)
def _kernel_diagonal(kernel: Kernel, x: Numbers) -> Array:
    return diagonal(kernel, x)


@padded_jit({"x": "n", "y": "m", "right": "m"}, "n", least=SMALLEST_TILE, zeros=("right",))
def _multiply_tile(kernel: Kernel, x: Numbers, y: Numbers, right: Numbers) -> Array:
    return kernel(x, y) @ right


_multiply_sample = padded_jit(
    {"x": "n", "y": "m", "right": "m"}, "n", least=SAMPLE, zeros=("right",)
)(_multiply_tile.__wrapped__)  # type: ignore[attr-defined]


def _multiply(kernel: Kernel, x: np.ndarray, y: np.ndarray, right: np.ndarray) -> np.ndarray:
    """k(x, y) @ right, tile by tile; the sum over tiles is in double precision."""
    result = np.zeros((len(x), right.shape[1]))
    right = right.astype(x.dtype)
    # Not padded to a tile: with many keys the estimate of the error would cost as much as the fit.
    multiply = _multiply_sample if len(x) == SAMPLE else _multiply_tile
    for rows in _tiles(len(x)):
        for columns in _tiles(len(y)):
            result[rows] += multiply(kernel, x[rows], y[columns], right[columns])
    return result


def pivoted_cholesky(
    gram: Float[np.ndarray, "n n"], cut: float
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m m"]]:
    """Rows, each the one that those before it predict worst, and the lower factor of their Gram
    matrix; up to where pivots are below the share `cut` of the largest."""
    least = cut * gram.diagonal().max()
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(gram, tol=least, lower=1)
    return order[:rank] - 1, np.tril(factor[:rank, :rank])


def _tiles(length: int, size: int | None = None, first: int = 0) -> Iterator[slice]:
    size = size or TILE
    return (slice(start, min(start + size, length)) for start in range(first, length, size))


def _nonzero(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, 1, x)  # the numerator is 0 too: a solved column stays as it is


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    return scipy.linalg.cho_solve((factor, True), right, check_finite=False)


def _solve_triangular(
    triangle: np.ndarray, right: np.ndarray, transpose: bool = False
) -> np.ndarray:
    """T^-1 right for a lower triangle T, or with its transpose."""
    return scipy.linalg.solve_triangular(
        triangle, right, lower=True, trans=int(transpose), check_finite=False
    )
