"""Benchmarks of capacity bounds and of heads that compute sparse functions: each returns one
`Row`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from attlas.capacity import class_of, collapsed_head
from attlas.sparse_variables import SparseBoolean, symmetric_head
from bench.timing import Row, compare


def grid_of_bounds() -> Row:
    count, some = 10_000, 200
    lengths, norms = np.geomspace(10, 1e6, count), np.geomspace(0.1, 100, count)
    return compare(
        f"Dudley's bound for {count:,} heads, lengths and norms varying, in one call, against one"
        f" by one ({some}, scaled)",
        lambda: class_of(collapsed_head(norms, 1.0, lengths)).rademacher(1e9),
        lambda: [
            class_of(collapsed_head(b, 1.0, t)).rademacher(1e9)
            for b, t in zip(norms[:some], lengths[:some], strict=True)
        ],
        expected="5 or more; under a second",
        scale=count / some,
    )


def parity_by_tables() -> Row:
    length, samples = 1000, 100
    task = SparseBoolean(length, (3, 500, 999), "parity")
    head = symmetric_head(task)
    bits = np.asarray(task.sample(jax.random.key(0), samples).bits)
    with jax.enable_x64(True):
        module, tokens = head.module(), jnp.asarray(head.embed(bits[:4]))
        run = jax.jit(jax.vmap(module)).lower(tokens).compile()
    return compare(
        f"parity of 3 of {length:,} bits on {samples} sequences from tables, against the module on"
        f" tokens of dimension {length + 3:,}"
        " (4 sequences, scaled)",
        lambda: head(bits),
        lambda: run(tokens).block_until_ready(),
        expected="10 or more",
        scale=samples / 4,
    )


BENCHMARKS: tuple[Callable[[], Row], ...] = (grid_of_bounds, parity_by_tables)
