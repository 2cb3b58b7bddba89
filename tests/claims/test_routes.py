"""A claim that says "two routes" computes its two sides by different functions of ours.

The sources are read: from each variable that the rule compares, back through the assignments of the
measurement, to the functions of the package that are called on the way, and to those that they
call. What both sides call must make inputs or do no mathematics of the claim (`INPUTS`), or stand
in `EXPLAINED` with the reason. `python -m tests.claims.test_routes` prints what is shared.
"""

import ast
import dis
import functools
import inspect
import operator
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import numpy as np
import pytest

from attlas.claims import Claim, catalogue
from attlas.single_location.claims.shared import task_of
from attlas.single_location.landscape import critical_lam
from attlas.single_location.population import ORACLE, risk

SIDES = {
    "Agreement": ("predicted", "measured"),
    "Approximation": ("predicted", "measured"),
    "Bound": ("bound", "measured"),
    "Rate": ("predicted exponent", "measured"),
    "Order": ("lower", "upper"),
}

CARRIERS = ("attlas.errors", "attlas.scan", "attlas.padding", "attlas.draws", "attlas.figure")
"""Modules without mathematics."""

FOREIGN = {*dir(np.random.Generator), *dir(np.ndarray), *dir(dict)}
"""Methods of others that ours have the names of."""

INPUTS = {
    # tasks, heads and samples
    *("task_of", "random_heads", "stream", "draw_bits", "sample", "features", "topics"),
    *(
        "labelled_topics",
        "random_topics",
        "sequences",
        "posterior_variance",
        "random_task",
        "embeddings",
    ),
    *("stack_of", "map_heads", "unit_norms", "unit_tokens"),
    # where both sides are compared: an ascent to the worst case
    *("climb", "_steps", "_step_along", "head_ratio", "tokens_in_ball", "log_move", "row_move"),
    "pairs_in_ball",
    # settings of a run, and its path as a Dataset
    *("step_options", "as_schedule", "_values", "values_at", "unit_vectors", "as_dataset"),
    *("recorded", "described", "in_words"),
}
"""Functions that make what both sides start from, or that only carry numbers about."""

QUADRATURE = {"_known", "_panelled", "_probed", "as_gate", "gaussian_nodes"}
RISK = {"total_risk", "terms_of_risk", "smoothed_gate", "smoothed_erf", "smoothed_derivatives"}

EXPLAINED: dict[str, tuple[set[str], str]] = {
    "latent-posterior/optimisation-error": (
        {"descend_linearised", "_descend", "_parameters", "optimisation_error"},
        "descend_linearised returns both: what descent reached, and what the spectrum predicts",
    ),
    "single-location/exact-reduction": (
        RISK | {"zeta", "zeta_derivatives", "erf_derivatives", "observe_overlaps"} | QUADRATURE,
        "both descend one risk: one by its derivatives in five overlaps, written out, the other by"
        " automatic differentiation in d dimensions, with a step and a projection of its own",
    ),
    "several-locations/attention-ahead": (
        {"attention_error", "attention_threshold", "linear_threshold"},
        "an order: two exact thresholds, and their ratio between lengths, which has both",
    ),
    "single-location/gates-in-order": (
        {"tuned_gate", "best_gate_excess", "oracle_excess", "linear_attention"} | QUADRATURE,
        "an order: one quantity, computed alike for each gate, and two quadratures for the best",
    ),
    "single-location/swapped-beats-oracle": (
        QUADRATURE,
        "the swapped point's risk is the closed form of erf, which needs no quadrature; the"
        " function that has it would use one for another gate",
    ),
    "sparse-variables/threshold-margin": (
        {"threshold_head", "_checked_embedding", "_levels", "_solve_score"},
        "threshold_head builds the head; its margin is a formula, the worst one is over all inputs",
    ),
}
"""By claim: what its sides share beyond inputs, and why they are two routes all the same."""


def names_in(node: ast.AST) -> set[str]:
    """Names that an expression reads, with what they are attributes of: `np.exp`.

    A method that is called on anything is named with brackets: `.predict()`.
    """
    found = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return found | {f".{f.attr}()" for f in calls if isinstance(f, ast.Attribute)}


def targets(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id


def assignments(function: ast.FunctionDef) -> dict[str, set[str]]:
    """For each local name, the names that its value was computed from."""
    found: dict[str, set[str]] = {}

    def add(target: ast.AST, value: set[str]) -> None:
        for name in targets(target):
            found.setdefault(name, set()).update(value)

    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
            for target, value in pairs:
                add(target, names_in(value))
        elif isinstance(node, ast.For | ast.comprehension):
            add(node.target, names_in(node.iter))
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign | ast.AugAssign) and node.value:
            add(node.target, names_in(node.value))
        elif isinstance(node, ast.FunctionDef) and node is not function:
            found.setdefault(node.name, set()).update(*(names_in(part) for part in node.body))
    return found


