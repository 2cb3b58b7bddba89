import numpy as np

from attlas.order_parameters.paths import recorded
from attlas.scan import Trajectory


def test_a_repeat_that_did_not_survive_all_steps_diverged():
    path = Trajectory(np.array([0, 5, 9]), None, None, np.array([9, 4]))
    data = recorded(path, {"x": (("repeat", "step"), np.ones((2, 3)))})
    assert list(data.status.values) == ["completed", "diverged"]
    assert list(data.survived.values) == [9, 4] and list(data.step.values) == [0, 5, 9]
    assert data.x.dims == ("repeat", "step")
