r"""Online descent: every step sees a fresh batch (Marion et al. 2025, Figure 4).

With $r = \frac2B(T - y)$, the gradients on a batch are $g_k = \sum w^k_l X_l$ and
$g_v = \sum w^v_l X_l$ over its tokens, where the weights $w^v = rE$, $w^k = rD$ (with $E$ the
head's weight of a token and $D = \partial T/\partial a$) depend on the products
$a = \langle X, k\rangle$, $b = \langle X, v\rangle$ and on $y$ alone. Given those, the rest of the
tokens is Gaussian and independent, so that the gradients' parts in the two directions of the stars
outside span(k, v) are Gaussian, and the Gram matrix of their parts in the $d - 4$ others is
Wishart. The five overlaps are therefore a Markov chain that is simulated exactly with 2L + 1
Gaussians an example, whatever d. Tokens are in single precision; the overlaps and the frame are in
double, because near the oracle the frame's vectors are small differences of them.

A step works in the frame $e_1 = k$, $e_2 = (v - \rho k)/q$, $e_3$ the rest of $v^*$, $e_4$ the rest
of $k^*$: $v^* = (\eta, \nu', n, 0)$, $k^* = (\kappa, \theta', f_3, f_4)$.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, ArrayLike, Float

from attlas import order_parameters
from attlas.errors import InputError, whole
from attlas.fused import LARGEST, one_kernel
from attlas.gaussian import Real, float64, stream
from attlas.scan import Trajectory, drive, in_groups
from attlas.schedules import Schedule, as_schedule, values_at
from attlas.single_location.descent import (
    as_dataset,
    as_starts,
    as_vectors,
    in_words,
    with_settings,
)
from attlas.single_location.gates import Activation, Gate, as_head
from attlas.single_location.population import (
    Overlaps,
    at_points,
    draw_loss,
    gate_unless_erf,
    total_risk,
)
from attlas.single_location.reduction import as_problem, five_overlaps
from attlas.single_location.responses import (
    GateSums,
    SoftmaxSums,
    added,
    gate_response,
    gate_sums,
    softmax_response,
    softmax_sums,
)
from attlas.single_location.task import Constants, SingleLocation
from attlas.surface import public
from attlas.words import Lanes, lanes_of, next_words

LANES = 32
"""Repeats in a group. They and `chunk_of` fix the format of the random streams, four for each group
and block, and the shape of the compiled program: results depend neither on the number of threads
nor on how many repeats or steps there are."""

CHUNKS = (1, 5, 20)
"""Chunks of steps in a block: the fewest that hold a short run, which begins with the same numbers,
or as many blocks of the most as it takes."""

TEST_SAMPLES = 1000
"""Sequences in the batch on which the risk of a softmax head is reported."""


@public
def descend_online(
    task: SingleLocation,
    start: Overlaps,
    *,
    batch_size: int,
    lam: Real | Schedule,
    step_size: Real | Schedule,
    steps: int,
    seed: int = 0,
    record_every: int = 100,
    activation: str | Activation | Gate = "erf",
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Stochastic descent with a fresh batch of sequences at each step, exact in law.

    Arguments:
        start: overlaps [repeat].
        batch_size: sequences in a step.
        lam, step_size: numbers or schedules, the same for all starts.
        activation: a gate, or "softmax", for which `lam` is the inverse temperature and `risk` is
            that on a batch of 1,000 sequences, the same at every step.
        task: the task that sequences are drawn from.
        steps: how many. `seed`: of the batches.
        record_every, progress: as in `descend`.

    Returns: what `descend` does.

    >>> from attlas.single_location import Overlaps, SingleLocation, descend_online
    >>> task = SingleLocation(dim=100, length=5)
    >>> start = Overlaps(0.2, 0.2, 0, 0, 0)
    >>> path = descend_online(task, start, batch_size=5, lam=0.3, step_size=0.02, steps=500)
    >>> print(list(path.data_vars), path.sizes["step"])
    ['kappa', 'nu', 'theta', 'eta', 'rho', 'risk', 'distance', 'status', 'survived'] 6
    """
    overlaps, record_every = as_starts(start), whole("record_every", record_every, 1)
    run = _checked(activation, lam, step_size, batch_size, steps, seed)
    path = simulate(task, overlaps, *run, record_every, progress)
    data = as_dataset(path._replace(observed=path.observed._asdict()))
    data = _reported(data, task, run[0], run[1], run[-1])
    return with_settings(data, task, lam=lam, step_size=step_size, batch_size=batch_size, seed=seed)


