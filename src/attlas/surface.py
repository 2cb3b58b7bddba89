"""What a caller may give: a seed for a key, lists, tensors and frames for arrays, and a sentence
for what is none of them.

`@public` stands over what is called from outside. What it takes is read from its annotations, so
that nothing is said twice, and what already is a key or an array passes untouched: no number
depends on it, and digests of code (`attlas.claims.digest`) leave it out.
"""

import functools
import inspect
import reprlib
import types
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray

from attlas.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

F = TypeVar("F", bound=Callable[..., Any])
Converter = Callable[[str, Any], Any]

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 60


def as_key(value: Any, name: str = "key") -> jax.Array:
    """A JAX key (threefry) from a whole number, the seed, below 2^64; keys are themselves.

    The key of a seed is that of `jax.random.key(seed)`. Arrays of two words, which
    `jax.random.PRNGKey` gives, become keys, too.
    """
    dtype = getattr(value, "dtype", None)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return value
    if dtype == np.uint32 and np.shape(value) == (2,):
        return jax.random.wrap_key_data(jnp.asarray(value))
    seed = value.item() if dtype is not None and np.shape(value) == () else value
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise InputError(
            f"{name} = {_shown(value)}: it must be a key of JAX, or a seed, which is a whole number"
            " from 0 to 2^64 - 1"
        )
    words = jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _as_generator(value: Any, name: str) -> np.random.Generator:
    if isinstance(value, np.random.Generator):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError(
            f"{name} = {_shown(value)}: it must be a generator of NumPy, or a seed, which is a"
            " whole number, 0 or larger"
        )
    return np.random.default_rng(int(value))


def public(what: F) -> F:
    """A function, or a dataclass, which now takes a seed for `key`, and for arrays what can be made
    one.

    - An argument `key: Array` may be a whole number (`as_key`), and so may a NumPy generator.
    - An argument annotated as an array may be a list, or anything with `__array__`: a tensor of
      torch, a frame or series of pandas, an xarray. Where only JAX's arrays are named it becomes
      one, in the precision of the context, else NumPy's. Axes of one name must have one size, that
      of the `task` if it has the name.
    - An argument annotated as a class must be an instance of it, as a number must be one.
    - A function that is written as an earlier one becomes that one, so that JAX, which goes by
      identity, compiles no second time for it.

    Everything else raises an `InputError`. `inspect.signature` shows the seed.
    """
    if isinstance(what, type):
        what.__init__ = _public(what.__init__)  # type: ignore[misc]
        return what
    return cast(F, _public(what))


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    names = tuple(signature.parameters)

    @functools.cache
    def arguments() -> tuple[dict[str, Converter], dict[str, tuple[str, ...]]]:
        # At the first call, when the names in annotations are defined.
        hints = get_type_hints(function)
        found = {name: _converter(name, hints.get(name, Any)) for name in names}
        axes = {name: _axes(hints.get(name, Any)) for name in names}
        return (
            {name: convert for name, convert in found.items() if convert is not None},
            {name: known for name, known in axes.items() if known},
        )

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        converters, axes = arguments()
        positional = dict(zip(names, args, strict=False))
        given = {**positional, **kwargs}
        for name, value in given.items():
            if name in converters:
                given[name] = converters[name](name, value)
        if axes:
            _check_axes(axes, given)
        first = [given.pop(name) for name in positional]
        return function(*first, *args[len(first) :], **given)

    called.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            p.replace(annotation=p.annotation | int) if _is_key(p.name, p.annotation) else p
            for p in signature.parameters.values()
        ]
    )
    return called


def refusing(check: Callable[..., None]) -> Callable[[F], F]:
    """A function before which `check` is called with those of its arguments that `check` names.

    What `check` does is raise an `InputError` or nothing. No number depends on it, so that digests
    leave it out, as they do `public`, below which it stands.
    """
    wanted = set(inspect.signature(check).parameters)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            check(**{name: x for name, x in given.arguments.items() if name in wanted})
            return function(*args, **kwargs)

        return cast(F, called)

    return decorate


