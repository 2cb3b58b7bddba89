import json

import numpy as np
import pytest

from attlas.claims import Verdict


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float64("nan")])
def test_a_number_that_is_not_finite_becomes_none(value):
    plain = Verdict("undecided", "Nothing.", statistic=value, threshold=2.0).to_dict()
    assert (plain["statistic"], plain["threshold"]) == (None, 2.0)
    json.dumps(plain, allow_nan=False)


def test_a_verdict_is_told_by_its_word():
    assert str(Verdict("not run", "It needs a model.")) == "not run"
