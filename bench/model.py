"""Benchmarks of the trained model's table form and of its training: each returns one `Row`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attlas.sparse_variables.model import Architecture, logits, logits_full, logits_query
from attlas.sparse_variables.training import LANES, train
from attlas.sparse_variables.training_sets import draw_sets
from bench.timing import Row, compare

LENGTH, SAMPLES = 300, 100


def against_query_alone() -> Row:
    return compare(
        _what("a key and a value for every token of every sequence"),
        _run(logits),
        _run(logits_query),
        expected="20 or more",
    )


def against_full_attention() -> Row:
    some = 10
    return compare(
        _what(f"attention at every token ({some} sequences, scaled)"),
        _run(logits),
        _run(logits_full, some),
        expected="800 or more",
        scale=SAMPLES / some,
        rounds=3,
    )


def runs_together() -> Row:
    return compare(
        f"{4 * LANES} training runs of 50 steps, {LANES} at a time, T = {LENGTH}, m = {SAMPLES},"
        f" against one after another",
        _trained(LENGTH, 4 * LANES),
        _trained(LENGTH, 1),
        expected="more than 1",
        scale=4 * LANES,
        rounds=3,
    )


def training_growth() -> Row:
    return compare(
        "four training runs of 50 steps at T = 400, against T = 1600: the exponent of the time is"
        " the ratio's logarithm to base 4",
        _trained(400, 4),
        _trained(1600, 4),
        expected="about 4: linear in the length",
        rounds=3,
    )


def _trained(length: int, trials: int) -> Callable[[], object]:
    sets = draw_sets(jax.random.key(0), length, [SAMPLES], trials, validation=100)
    return lambda: train(sets, key=jax.random.key(1), steps=50, every=50, stop=False)


def _what(other: str) -> str:
    return (
        f"value and gradient of the one-layer Transformer by its table, T = {LENGTH},"
        f" m = {SAMPLES}, d = 64, 16 heads, against {other}"
    )


def _run(form: Callable[..., Any], samples: int = SAMPLES) -> Callable[[], object]:
    model = Architecture(heads=16).initialise(LENGTH, jax.random.key(0))
    bits = jax.random.bernoulli(jax.random.key(1), 0.8, (samples, LENGTH)).astype(jnp.uint8)
    step = jax.jit(jax.value_and_grad(lambda model: (form(model, bits) ** 2).mean()))
    return lambda: jax.block_until_ready(step(model))


BENCHMARKS: tuple[Callable[[], Row], ...] = (
    against_query_alone,
    against_full_attention,
    runs_together,
    training_growth,
)
