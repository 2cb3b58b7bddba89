"""The task: one token of a sequence decides the output, and its place is latent (Marion et al. 2025, Section 2)."""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from attlas.errors import InputError
from attlas.gaussian import float64


class Batch(NamedTuple):
    """Sequences, their targets, and the place of the informative token, which a learner does not see."""

    tokens: Float[Array, "n length dim"]
    target: Float[Array, " n"]
    location: Int[Array, " n"]


class Constants(NamedTuple):
    """All that the population quantities take from a task; arrays where many tasks are computed at once."""

    m: ArrayLike
    gamma: ArrayLike
    length: ArrayLike
    noise: ArrayLike


@dataclass(frozen=True)
class SingleLocation:
    r"""Single-location regression with `length` tokens of width `dim`.

    $$X_{J_0} \sim N(m k^*, \gamma^2 I),\quad m = \sqrt{d/2},\qquad X_l \sim N(0, I)\ (l \ne J_0),\qquad
      Y = \langle X_{J_0}, v^* \rangle + \varepsilon N(0, 1)$$

    with $J_0$ uniform and $k^* \perp v^*$ of unit length: $e_1$ and $e_2$, unless `key` draws them. At
    $\gamma^2 = 1/2$ all tokens have the same mean square norm, so that norms do not give the place away.
    """

    dim: int = 400
    length: int = 10
    gamma: float = 0.5**0.5
    noise: float = 0.0
    key: Array | None = None

    def __post_init__(self) -> None:
        for name, least in (("dim", 4), ("length", 2)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} = {value!r}: it must be a whole number, at least {least}")
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise InputError(f"gamma = {self.gamma!r}: it must be a positive number")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise InputError(f"noise = {self.noise!r}: it must be a number, 0 or larger")

    @property
    def m(self) -> float:
        r"""Length of the informative token's mean, $\sqrt{d/2}$."""
        return math.sqrt(self.dim / 2)

    @property
    def constants(self) -> Constants:
        return Constants(self.m, self.gamma, self.length, self.noise)

    @functools.cached_property
    def _stars(self) -> tuple[Array, Array]:
        with jax.enable_x64(True):
            if self.key is None:
                basis = jnp.eye(2, self.dim)
                return basis[0], basis[1]
            k, v = jax.random.normal(self.key, (2, self.dim))
            k /= jnp.linalg.norm(k)
            v -= (v @ k) * k
            return k, v / jnp.linalg.norm(v)

    @property
    def k_star(self) -> Float[Array, " dim"]:
        return self._stars[0]

    @property
    def v_star(self) -> Float[Array, " dim"]:
        return self._stars[1]

    def sample(self, key: Array, samples: int, dtype: jnp.dtype | type = jnp.float32) -> Batch:
        """Draw `samples` independent sequences."""
        with jax.enable_x64(True):
            places, background, noise = jax.random.split(key, 3)
            location = jax.random.randint(places, (samples,), 0, self.length, jnp.int32)
            tokens = jax.random.normal(background, (samples, self.length, self.dim), dtype)
            informative = (jnp.arange(self.length) == location[:, None])[..., None]
            k_star, v_star = (star.astype(dtype) for star in self._stars)
            tokens = jnp.where(informative, self.m * k_star + self.gamma * tokens, tokens)
            decisive = jnp.take_along_axis(tokens, location[:, None, None], axis=1)[:, 0]
            target = decisive @ v_star + self.noise * jax.random.normal(noise, (samples,), dtype)
        return Batch(tokens, target, location)

    def bayes_logits(self, tokens: Float[Array, "*n length dim"]) -> Float[Array, "*n length"]:
        r"""Log posterior of the place up to a constant, $\frac{m}{\gamma^2}\langle x_l, k^*\rangle
        - \frac12(\gamma^{-2} - 1)|x_l|^2$: softmax attention with a norm term, and without one at $\gamma = 1$."""
        k_star = self.k_star.astype(tokens.dtype)
        return self.m / self.gamma**2 * tokens @ k_star - (self.gamma**-2 - 1) / 2 * (tokens**2).sum(-1)

    def bayes_predict(self, tokens: Float[Array, "*n length dim"]) -> Float[Array, "*n"]:
        r"""The best prediction that knows $k^*, v^*$ but not the place:
        $E[Y \mid X] = \sum_l \mathrm{softmax}(\ell)_l \langle x_l, v^*\rangle$."""
        weights = jax.nn.softmax(self.bayes_logits(tokens), axis=-1)
        return (weights * (tokens @ self.v_star.astype(tokens.dtype))).sum(-1)

    def linear_predict(self, tokens: Float[Array, "*n length dim"]) -> Float[Array, "*n"]:
        r"""The best linear prediction, $\frac{\gamma^2}{\gamma^2 + L - 1} \sum_l \langle x_l, v^*\rangle$."""
        weight = self.gamma**2 / (self.gamma**2 + self.length - 1)
        return weight * (tokens @ self.v_star.astype(tokens.dtype)).sum(-1)

    def constant_risk(self) -> float:
        r"""Risk of predicting 0, $\varepsilon^2 + \gamma^2$."""
        return self.noise**2 + self.gamma**2

    def linear_risk(self) -> float:
        r"""Risk of the best linear predictor, $\varepsilon^2 + \gamma^2 - \gamma^4 / (\gamma^2 + L - 1)$ (Proposition 3)."""
        return self.constant_risk() - self.gamma**4 / (self.gamma**2 + self.length - 1)

    def oracle_risk(self, lam: Float[ArrayLike, "*s"]) -> Float[Array, "*s"]:
        r"""Risk of the head with $k = k^*$ and $v = v^*$ (Theorem 1 at the oracle)."""
        from attlas.single_location.population import ORACLE, risk

        return risk(self, ORACLE, lam)

    @float64
    def best_lam(self) -> float:
        """The sharpness at which the oracle's risk is least, to about eight digits."""
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(lambda x: float(self.oracle_risk(math.exp(x))), bounds=(-12, 3), method="bounded")
        return math.exp(found.x)


def predict(
    tokens: Float[Array, "*n length dim"], k: Float[Array, " dim"], v: Float[Array, " dim"], lam: ArrayLike
) -> Float[Array, "*n"]:
    r"""The simplified attention layer, $\sum_l \mathrm{erf}(\lambda \langle x_l, k\rangle) \langle x_l, v\rangle$."""
    k, v = jnp.asarray(k, tokens.dtype), jnp.asarray(v, tokens.dtype)
    return (jax.lax.erf(lam * (tokens @ k)) * (tokens @ v)).sum(-1)
