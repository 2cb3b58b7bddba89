"""The reference: all that the package offers, read from its sources without importing them.

Public is what `dir(attlas)` and its modules show, and the classes that come back from it.
"""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from markupsafe import Markup

import attlas
from attlas.atlas.docstrings import Docstring, parse_docstring
from attlas.errors import InputError

ROOT = Path(attlas.__file__).parent


@dataclass(frozen=True)
class Parameter:
    """An argument of a function or a field of a class; `default` is "" where there is none."""

    name: str
    annotation: str
    default: str
    words: str

    @property
    def shown(self) -> str:
        """As it stands in a signature."""
        name = f"{self.name}: {self.annotation}" if self.annotation else self.name
        sign = " = " if self.annotation else "="
        return f"{name}{sign}{self.default}" if self.default else name


@dataclass(frozen=True)
class Thing:
    """A function, class, method, property or constant.

    Arguments:
        name: as one writes it after the module's name. `home`: the module that defines it.
        kind: "function", "class", "method", "property" or "constant".
        signature: as one reads it, with shapes.
        members: of a class, its public methods and properties.
        result: names in the annotation of what comes back.
    """

    name: str
    home: str
    kind: str
    signature: str
    doc: Docstring
    parameters: tuple[Parameter, ...] = ()
    members: tuple["Thing", ...] = ()
    result: tuple[str, ...] = ()

    @property
    def undescribed(self) -> list[str]:
        """Parameters of which nothing is said."""
        return [p.name for p in self.parameters if not (p.words or self.doc.mentions(p.name))]

    @property
    def short(self) -> str:
        """The name of a member without its class."""
        return self.name.rpartition(".")[2]

    @property
    def path(self) -> str:
        """Where it is defined."""
        return f"{self.home}.{self.name}"


@dataclass(frozen=True)
class Section:
    """A public module: its page."""

    name: str
    words: str
    doc: Docstring
    things: tuple[Thing, ...]

    @property
    def page(self) -> str:
        return f"reference/{self.name}.html"

    def examples_with(self, thing: Thing) -> list[str]:
        """Names of other things of the module whose examples use this one, or use what gives it
        back; the module's own name stands for the example above all."""
        every = [one for other in self.things for one in (other, *other.members)]
        givers = [one.short for one in every if thing.name in one.result]
        names = "|".join([thing.name, *givers])
        used = re.compile(rf"^(?:>>>|\.\.\.) (?!from |import ).*\b(?:{names})\b", re.M)
        documents = {self.name: self.doc} | {other.name: other.doc for other in self.things}
        return [
            name
            for name, doc in documents.items()
            if name != thing.name and any(used.search(text) for text in doc.examples)
        ]


@dataclass(frozen=True)
class Question:
    """A question that a user has, and the names that answer it, with their modules."""

    ask: str
    answer: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """All public modules, and the questions that lead to them."""

    sections: tuple[Section, ...]
    questions: tuple[Question, ...]

    @functools.cached_property
    def places(self) -> dict[str, str]:
        """The page and the place on it of everything, by its name with and without the module; a
        short name that two things have leads nowhere."""
        full, short = {}, {}
        for section in self.sections:
            full[section.name] = section.page
            for thing in section.things:
                for one in (thing, *thing.members):
                    place = f"{section.page}#{one.name}"
                    full[f"{section.name}.{one.name}"] = place
                    short[one.name] = place if one.name not in short else ""
        return {name: place for name, place in (short | full).items() if place}

    def link(self, body: str, root: str, section: Section | None = None) -> Markup:
        """The HTML with a link from every name in it that has a place; in a module's page its own
        names go before others."""

        def lead(found: re.Match[str]) -> str:
            name = found[1]
            own = f"{section.name}.{name}" if section else name
            place = self.places.get(own) or self.places.get(name)
            return f'<a href="{root}{place}">{found[0]}</a>' if place else found[0]

        return Markup(re.sub(r"<code>([A-Za-z_][\w.]*)(?:\(\))?</code>", lead, body))


