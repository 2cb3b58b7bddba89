from attlas.lab.runner import run
from tests.maps import *  # noqa: F403

MAP = "sparse-variables"


def test_a_bound_that_says_nothing_is_outside(store):
    result = run(
        "sparse-variables/complexity-bound", settings={"samples": 200, "length": (4,)}, store=store
    )
    assert result.verdict.word == "outside" and "trivial" in result.verdict.reason


def test_attention_that_is_not_sharp_enough_is_outside(store):
    result = run(
        "sparse-variables/threshold-margin",
        settings={"sharpness": 0.9, "length": (20,), "sparsity": (3,)},
        store=store,
    )
    assert result.verdict.word == "outside" and "sharpness > 1" in result.verdict.reason