def returned(function: ast.FunctionDef) -> dict[str, set[str]]:
    """For each variable that is returned by its name, the names that its value reads."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg:
                    found.setdefault(keyword.arg, set()).update(names_in(keyword.value))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.setdefault(key.value, set()).update(names_in(value))
    return found


def route(function: ast.FunctionDef, name: str) -> set[str] | None:
    """All names from which a returned variable was computed; None if it is not returned."""
    known, waiting = assignments(function), returned(function).get(name)
    if waiting is None:
        return None
    seen: set[str] = set()
    rest = list(waiting)
    while rest:
        each = rest.pop()
        if each not in seen:
            seen.add(each)
            rest += [*known.get(each, ()), *([each.partition(".")[0]] if "." in each else [])]
    return seen


def definition(function: Callable[..., Any]) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef))


def ours(value: Any) -> bool:
    """Whether it is a function of the package; classes hold data, and `CARRIERS` move them."""
    module = str(getattr(value, "__module__", ""))
    carries = inspect.isclass(value) or module in CARRIERS
    return callable(value) and module.startswith("attlas") and not carries


def resolve(names: Iterable[str], space: dict[str, Any]) -> dict[str, Any]:
    """Which of the names are functions of the package, as `space` and `methods` know them."""
    found = {}
    for name in names:
        first, _, rest = name.partition(".")
        try:
            value = operator.attrgetter(rest)(space[first]) if first and rest else space[first]
        except (KeyError, AttributeError):
            value = methods().get(name)
        if ours(value):
            found[getattr(value, "__name__", name)] = value
    return found


@functools.cache
def methods() -> dict[str, Any]:
    """What classes of the package define, as `.name()`."""
    modules = [module for name, module in sys.modules.items() if name.startswith("attlas")]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__.startswith("attlas")
    }
    return {
        f".{name}()": inspect.unwrap(value)
        for each in sorted(classes, key=lambda each: (each.__module__, each.__name__))
        for name, value in vars(each).items()
        if inspect.isfunction(inspect.unwrap(value)) and name not in FOREIGN
    }


def called_by(function: Callable[..., Any]) -> dict[str, Any]:
    """Functions of the package that it names, those among them that it imports itself."""
    space, waiting, names = dict(function.__globals__), [function.__code__], set[str]()
    while waiting:
        code = waiting.pop()
        names |= set(code.co_names)
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
        module = ""
        for line in dis.get_instructions(code):
            if line.opname == "IMPORT_NAME":
                module = line.argval
            elif line.opname == "IMPORT_FROM":
                space[line.argval] = getattr(sys.modules.get(module), line.argval, None)
    return resolve(names, space)


def closure(names: set[str], space: dict[str, Any]) -> set[str]:
    """Our functions among the names, and all of ours that they call."""
    found, waiting = set(), list(resolve(names, space).items())
    while waiting:
        name, value = waiting.pop()
        if name in found:
            continue
        found.add(name)
        inner = inspect.unwrap(value)
        if inspect.isfunction(inner):
            waiting += called_by(inner).items()
    return found


def helpers(function: Callable[..., Any]) -> Iterator[Any]:
    """A measurement and the functions of its module that it calls, without their decorators."""
    function = inspect.unwrap(function)
    yield function
    for name in sorted(names_in(definition(function))):
        value = inspect.unwrap(function.__globals__.get(name))
        if inspect.isfunction(value) and value.__module__ == function.__module__:
            yield value


def shared_functions(
    readers: Iterable[Callable[..., Any]], sides: Iterable[str]
) -> set[str] | None:
    """What both sides call; None where a side is returned by its name nowhere.

    A side may have several names, of which one is returned, by the first of `readers` that does.
    """
    places, found = [place for reader in readers for place in helpers(reader)], []
    for side in sides:
        routes = ((f, route(definition(f), name)) for f in places for name in side.split())
        known = next(((f, names) for f, names in routes if names is not None), None)
        if known is None:
            return None
        found.append(closure(known[1], known[0].__globals__))
    return set.intersection(*found)


def shared_by(claim: Claim) -> set[str] | None:
    readers = [reader for reader in (claim.read, claim.function) if reader]
    return shared_functions(readers, SIDES[type(claim.rule).__name__])


TWO_ROUTES = sorted(c.id for c in catalogue().values() if c.kind == "two routes")


@pytest.mark.parametrize("name", TWO_ROUTES)
def test_two_routes_share_inputs_only(name):
    shared = shared_by(catalogue()[name])
    assert shared is not None, "a side is returned by its name nowhere, so that it is not followed"
    allowed, _ = EXPLAINED.get(name, (set(), ""))
    assert shared - INPUTS - allowed == set(), f"both sides call {sorted(shared)}"


def one_route(cell: Any, draws: Any) -> Any:
    task = task_of(cell)
    square = cell.noise**2
    excess = task.oracle_risk(cell.lam) - square
    return {"predicted": risk(task, ORACLE, cell.lam) - square, "measured": excess}


def one_route_deeper(cell: Any, draws: Any) -> Any:
    return one_route(cell, draws)


def other_routes(cell: Any, draws: Any) -> Any:
    task = task_of(cell)
    return {"predicted": critical_lam(task), "measured": cell.lam * task.m}


@pytest.mark.parametrize("function", (one_route, one_route_deeper))
def test_a_function_that_both_sides_reach_is_found_through_methods_and_helpers(function):
    shared = shared_functions([function], SIDES["Agreement"])
    assert shared is not None and {"risk", "task_of"} <= shared


def test_what_one_side_calls_is_not_shared():
    assert shared_functions([other_routes], SIDES["Agreement"]) == {"task_of"}
    assert shared_functions([other_routes], ("bound",)) is None


if __name__ == "__main__":
    for name in TWO_ROUTES:
        shared = shared_by(catalogue()[name])
        _, why = EXPLAINED.get(name, (set(), ""))
        print(name, "unknown" if shared is None else sorted(shared), why)
