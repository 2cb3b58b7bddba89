import pytest

from attlas.errors import InputError
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


@pytest.mark.parametrize(
    ("slug", "settings", "says"),
    [
        (
            "layer-lipschitz",
            {"kind": ("plane",)},
            "kind = 'plane'.*kind is one of plain, two heads",
        ),
        ("overfits-below", {"recipe": ("adam", "sgd")}, "'sgd'.*recipe is one of adam, R"),
        ("samples-exponent", {"learner": "MPL"}, "learner = 'MPL'.*learner is one of attention"),
        ("parity-arrives", {"function": "xor"}, "function = 'xor'.*function is one of"),
    ],
)
def test_a_name_that_is_not_known_is_bad_input(store, slug, settings, says):
    with pytest.raises(InputError, match=says):
        run(f"sparse-variables/{slug}", settings=settings, store=store)
