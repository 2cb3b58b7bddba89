import numpy as np
import pytest

from attlas.gaussian import Estimate
from attlas.lab.runner import run
from attlas.single_location import SingleLocation
from attlas.single_location.claims.manifold import (
    corner_rate_by_quadrature,
    count_zeros,
    slopes_by_quadrature,
    turns,
)
from attlas.single_location.claims.readings import Similarities
from attlas.single_location.claims.shared import capped
from attlas.single_location.landscape import corner_rate
from tests.conftest import SEED
from tests.maps import *  # noqa: F403

MAP = "single-location"


def test_a_start_off_the_manifold_is_outside_theorem_5(store):
    result = run("single-location/manifold-convergence", settings={"start": "sphere"}, store=store)
    assert result.verdict.word == "outside" and "manifold" in result.verdict.reason


def test_a_ladder_on_which_the_gate_stays_closed_is_outside_corollary_2(store):
    result = run("single-location/oracle-optimality", settings={"power": 0.6}, store=store)
    assert result.verdict.word == "outside" and "lam sqrt(d) grows" in result.verdict.reason


@pytest.mark.parametrize(
    ("claim", "settings", "why"),
    (
        ("swapped-attractor", {"length": 100}, "flip threshold"),
        ("swapped-beats-oracle", {"gamma": 2.0}, "gamma"),
        ("gates-in-order", {"gamma": 0.3}, "1e-17"),
        ("softmax-training", {"lam": 5.0}, "lam <= 1"),
        ("critical-lambda", {"gamma": (2.0,)}, "saturated"),
        ("large-lambda-stalls", {"dim": 80, "lam": 1.95, "steps": 120_000}, "from 0.4 to 1/2"),
        ("large-lambda-stalls", {"start": "square"}, "begin above 0.4"),
    ),
)
def test_where_a_statement_fails_it_is_outside(store, claim, settings, why):
    result = run(f"single-location/{claim}", settings=settings, store=store)
    assert result.verdict.word == "outside" and why in result.verdict.reason


def test_a_field_turns_around_its_zeros_and_nowhere_else():
    x, y = np.meshgrid(np.linspace(-1, 1, 40), np.linspace(-1, 1, 31), indexing="ij")
    found = turns((x - 0.3) * (x + 0.52), y - 0.1)
    assert found.sum() == 0 and abs(found).sum() == 2
    signs = {float(np.sign(x[i, j])): found[i, j] for i, j in np.argwhere(found)}
    assert signs == {1.0: 1, -1.0: -1}


@pytest.mark.parametrize("lam", (0.05, 0.3))
def test_the_scan_finds_each_fixed_point_once(lam):
    generator = np.random.default_rng(5)
    assert count_zeros(SingleLocation(80, 4, 1.2), lam, generator, 50).tolist() == [1] * 5


def test_the_slope_at_the_oracle_is_the_rate_there():
    task = SingleLocation(80, 4, 1.2)
    in_kappa, in_nu = slopes_by_quadrature(task, 1.0, 1.0, 0.2)
    assert -2 * in_kappa == pytest.approx(float(corner_rate(task, 0.2)), rel=1e-9)
    assert in_nu < 0 < slopes_by_quadrature(task, 1.0, -1.0, 0.2)[0]


@pytest.mark.parametrize(
    ("dim", "gamma", "lam"),
    ((400, 0.7, 0.1), (4, 0.05, 12.0), (60_000, 0.03, 0.09), (18_059, 11.1, 27.0)),
)
def test_the_rate_at_the_oracle_is_its_integral_to_many_digits(dim, gamma, lam):
    flint = pytest.importorskip("flint")
    task = SingleLocation(dim, 4, gamma)
    s, mean = flint.arb(lam) * flint.arb(gamma), flint.arb(lam) * flint.arb(task.m)

    def integrand(g, _):
        x = mean + s * g
        return (-(x**2) - g**2 / 2).exp() * x.erfc()

    centre = -4 * mean * s / (1 + 4 * s**2)
    with flint.ctx.workprec(200):
        whole = flint.acb.integral(integrand, centre - 30, centre + 30, abs_tol=flint.arb("1e-400"))
        exact = whole.real * 2 * flint.arb(2).sqrt() / flint.arb.pi() * 2 * flint.arb(gamma) ** 2
        exact = float((exact * mean).mid())
    assert corner_rate_by_quadrature(task, lam) == pytest.approx(exact, rel=1e-9)
    assert float(corner_rate(task, lam)) == pytest.approx(exact, rel=1e-9)


def test_a_broken_sample_is_not_excused_by_its_spread():
    mean, error = capped(Estimate(np.array([9.0, 1.0]), np.array([5.0, 0.01])), 1.0, 20_000)
    assert mean.tolist() == [9.0, 1.0] and error == pytest.approx([0.03, 0.01])


def test_what_similarities_share_with_the_target_is_what_samples_say():
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(5, 2))
    found = Similarities.of(centres, 0.7, 1.5)
    read = rng.normal(size=(400_000, 2))
    x = found(read, 0.7)
    product = x.T @ np.column_stack([x, np.sin(1.5 * read[:, 0])]) / len(read)
    np.testing.assert_allclose(product[:, :-1], np.eye(x.shape[1]), atol=0.05)
    np.testing.assert_allclose(product[:, -1], found.shared, atol=0.02)
    np.testing.assert_allclose(x.mean(0), 0, atol=0.02)
