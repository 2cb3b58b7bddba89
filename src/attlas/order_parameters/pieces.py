"""Ready laws of tokens, targets, heads and losses for `Problem`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attlas.errors import InputError, near, whole
from attlas.order_parameters.gates import ACTIVATIONS, gate_weights
from attlas.order_parameters.problem import Tokens
from attlas.schedules import SCHEDULES
from attlas.surface import refusing


def _refuse_no_number(name: str, value: Any) -> None:
    if np.asarray(value).dtype.kind not in "biuf":
        raise InputError(f"{name} = {value!r}: numbers are wanted")


def _refuse_places(
    length: Any,
    signals: Any,
    spread: Any,
    background: Any,
    values: Any,
    extra: Any,
    shortest: Any,
) -> None:
    """A sentence for what no tokens at places have."""
    whole("length", length, 1)
    whole("values", values, 0)
    whole("extra", extra, 0)
    if shortest is not None:
        whole("shortest", shortest, 1)
    for name, value in (("signals", signals), ("spread", spread), ("background", background)):
        _refuse_no_number(name, value)
    signals, background = np.asarray(signals, float), np.asarray(background, float)
    if signals.ndim > 1:
        raise InputError(
            f"signals have the shape {signals.shape}: a number, or one for each place, is wanted"
        )
    if not 0 <= spread < np.inf:
        raise InputError(f"spread = {spread:g}: a standard deviation is finite and not negative")
    directions = signals.size * (1 + values) + extra
    if background.ndim > 1 or background.size > directions:
        raise InputError(
            f"background has the shape {background.shape}: it is a number for each of the"
            f" {directions} directions, or for the first of them"
        )


class Places(eqx.Module):
    r"""Informative tokens at k places: $N(s_i k^*_i, \gamma^2 I)$, the others $N(0, I)$.

    Place i has a key direction and `values` value directions, which are the columns
    $i(1 + \text{values}), \dots$ of $W^*$; the latent is the places [k].

    Arguments:
        length: tokens; with `shortest`, the most of them.
        signals: $s$ [k], the means of informative tokens along their keys.
        spread: $\gamma$ of informative tokens.
        background: mean of every token along the directions [r], with zeros behind.
        correlation: of any two tokens in every direction, from 0 to 1.
        values: value directions of each place. `extra`: further directions, at the end of $W^*$.
        shortest: the length is uniform from here to `length`.
        shuffled: informative tokens come first unless this is set. A head that is symmetric in its
            tokens does not notice.
    """

    signals: Any
    spread: Any
    background: Any
    correlation: Any
    length: int = eqx.field(static=True)
    values: int = eqx.field(static=True)
    extra: int = eqx.field(static=True)
    shortest: int = eqx.field(static=True)
    shuffled: bool = eqx.field(static=True)

    @refusing(_refuse_places)
    def __init__(
        self,
        length: int,
        signals: Any,
        *,
        spread: float = 1.0,
        background: Any = 0.0,
        correlation: float | None = None,
        values: int = 1,
        extra: int = 0,
        shortest: int | None = None,
        shuffled: bool = False,
    ) -> None:
        self.signals = np.atleast_1d(np.asarray(signals, float))
        if correlation is not None and not 0 <= correlation <= 1:
            raise InputError(
                f"correlation = {correlation:g}: no covariance of {length} tokens has it, it must"
                " be from 0 to 1"
            )
        if not 1 <= len(self.signals) <= (shortest or length) <= length:
            raise InputError(
                f"{len(self.signals)} places, at least {shortest or length} and at most {length}"
                " tokens: places must fit into the shortest sequence"
            )
        self.spread, self.correlation = float(spread), correlation
        self.length, self.values, self.extra = length, values, extra
        self.shortest, self.shuffled = shortest or length, shuffled
        mean = np.zeros(self.directions)
        mean[: np.size(background)] = background
        self.background = mean

    @property
    def directions(self) -> int:
        """Columns of $W^*$, r."""
        return self.signals.shape[-1] * (1 + self.values) + self.extra

    @property
    def uniforms(self) -> int:
        """Numbers that the latent is made of: one for the length, and one a token for a shuffle."""
        return 1 + self.length * self.shuffled

    def __call__(self, uniforms: Any) -> Tokens:
        count = self.signals.shape[-1]
        present, places = jnp.ones(self.length, uniforms.dtype), jnp.arange(count)
        if self.shortest < self.length:
            kept = self.shortest + jnp.floor(uniforms[0] * (self.length - self.shortest + 1))
            present = (jnp.arange(self.length) < kept).astype(uniforms.dtype)
        if self.shuffled:
            places = jnp.argsort(jnp.where(present > 0, uniforms[1:], 2))[:count]
        columns = np.arange(count) * (1 + self.values)
        here = jax.nn.one_hot(places, self.length, dtype=uniforms.dtype)  # [k, L]
        keys = np.zeros((count, self.directions))
        keys[np.arange(count), columns] = 1
        mean = (here.T * self.signals) @ keys + self.background
        spreads = 1 + (self.spread - 1) * here.sum(0)
        if self.correlation is None:
            return Tokens(mean.astype(uniforms.dtype), spreads, present, places)
        alone = jnp.sqrt(1 - self.correlation)
        whole = jnp.sqrt(1 - self.correlation + self.length * self.correlation)
        base = alone * jnp.eye(self.length) + (whole - alone) / self.length
        root = (spreads[:, None] * base).astype(uniforms.dtype)
        return Tokens(mean.astype(uniforms.dtype), root, present, places)


class SignedPlace(eqx.Module):
    r"""A label $y = \pm1$ with equal odds, a token $N(y s k^*, I)$ among others $N(0, I)$; the
    latent is the label.

    Arguments:
        signal: $s$. `length`: tokens. `uniforms`: numbers that the latent is made of, 1.
    """

    signal: Any
    length: int = eqx.field(static=True)
    uniforms: int = eqx.field(static=True, default=1)

    def __call__(self, uniforms: Any) -> Tokens:
        label = jnp.where(uniforms[0] < 0.5, -1.0, 1.0).astype(uniforms.dtype)
        mean = jnp.zeros((self.length, 1), uniforms.dtype).at[0, 0].set(label * self.signal)
        return Tokens(mean, jnp.ones(self.length, uniforms.dtype), mean[:, 0] * 0 + 1, label)


class ValueSum(eqx.Module):
    """The sum of the informative tokens' values, a number or, with several values, a vector.

    Arguments:
        noise: standard deviation of what is added to it. `values`: values of each informative
            token. `trailing`: it takes sequences along a last axis.
    """

    noise: Any = 0.0
    values: int = eqx.field(static=True, default=1)
    trailing: bool = eqx.field(static=True, default=True)

    def __call__(self, teacher: Any, tokens: Any, noise: Any) -> Any:
        total: Any = 0
        for number in range(tokens.latent.shape[0]):
            first = number * (1 + self.values) + 1
            place = jnp.asarray(tokens.latent[number])[None, None]
            values = teacher[:, first : first + self.values]
            total = total + jnp.take_along_axis(values, place, 0)[0]
        total = total + self.noise * noise[0]
        return total[0] if self.values == 1 else total


class ChosenValue(eqx.Module):
    r"""The value of a token that is chosen with probability softmax$(\nu\chi)$, where $\chi$ is
    the field of the first direction and the value that of the second.

    Arguments:
        sharpness: $\nu$.

    >>> import numpy as np
    >>> from attlas.order_parameters import ChosenValue, Heads, Network, Overlaps, Places, Problem
    >>> from attlas.order_parameters import Readout, risk
    >>> law, oracle = Places(4, [3.0]), Overlaps(np.eye(2)[None], np.eye(2)[None])
    >>> problem = Problem(law, ChosenValue(sharpness=2.0), Readout(Heads("softmax", lam=2.0)))
    >>> parameters = {"scale": np.ones(1), "constant": np.zeros(1)}
    >>> bool(risk(problem, oracle, parameters, points=1024).mean[0] < 0.05)
    False
    >>> Network().activation.__name__
    'tanh'
    """

    sharpness: Any

    def __call__(self, teacher: Any, tokens: Any, noise: Any) -> Any:
        odds = jnp.cumsum(jax.nn.softmax(self.sharpness * teacher[:, 0]))
        place = jnp.sum(odds < jax.scipy.special.ndtr(noise[0]) * odds[-1])
        return teacher[jnp.minimum(place, len(odds) - 1), 1]


def label(teacher: Any, tokens: Any, noise: Any) -> Any:
    """The latent itself, such as that of `SignedPlace`.

    Arguments:
        teacher: its fields [L, r], which are not read. `tokens`: with the latent.
        noise: not read.

    >>> import numpy as np
    >>> from attlas.order_parameters import Overlaps, Pooled, Problem, SignedPlace
    >>> from attlas.order_parameters import label, logistic, risk
    >>> problem = Problem(SignedPlace(signal=2.0, length=8), label, Pooled(), logistic)
    >>> found = risk(problem, Overlaps(np.array([[[1.0]]]), np.array([[[1.0]]])))
    >>> bool(found.mean[0] < np.log(2))
    True
    """
    return tokens.latent


def _softmax(scores: Any, present: Any) -> tuple[Any, Any]:
    seen = jnp.where(present[:, None] > 0, scores, -jnp.inf)
    weights = jnp.exp(seen - jax.lax.stop_gradient(seen.max(0)))
    return weights, weights.sum(0)


def _softmax_one(scores: Any, present: Any) -> tuple[Any, Any]:
    """A softmax with one more token of score and value 0."""
    top = jnp.maximum(jax.lax.stop_gradient(scores.max(0)), 0)
    weights = present[:, None] * jnp.exp(scores - top)
    return weights, jnp.exp(-top) + weights.sum(0)


WEIGHTS: dict[str, Callable[[Array, Array], tuple[Array, Any]]] = {
    "softmax": _softmax,
    "softmax-1": _softmax_one,
    "linear": gate_weights(ACTIVATIONS["identity"]),
    **{name: gate_weights(function) for name, function in ACTIVATIONS.items()},
}
"""Weights [L, heads, ...] of the tokens and what divides them [heads, ...], from scores
[L, heads, ...] and which tokens are present [L, ...]; further axes are of sequences. Values are
summed before they are divided."""


def _refuse_heads(values: Any, lam: Any, norm: Any, offset: Any) -> None:
    """A sentence for what no heads have."""
    whole("values", values, 1)
    for name, value in (("lam", lam), ("norm", norm), ("offset", offset)):
        if not isinstance(value, SCHEDULES) and np.ndim(value):
            raise InputError(
                f"{name} has the shape {np.shape(value)}: the heads of a problem share one number,"
                " and several problems may differ in it"
            )


class Heads(eqx.Module):
    r"""Attention heads that are added: $\sum_h\sum_l w_l(\lambda a - \tfrac n2a^2 - b)\,v_l$.

    The student's columns are the key $a$ and the value(s) $v$ of the first head, then those of the
    next: p = heads (1 + values).

    Arguments:
        weights: a name of `WEIGHTS`, or a function as those.
        lam: the sharpness, in front of the key's field. `offset`: b, which a softmax does not see.
        norm: n, the weight of the norm term of a Gaussian kernel.
        values: values of each head; above 1 the output is a vector.
    """

    lam: Any
    norm: Any
    offset: Any
    weights: Any = eqx.field(static=True)
    values: int = eqx.field(static=True)
    trailing: bool = eqx.field(static=True)

    @refusing(_refuse_heads)
    def __init__(
        self,
        weights: Any = "softmax",
        lam: Any = 1.0,
        *,
        norm: Any = 0.0,
        offset: Any = 0.0,
        values: int = 1,
    ) -> None:
        if not callable(weights) and weights not in WEIGHTS:
            raise InputError(
                f"weights = {weights!r}.{near(str(weights), WEIGHTS)} There are:"
                f" {', '.join(WEIGHTS)}, or a function."
            )
        self.weights = weights if callable(weights) else WEIGHTS[weights]
        self.lam, self.norm, self.offset, self.values = lam, norm, offset, values
        self.trailing = True

    def __call__(self, student: Any, present: Any, parameters: Any) -> Any:
        if student.shape[1] % (1 + self.values):
            raise ValueError(f"heads of {1 + self.values} columns do not fill {student.shape[1]}")
        columns = [student[:, j :: 1 + self.values] for j in range(1 + self.values)]
        keys = columns[0]
        scores = self.lam * keys - self.norm / 2 * keys**2 - self.offset
        found = self.weights(scores, present)
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(
                "weights of a head must be a pair: the weights of the tokens [L, heads], and what"
                f" divides their sum [heads]; the function gives {_described(found)}"
            )
        weights, total = found
        out = [((weights * value).sum(0) / total).sum(0) for value in columns[1:]]
        return out[0] if self.values == 1 else jnp.stack(out)


def _described(found: Any) -> str:
    shape = getattr(found, "shape", None)
    return type(found).__name__ if shape is None else f"one array of shape {tuple(shape)}"


class Readout(eqx.Module):
    """Another head, then `parameters["scale"]` times its output plus `parameters["constant"]`;
    a scale of shape [q, values] turns a vector of values into q outputs.

    Arguments:
        head: the other one.
    """

    head: Any

    def __call__(self, student: Any, present: Any, parameters: Any) -> Any:
        out = self.head(student, present, None)
        scale = parameters["scale"]
        turned = scale @ jnp.atleast_1d(out) if jnp.ndim(scale) == 2 else scale * out
        return turned + parameters["constant"]


class Pooled(eqx.Module):
    """The sum of the first field over the tokens: a linear predictor that treats them alike."""

    def __call__(self, student: Any, present: Any, parameters: Any) -> Any:
        return (present * student[:, 0]).sum()


class Network(eqx.Module):
    r"""A network without attention on the whole sequence, $\sum_j a_j\sigma(h_j + b_j) + c$ with
    $h_j = \sum_l \langle X_l, u_{lj}\rangle$.

    Columns of the student are $u_{11}, u_{12}, \dots, u_{21}, \dots$: p = L width. Parameters are
    `{"bias": [width], "readout": [width], "constant": []}`.

    Arguments:
        activation: $\sigma$, elementwise.
    """

    activation: Callable[[Array], Array] = eqx.field(static=True, default=jnp.tanh)

    def __call__(self, student: Any, present: Any, parameters: Any) -> Any:
        length = len(student)
        own = student.reshape(length, length, -1)[np.arange(length), np.arange(length)]
        hidden = (present[:, None] * own).sum(0) + parameters["bias"]
        return self.activation(hidden) @ parameters["readout"] + parameters["constant"]


def logistic(prediction: Any, target: Any) -> Any:
    """The logistic loss of a score against a label of 1 or -1.

    Arguments:
        prediction: the score. `target`: the label.
    """
    return jax.nn.softplus(-target * prediction)
