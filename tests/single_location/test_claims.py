import pytest

from attlas.lab.runner import run
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
        ("gates-in-order", {"gamma": 0.3}, "1e-25"),
        ("softmax-training", {"lam": 5.0}, "lam <= 1"),
        ("critical-lambda", {"gamma": (2.0,)}, "saturated"),
    ),
)
def test_where_a_statement_fails_it_is_outside(store, claim, settings, why):
    result = run(f"single-location/{claim}", settings=settings, store=store)
    assert result.verdict.word == "outside" and why in result.verdict.reason
