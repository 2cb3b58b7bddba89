from attlas.lab.runner import run
from tests.maps import *  # noqa: F403

MAP = "single-location"


def test_a_start_off_the_manifold_is_outside_theorem_5(store):
    result = run("single-location/manifold-convergence", settings={"start": "sphere"}, store=store)
    assert result.verdict.word == "outside" and "manifold" in result.verdict.reason


def test_a_ladder_on_which_the_gate_stays_closed_is_outside_corollary_2(store):
    result = run("single-location/oracle-optimality", settings={"power": 0.6}, store=store)
    assert result.verdict.word == "outside" and "lam sqrt(d) grows" in result.verdict.reason
