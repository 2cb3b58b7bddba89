"""The task: one token decides, and its place is latent (Marion et al. 2025, Section 2)."""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from attlas.errors import InputError, positive, whole
from attlas.gaussian import Real, stream
from attlas.surface import public


class Batch(NamedTuple):
    """Sequences, their targets, and the place of the informative token, hidden from a learner.

    Arguments:
        tokens: [n, length, dim]. `target`: [n]. `location`: $J_0$ [n], counted from 0.
    """

    tokens: Float[Array, "n length dim"]
    target: Float[Array, " n"]
    location: Int[Array, " n"]


class Constants(NamedTuple):
    """What the population quantities take from a task; arrays for many tasks at once."""

    m: Real
    gamma: Real
    length: Real
    noise: Real


@public
@dataclass(frozen=True)
class SingleLocation:
    r"""Single-location regression with `length` tokens of width `dim`.

    $$X_{J_0} \sim N(m k^*, \gamma^2 I),\quad m = \sqrt{d/2},\qquad X_l \sim N(0, I)\ (l \ne J_0),$$
    $$Y = \langle X_{J_0}, v^* \rangle + \varepsilon N(0, 1)$$

    with $k^* \perp v^*$ of unit length. At $\gamma^2 = 1/2$ all tokens have the same mean square
    norm, so that norms do not reveal the place.

    Arguments:
        dim, length: $d$ and $L$.
        gamma: spread of the informative token.
        noise: $\varepsilon$, standard deviation of the label noise.
        key: draws $k^*$ and $v^*$, which are $e_1$ and $e_2$ without it.
        prior: law of the place $J_0$, uniform unless given; only the linear and the Bayes predictor
            depend on it.

    >>> import jax
    >>> from attlas.single_location import SingleLocation
    >>> task = SingleLocation(dim=100, length=5)
    >>> batch = task.sample(jax.random.key(0), samples=3)
    >>> print(batch.tokens.shape, batch.target.shape, batch.location.shape)
    (3, 5, 100) (3,) (3,)
    >>> risks = task.oracle_risk(0.2), task.linear_risk(), task.constant_risk()
    >>> [round(float(x), 4) for x in risks]
    [0.1903, 0.4444, 0.5]
    """

    dim: int = 400
    length: int = 10
    gamma: float = 0.5**0.5
    noise: float = 0.0
    key: Array | None = None
    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        whole("dim", self.dim, 4)
        whole("length", self.length, 2)
        positive("gamma", self.gamma)
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise InputError(f"noise = {self.noise!r}: it must be a number, 0 or larger")
        if self.prior is not None:
            object.__setattr__(self, "prior", _probabilities(self.prior, self.length))

    @property
    def m(self) -> float:
        r"""Length of the informative token's mean, $\sqrt{d/2}$."""
        return math.sqrt(self.dim / 2)

    @property
    def constants(self) -> Constants:
        """What the formulas take from the task."""
        return Constants(self.m, self.gamma, self.length, self.noise)

    @property
    def location_law(self) -> Float[np.ndarray, " length"]:
        """Probability of each place to be the informative one."""
        uniform = np.full(self.length, 1 / self.length)
        return uniform if self.prior is None else np.asarray(self.prior)

    @functools.cached_property
    def _stars(self) -> tuple[np.ndarray, np.ndarray]:
        if self.key is None:
            k, v = np.eye(2, self.dim)
            return k, v
        # Evaluated at once even inside a function that JAX is tracing, so that the task can keep
        # them.
        with jax.ensure_compile_time_eval():
            k, v = stream(self.key).standard_normal((2, self.dim))
        k /= np.linalg.norm(k)
        v -= (v @ k) * k
        return k, v / np.linalg.norm(v)

    @property
    def k_star(self) -> Float[np.ndarray, " dim"]:
        """The direction $k^*$ [dim] that marks the informative token."""
        return self._stars[0]

    @property
    def v_star(self) -> Float[np.ndarray, " dim"]:
        """The direction $v^*$ [dim] along which its value is read."""
        return self._stars[1]

    @public
    def sample(self, key: Array, samples: int, dtype: jnp.dtype | type = jnp.float32) -> Batch:
        """Draw `samples` independent sequences."""
        shape = (whole("samples", samples, 1), self.length, self.dim)
        with jax.enable_x64(True):
            law = None if self.prior is None else jnp.asarray(self.prior)
            stars = (star.astype(dtype) for star in self._stars)
            return draw_batch(key, shape, dtype, self.constants, *stars, law)

    @public
    def bayes_logits(
        self, tokens: Float[Array | np.ndarray, "*n length dim"]
    ) -> Float[Array | np.ndarray, "*n length"]:
        r"""Log posterior of the place up to a constant.

        $\log p_l + \frac{m}{\gamma^2}\langle x_l, k^*\rangle - \frac12(\gamma^{-2} - 1)|x_l|^2$:
        softmax attention with a norm term, and without one at $\gamma = 1$.
        """
        scores = self.m / self.gamma**2 * tokens @ self.k_star.astype(tokens.dtype)
        norms = (self.gamma**-2 - 1) / 2 * (tokens**2).sum(-1)
        if self.prior is None:
            return scores - norms
        return scores - norms + jnp.log(jnp.asarray(self.prior, tokens.dtype))

    @public
    def bayes_predict(
        self, tokens: Float[Array | np.ndarray, "*n length dim"]
    ) -> Float[Array, "*n"]:
        r"""The best prediction that knows $k^*$ and $v^*$ but not the place.

        $E[Y \mid X] = \sum_l \mathrm{softmax}(\ell)_l \langle x_l, v^*\rangle$, $\ell$ the
        `bayes_logits`.
        """
        weights = jax.nn.softmax(self.bayes_logits(tokens), axis=-1)
        return (weights * (tokens @ self.v_star.astype(tokens.dtype))).sum(-1)

    def linear_weights(self) -> Float[np.ndarray, " length"]:
        r"""Weights $c$ of the best linear prediction $\sum_l c_l \langle x_l, v^*\rangle$.

        $c_l = \frac{p_l\gamma^2}{p_l\gamma^2 + 1 - p_l}$.
        """
        return best_weights(self.location_law, self.gamma)

    @public
    def linear_predict(self, tokens: Float[Array, "*n length dim"]) -> Float[Array, "*n"]:
        """The best linear prediction, with the `linear_weights`."""
        along_v = tokens @ self.v_star.astype(tokens.dtype)
        return along_v @ self.linear_weights().astype(tokens.dtype)

    def constant_risk(self) -> float:
        r"""Risk of predicting 0, $\varepsilon^2 + \gamma^2$."""
        return self.noise**2 + self.gamma**2

    def linear_risk(self) -> float:
        r"""Risk of the best linear predictor (Proposition 3).

        $\varepsilon^2 + \gamma^2 - \sum_l p_l\gamma^2 c_l$ with its weights $c$, which is
        $\varepsilon^2 + \gamma^2 - \frac{\gamma^4}{\gamma^2 + L - 1}$ where the place is uniform.
        """
        explained = self.gamma**2 * float(self.location_law @ self.linear_weights())
        return self.constant_risk() - explained

    @public
    def oracle_risk(self, lam: Float[ArrayLike, "*#s"]) -> Real:
        r"""Risk of the head with $k = k^*$ and $v = v^*$ (Theorem 1 at the oracle)."""
        from attlas.single_location.population import ORACLE, risk

        return risk(self, ORACLE, lam)

    def best_lam(self) -> float:
        """The sharpness at which the oracle's risk is least, to about seven digits."""
        low, high = math.log(1e-6), math.log(1e2)
        for _ in range(3):  # each pass narrows the bracket five-hundredfold
            grid = np.linspace(low, high, 1001)
            best = int(np.argmin(self.oracle_risk(np.exp(grid))))
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, 1000)]
        return math.exp((low + high) / 2)