def read_reference() -> Reference:
    """The reference of this package; the words of its modules and the questions stand in
    `reference.toml`."""
    said = tomllib.loads((files("attlas.atlas") / "reference.toml").read_text(encoding="utf-8"))
    offered = {name: dict(_offered(name)) for name in said["modules"]}
    public = {thing.path for things in offered.values() for thing in things.values()}
    for things in offered.values():
        for thing in [*things.values()]:
            for source in _sources(thing.home, thing.result):
                other = _find(*source)
                if other and other.kind == "class" and other.path not in public:
                    things[other.name] = other
                    public.add(other.path)
    sections = tuple(
        Section(name, words, _document(name), tuple(offered[name].values()))
        for name, words in said["modules"].items()
    )
    questions = tuple(
        Question(item["ask"], item["answer"], tuple(item["names"])) for item in said["questions"]
    )
    reference = Reference(sections, questions)
    for question in questions:
        if strange := set(question.names) - set(reference.places):
            raise InputError(f"{question.ask!r} is answered by {min(strange)!r}, an unknown name")
    return reference


def _document(module: str) -> Docstring:
    return parse_docstring(ast.get_docstring(_module(module)))


def _offered(name: str) -> Iterator[tuple[str, Thing]]:
    """What a module offers: a package what it imports, a module what it defines."""
    if _file(name).name != "__init__.py":
        for node in _module(name).body:
            for own in _defined(node):
                thing = None if own.startswith("_") else _find(name, own)
                if thing and (thing.kind != "constant" or thing.doc.prose):
                    yield own, thing
        return
    for own, (module, original) in _imports(name).items():
        if module != "attlas.lazy" and (thing := _find(module, original)):
            yield own, thing


def _file(module: str) -> Path:
    place = ROOT.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@functools.cache
def _text(module: str) -> str:
    return _file(module).read_text(encoding="utf-8")


@functools.cache
def _module(module: str) -> ast.Module:
    return ast.parse(_text(module))


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Names that a module imports from this package, with the module and the name there."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for outer in _module(module).body
        for node in [outer, *(outer.body if isinstance(outer, ast.If) else [])]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attlas")
        for alias in node.names
    }


def _sources(module: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Where names that a module uses are defined, if in this package."""
    for name in names:
        yield _imports(module).get(name, (module, name))


@functools.cache
def _find(module: str, name: str) -> Thing | None:
    """The function, class or constant that a module defines under a name, or imports."""
    if not _file(module).is_file():
        return None
    body = _module(module).body
    for node, after in zip_longest(body, body[1:]):
        if name not in _defined(node):
            continue
        if isinstance(node, ast.FunctionDef):
            return _function(node, module, "function")
        if isinstance(node, ast.ClassDef):
            return _class(node, module)
        if isinstance(node, ast.Assign | ast.AnnAssign) and name.isupper():
            words = _text_of(after)
            value = " ".join(ast.unparse(node.value).split()) if node.value else ""
            shown = f"{name} = {value}" if len(value) < 70 else name
            return Thing(name, module, "constant", shown, parse_docstring(words))
        return None
    ((other, original),) = _sources(module, (name,))
    return _find(other, original) if other != module else None


def _text_of(node: ast.stmt | None) -> str:
    """The text of a statement that is nothing but a text."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else ""
    return ""


def _function(node: ast.FunctionDef, module: str, kind: str) -> Thing:
    doc = parse_docstring(ast.get_docstring(node))
    args = [*node.args.posonlyargs, *node.args.args]
    if kind != "function" and args and "staticmethod" not in _decorators(node):
        args = args[1:]  # self or cls
    known = doc.arguments | _inherited(doc, module)
    defaults = [None] * len(args) + list(node.args.defaults)
    pairs = [*zip(args, defaults[len(defaults) - len(args) :], strict=True)]
    named: list[tuple[str, ast.arg | None, ast.expr | None]]
    named = [(arg.arg, arg, default) for arg, default in pairs]
    if node.args.vararg:
        named.append((f"*{node.args.vararg.arg}", node.args.vararg, None))
    elif node.args.kwonlyargs:
        named.append(("*", None, None))
    only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    named += [(arg.arg, arg, default) for arg, default in only]
    if node.args.kwarg:
        named.append((f"**{node.args.kwarg.arg}", node.args.kwarg, None))
    parameters = tuple(
        Parameter(
            shown,
            ast.unparse(arg.annotation) if arg and arg.annotation else "",
            ast.unparse(default) if default else "",
            known.get(shown.lstrip("*"), ""),
        )
        for shown, arg, default in named
    )
    result = ast.unparse(node.returns) if node.returns else ""
    shown = _signature(node.name, [p.shown for p in parameters], result)
    parameters = tuple(replace(p, name=p.name.lstrip("*")) for p in parameters if p.name != "*")
    names = tuple(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", result)))
    return Thing(node.name, module, kind, shown, doc, parameters, (), names)


def _inherited(doc: Docstring, module: str) -> dict[str, str]:
    """What other functions say of the arguments that are as theirs."""
    found: dict[str, str] = {}
    for source in _sources(module, doc.alike):
        if other := _find(*source):
            found |= {p.name: p.words for p in other.parameters if p.words}
    return {name: words for name, words in found.items() if name not in doc.arguments}


def _signature(name: str, parts: list[str], result: str = "") -> str:
    """A call on one line, or on one line for each argument."""
    ending = f" -> {result}" if result else ""
    line = f"{name}({', '.join(parts)}){ending}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){ending}"])