@float64
@public
def descend_online_vectors(
    task: SingleLocation,
    k: Float[ArrayLike, "repeat dim"],
    v: Float[ArrayLike, "repeat dim"],
    *,
    batch_size: int,
    lam: Real | Schedule,
    step_size: Real | Schedule,
    steps: int,
    seed: int = 0,
    record_every: int = 100,
    activation: str | Activation | Gate = "erf",
) -> xr.Dataset:
    """`descend_online` on vectors, with whole tokens and automatic gradients: the reference, by
    `attlas.order_parameters`.

    Arguments:
        k, v: starts [repeat, dim] of unit length.
        others: as in `descend_online`.

    >>> import numpy as np
    >>> from attlas.single_location import SingleLocation, descend_online_vectors
    >>> task = SingleLocation(dim=8, length=5)
    >>> k, v = np.eye(8)[[2]], np.eye(8)[[3]]
    >>> path = descend_online_vectors(task, k, v, batch_size=5, lam=0.6, step_size=0.02, steps=200)
    >>> path.status.item()
    'completed'
    """
    head, schedules, *run = _checked(activation, lam, step_size, batch_size, steps, seed)
    pairs = np.stack([np.asarray(x) for x in as_vectors(task, k, v, float)], -1)
    data = order_parameters.descend_online_vectors(
        as_problem(task, schedules[0], activation),
        pairs / np.linalg.norm(pairs, axis=1, keepdims=True),
        np.stack([task.k_star, task.v_star], -1),
        batch_size=run[0],
        step_size=schedules[1],
        steps=run[1],
        seed=run[2],
        record_every=record_every,
        constraint="unit",
    )
    return _reported(five_overlaps(data), task, head, schedules, run[2])


def _checked(
    activation: Any, lam: Any, step_size: Any, batch_size: Any, steps: Any, seed: Any
) -> tuple[Gate | None, tuple[Schedule, Schedule], int, int, int]:
    """Head, schedules, batch size, steps and seed, as `simulate` takes them."""
    head, steps = as_head(activation), whole("steps", steps, 0)
    if head is not None and head.activation == "step":
        raise InputError(
            "activation = 'step': it has no derivative, and descent on samples would never move k"
        )
    lam, step_size = as_schedule("lam", lam, steps), as_schedule("step_size", step_size, steps)
    zero = jnp.asarray(0)
    offset = 0.0 if head is None else head.offset
    for name, value in (("offset", offset), ("lam", lam(zero)), ("step_size", step_size(zero))):
        if np.ndim(value):
            raise InputError(
                f"{name} has the shape {np.shape(value)}: online descent takes one value for all "
                "starts"
            )
    batch_size, seed = whole("batch_size", batch_size, 1), whole("seed", seed, 0)
    return head, (lam, step_size), batch_size, steps, seed


# --- on the five overlaps -------------------------------------------------------------------------


class Raw(NamedTuple):
    """The random numbers of a block: pairs of 32-bit words or the seeds of what makes them, and
    lengths of two Gaussian vectors."""

    tokens: Any  # [3, step of the chunk * batch_size * LANES], seeds of the tokens' words
    rest: Any  # [step, 2, max(batch_size, 5), LANES], of targets and of the frame
    chi: Any  # [step, 2, LANES], of d - 4 and d - 5 degrees of freedom
    lam: Any  # [step], as the schedules say
    alpha: Any  # [step], 0 beyond the last step


class Inputs(NamedTuple):
    """What one step takes: few arrays, because each is a copy."""

    examples: Array  # [2 + sums, batch_size, LANES], as `sequences` gives them
    zy: Array  # [batch_size, LANES]
    z5: Array  # [5, LANES]
    chi: Array  # [2, LANES]
    lam: Array
    alpha: Array


class Args(NamedTuple):
    constants: Constants
    tokens: Any  # [length, batch_size], for its shape
    head: Gate | None
    complement: Any  # 1, or 0 to leave the d - 4 other directions out, which is wrong


