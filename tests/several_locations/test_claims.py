import pytest

from attlas.errors import InputError
from attlas.lab.runner import run
from tests.maps import *  # noqa: F403

MAP = "several-locations"


def test_too_few_draws_are_bad_input(store):
    with pytest.raises(InputError, match="draws >= 200"):
        run("several-locations/reduction-law", settings={"draws": 50}, store=store)