def _class(node: ast.ClassDef, module: str) -> Thing:
    doc = parse_docstring(ast.get_docstring(node))
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    start = next((part for part in functions if part.name == "__init__"), None)
    bases = [other for name in _names(node.bases) for other in _bases(module, name)]
    if start:
        made = _function(start, module, "method")
        said = doc.arguments | made.doc.arguments
        fields = [replace(p, words=said.get(p.name, p.words)) for p in made.parameters]
        shown = made.signature.replace("__init__", node.name, 1).removesuffix(" -> None")
    else:
        known = doc.arguments | _inherited(doc, module)
        inherited = {p.name: p for base in bases for p in base.parameters}
        own = {p.name: p for p in _fields(node, module, doc)} if _is_record(node, bases) else {}
        fields = [
            replace(p, words=known.get(name) or p.words or inherited.get(name, p).words)
            for name, p in (inherited | own).items()
            if name not in {part.name for part in functions}
        ]
        shown = _signature(node.name, [p.shown for p in fields])
    members = tuple(
        _member(part, module, [doc, *(base.doc for base in bases)], bases)
        for part in functions
        if not part.name.startswith("_") or part.name == "__call__"
        if ".setter" not in " ".join(_decorators(part))
    )
    members = tuple(replace(m, name=f"{node.name}.{m.name}") for m in members)
    mine = {m.short for m in members}
    members += tuple(
        replace(m, name=f"{node.name}.{m.short}")
        for base in bases
        for m in base.members
        if m.short not in mine
    )
    return Thing(node.name, module, "class", shown, doc, tuple(fields), members)


def _member(
    node: ast.FunctionDef, module: str, around: list[Docstring], bases: list[Thing]
) -> Thing:
    """A method or property; what its class or a base says of it stands for a docstring."""
    kind = "property" if any("property" in word for word in _decorators(node)) else "method"
    member = _function(node, module, kind)
    if member.doc.prose:
        return member
    others = [other for base in bases for other in base.members if other.short == node.name]
    said = [doc.arguments[node.name] for doc in around if node.name in doc.arguments]
    known = [*(Docstring((words,)) for words in said), *(other.doc for other in others)]
    return replace(member, doc=known[0]) if known else member


def _fields(node: ast.ClassDef, module: str, doc: Docstring) -> Iterator[Parameter]:
    """Annotated names of a class, with what the docstring, the text below or the comment beside
    says of them."""
    lines = _text(module).splitlines()
    known = doc.arguments | _inherited(doc, module)
    for part, after in zip_longest(node.body, node.body[1:]):
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        name, kind = part.target.id, ast.unparse(part.annotation)
        value = ast.unparse(part.value) if part.value else ""
        if name.startswith("_") or "ClassVar" in kind or "init=False" in value:
            continue
        comment = re.search(r"#\s+(?!type:)(.*)", lines[(part.end_lineno or 1) - 1])
        words = known.get(name) or _text_of(after) or (comment[1] if comment else "")
        if "field(" in value:
            given = re.search(r"default(?:_factory)?=([^,)]*)", value)
            value = "..." if given else ""
        yield Parameter(name, kind, value, " ".join(words.split()))


def _bases(module: str, name: str) -> list[Thing]:
    ((home, original),) = _sources(module, (name,))
    base = _find(home, original)
    return [base] if base and base.kind == "class" else []


def _names(nodes: list[ast.expr]) -> list[str]:
    return [re.sub(r"\[.*", "", ast.unparse(node)).rpartition(".")[2] for node in nodes]


def _is_record(node: ast.ClassDef, bases: list[Thing]) -> bool:
    """Whether the annotated names of a class are its arguments."""
    kinds = {"NamedTuple", "Module"} & set(_names(node.bases))
    return bool(kinds or bases) or any("dataclass" in word for word in _decorators(node))


def _decorators(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]
