import jax.numpy as jnp
import numpy as np
import pytest

from attlas.errors import InputError
from attlas.scan import drive, in_groups, iterate

TRACES = []


def add(t, x, args):
    TRACES.append(t)
    return x + args


def square(t, x, args):
    return x**2


def look(t, x, args):
    return {"x": x, "t": t + jnp.zeros_like(x)}


def test_records_come_before_the_first_step_regularly_and_after_the_last():
    path = iterate(add, look, jnp.zeros(2), jnp.array([1.0, 2.0]), steps=10, record_every=4)
    assert path.steps.tolist() == [0, 4, 8, 10]
    assert path.observed["x"].tolist() == [[0, 0], [4, 8], [8, 16], [10, 20]]
    assert path.observed["t"][:, 0].tolist() == [0, 4, 8, 10]
    assert path.last.tolist() == [10, 20]


def test_no_steps_record_the_start():
    path = iterate(add, look, jnp.zeros(1), 1.0, steps=0, record_every=5)
    assert path.steps.tolist() == [0] and path.observed["x"].shape == (1, 1)


def test_one_program_serves_every_number_of_steps_and_every_setting():
    iterate(add, look, jnp.zeros(3), 1.0, steps=3, record_every=1)
    before = len(TRACES)
    for steps, every in ((7, 2), (1000, 10), (333, 100)):
        path = iterate(add, look, jnp.zeros(3), 2.0, steps=steps, record_every=every)
        assert path.last[0] == 2 * steps
    assert len(TRACES) == before


def test_divergence_is_a_result_with_its_step():
    path = iterate(square, look, jnp.array([1.0, 1e10]), None, steps=20, record_every=5)
    # 1e10 -> 1e20 -> inf in single precision: finite after one step only.
    assert path.survived.tolist() == [20, 1]


def test_progress_is_told_and_ends_at_the_last_step():
    seen = []
    iterate(
        add,
        look,
        jnp.zeros(1),
        1.0,
        steps=1000,
        record_every=1,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert (
        seen[-1] == (1000, 1000)
        and len(seen) > 10
        and np.all(np.diff([done for done, _ in seen]) > 0)
    )


def test_groups_are_joined_and_count_the_steps_of_all():
    seen, starts = [], np.arange(7.0)

    def run(number, rows, progress):
        assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 6, 6]][number]
        return iterate(
            add, look, jnp.asarray(starts[rows]), 2.0, steps=5, record_every=2, progress=progress
        )

    path = in_groups(run, 7, 3, 5, lambda *told: seen.append(told))
    assert path.last.tolist() == (starts + 10).tolist() and path.observed["x"].shape == (4, 7)
    assert seen == [(5, 15), (10, 15), (15, 15)]
    alone = in_groups(run, 3, 3, 5)
    assert alone.steps.tolist() == [0, 2, 4, 5] and alone.last.tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    "options", [{"steps": -1, "record_every": 1}, {"steps": 5, "record_every": 0}]
)
def test_counts_must_be_counts(options):
    with pytest.raises(InputError, match="whole number"):
        iterate(add, look, jnp.zeros(1), 1.0, **options)


def push(state, inputs, args):
    return state + inputs * args


def doubled(raw, args):
    return 2 * raw[:, None] + jnp.zeros(3)


def test_driven_steps_take_their_inputs_block_by_block():
    drawn, told = [], []

    def draw(block):
        drawn.append(block)
        return jnp.where(4 * block + jnp.arange(4) < 10, 1.0 + block, 0.0)

    path = drive(
        push,
        doubled,
        jnp.zeros(3),
        jnp.array([1.0, 10.0, jnp.inf]),
        draw,
        steps=10,
        block=4,
        record_every=3,
        progress=lambda done, steps: told.append((done, steps)),
    )
    assert drawn == [0, 1, 2] and told == [(4, 10), (8, 10), (10, 10)]
    assert path.steps.tolist() == [0, 3, 6, 9, 10]
    np.testing.assert_array_equal(path.observed[:, 0], [0, 6, 16, 30, 36])
    np.testing.assert_array_equal(path.observed[:, 1], 10 * path.observed[:, 0])
    assert path.last[0] == 36 and path.survived.tolist() == [10, 10, 0]


def test_a_loop_compiled_at_once_gives_the_same_path():
    numbers = np.arange(1.0, 13.0).reshape(4, 3)
    options = {"steps": 3, "block": 4, "record_every": 1}
    once, stepwise = (
        drive(_leaky, _as_is, np.zeros(3), np.float32(0.5), lambda _: numbers, at_once=x, **options)
        for x in (True, False)
    )
    np.testing.assert_allclose(once.observed, stepwise.observed, rtol=1e-6)
    np.testing.assert_array_equal(once.survived, stepwise.survived)
    np.testing.assert_allclose(once.observed[-1], numbers[0] / 4 + numbers[1] / 2 + numbers[2])


def _leaky(x, number, leak):
    return leak * x + number


def _as_is(raw, args):
    return raw
