r"""A time series in which one event decides.

A machine works in cycles, and a record holds ten of them. Each cycle is 16 samples of two channels,
vibration and pressure. In one cycle, any of the ten, a valve knocks: a shape in the vibration,
hardly above the noise. The pressure changes from cycle to cycle, and what is measured at the end is
the mean pressure of the cycle that knocked.

With a cycle as a token x of 32 numbers, this is single-location regression (Marion et al. 2025,
Section 2, gamma = 1):

    x_J = m k* + noise,   x_l = noise elsewhere,   Y = <x_J, v*> + 0.1 N(0, 1),   m = sqrt(32/2) = 4

k* is the shape of the knock, of length 1, v* averages the pressure, whose mean over a cycle has
variance 1. The noise is the same in all cycles, so the log odds of a cycle to be the one that
knocked are m <x, k*> and

    E[Y | x] = sum_l softmax(m <x, k*>)_l <x_l, v*>,

a softmax head: no predictor is better, and a trained one can come as close as its data allow. The
best linear predictor, by contrast, has the risk 0.1^2 + 1 - 1/10 (Proposition 3): it can do little
but average all cycles.

    python examples/events.py [--seed N] [--out FILE]

trains on 4000 records, five times over, prints the errors and writes what the page "One event
decides" of the atlas reads, some records and the head:
`--out src/attlas/single_location/pages/events.json` renews it.
"""

from typing import NamedTuple

import click
import jax
import numpy as np
import xarray as xr
from heads import (
    free_step,
    linear_fit,
    options,
    print_table,
    short,
    softmax_weights,
    train,
    with_error,
    write_data,
)

from attlas.errors import whole
from attlas.single_location import SingleLocation

CYCLES, SAMPLES = 10, 16
TASK = SingleLocation(dim=2 * SAMPLES, length=CYCLES, gamma=1.0, noise=0.1)
SHOWN = 8  # records on the page
ROUGHNESS = 0.5  # of the pressure within a cycle
PENALTY = 1e4  # of the ridge regression, the best of 300, 1e3, 3e3, 1e4 and 3e4: it gets its due

time = np.arange(SAMPLES)
KNOCK = np.exp(-time / 4) * np.sin(2 * np.pi * (time + 1) / 5)
K_STAR = np.concatenate([KNOCK / np.linalg.norm(KNOCK), np.zeros(SAMPLES)])
V_STAR = np.concatenate([np.zeros(SAMPLES), np.full(SAMPLES, 1 / SAMPLES)])


class Records(NamedTuple):
    tokens: np.ndarray  # [n, cycle, vibration samples then pressure samples]
    target: np.ndarray  # [n]
    place: np.ndarray  # [n], which cycle knocked


def draw_records(rng, count):
    place = rng.integers(CYCLES, size=count)
    vibration = rng.normal(size=(count, CYCLES, SAMPLES))
    level = np.sqrt(1 - ROUGHNESS**2 / SAMPLES) * rng.normal(
        size=(count, CYCLES, 1)
    )  # the mean then has variance 1
    pressure = level + ROUGHNESS * rng.normal(size=(count, CYCLES, SAMPLES))
    tokens = np.concatenate([vibration, pressure], -1)
    tokens[np.arange(count), place] += TASK.m * K_STAR
    target = tokens[np.arange(count), place] @ V_STAR + TASK.noise * rng.normal(size=count)
    return Records(tokens.astype(np.float32), target.astype(np.float32), place)


def attend(records, k, v):
    """The softmax head's weights [n, cycle] and predictions [n]."""
    weights = np.asarray(softmax_weights(records.tokens, k))
    return weights, (weights * (records.tokens @ v)).sum(-1)


def learn(seed=0, repeats=5, count=4000):
    """Mean square errors on new records, and how often the largest weight is on the cycle that
    knocked, over (repeat, predictor); the first repeat's head (k, v) and its test records."""
    drawn = [
        [draw_records(np.random.default_rng([seed, repeat, part]), count) for part in range(2)]
        for repeat in range(whole("repeats", repeats, 2))
    ]
    tokens, target = (
        np.stack([getattr(training, name) for training, _ in drawn])
        for name in ("tokens", "target")
    )
    heads = train(
        jax.random.key(seed),
        tokens,
        target,
        weigh=softmax_weights,
        move=free_step,
        size=0.03,
        steps=3000,
        start=0.1,
    )
    heads = [(np.asarray(k), np.asarray(v)) for k, v in zip(*heads, strict=True)]
    measured = []
    for (k, v), (training, test) in zip(heads, drawn, strict=True):
        weights, constant = linear_fit(training.tokens.reshape(count, -1), training.target, PENALTY)
        looked = {
            "softmax head": attend(test, k, v),
            "best possible": attend(test, TASK.m * K_STAR, V_STAR),
        }
        said = {
            "constant": training.target.mean(),
            "linear regression": test.tokens.reshape(count, -1) @ weights + constant,
            **{name: prediction for name, (_, prediction) in looked.items()},
        }
        error = [((prediction - test.target) ** 2).mean() for prediction in said.values()]
        found = [
            (looked[name][0].argmax(1) == test.place).mean() if name in looked else np.nan
            for name in said
        ]
        axes = {"predictor": list(said)}
        measured.append(
            xr.Dataset({"error": ("predictor", error), "found": ("predictor", found)}, axes)
        )
    return xr.concat(measured, "repeat"), heads[0], drawn[0][1]


@click.command(
    help="Train a head on records in which one event decides, print its error and write it."
)
@options("events.json")
def main(out, seed):
    measured, (k, v), test = learn(seed)
    names = list(measured.predictor.values)
    rows = [
        [
            name,
            with_error(here.error),
            "" if np.isnan(here.found).any() else with_error(100 * here.found, 1),
        ]
        for name in names
        for here in [measured.sel(predictor=name)]
    ]
    headings = ["", "mean square error", "event found %"]
    print_table(headings, rows)
    click.echo(f"best linear predictor, in theory: {TASK.linear_risk():.3f}")
    shown = zip(test.tokens[:SHOWN], test.target[:SHOWN], test.place[:SHOWN], strict=True)
    write_data(
        out,
        seed=seed,
        headings=headings,
        rows=rows,
        repeats=measured.sizes["repeat"],
        count=len(test.target),
        records=[
            {"tokens": short(tokens, 2), "target": round(float(target), 3), "place": int(place)}
            for tokens, target, place in shown
        ],
        k=short(k, 4),
        v=short(v, 4),
        knock=short(K_STAR[:SAMPLES]),
        m=float(TASK.m),
        length=float(np.linalg.norm(k)),
        alignment=float(k @ K_STAR / np.linalg.norm(k)),
        linear=float(TASK.linear_risk()),
    )


if __name__ == "__main__":
    main()
