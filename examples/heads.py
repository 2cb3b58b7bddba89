"""What the worked examples share: two attention heads and their training, the linear model, the
table and the file.

A head is a pair of vectors (k, v): k scores a token, v reads it. Padding is a token of zeros.
"""

import functools
import json
import os
from pathlib import Path

import click
import jax
import jax.numpy as jnp
import numpy as np

from attlas.single_location import InverseDecay

SHARPNESS = InverseDecay(start=1.0, rate=2e-3)
"""Sharpness of the erf head at step t: high at first, lest k and v trade places; low at last, lest
noise come through."""


def softmax_weights(tokens, k, t=None):
    r"""$\mathrm{softmax}(\langle x_l, k\rangle)_l$ of tokens [..., length, dim], 0 for padding."""
    return jax.nn.softmax(tokens @ k, axis=-1, where=(tokens != 0).any(-1))


def erf_weights(tokens, k, t):
    r"""The paper's weights, $\mathrm{erf}(\lambda_t \langle x_l, k\rangle)$."""
    return jax.lax.erf(SHARPNESS(jnp.asarray(t)) * (tokens @ k))


def free_step(x, gradient, size):
    return x - size * gradient


def sphere_step(x, gradient, size):
    """The paper's projected gradient descent: a step along the tangent, and back to length 1."""
    moved = x - size * (gradient - (x @ gradient) * x)
    return moved / jnp.linalg.norm(moved)


@functools.partial(jax.jit, static_argnames=("weigh", "move", "steps", "batch"))
def train(key, tokens, target, *, weigh, move, size, steps, start=1.0, batch=64):
    r"""k and v [repeat, dim] of the head $\sum_l w_l \langle x_l, v\rangle$ with weights $w$ =
    `weigh(tokens, k, t)`.

    Stochastic gradient descent on the squared error from random vectors of length `start`, all
    repeats in one program; the step falls from `size` to 0. A short k weighs all tokens alike at
    first, so that v is found before k can err. `tokens` [repeat, n, length, dim], `target` [repeat,
    n].
    """

    def one(key, tokens, target):
        def step(head, t):
            rows = jax.random.randint(jax.random.fold_in(key, t), (batch,), 0, len(target))
            x, y = tokens[rows], target[rows]
            in_k, in_v = jax.grad(
                lambda k, v: (((weigh(x, k, t) * (x @ v)).sum(-1) - y) ** 2).mean(), (0, 1)
            )(*head)
            shrinking = size * (1 - t / steps)
            return (move(head[0], in_k, shrinking), move(head[1], in_v, shrinking)), None

        drawn = jax.random.normal(key, (2, tokens.shape[-1]))
        k, v = start * drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)
        return jax.lax.scan(step, (k, v), jnp.arange(steps))[0]

    return jax.vmap(one)(jax.random.split(key, len(target)), tokens, target)


def linear_fit(features, target, penalty=0.0):
    """Weights [p] and intercept of the ridge regression of `target` [n] on `features` [n, p]."""
    x, y = np.asarray(features, float), np.asarray(target, float)
    centred = x - x.mean(0)
    weights = np.linalg.solve(
        centred.T @ centred + penalty * np.eye(x.shape[1]), centred.T @ (y - y.mean())
    )
    return weights, y.mean() - x.mean(0) @ weights


def with_error(values, digits=3):
    """Mean and standard error over the repeats, as text."""
    values = np.asarray(values, float)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}"


def print_table(headings, rows):
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        click.echo(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def _writable(context, parameter, path):
    """`path`, with its folder made: better refused before the training than after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(
            f"the folder {str(path.parent)!r} cannot be made: {error.strerror}"
        ) from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"{str(path)!r} cannot be written")
    return path


def options(name):
    """The options of an example that writes the file `name`."""
    out = click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        default=f"build/examples/{name}",
        show_default=True,
        callback=_writable,
        help="The file to write, which a page of the atlas shows.",
    )
    seed = click.option(
        "--seed",
        type=click.IntRange(0, 2**31 - 1),
        default=0,
        show_default=True,
        help="Where all random numbers come from.",
    )
    return lambda command: out(seed(command))


def write_data(out, **content):
    """Write what a page of the atlas reads."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    out.write_text(f"{text}\n", encoding="utf-8")
    click.echo(out)


def short(values, digits=5):
    """An array as lists of numbers, rounded."""
    return np.round(np.asarray(values, float), digits).tolist()