def simulate(
    task: SingleLocation,
    start: Overlaps,
    head: Gate | None,
    schedules: tuple[Any, Any],
    batch_size: int,
    steps: int,
    seed: int,
    record_every: int,
    progress: Callable[[int, int], None] | None = None,
    complement: bool = True,
) -> Trajectory:
    """The overlaps of descent on fresh batches, from every start, in groups of `LANES`.

    Arguments:
        start: overlaps [repeat], as `as_starts` gives them.
        head: the gate, None for softmax.
        schedules: of lam and of the step size, as `as_schedule` gives them.
        batch_size, steps, seed, record_every, progress: as in `descend_online`.
        complement: whether gradients have parts in the $d - 4$ directions outside span(k, v, k*,
            v*); False is a false variant, for controls.

    Returns: a Trajectory that observed `Overlaps` [record, repeat].
    """
    args = Args(
        Constants(*(float(x) for x in task.constants)),
        np.zeros((task.length, batch_size), np.float32),
        None if head is None else Gate(head.activation, np.float32(head.offset)),
        np.float32(complement),
    )
    # As arrays, so that one compiled program serves every schedule.
    lam, alpha = (values_at(schedule, np.arange(steps)) for schedule in schedules)
    chunk = chunk_of(batch_size, task.length)
    chunks = next((n for n in CHUNKS if steps <= n * chunk), CHUNKS[-1])
    block = chunks * chunk

    def simulate_group(number: int, rows: np.ndarray, progress: Any) -> Trajectory:
        return drive(
            step,
            prepare,
            Overlaps(*(x[rows] for x in start)),
            args,
            functools.partial(_draw, seed, number, chunks, batch_size, task, lam, alpha),
            steps=steps,
            block=block,
            record_every=record_every,
            progress=progress,
            at_once=_fits_one_kernel(head, batch_size * LANES),
        )

    with jax.enable_x64(True):
        return in_groups(simulate_group, len(start.kappa), LANES, steps, progress)


