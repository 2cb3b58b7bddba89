"""A claim that says "two routes" computes its two sides by different functions of ours.

The sources are read: from each variable that the rule compares, back through the assignments of the
measurement, to the functions of the package that are called on the way. What both sides call must
make inputs (`INPUTS`), not answers.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator

from attlas.claims import Claim, catalogue

SIDES = {
    "Agreement": ("predicted", "measured"),
    "Approximation": ("predicted", "measured"),
    "Bound": ("bound", "measured"),
    "Rate": ("predicted", "measured"),
    "Order": ("lower", "upper"),
}

INPUTS: set[str] = set()


def names_in(node: ast.AST) -> set[str]:
    """Names that an expression reads, those of functions with their module: `np.exp`."""
    return {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}


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


def route(function: ast.FunctionDef, name: str) -> set[str]:
    """All names from which a returned variable was computed."""
    known, waiting = assignments(function), list(returned(function).get(name, ()))
    seen: set[str] = set()
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            waiting += [*known.get(each, ()), *([each.partition(".")[0]] if "." in each else [])]
    return seen


def our_functions(claim: Claim, names: set[str]) -> set[str]:
    """Which of the names are functions and classes of the package, methods among them."""
    module = sys.modules[claim.function.__module__]
    found = set()
    for name in names:
        value = getattr(module, name, None)
        if callable(value) and str(getattr(value, "__module__", "")).startswith("attlas"):
            found.add(name)
    return found


def shared_functions(claim: Claim) -> set[str] | None:
    """What both sides of a claim call; None where a side is not returned by its name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(claim.read or claim.function)))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    sides = [route(function, name) for name in SIDES[type(claim.rule).__name__]]
    if not all(sides):
        return None
    return our_functions(claim, sides[0]) & our_functions(claim, sides[1])


if __name__ == "__main__":
    for claim in catalogue().values():
        if claim.kind == "two routes":
            print(claim.id, shared_functions(claim))
