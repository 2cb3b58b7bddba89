"""What a caller may give in place of keys and arrays, and the sentences for the rest."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from jaxtyping import Array, ArrayLike, Float, Int

import attlas
from attlas.errors import InputError
from attlas.single_location import ORACLE, Gate, Overlaps, SingleLocation, predict, risk
from attlas.single_location.task import Batch
from attlas.surface import as_key, described, public, refusing


class Tensor:
    """Like one of torch that carries a gradient: NumPy cannot read it before it is detached."""

    def __init__(self, values, attached=True):
        self.values, self.attached = np.asarray(values), attached

    def detach(self):
        return Tensor(self.values, attached=False)

    def cpu(self):
        return self

    def __array__(self, dtype=None, copy=None):
        if self.attached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.values


def same(one, other):
    return np.array_equal(jax.random.key_data(one), jax.random.key_data(other))


@pytest.mark.parametrize("seed", [0, 7, np.int64(7), jnp.int32(7), np.asarray(7), 2**31, 2**32 - 1])
def test_a_whole_number_is_the_seed_of_jax(seed):
    with jax.enable_x64(True):
        assert same(as_key(seed), jax.random.key(int(seed), impl="threefry2x32"))


def test_a_seed_gives_one_key_in_every_precision_and_has_64_bits():
    with jax.enable_x64(True):
        wide = as_key(2**40 + 5)
        assert same(wide, jax.random.key(2**40 + 5))
    assert same(wide, as_key(2**40 + 5)) and not same(wide, as_key(5))


def test_a_key_is_itself_and_old_keys_are_keys():
    key = jax.random.key(3)
    assert as_key(key) is key
    assert same(as_key(jax.random.PRNGKey(3)), key)
    assert same(as_key(np.asarray(jax.random.PRNGKey(3))), key)
    rbg = jax.random.key(3, impl="rbg")
    assert as_key(rbg) is rbg


@pytest.mark.parametrize("value", [True, -1, 2**64, 1.0, "1", None, [1], np.random.default_rng(0)])
def test_what_is_no_seed_gets_a_sentence(value):
    with pytest.raises(InputError, match=r"key = .*: it must be a key of JAX, or a seed"):
        as_key(value)


@public
def drawn(key: Array, samples: int) -> Array:
    """A function that draws."""
    return jax.random.normal(key, (samples,))


def test_public_functions_take_a_seed_by_place_and_by_name_and_say_so():
    expected = drawn(jax.random.key(5), 3)
    assert jnp.array_equal(drawn(5, 3), expected)
    assert jnp.array_equal(drawn(samples=3, key=5), expected)
    assert inspect.signature(drawn).parameters["key"].annotation == Array | int
    assert drawn.__name__ == "drawn" and drawn.__doc__ == "A function that draws."
    assert jnp.array_equal(jax.jit(drawn, static_argnums=1)(jax.random.key(5), 3), expected)


@public
def taken(
    a: Float[Array, "n d"] | None = None,
    b: Float[np.ndarray, " d"] | None = None,
    c: Float[ArrayLike, "*s"] = 1.0,
    d: Int[np.ndarray, " m"] | None = None,
    e: Any = None,
) -> Any:
    return a, b, c, d, e


ROWS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        tuple(ROWS),
        np.array(ROWS),
        jnp.array(ROWS),
        Tensor(ROWS),
        pd.DataFrame(ROWS),
        xr.DataArray(ROWS),
    ],
    ids=lambda given: type(given).__name__,
)
def test_lists_tensors_and_frames_are_arrays(given):
    a, b, c, _, _ = taken(a=given, c=given)
    assert isinstance(a, jax.Array) and jnp.array_equal(a, jnp.array(ROWS))
    assert isinstance(c, jax.Array | np.ndarray) and np.array_equal(c, ROWS)
    _, b, _, _, _ = taken(b=given[0] if not isinstance(given, Tensor) else Tensor(ROWS[0]))
    assert type(b) is np.ndarray


def test_arrays_pass_untouched():
    with jax.enable_x64(True):
        a, b, c = jnp.ones((2, 3)), np.ones(3), np.float64(0.1)
    e = np.ones(2, int)
    for one, other in zip(taken(a, b, c, e, e), (a, b, c, e, e), strict=True):
        assert one is other


def test_whole_numbers_are_real_where_real_ones_are_asked_and_only_there():
    _, b, c, d, _ = taken(b=[1, 2], c=3, d=[1, 2])
    assert b.dtype == float and type(c) is float and d.dtype.kind == "i"


def test_arrays_of_other_libraries_are_home_where_anything_goes():
    assert type(taken(e=pd.Series([1.0]))[4]) is np.ndarray
    assert taken(e=[1.0])[4] == [1.0]
    assert taken(e="name")[4] == "name"


@pytest.mark.parametrize("wrong", ["0.1", {"a": 1}, [[1], [1, 2]], ["a"], pd.Series(["a"]), b"1"])
def test_what_is_no_array_gets_a_sentence(wrong):
    with pytest.raises(InputError, match=r"c = .*: it must be a number or an array of numbers"):
        taken(c=wrong)


def test_axes_of_one_name_have_one_size():
    with pytest.raises(InputError, match=r"b has the shape \(3,\): along d it must have 2, as a "):
        taken(a=ROWS, b=[1, 2, 3])


class Pair(NamedTuple):
    x: Any
    y: Any


Pair.__module__ = "attlas.pair"


@public
@dataclass(frozen=True)
class Model:
    key: Array | None = None
    gate: str | Callable[[Array], Array] = "erf"
    scale: float = 1.0


Model.__module__ = "attlas.model"


@public
def combined(model: Model, pair: Pair | None = None) -> Any:
    return pair


def test_dataclasses_take_a_seed_too():
    assert same(Model(key=3).key, jax.random.key(3)) and Model().key is None
    with pytest.raises(InputError, match="scale = 'a': it must be a number"):
        Model(scale="a")


def test_an_argument_of_the_wrong_class_gets_a_sentence():
    with pytest.raises(InputError, match=r"^model = 3: it must be of the class Model$"):
        combined(3)
    with pytest.raises(InputError, match=r"^pair = \(1, 2\): it must be Pair\(x, y\) or None$"):
        combined(Model(), (1, 2))
    assert isinstance(combined(Model(), Pair([1, 2], Tensor([3]))).y, np.ndarray)


def test_functions_written_alike_are_one_function():
    def gate(a, b=1):
        return Model(gate=lambda x: jnp.tanh(a * x) + b).gate

    assert gate(1.0) is gate(1.0)
    assert gate(1.0) is not gate(2.0)
    assert gate(1) is not gate(1.0)
    assert gate(1.0) is not gate(1.0, b=2)
    assert Model(gate=lambda x: x + 1).gate is Model(gate=lambda x: x + 1).gate
    assert Model(gate=lambda x: x + 1).gate is not Model(gate=lambda x: x - 1).gate
    assert Model(gate=lambda x: x + 1).gate is not Model(gate=lambda x: x + 1.0).gate
    assert Model(gate=lambda x: x * 0.0).gate is not Model(gate=lambda x: x * -0.0).gate
    assert (
        Model(gate=lambda x: x + (1, 2)[0]).gate is not Model(gate=lambda x: x + (1.0, 2)[0]).gate
    )
    assert Model(gate=lambda x, *, c=1: c).gate is not Model(gate=lambda x, *, c=2: c).gate


FACTOR = 2.0


def test_a_global_that_changed_makes_another_function(monkeypatch):
    def gate():
        return Model(gate=lambda x: FACTOR * x).gate

    def nested():
        return Model(gate=lambda x: [FACTOR * y for y in x]).gate

    first, inner = gate(), nested()
    assert gate() is first and nested() is inner
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert gate() is not first and nested() is not inner


def test_functions_over_what_has_no_hash_stay_themselves():
    def gate(rows):
        return Model(gate=lambda x: x + rows[0]).gate

    assert gate([1]) is not gate([1])


class Counter:
    count = 0

    def add(self):
        self.count += 1


def test_an_equal_gate_is_not_compiled_again():
    task, traces = SingleLocation(dim=40), Counter()

    def value(scale):
        return risk(task, ORACLE, 0.1, Gate(lambda x: (traces.add(), jnp.tanh(scale * x))[1]))

    first, count = value(2.0), traces.count
    assert value(2.0) == first and traces.count == count
    assert value(3.0) != first and traces.count > count


def test_vectors_of_another_dimension_are_told_so():
    task, k = SingleLocation(dim=400), np.ones(40)
    with pytest.raises(InputError, match=r"k has the shape \(40,\): along dim it must have 400"):
        Overlaps.of(k, k, task)
    tokens = task.sample(0, 3).tokens
    with pytest.raises(InputError, match=r"v has the shape \(40,\): along dim .* as tokens has"):
        predict(tokens, np.ones(400), k, 0.1)


def test_a_plain_tuple_and_a_text_are_told_what_is_asked():
    task = SingleLocation(dim=40)
    with pytest.raises(
        InputError, match=r"overlaps = \(1, 1, 0, 0, 0\): it must be Overlaps\(kappa"
    ):
        risk(task, (1, 1, 0, 0, 0), 0.1)
    with pytest.raises(InputError, match=r"lam = '0\.1': it must be a number or an array"):
        risk(task, ORACLE, "0.1")
    assert risk(task, Overlaps([1], Tensor([1]), 0, 0, 0), 1).shape == (1,)


def test_a_batch_keeps_its_class():
    assert isinstance(SingleLocation(dim=40).sample(3, 2), Batch)


def test_variables_say_what_they_are():
    data = described(xr.Dataset({"a": ("t", [1.0])}, {"t": [0]}), a="what a is", t="time", b="no")
    assert data["a"].attrs["long_name"] == "what a is" and data["t"].attrs["long_name"] == "time"


@public
def spun(rng: np.random.Generator) -> float:
    return rng.random()


def test_a_generator_may_be_a_seed():
    assert spun(3) == spun(np.random.default_rng(3)) == spun(np.int64(3))
    for wrong in (True, -1, "3", 1.5):
        with pytest.raises(InputError, match=r"rng = .* a generator of NumPy, or a seed"):
            spun(wrong)


def test_arrays_are_made_within_the_precision_that_a_function_asks_for():
    """`@public` stands below `@float64`: above it arrays would be rounded to single precision."""
    for path in Path(attlas.__file__).parent.rglob("*.py"):
        assert "@public\n@float64" not in path.read_text(), path
        assert "@public\n    @float64" not in path.read_text(), path


def no_larger_than_its_room(size, room):
    if size > room:
        raise InputError(f"size = {size}: there is room for {room}")


@public
@refusing(no_larger_than_its_room)
def packed(size: int, *, room: int = 3, name: str = "it") -> str:
    return f"{name} {size} {room}"


def test_a_check_is_called_with_the_arguments_that_it_names():
    assert packed(2) == "it 2 3" and packed(size=9, room=9, name="that") == "that 9 9"
    for run in (lambda: packed(4), lambda: packed(size=4), lambda: packed(2, room=1)):
        with pytest.raises(InputError, match="there is room for"):
            run()
    assert list(inspect.signature(packed).parameters) == ["size", "room", "name"]
