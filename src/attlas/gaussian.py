r"""Exact Gaussian expectations with their sampled twins, and how to sample.

Closed forms are plain JAX: they broadcast, differentiate in every argument jointly, and follow the
precision of the context they are called in. Use `float64` (or `jax.enable_x64`) where digits
matter.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy import special

from attlas.surface import public

P = ParamSpec("P")
R = TypeVar("R")

# Gauss-Legendre on [0, 1]. Owen's T is integrated over [0, a] with a <= 1, where twelve nodes reach
# float64.
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(12) + np.array([[1], [0]])) / 2

Real = Any
"""A number, or an array of numbers: NumPy's, JAX's, or one that JAX is tracing."""

Point = Float[ArrayLike, "*#s"]
Value = Float[Array, "*s"]

BLOCK = 1 << 14
"""Samples drawn at a time by `monte_carlo`; fixed, because the block number enters the random
key."""


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` in double precision without touching JAX's global configuration.

    What comes back is NumPy's: outside the scope JAX would go on with it in single precision.
    Values that JAX is tracing (under `grad`, `jit`, `vmap`) come back as they are.

    Arguments:
        function: whatever it is; the decorator changes neither its arguments nor its name.

    >>> import jax.numpy as jnp
    >>> from attlas.gaussian import float64
    >>> @float64
    ... def third():
    ...     return jnp.asarray(1.0) / 3
    >>> print(third(), third().dtype)
    0.3333333333333333 float64
    """

    @functools.wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return jax.tree.map(_settled, function(*args, **kwargs))

    return scoped


def _settled(value: Any) -> Any:
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    return np.asarray(value)[()]


class Estimate(NamedTuple):
    """A Monte-Carlo mean and its standard error.

    Arguments:
        mean: the mean. `error`: its standard error; both arrays of one shape.
    """

    mean: Real
    error: Real


class Quadrature(NamedTuple):
    """An integral and an estimate of its error, from other nodes and further ends.

    Arguments:
        value: the integral. `error`: the estimate.
    """

    value: Real
    error: Real