def best_weights(law: Real, gamma: Real) -> Real:
    r"""Regression coefficient of the target on a token that decides with probability p.

    $\frac{p\gamma^2}{p\gamma^2 + 1 - p}$.
    """
    return law * gamma**2 / (law * gamma**2 + 1 - law)


def _probabilities(prior: Any, length: int) -> tuple[float, ...]:
    try:
        p = np.asarray(prior, float)
    except (TypeError, ValueError):
        raise InputError(
            f"prior = {prior!r}: it must be a list of {length} probabilities"
        ) from None
    if p.shape != (length,):
        raise InputError(
            f"prior has the shape {p.shape}: it must have one probability for each of {length} "
            "places"
        )
    if not ((p >= 0).all() and abs(p.sum() - 1) < 1e-9):
        raise InputError(
            f"prior = {p.tolist()}: it must be probabilities, 0 or larger with the sum 1"
        )
    return tuple(p.tolist())


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def draw_batch(
    key: Array,
    shape: tuple[int, int, int],
    dtype: Any,
    c: Constants,
    k_star: Array,
    v_star: Array,
    law: Array | None,
) -> Batch:
    """Independent sequences of the task, as `SingleLocation` defines it.

    Arguments:
        shape: sequences, length and dim.
        dtype: of the tokens and targets.
        c: the task's constants.
        k_star, v_star: [dim].
        law: of the place [length]; None is uniform.
    """
    samples, length, _ = shape
    places, background, noise = jax.random.split(key, 3)
    place = jax.random.uniform(places, (samples,))
    if law is None:
        location = (length * place).astype(jnp.int32)
    else:
        location = (jnp.cumsum(law)[:-1] <= place[:, None]).sum(-1, dtype=jnp.int32)
    tokens = jax.random.normal(background, shape, dtype)
    informative = jnp.arange(length) == location[:, None]
    moved = c.m * k_star + c.gamma * tokens
    tokens = jnp.where(informative[..., None], moved, tokens).astype(dtype)
    target = jnp.where(informative, tokens @ v_star, 0).sum(-1)
    target += c.noise * jax.random.normal(noise, (samples,), dtype)
    return Batch(tokens, target.astype(dtype), location)
