from attlas.lab.runner import run
from tests.maps import *  # noqa: F403

MAP = "latent-posterior"


def test_an_odd_urn_is_outside(store):
    result = run("latent-posterior/no-mixture", settings={"balls": (3,)}, store=store)
    assert result.verdict.word == "outside" and "balls is even" in result.verdict.reason