def described(data: "xr.Dataset", **words: str) -> "xr.Dataset":
    """`data`, whose variables now say in words what they are, as plots of xarray do.

    Arguments:
        words: for variables and coordinates by name; those that `data` lacks are left out.
    """
    for name in words.keys() & data.variables.keys():
        data[name].attrs["long_name"] = words[name]
    return data


def _as_written(function: Any) -> Any:
    """The first function that was written like this one, with the same values closed over."""
    if not isinstance(function, types.FunctionType) or vars(function):
        return function
    try:
        return _WRITTEN.setdefault(_writing(function), function)
    except (TypeError, ValueError):  # it closes over what has no hash, or over what is not there
        return function


_WRITTEN: dict[Any, Any] = {}


def _writing(function: types.FunctionType) -> tuple[Any, ...]:
    """What a function is, whatever its lines and name: code, defaults, what it closes over and the
    globals that it names."""
    known, names = function.__globals__, [*_names(function.__code__)]
    values = [known.get(name, "not defined here") for name in names]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = sorted((function.__kwdefaults__ or {}).items())
    parts = [*values, *cells, *(function.__defaults__ or ()), *(value for _, value in named)]
    return (_plain_code(function.__code__), tuple(map(_exactly, parts)))


def _exactly(part: Any) -> Any:
    """A value with its type, because 1, 1.0 and True are equal, as are 0.0 and -0.0."""
    if isinstance(part, tuple | frozenset):
        return (type(part), tuple(map(_exactly, part)))
    return (type(part), repr(part) if isinstance(part, float) else part)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _plain_code(code: types.CodeType) -> tuple[Any, ...]:
    consts = tuple(
        _plain_code(part) if isinstance(part, types.CodeType) else _exactly(part)
        for part in code.co_consts
    )
    arguments = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, consts, arguments, names)


def _axes(hint: Any) -> tuple[str, ...]:
    """Names of the last axes of an array's annotation, up to one that is not a plain name."""
    texts = {part.dim_str for part in _parts(hint) if _is_array(part) and hasattr(part, "dim_str")}
    if len(texts) != 1:
        return ()
    found: list[str] = []
    for name in reversed(texts.pop().split()):
        if not name.isidentifier() or name == "_":
            break
        found.insert(0, name)
    return tuple(found)


def _check_axes(axes: dict[str, tuple[str, ...]], given: dict[str, Any]) -> None:
    task, known = given.get("task"), dict[str, tuple[int, str]]()
    for name in (name for name in axes if name in given):
        shape = np.shape(given[name])
        for axis, size in zip(reversed(axes[name]), reversed(shape), strict=False):
            own = getattr(task, axis, None)
            if axis not in known:
                known[axis] = (own, "the task") if isinstance(own, int) else (size, name)
            if size != known[axis][0]:
                raise InputError(
                    f"{name} has the shape {shape}: along {axis} it must have {known[axis][0]}, as"
                    f" {known[axis][1]} has"
                )


def _array_of(value: Any, name: str, floating: bool = False) -> np.ndarray:
    """A NumPy array of numbers from a list, a tensor, a frame or another array.

    Arguments:
        floating: whether whole numbers become real ones.
    """
    if hasattr(value, "detach"):  # a tensor of torch, which may carry a gradient
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufc" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(f"{name} = {_shown(value)}: it must be a number or an array of numbers")
    return array.astype(float) if floating and array.dtype.kind in "biu" else array