@public
def stream(key: Array, *place: int) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key, for draws that cost less than compiling a program.

    Arguments:
        key: a key of JAX.
        place: whole numbers, such as that of a block; each place has numbers of its own.

    >>> import jax
    >>> from attlas.gaussian import stream
    >>> bool(stream(jax.random.key(0), 1).normal() == stream(jax.random.key(0), 1).normal())
    True
    """
    words = np.asarray(jax.random.key_data(key)).tolist()
    return np.random.default_rng(np.random.SeedSequence(words, spawn_key=place))


@public
def averaged(draw: Callable[..., np.ndarray], key: Array, samples: int, *args: Any) -> Estimate:
    """`monte_carlo` with NumPy's generators, for draws that cost less than compiling a program.

    Arguments:
        draw: `draw(generator, BLOCK, *args)` gives independent values [..., BLOCK]; the generator
            is that of the block's number.
        samples: how many of them count.
        key: of JAX. `args`: passed on.

    Returns: mean and error [...].

    >>> import jax
    >>> from attlas.gaussian import averaged
    >>> mean, error = averaged(lambda rng, n: rng.normal(size=n) ** 2, jax.random.key(0), 100_000)
    >>> bool(abs(mean - 1) < 5 * error)
    True
    """
    count, mean, squares = 0, np.zeros(()), np.zeros(())
    for block in range(-(-samples // BLOCK)):
        value = draw(stream(key, block), BLOCK, *args)[..., : samples - count]
        here, size = value.mean(-1), value.shape[-1]
        squares = (
            squares
            + ((value - here[..., None]) ** 2).sum(-1)
            + (here - mean) ** 2 * count * size / (count + size)
        )
        mean = mean + (here - mean) * size / (count + size)
        count += size
    return Estimate(mean, np.sqrt(squares / max(samples - 1, 1) / samples))


@functools.partial(jax.jit, static_argnames="draw")
def monte_carlo(
    draw: Callable[..., Array], key: Array, samples: int | Array, *args: Any
) -> Estimate:
    """Mean over `samples` independent draws.

    Draws come in blocks whose keys depend on their number alone, so memory does not grow with
    `samples`, one compiled program serves every budget, and a longer run begins with the numbers of
    a shorter one.

    Arguments:
        draw: `draw(key, BLOCK, *args)` gives independent values [..., BLOCK]; a module-level
            function, or every call compiles anew.
        samples: how many of them count.
        key: of JAX. `args`: passed on.

    Returns: mean and error [...]; the error of one sample is not finite.

    >>> import jax
    >>> from attlas.gaussian import monte_carlo
    >>> def squares(key, n, scale):
    ...     return (scale * jax.random.normal(key, (n,))) ** 2
    >>> found = monte_carlo(squares, jax.random.key(0), 100_000, 2.0)
    >>> bool(abs(found.mean - 4) < 5 * found.error)
    True
    """
    blocks = (samples + BLOCK - 1) // BLOCK
    shape = jax.eval_shape(lambda: draw(key, BLOCK, *args))
    zero = jnp.zeros(shape.shape[:-1], shape.dtype)

    def add(i: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        """Join a block's mean and sum of squared deviations to those before it (Chan's formula)."""
        mean, squares = so_far
        value = draw(jax.random.fold_in(key, i), BLOCK, *args)
        before, count = i * BLOCK, jnp.minimum(BLOCK, samples - i * BLOCK)
        used = jnp.arange(BLOCK) < count
        here = jnp.where(used, value, 0).sum(-1) / count
        spread = jnp.where(used, (value - here[..., None]) ** 2, 0).sum(-1)
        share = count / (before + count)
        return mean + (here - mean) * share, squares + spread + (here - mean) ** 2 * before * share

    mean, squares = jax.lax.fori_loop(0, blocks, add, (zero, zero))
    return Estimate(mean, jnp.sqrt(squares / (samples - 1) / samples))


@jax.jit
def zeta(t: Point, spread: Point) -> Value:
    r"""Mean square of a smoothed erf, $\zeta(t, s) = E[\mathrm{erf}(t + sG)^2]$ with
    $G \sim N(0, 1)$.

    $\zeta(t, s) = 1 - 8\,T(\sqrt2 t / D,\ 1 / E)$ with Owen's $T$, $D^2 = 1 + 2s^2$ and
    $E^2 = 1 + 4s^2$; even in $t$, with $\zeta(0, s) = \frac2\pi \arcsin\frac{2s^2}{1 + 2s^2}$, and
    a solution of the heat equation $\zeta_s = s\,\zeta_{tt}$. Marion et al. 2025, Theorem 1;
    `sampled_zeta` is its twin.

    Arguments:
        t, spread: $t$ and $s$, of shapes that broadcast.

    >>> import jax
    >>> from attlas.gaussian import float64, sampled_zeta, zeta
    >>> exact, found = float64(zeta)(0.5, 1.0), sampled_zeta(0.5, 1.0, jax.random.key(0), 100_000)
    >>> print(f"{exact:.4f}", bool(abs(found.mean - exact) < 4 * found.error))
    0.5100 True
    """
    t, spread = jnp.asarray(t), jnp.asarray(spread)
    slope = 1 / jnp.sqrt(1 + 4 * spread**2)
    height = t**2 / (1 + 2 * spread**2)
    nodes, weights = (jnp.asarray(x, slope.dtype) for x in (_NODES, _WEIGHTS))
    widths = 1 + (slope[..., None] * nodes) ** 2
    # No clamp: for large |t| the exponential removes everything.
    return 1 - 4 / jnp.pi * slope * jnp.sum(
        weights * jnp.exp(-height[..., None] * widths) / widths, axis=-1
    )


@jax.jit
def zeta_derivatives(t: Point, spread: Point) -> tuple[Array, Array, Array]:
    r"""$\zeta_t, \zeta_{tt}, \zeta_{ttt}$ in closed form; $\zeta_s = s\,\zeta_{tt}$ gives the other
    direction.

    With $u = t/D$: $\zeta_t = \frac2D\,\mathrm{erf}'(u)\,\mathrm{erf}(u/E)$, and its derivatives by
    Leibniz' rule.

    Arguments:
        t, spread: $t$ and $s$, of shapes that broadcast.

    >>> from attlas.gaussian import float64, zeta_derivatives
    >>> [round(float(x), 4) for x in float64(zeta_derivatives)(0.5, 1.0)]
    [0.1737, 0.2856, -0.3484]
    """
    d = jnp.sqrt(1 + 2 * jnp.asarray(spread) ** 2)
    e = jnp.sqrt(1 + 4 * jnp.asarray(spread) ** 2)
    _, f1, f2, f3 = erf_derivatives(t / d)
    g0, g1, g2, _ = erf_derivatives(t / (d * e))
    return (
        2 / d * f1 * g0,
        2 / d**2 * (f2 * g0 + f1 * g1 / e),
        2 / d**3 * (f3 * g0 + 2 * f2 * g1 / e + f1 * g2 / e**2),
    )


def erf_derivatives(x: Point) -> tuple[Array, Array, Array, Array]:
    """erf and its first three derivatives.

    Arguments:
        x: where, an array of any shape.

    >>> from attlas.gaussian import erf_derivatives
    >>> [round(float(x), 3) for x in erf_derivatives(0.0)]
    [0.0, 1.128, -0.0, -2.257]
    """
    x = jnp.asarray(x)
    first = 2 / np.sqrt(np.pi).item() * jnp.exp(-(x**2))
    return jax.lax.erf(x), first, -2 * x * first, (4 * x**2 - 2) * first


def smoothed_erf(mean: Point, spread: Point) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    r"""`smoothed_derivatives` of erf in closed form.

    $D^{-j}\,\mathrm{erf}^{(j)}(\mu/D)$ with $D^2 = 1 + 2s^2$, and $\partial_\mu^j\zeta(\mu, s)$.

    Arguments:
        mean, spread: $\mu$ and $s$, of shapes that broadcast.

    Returns: for erf and for its square the value and three derivatives.

    >>> import jax
    >>> import numpy as np
    >>> from attlas.gaussian import float64, smoothed_derivatives, smoothed_erf
    >>> exact = float64(smoothed_erf)(0.3, 2.0)
    >>> bool(np.allclose(exact, float64(smoothed_derivatives)(jax.lax.erf, 0.3, 2.0)))
    True
    """
    d = jnp.sqrt(1 + 2 * jnp.asarray(spread) ** 2)
    e0, e1, e2, e3 = erf_derivatives(mean / d)
    square = (zeta(mean, spread), *zeta_derivatives(mean, spread))
    return (e0, e1 / d, e2 / d**2, e3 / d**3), square


@public
def sampled_zeta(t: Point, spread: Point, key: Array, samples: int) -> Estimate:
    """`zeta` by simulation.

    Arguments:
        t, spread: as in `zeta`; all points share their random numbers.
        samples: draws of the Gaussian.
        key: of JAX.
    """
    return averaged(_draw_zeta, key, samples, np.asarray(t, float), np.asarray(spread, float))


def _draw_zeta(
    generator: np.random.Generator, block: int, t: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    return special.erf(t[..., None] + spread[..., None] * generator.standard_normal(block)) ** 2


@public
def draw_gamma(key: Array, shape: Point, size: tuple[int, ...]) -> Value:
    r"""Gamma variables of parameter `shape` > 1/3, whose doubles are chi-squares of 2 `shape`
    degrees of freedom.

    By rejection (Marsaglia and Tsang 2000): $d(1 + cx)^3$ with $d$ = shape - 1/3, $9c^2d = 1$ and
    $x$ normal is accepted with probability $e^{x^2/2} v^d e^{d - dv}$, $v = (1 + cx)^3$, which is
    at most 1 for every $d > 0$. All are proposed at once until the last is accepted: compiled and
    drawn many times faster than `jax.random.gamma`, which has a loop and a key for each number.

    Arguments:
        shape: the parameter, an array that broadcasts to `size`.
        size: the shape of what comes back.
        key: of JAX.

    >>> import jax
    >>> from attlas.gaussian import draw_gamma
    >>> drawn = draw_gamma(jax.random.key(0), 3.0, (100_000,))
    >>> print(f"{drawn.mean():.1f} {drawn.var():.1f}")
    3.0 3.0
    """
    d = jnp.asarray(shape, float) - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        round, value, accepted = state
        u, w = jax.random.uniform(jax.random.fold_in(key, round), (2, *size))
        x = np.sqrt(2).item() * jax.lax.erf_inv(2 * u - 1)
        v = jnp.maximum(1 + c * x, 0) ** 3
        accept = jnp.log1p(-w) < x**2 / 2 + d * (1 - v + jnp.log(v))
        return round + 1, jnp.where(accepted, value, d * v), accepted | accept

    start = (jnp.asarray(0), jnp.ones(size), jnp.zeros(size, bool))
    return jax.lax.while_loop(lambda state: ~state[2].all(), propose, start)[1]


REACH = 11.0
"""Standard deviations at which Gaussian integrals end; the weight beyond is 4e-28."""


def smoothed_derivatives(
    function: Callable[[Array], Array],
    mean: Point,
    spread: Point,
    panels: int = 8,
    reach: float = REACH,
) -> Float[Array, "2 4 *s"]:
    r"""$\partial_\mu^j E[f(\mu + sZ)^i]$ for $i = 1, 2$ and $j = 0, \dots, 3$, by quadrature.

    By parts it is $s^{-j} E[f^i\,He_j(Z)]$ with Hermite's $1, Z, Z^2 - 1, Z^3 - 3Z$, whether $f$
    has a derivative or not. `smoothed_erf` has the closed form for erf.

    Arguments:
        function: $f$, elementwise, with its details near 0.
        mean, spread: $\mu$ and $s$, of shapes that broadcast.
        panels, reach: as in `gaussian_nodes`.
    """
    x, z, weight = gaussian_nodes(mean, spread, panels, reach)
    f, s = function(x), jnp.asarray(spread, float)[..., None]
    hermite = jnp.stack([z**0, z / s, (z**2 - 1) / s**2, (z**3 - 3 * z) / s**3])
    # One product, which compiles in half the time of eight sums.
    return jnp.einsum("i...n,j...n->ij...", jnp.stack([f, f**2]), weight * hermite)


def gaussian_nodes(
    mean: Point, spread: Point, panels: int = 8, reach: float = REACH
) -> tuple[Float[Array, "*s node"], Float[Array, "*s node"], Float[Array, "*s node"]]:
    r"""Nodes $\mu + sz$, $z$ and weights of a quadrature for $E[f(\mu + sZ)]$.

    Composite Gauss-Legendre on both sides of $z_0 = -\mu/s$, where the argument of $f$ is 0 and a
    kink or jump may be: within one standard deviation graded, $z = z_0 \pm \delta\sinh t$ with the
    details' width $\delta = \min(1, 1/s)$, and evenly beyond. The nodes so follow a gate from one
    far softer than the Gaussian to one far sharper.

    Arguments:
        mean, spread: $\mu$ and $s$, of shapes that broadcast.
        panels: parts of each of the four intervals, with ten nodes each.
        reach: standard deviations at which the integral ends.

    >>> from attlas.gaussian import Quadrature, float64, gaussian_nodes
    >>> x, z, weight = float64(gaussian_nodes)(0.5, 2.0)
    >>> Quadrature(round(float((weight * x**2).sum()), 6), error=0.0)
    Quadrature(value=4.25, error=0.0)
    """
    both = jnp.broadcast_arrays(jnp.asarray(mean, float), jnp.asarray(spread, float))
    mean, spread = (x[..., None] for x in both)
    centre = jnp.clip(-mean / spread, -reach, reach)[..., None]
    width = jnp.minimum(1, 1 / spread)[..., None]
    nodes, weights = _panelled(panels)
    sign = np.array([[-1.0], [1.0]])
    whole = reach - sign * centre  # from the centre to the end
    near = jnp.minimum(whole, 1)
    end = jnp.arcsinh(near / width)
    z = [
        centre + sign * width * jnp.sinh(end * nodes),
        centre + sign * (near + (whole - near) * nodes),
    ]
    dz = [end * width * jnp.cosh(end * nodes) * weights, (whole - near) * weights]
    place, density = (jnp.concatenate(x, -1).reshape(*mean.shape[:-1], -1) for x in (z, dz))
    weight = density * jnp.exp(-(place**2) / 2) / np.sqrt(2 * np.pi).item()
    return mean + spread * place, place, weight


@functools.cache
def _panelled(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of ten-point Gauss-Legendre on each of `panels` equal parts of [0, 1]."""
    nodes, weights = (np.polynomial.legendre.leggauss(10) + np.array([[1], [0]])) / 2
    places = np.add.outer(np.arange(panels), nodes) / panels
    return places.ravel(), np.tile(weights / panels, panels)
