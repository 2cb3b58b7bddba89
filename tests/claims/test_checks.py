"""Checks of one's own formulas: verdicts, looks, bad input, and what they become."""

import numpy as np
import pytest

import attlas
from attlas.claims.checks import check
from attlas.errors import InputError
from attlas.gaussian import Estimate

GRID = {"scale": [0.5, 2.0], "length": [1, 3]}
FACTOR = np.sqrt(2 / np.pi).item()


def half_normal(scale, length):
    return scale * FACTOR / length


def draw(rng, n, scale, length):
    return abs(scale * rng.normal(size=n)) / length


def test_a_true_formula_is_confirmed_with_what_would_have_been_refuted():
    found = attlas.check(half_normal, draw, grid=GRID, quiet=True)
    assert found.verdict.word == "confirmed" and found.first is None
    assert dict(found.evidence.sizes) == {"cell": 4}
    assert found.evidence["length"].values.tolist() == [1, 3, 1, 3]
    np.testing.assert_allclose(found.evidence["predicted"].values[2], 2 * FACTOR)
    spread = np.sqrt(1 - 2 / np.pi) / FACTOR / np.sqrt(10_000)
    allowed = found.verdict.threshold
    assert found.resolution == pytest.approx(allowed * spread, rel=0.1)
    assert "Worst at scale = " in repr(found) and "4 cells, 10,000 samples each" in repr(found)


@pytest.mark.parametrize("off, word", [(1.0, "confirmed"), (1.02, "refuted"), (0.98, "refuted")])
def test_a_wrong_formula_is_refuted_twice(off, word):
    found = check(
        lambda **cell: off * half_normal(**cell), draw, grid=GRID, samples=200_000, quiet=True
    )
    assert found.verdict.word == word
    assert (found.first is not None) == (word == "refuted")
    assert found.samples == (800_000 if word == "refuted" else 200_000)


def test_a_margin_allows_a_formula_to_be_off():
    near = check(lambda **c: 1.02 * half_normal(**c), draw, grid=GRID, margin=0.05, quiet=True)
    assert near.verdict.word == "confirmed" and near.samples > 10_000
    far = check(lambda **c: 1.2 * half_normal(**c), draw, grid=GRID, margin=0.05, quiet=True)
    assert far.verdict.word == "refuted"


def test_samples_grow_until_the_resolution_is_reached():
    found = check(half_normal, draw, grid=GRID, resolution=0.01, quiet=True)
    assert found.resolution <= 0.01 and found.samples > 10_000
    later = check(half_normal, draw, grid=GRID, resolution=1e-6, seconds=0.5, quiet=True)
    assert later.resolution > 1e-6  # no further look is begun when the time is over


def test_looks_share_the_level():
    found = check(half_normal, draw, grid=GRID, resolution=0.01, quiet=True)
    looks = round(np.log(found.samples / 10_000) / np.log(4))
    assert found.form.rule.level == pytest.approx(1e-4 / 2 ** (looks + 1))


def test_arrays_estimates_and_keys_are_taken():
    def moments(scale):
        return Estimate(np.array([0.0, scale**2]), np.array([0.0, 0.0]))

    def sampled(key, n, scale):
        import jax

        x = scale * jax.random.normal(key, (n,))
        return np.stack([x, x**2], axis=1)

    found = check(moments, sampled, grid={"scale": [1.0, 3.0]}, quiet=True)
    assert found.verdict.word == "confirmed" and found.evidence["measured"].shape == (2, 2)
    assert len(found.table()) == 4


def test_an_error_of_the_formula_counts():
    wide = check(
        lambda scale: Estimate(1.1 * scale * FACTOR, 0.2),
        lambda rng, n, scale: abs(scale * rng.normal(size=n)),
        grid={"scale": [1.0]},
        quiet=True,
    )
    assert wide.verdict.word == "confirmed"


def test_a_bound_is_attacked_over_its_free_arguments():
    def simulate(rng, n, size, angle):
        return size * np.sin(angle) + 0.1 * rng.normal(size=n)

    options = {"grid": {"size": [1.0, 2.0]}, "free": {"angle": (0.0, 10.0)}, "quiet": True}
    loose = attlas.check_bound(lambda size, angle: 1.3 * size, simulate, **options)
    assert loose.verdict.word == "confirmed"
    np.testing.assert_allclose(np.sin(loose.evidence["angle"]), 1, atol=0.02)
    assert loose.resolution == pytest.approx(1 - 1 / 1.3, abs=0.03)
    broken = attlas.check_bound(lambda size, angle: 0.9 * size, simulate, **options)
    assert broken.verdict.word == "refuted"


@pytest.mark.parametrize("exponent, word", [(-1.0, "confirmed"), (-0.8, "refuted")])
def test_a_rate_is_fitted_along_one_axis(exponent, word):
    found = attlas.check_rate(
        lambda rng, n, length, scale: scale * rng.normal(size=(n, length)).mean(1) ** 2,
        along="length",
        exponent=exponent,
        grid={"length": [2, 4, 8, 16], "scale": [1.0, 5.0]},
        quiet=True,
    )
    assert found.verdict.word == word and found.evidence["measured"].shape == (2, 4)