def chunk_of(batch_size: int, length: int) -> int:
    """Steps whose tokens are made at once: so many as a cache holds, and 10 at most."""
    return max(1, min(10, LARGEST // (batch_size * length * LANES)))


def _draw(
    seed: int,
    group: int,
    chunks: int,
    batch_size: int,
    task: SingleLocation,
    lam: np.ndarray,
    alpha: np.ndarray,
    block: int,
) -> Raw:
    """The numbers of one block of steps, from four streams of its own.

    One pair of words makes two Gaussians: one pair for each token, and one for each example's
    target with one of the five of the frame. The tokens' words, ten times the others, are made by
    the compiled program.
    """
    chunk = chunk_of(batch_size, task.length)
    steps = chunks * chunk
    tokens, rest, *lengths = (
        np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(group, block, use)))
        for use in range(4)
    )

    def words(stream: np.random.SFC64, *shape: int) -> np.ndarray:
        return stream.random_raw(math.prod(shape) // 2).view(np.uint32).reshape(shape)

    chi = [
        np.random.Generator(stream).standard_gamma(
            max(task.dim - n, 0) / 2, (steps, LANES), np.float32
        )
        for stream, n in zip(lengths, (4, 5), strict=True)
    ]
    here = slice(block * steps, (block + 1) * steps)
    short = (0, steps - len(alpha[here]))
    return Raw(
        words(tokens, 3, chunk * batch_size * LANES),
        words(rest, steps, 2, max(batch_size, 5), LANES),
        np.sqrt(2 * np.stack(chi, 1)),
        np.pad(lam[here], short, "edge").astype(np.float32),
        np.pad(alpha[here], short),
    )


def prepare(raw: Raw, args: Args) -> Inputs:
    length, batch_size = args.tokens.shape
    lanes = raw.tokens.shape[1]
    make: Callable[..., Any] = functools.partial(sequences, args.head, length, batch_size * LANES)
    if _fits_one_kernel(args.head, length * lanes):
        make = one_kernel(make)
    made = make(raw.tokens, raw.lam.reshape(-1, lanes // (batch_size * LANES), 1))
    examples = made.reshape(-1, made.shape[2], batch_size, LANES)
    zy, z5 = gaussian_pairs(raw.rest[:, 0], raw.rest[:, 1])
    # In four dimensions there is no complement, not even the fifth Gaussian.
    fifth = (raw.chi[:, 0] > 0).astype(jnp.float32) * args.complement
    z5 = z5[:, :5].at[:, 4].multiply(fifth)
    chi = raw.chi * args.complement
    return Inputs(examples, zy[:, :batch_size], z5, chi, raw.lam, raw.alpha)


def sequences(
    head: Gate | None, length: int, examples: int, seeds: Array, lam: Array
) -> Float[Array, "chunk step sums example"]:
    """Coordinates along $e_1$ and $e_2$ of informative tokens, then the sums over the others.

    The other tokens' coordinates are standard Gaussians in whatever frame, so that what the head
    makes of them is found for many steps at once, before the states are known.

    Arguments:
        length: tokens of a sequence. `examples`: sequences of a step.
        seeds: of the words [3, lane], a lane for each step of a chunk and example.
        lam: [chunk, step, 1].
    """

    def token(state: Lanes, _: None) -> tuple[Lanes, tuple[Array, Array]]:
        state, angle = next_words(state)
        state, radius = next_words(state)
        return state, gaussian_pairs(*(x.reshape(-1, examples) for x in (angle, radius)))

    def chunk(state: Lanes, lam: Array) -> tuple[Lanes, Array]:
        state, (z1, z2) = jax.lax.scan(token, state, length=length)
        others = z1[1:], z2[1:], lam
        sums: Any = softmax_sums(*others) if head is None else gate_sums(head, *others)
        return state, jnp.stack([z1[0], z2[0], *sums], 1)

    return jax.lax.scan(chunk, lanes_of(seeds), lam)[1]


def gaussian_pairs(angle: Array, radius: Array) -> tuple[Array, Array]:
    """Two independent Gaussians from two 32-bit words (Box and Muller).

    Two bits choose a quarter turn, thirty an angle within it, where short polynomials give its sine
    and cosine to single precision.
    """
    length = jnp.sqrt(jnp.maximum(-2 * jnp.log((radius.astype(jnp.float32) + 0.5) * 2.0**-32), 0))
    x = (angle << 2).astype(jnp.int32).astype(jnp.float32) * (np.pi / 4 / 2**31)
    z = x * x
    sine = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - 1.9515295891e-4 * z))
    cosine = 1 - z / 2 + z * z * (4.1666645683e-2 + z * (-1.3887316255e-3 + 2.4433157118e-5 * z))
    quarter = angle >> 30
    odd = (quarter & 1) == 1
    length = jnp.where(quarter >= 2, -length, length)
    return length * jnp.where(odd, -sine, cosine), length * jnp.where(odd, cosine, sine)


def step(state: Overlaps, inputs: Inputs, args: Args) -> Overlaps:
    kappa, nu, theta, eta, rho = state
    (z1, z2, *sums), zy, z5, chi, lam, alpha = inputs
    m, gamma, _, noise = args.constants
    batch_size = args.tokens.shape[1]

    # The frame. Where a direction has no rest its unit vector is arbitrary; no coordinate exceeds
    # the room that is left.
    q = jnp.sqrt(jnp.maximum((1 - rho) * (1 + rho), 1e-14))
    room_v, room_k = ((1 - x) * (1 + x) for x in (eta, kappa))
    nu_, theta_ = _within((nu - rho * eta) / q, room_v), _within((theta - rho * kappa) / q, room_k)
    n = jnp.sqrt(jnp.maximum(room_v - nu_**2, 1e-14))
    f3 = _within(-(kappa * eta + theta_ * nu_) / n, room_k - theta_**2)
    f4 = jnp.sqrt(jnp.maximum(room_k - theta_**2 - f3**2, 0))
    # The target is gamma (eta z1 + nu' z2) + tau zy; zy and the third coordinate of its token are
    # correlated.
    tau2 = (gamma * n) ** 2 + noise**2
    tau = jnp.sqrt(tau2)
    correlation, remainder = gamma * n / tau, noise**2 / tau2

    def total(x: Array) -> Array:
        return added(x).astype(float)

    def single(*values: Array) -> list[Array]:
        return [value.astype(jnp.float32) for value in values]

    spread, rho_, q_ = single(gamma, rho, q)
    (mean1, mean2), weights = single(m * kappa, m * theta_), single(eta, nu_, tau)
    x1, x2 = mean1 + spread * z1, mean2 + spread * z2
    target = spread * (weights[0] * z1 + weights[1] * z2) + weights[2] * zy
    b = rho_ * x1 + q_ * x2
    if args.head is None:
        found = softmax_response(x1, b, SoftmaxSums(*sums), rho_, q_, lam)
    else:
        found = gate_response(args.head, x1, b, GateSums(*sums), rho_, q_, lam)
    r = 2 / batch_size * (found.prediction - target)
    # Tangential parts in span(k, v): of g_k along e_2, of g_v along (-q, rho).
    g_k = total(r * (found.d * x2 + found.d2))
    g_v = total(r * (found.e * (rho_ * x2 - q_ * x1) + found.e_turned))
    # Second moments of the weights, of the informative tokens and of the others; never one as a
    # difference.
    others = [total(r * r * x) for x in (found.dd, found.de, found.ee)]
    w_k, w_v = r * found.d, r * found.e
    own = [gamma**2 * total(x * y) for x, y in ((w_k, w_k), (w_k, w_v), (w_v, w_v))]
    sum_k, sum_v, target_k, target_v = total(w_k), total(w_v), total(w_k * zy), total(w_v * zy)

    l11, l21, l22 = _cholesky(*(x + remainder * y for x, y in zip(others, own, strict=True)))
    k3 = m * f3 * sum_k + gamma * correlation * target_k + l11 * z5[0]
    v3 = m * f3 * sum_v + gamma * correlation * target_v + l21 * z5[0] + l22 * z5[1]
    l11, l21, l22 = _cholesky(*(x + y for x, y in zip(others, own, strict=True)))
    k4 = m * f4 * sum_k + l11 * z5[2]
    v4 = m * f4 * sum_v + l21 * z5[2] + l22 * z5[3]
    k_rest, v_rest, v_other = l11 * chi[0], l21 * chi[0] + l22 * z5[4], l22 * chi[1]

    scale_k = jax.lax.rsqrt(1 + alpha**2 * (g_k**2 + k3**2 + k4**2 + k_rest**2))
    scale_v = jax.lax.rsqrt(1 + alpha**2 * (g_v**2 + v3**2 + v4**2 + v_rest**2 + v_other**2))
    product = rho * g_k * g_v + k3 * v3 + k4 * v4 + k_rest * v_rest
    return Overlaps(
        kappa=(kappa - alpha * (theta_ * g_k + f3 * k3 + f4 * k4)) * scale_k,
        nu=(nu - alpha * ((rho * nu_ - q * eta) * g_v + n * v3)) * scale_v,
        theta=(theta - alpha * ((rho * theta_ - q * kappa) * g_v + f3 * v3 + f4 * v4)) * scale_v,
        eta=(eta - alpha * (nu_ * g_k + n * k3)) * scale_k,
        rho=(rho - alpha * q * (g_k - g_v) + alpha**2 * product) * scale_k * scale_v,
    )


def _fits_one_kernel(head: Gate | None, numbers: int) -> bool:
    """Whether `one_kernel` takes this head on so many numbers: not one that a caller wrote."""
    return numbers <= LARGEST and (head is None or isinstance(head.activation, str))


def _within(x: Array, room: Array) -> Array:
    """`x` clipped so that its square is at most `room`."""
    end = jnp.sqrt(jnp.maximum(room, 0))
    return jnp.clip(x, -end, end)


def _cholesky(xx: Array, xy: Array, yy: Array) -> tuple[Array, Array, Array]:
    l11 = jnp.sqrt(jnp.maximum(xx, 1e-30))
    end = jnp.sqrt(jnp.maximum(yy, 0))
    l21 = jnp.clip(xy / l11, -end, end)
    return l11, l21, jnp.sqrt(jnp.maximum(yy - l21**2, 0))


# --- what is reported -----------------------------------------------------------------------------


@float64
def _reported(
    data: xr.Dataset,
    task: SingleLocation,
    head: Gate | None,
    schedules: tuple[Schedule, Schedule],
    seed: int,
) -> xr.Dataset:
    """Overlaps over (repeat, step) with their `risk` at each step's lam, and their `distance`."""
    overlaps = Overlaps(*(data[name].values.T for name in Overlaps._fields))
    lams = values_at(schedules[0], data["step"].values)[:, None]
    if head is None:
        risk = batch_risk(task, overlaps, lams, jax.random.key(seed), TEST_SAMPLES, "softmax")
    else:
        risk = at_points(total_risk, task.constants, overlaps, lams, gate_unless_erf(head))
    both = {"risk": np.asarray(risk), "distance": overlaps.distance}
    found = data.assign({name: (("repeat", "step"), x.T) for name, x in both.items()})
    return in_words(found[[*Overlaps._fields, *both, "status", "survived"]])


@public
def batch_risk(
    task: SingleLocation,
    overlaps: Overlaps,
    lam: ArrayLike,
    key: Array,
    samples: int,
    activation: str | Activation | Gate = "erf",
) -> Float[np.ndarray, "step repeat"]:
    """Mean loss of heads on one batch of sequences, the same for all heads.

    Arguments:
        overlaps: of the heads, [step, repeat].
        lam: sharpness, or the inverse temperature of softmax; broadcasts with `overlaps`.
        key: of the batch.
        samples: sequences in it.
        activation: a gate, or "softmax".

    Returns: [step, repeat].
    """
    head, samples = as_head(activation), whole("samples", samples, 1)
    rows = np.stack(np.broadcast_arrays(*overlaps, lam), 1)
    losses = (
        draw_loss(stream(key), samples, task.constants, Overlaps(*row[:5]), row[5], head)
        for row in rows
    )
    return np.stack([loss.mean(-1) for loss in losses])