def _converter(name: str, hint: Any) -> Converter | None:
    """What is done to an argument of this annotation; None for nothing."""
    parts = _parts(hint)
    if any(get_origin(part) is Callable for part in parts):
        return lambda name, value: _as_written(
            _array_of(value, name) if _is_foreign(value) else value
        )
    if _is_key(name, hint):
        optional = type(None) in parts
        return lambda name, value: value if value is None and optional else as_key(value, name)
    if parts == [np.random.Generator]:
        return lambda name, value: _as_generator(value, name)
    arrays = [part for part in parts if _is_array(part)]
    others = [part for part in parts if not _is_array(part)]
    if arrays:
        return functools.partial(_to_array, arrays, others)
    if others == [float]:
        return _checked_number
    # Classes of this package are what is worth a sentence; protocols have no instances.
    if all(_is_own(part) or part is type(None) or get_origin(part) is Sequence for part in others):
        return functools.partial(_checked_instance, tuple(get_origin(p) or p for p in others))
    return _at_home if Any in parts else None


def _to_array(arrays: list[Any], others: list[Any], name: str, value: Any) -> Any:
    kinds = [getattr(part, "array_type", part) for part in arrays]
    by_jax, by_numpy = (kind in kinds or Any in kinds for kind in (jax.Array, np.ndarray))
    floating = all(_is_floating(part) for part in arrays)
    if isinstance(value, jax.Array):
        traced = isinstance(value, jax.core.Tracer)
        return value if by_jax or traced else np.asarray(value)
    if not isinstance(value, np.ndarray):
        if isinstance(value, Number | np.generic):
            if type(value) is int and floating and int not in others:
                return float(value)
            return value
        if not (isinstance(value, list | tuple) or hasattr(value, "__array__")):
            plain = [part for part in others if part not in (int, float, complex, bool)]
            if any(not isinstance(p, type) or isinstance(value, p) for p in plain):
                return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value  # a tree of arrays, or a schedule
    array = _array_of(value, name, floating) if type(value) is not np.ndarray else value
    return array if by_numpy or not by_jax else jnp.asarray(array)


def _checked_number(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | dict | list | tuple | set):
        raise InputError(f"{name} = {_shown(value)}: it must be a number")
    return value


def _checked_instance(classes: tuple[type, ...], name: str, value: Any) -> Any:
    if not isinstance(value, classes):
        allowed = " or ".join(_described(part) for part in classes)
        raise InputError(f"{name} = {_shown(value)}: it must be {allowed}")
    if isinstance(value, tuple) and any(isinstance(x, list) or _is_foreign(x) for x in value):
        fields = getattr(value, "_fields", ())
        return type(value)(*map(_array_of, value, fields))
    return value


def _described(part: type) -> str:
    if part in _SAID:
        return _SAID[part]
    fields = getattr(part, "_fields", ())
    return f"{part.__name__}({', '.join(fields)})" if fields else f"of the class {part.__name__}"


_SAID: dict[type, str] = {type(None): "None", Sequence: "a list of them"}


def _shown(value: Any) -> str:
    return " ".join(_SHORT.repr(value).split())


def _parts(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        return [part for member in get_args(hint) for part in _parts(member)]
    return [hint]


def _is_key(name: str, hint: Any) -> bool:
    return name == "key" and {*_parts(hint)} in ({jax.Array}, {jax.Array, type(None)})


def _is_array(part: Any) -> bool:
    return part in (jax.Array, np.ndarray) or (
        isinstance(part, type) and issubclass(part, AbstractArray)
    )


def _is_floating(part: Any) -> bool:
    dtypes = getattr(part, "dtypes", None)  # no tuple where any will do
    return isinstance(dtypes, tuple) and all("float" in str(dtype) for dtype in dtypes)


def _is_own(part: Any) -> bool:
    return (
        isinstance(part, type)
        and part.__module__.startswith("attlas.")
        and not getattr(part, "_is_protocol", False)
    )


def _at_home(name: str, value: Any) -> Any:
    return _array_of(value, name) if _is_foreign(value) else value


def _is_foreign(value: Any) -> bool:
    """Whether an array of another library, which JAX would not take."""
    return hasattr(value, "__array__") and not isinstance(value, _ARRAYS)


_ARRAYS = (jax.Array, np.ndarray, np.generic)