@pytest.mark.parametrize("gap, word", [(0.01, "confirmed"), (-0.01, "refuted")])
def test_an_order_is_told_by_common_random_numbers(gap, word):
    found = attlas.check_order(
        lambda rng, n, scale: scale * rng.normal(size=n),
        lambda rng, n, scale: scale * rng.normal(size=n) + gap * rng.random(n),
        grid={"scale": [1.0, 2.0]},
        samples=1000,
        quiet=True,
    )
    assert found.verdict.word == word


@pytest.mark.parametrize("degrees, word", [(1e9, "confirmed"), (4, "refuted")])
def test_laws_are_compared(degrees, word):
    found = attlas.check_same_law(
        lambda rng, n, scale: scale * rng.normal(size=n),
        lambda rng, n, scale: scale * rng.standard_t(degrees, size=n),
        grid={"scale": [1.0, 2.0]},
        quiet=True,
    )
    assert found.verdict.word == word


@pytest.mark.parametrize("share, word", [(0.9, "confirmed"), (0.97, "refuted")])
def test_runs_that_arrive_are_counted(share, word):
    found = attlas.check_convergence(
        lambda rng, n, size: rng.random(n) < 0.95, share=share, grid={"size": [1, 2]}, quiet=True
    )
    assert found.verdict.word == word


# --- bad input ------------------------------------------------------------------------------------


def nothing(rng, n, scale):
    return np.full(n, np.nan)


@pytest.mark.parametrize(
    "formula, simulate, grid, words",
    [
        (lambda scale: [1, 2], lambda rng, n, scale: rng.normal(size=n), [1.0], r"shape \(2,\)"),
        (lambda scale: 1.0, nothing, [1.0], "not finite at scale = 1.0"),
        (lambda scale: np.nan, lambda rng, n, scale: rng.normal(size=n), [1.0], "the formula"),
        (lambda scale: 1.0, lambda rng, n, scale: rng.normal(size=7), [1.0], "asked for"),
        (lambda scale: 1.0, lambda rng, n, scale: np.ones(n), [1.0], "one value, 1, in all"),
        (lambda scale: "a", lambda rng, n, scale: rng.normal(size=n), [1.0], "real numbers"),
        (lambda scale: 1.0, lambda rng, n, scale: rng.normal(size=n), [], "no value of scale"),
        (lambda size: 1.0, lambda rng, n, scale: rng.normal(size=n), [1.0], "argument: 'size'"),
        (lambda scale: 1.0, lambda rng, n: rng.normal(size=n), [1.0], r"\(rng, n, scale\)"),
        (3, lambda rng, n, scale: rng.normal(size=n), [1.0], "3 is no function"),
    ],
)
def test_what_cannot_be_compared_is_told(formula, simulate, grid, words):
    with pytest.raises(InputError, match=words):
        check(formula, simulate, grid={"scale": grid}, quiet=True)


def test_half_precision_is_taken():
    import jax

    def coins(key, n, scale):
        return scale * jax.random.bernoulli(key, 0.5, (n,)).astype("bfloat16")

    found = check(lambda scale: scale / 2, coins, grid={"scale": [2.0]}, quiet=True)
    assert found.verdict.word == "confirmed"


def test_grids_and_numbers_are_checked():
    for options, words in (
        ({"grid": {}}, "the grid is empty"),
        ({"grid": {"samples": [1]}}, "which is taken"),
        ({"grid": GRID, "samples": 1}, "samples"),
        ({"grid": GRID, "seconds": 0}, "seconds = 0"),
        ({"grid": GRID, "resolution": -1}, "resolution = -1"),
    ):
        with pytest.raises(InputError, match=words):
            check(half_normal, draw, quiet=True, **options)
    with pytest.raises(InputError, match="it takes \\(low, high\\)"):
        attlas.check_bound(half_normal, draw, grid=GRID, free={"x": (1.0, 0.0)})
    with pytest.raises(InputError, match="a rate needs"):
        attlas.check_rate(draw, along="length", exponent=1, grid={"length": [1]})


def test_a_grid_beyond_the_time_is_refused_early(monkeypatch):
    clock = iter(np.arange(0, 1e6, 1.0))
    monkeypatch.setattr("attlas.claims.checks.time.perf_counter", lambda: next(clock))
    with pytest.raises(InputError, match="the grid has 400 cells, and one takes"):
        check(
            lambda scale: scale,
            lambda rng, n, scale: scale + rng.normal(size=n),
            grid={"scale": np.arange(400.0)},
            samples=10,
            seconds=5,
            quiet=True,
        )


def test_a_grid_of_a_hundred_million_cells_is_refused_at_once():
    with pytest.raises(InputError, match="the grid has 100,000,000 cells"):
        attlas.check(
            lambda a, b: 0.5,
            lambda rng, n, a, b: rng.random(n),
            grid={"a": range(10_000), "b": range(10_000)},
            quiet=True,
        )


def test_one_value_needs_no_list():
    found = attlas.check(
        lambda a: a / 2, lambda rng, n, a: a * rng.random(n), grid={"a": 2.0}, quiet=True
    )
    assert found.grid == {"a": (2.0,)} and found.verdict.word == "confirmed"
