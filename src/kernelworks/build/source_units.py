"""A Python file of ours, read for what launches are made of: each definition as a text that only its meaning enters.

``read_units`` takes a file apart into units: a function, a method, a class without its methods, a statement that binds
a name of the module. A unit's text is its syntax tree, written out. Comments, docstrings, blank lines, layout,
annotations that nothing reads, and the paths of imports are not in it. A name of the module, or one imported from
another module of ours, stands there as a number: what it is bound to is told apart (``refs``), and may be called
otherwise and lie elsewhere. Names of foreign modules are written with all of their path.

The same text comes out on every version of Python: nodes are written field by field, and a field that holds nothing is
left out, so that one which a later version adds to a node changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernelworks.build.source_scopes import (
    COMPREHENSIONS,
    FUNCTIONS,
    Function,
    bound_in,
    imported_by,
    imports_in,
    locals_of,
    parameters_of,
    places_of,
    targets_of,
)

__all__ = ["FREE", "HERE", "SOURCES", "ParsedUnit", "read_units"]

LEFT_OUT = frozenset(("ctx", "type_comment", "kind", "type_ignores"))
SOURCES = re.compile(r"[\w./-]+\.(cpp|hpp|cu|cuh|h)")  # a constant that may name a file beside

# What a name is: of this module; from another of ours, with what is asked of it; a variable of the function around.
HERE, FROM, FREE = "here", "from", "free"
Ref = tuple[str, ...]
MARK = "\x01"  # around a number that stands for a name; no constant that is written out holds it


@dataclass
class Unit:
    text: str
    refs: list[Ref] = field(default_factory=list)  # what the numbers in the text stand for
    attributes: list[str] = field(default_factory=list)  # that it asks of anything
    files: list[str] = field(default_factory=list)  # that a constant of it may name
    methods: dict[str, int] = field(default_factory=dict)  # of a class: name -> its unit
    place: tuple[int, ...] = ()  # where it lies, line and column of its begin and its end; no part of what it is

    def to_lines(self) -> str:
        """All of it in lines, the text as a digest; ``ParsedUnit`` reads them."""
        methods = " ".join(f"{name} {unit}" for name, unit in self.methods.items())
        refs = " ".join(map(",".join, self.refs))
        return "\n".join(
            (
                _short(self.text),
                refs,
                " ".join(self.attributes),
                " ".join(self.files),
                methods,
                " ".join(map(str, self.place)),
            )
        )


class ParsedUnit:
    """A unit as ``read_units`` told it."""

    __slots__ = ("attributes", "files", "methods", "place", "refs", "text")

    def __init__(self, said: str) -> None:
        self.text, refs, attributes, files, methods, place = said.split("\n")
        self.refs = [ref.split(",") for ref in refs.split()]
        self.attributes, self.files, named = attributes.split(), files.split(), methods.split()
        self.place = tuple(map(int, place.split()))
        self.methods = dict(zip(named[::2], map(int, named[1::2]), strict=True))


def read_units(source: str, module: str, package: str, *, is_package: bool = False) -> dict[str, Any]:
    """Of a module's source: ``units``, each as ``ParsedUnit`` takes it; ``names``, name -> the units that bind it;
    ``imports``, name -> module and what of it; ``nested``, "line:name" -> column and unit of each function within
    others; ``whole``, all of it.

    All in strings: few units of a file are ever asked for, and strings cost Python's collector nothing.
    """
    return _Module(ast.parse(source), module, package, is_package).to_index()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- one unit's text


class _Writer:
    """Writes one node, and notes what it stands on."""

    def __init__(self, module: _Module, scopes: list[set[str]], imports: dict[str, tuple[str, str]]) -> None:
        self.module, self.scopes, self.outer = module, list(scopes), len(scopes)
        self.imports = imports  # of the functions around, beside the module's
        self.parts: list[str] = []
        self.refs: list[Ref] = []
        self.attributes: set[str] = set()
        self.files: list[str] = []
        self.annotated = False

    def unit(self, *nodes: ast.AST) -> Unit:
        """What was written of some nodes."""
        places = [place for node in nodes for place in places_of(node)]
        its = "".join(self.parts), self.refs, sorted(self.attributes), sorted(set(self.files))
        return Unit(*its, place=(*min(places), *max(places)))

    def ref(self, ref: Ref) -> None:
        if ref not in self.refs:
            self.refs.append(ref)
        self.parts.append(f"{MARK}{self.refs.index(ref)}{MARK}")

    def name(self, name: str, attribute: str = "") -> bool:
        """Writes a name that is loaded; whether ``attribute``, which is asked of it, is written with it."""
        for depth in range(len(self.scopes) - 1, -1, -1):
            if name in self.scopes[depth]:
                if depth < self.outer:
                    self.ref((FREE, name))
                else:
                    self.parts.append(name)
                return False
        found = self.imports.get(name) or self.module.imports.get(name)
        if name in self.module.names:
            self.ref((HERE, name))
        elif found is None:
            self.parts.append(name)
        elif self.module.ours(found[0]):
            self.ref((FROM, *found, attribute))
            return bool(attribute)
        else:
            self.parts.append(".".join(filter(None, found)))
        return False

    def write(self, value: Any) -> None:
        if isinstance(value, list):
            self.parts.append("[")
            for item in value:
                self.write(item)
            self.parts.append("]")
        elif not isinstance(value, ast.AST):
            self.parts.append(f"{value!a},")
        else:
            special = getattr(self, f"_{type(value).__name__}", None)
            if special is not None:
                special(value)
            elif isinstance(value, COMPREHENSIONS):
                self._comprehension(value)
            else:
                self.write_node(value)

    def write_node(self, node: ast.AST, without: tuple[str, ...] = ()) -> None:
        self.parts.append(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            if name in LEFT_OUT or name in without or value is None or value == []:
                continue
            self.parts.append(f"{name}=")
            self.write(value)
        self.parts.append(")")

    def _Name(self, node: ast.Name) -> None:
        self.name(node.id)
        self.parts.append(";")

    def _Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and self.name(node.value.id, node.attr):
            self.parts.append(";")
            return
        if not isinstance(node.value, ast.Name):
            self.write(node.value)
        self.attributes.add(node.attr)
        self.parts.append(f".{node.attr};")

    def _Call(self, node: ast.Call) -> None:
        asks = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr")
        if asks and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            self.attributes.add(str(node.args[1].value))
        self.write_node(node)

    def _Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and SOURCES.fullmatch(node.value):
            self.files.append(node.value)
        self.parts.append(f"{type(node.value).__name__} {node.value!a};")

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pieces of text side by side are one, and an empty one is none: versions of Python cut them differently."""
        self.parts.append("JoinedStr[")
        text = ""
        for part in (*node.values, None):
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            self.parts.append(f"{text!a};" if text else "")
            text = ""
            if part is not None:
                self.write(part)
        self.parts.append("]")

    def _Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """What an import binds is written where it is used."""

    _ImportFrom = _Import

    def _Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring, or nothing at all
            self.write(node.value)

    def _MatchClass(self, node: ast.MatchClass) -> None:
        self.attributes.update(node.kwd_attrs)
        self.write_node(node)

    def _arg(self, node: ast.arg) -> None:
        self.parts.append(f"{node.arg}")
        if self.annotated and node.annotation is not None:
            self.parts.append(":")
            self.write(node.annotation)
        self.parts.append(",")

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        self.write_node(node, () if self.annotated else ("annotation", "simple"))

    def _Lambda(self, node: ast.Lambda) -> None:
        self.function(node, "")

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.function(node, node.name)

    _AsyncFunctionDef = _FunctionDef

    def function(self, node: Function, name: str) -> None:
        """A function; ``name`` where it stands in another, which says it."""
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        annotated, self.annotated = self.annotated, self.annotated or bool(decorators)  # a decorator may read them
        self.parts.append(f"{type(node).__name__} {name}")
        self.write(decorators)
        self.write([*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)])
        a = node.args
        self.parts.append(f"({len(a.posonlyargs)} {len(a.args)} {len(a.kwonlyargs)} {len(a.defaults)} ")
        self.parts.append(f"{[d is not None for d in a.kw_defaults]} {bool(a.vararg)} {bool(a.kwarg)} ")
        self.write(parameters_of(node))
        if self.annotated and getattr(node, "returns", None) is not None:
            self.write(node.returns)  # type: ignore[union-attr]
        self.parts.append("):")
        self.scopes.append(set(self.module.locals_of(node)))
        held = self.imports
        if not isinstance(node, ast.Lambda):
            self.imports = held | self.module.imports_of(node)
            self.scopes[-1] -= self.imports.keys() - held.keys()
        self.write(node.body)
        self.imports = held
        self.scopes.pop()
        self.annotated = annotated

    def _ClassDef(self, node: ast.ClassDef) -> None:
        """A class within a function, whole."""
        self.class_(node, node.body, node.name)

    def class_(self, node: ast.ClassDef, body: list[ast.stmt], name: str = "", *, whole: bool = True) -> None:
        annotated, self.annotated = self.annotated, False
        self.parts.append(f"class {name}")
        for part in (node.decorator_list, node.bases, node.keywords) if whole else ():
            self.write(part)
        own = bound_in(node.body)
        for statement in body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.function(statement, statement.name)
                continue
            self.scopes.append(own)
            self.write(statement)
            self.scopes.pop()
        self.annotated = annotated

    def _comprehension(self, node: Any) -> None:
        """The first iterable belongs to the scope around; names of all targets are the comprehension's own."""
        self.parts.append(f"{type(node).__name__}(")
        self.write(node.generators[0].iter)
        self.scopes.append({n for g in node.generators for i in ast.walk(g.target) for n in targets_of(i)})
        for number, generator in enumerate(node.generators):
            self.parts.append("for async " if generator.is_async else "for ")
            self.write(generator.target)
            if number:
                self.write(generator.iter)
            self.write(generator.ifs)
        for name in ("key", "value", "elt"):
            if hasattr(node, name):
                self.write(getattr(node, name))
        self.scopes.pop()
        self.parts.append(")")


# ---------------------------------------------------------------- a module


def _member(node: ast.stmt) -> str:
    """What a statement of a class defines that is reached by its name; "" where Python itself calls or reads it."""
    name = ""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        name = node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        name = node.target.id
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
    return "" if name.startswith("__") and name.endswith("__") else name


class _Module:
    def __init__(self, tree: ast.Module, module: str, package: str, is_package: bool) -> None:
        self.tree, self.module, self.package, self.is_package = tree, module, package, is_package
        self.units: list[Unit] = []
        self.imports: dict[str, tuple[str, str]] = {}
        self.names: dict[str, list[int]] = {}
        self.nested: dict[str, list[list[int]]] = {}
        self._imports_within = list(imports_in(tree))
        self._locals: dict[ast.AST, set[str]] = {}
        statements = list(self._statements(tree.body))
        for statement in statements:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.imports |= {n: (m, a) for n, m, a in imported_by(statement, module, is_package)}
        for statement in statements:
            for name in self._binds(statement):
                self.names.setdefault(name, [])
        for statement in statements:
            self._add(statement)
        self._nest(tree, [], {}, top=True)

    def ours(self, module: str) -> bool:
        return module == self.package or module.startswith(f"{self.package}.")

    def locals_of(self, node: Function) -> set[str]:
        """Found once: a function is written with all that it lies in."""
        if node not in self._locals:
            self._locals[node] = locals_of(node)
        return self._locals[node]

    def imports_of(self, node: Any) -> dict[str, tuple[str, str]]:
        begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        if not any(begin <= (one.lineno, one.col_offset) <= end for one in self._imports_within):
            return {}
        return {
            n: (m, a) for one in imports_in(node) for n, m, a in imported_by(one, self.module, self.is_package)
        }  # fmt: skip

    def _statements(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        """Those of a module: definitions and imports that lie in an ``if``, ``try`` or ``with`` one by one."""
        for statement in body:
            inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            handlers = [h.body for h in getattr(statement, "handlers", [])]
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                plain = any(isinstance(s, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.If, ast.Try))
                            for b in (*inner, *handlers) for s in b)  # fmt: skip
                if plain:
                    for b in (*inner, *handlers):
                        yield from self._statements(b)
                    continue
            yield statement

    def _binds(self, node: ast.stmt) -> list[str]:
        """Names that a statement binds, or whose value it changes."""
        found = bound_in([node])
        parts: list[ast.expr] = [*getattr(node, "targets", []), *filter(None, [getattr(node, "target", None)])]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            parts.append(node.value.func)
        for part in parts:
            while isinstance(part, (ast.Attribute, ast.Subscript, ast.Call)):
                part = part.func if isinstance(part, ast.Call) else part.value
            if isinstance(part, ast.Name) and part.id not in self.imports:
                found.add(part.id)
        return sorted(found)

    def _add(self, node: ast.stmt) -> None:
        names = self._binds(node)
        if not names or isinstance(node, (ast.Import, ast.ImportFrom)):
            return
        number = self._class(node) if isinstance(node, ast.ClassDef) else self._unit(node)
        for name in names:
            self.names[name].append(number)

    def _unit(self, node: ast.stmt) -> int:
        writer = _Writer(self, [], {})
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            writer.function(node, "")
        else:
            writer.write(node)
        return self._kept(writer.unit(node))

    def _kept(self, unit: Unit) -> int:
        self.units.append(unit)
        return len(self.units) - 1

    def _class(self, node: ast.ClassDef) -> int:
        """A class: what Python itself calls or reads of it, and each method, field and constant, by its name."""
        members = [s for s in node.body if _member(s)]
        writer = _Writer(self, [], {})
        writer.class_(node, [s for s in node.body if s not in members])
        writer.parts.append(ascii([_member(s) for s in members if isinstance(s, ast.AnnAssign)]))  # fields, in order
        number = self._kept(writer.unit(node))
        for name in dict.fromkeys(map(_member, members)):  # several of a name: a property's setter, an overload
            inner = _Writer(self, [], {})
            its = [s for s in members if _member(s) == name]
            inner.class_(node, its, whole=False)
            self.units[number].methods[name] = self._kept(inner.unit(*its))
        return number

    def _nest(
        self, node: ast.AST, scopes: list[set[str]], imports: dict[str, tuple[str, str]], *, top: bool = False
    ) -> None:
        """The functions within functions, and all lambdas, with what they have of the functions around."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                if not top or isinstance(child, ast.Lambda):
                    writer = _Writer(self, scopes, imports)
                    writer.function(child, "")
                    first = min([child.lineno, *(d.lineno for d in getattr(child, "decorator_list", []))])
                    key = f"{first}:{getattr(child, 'name', '<lambda>')}"
                    self.nested.setdefault(key, []).append([child.col_offset, self._kept(writer.unit(child))])
                own = self.imports_of(child)
                self._nest(child, [*scopes, self.locals_of(child) - own.keys()], imports | own)
            elif isinstance(child, ast.ClassDef):
                self._nest(child, scopes, imports, top=top)
            elif isinstance(child, COMPREHENSIONS):
                targets = {n for g in child.generators for i in ast.walk(g.target) for n in targets_of(i)}
                self._nest(child, [*scopes, targets], imports, top=top)
            else:
                self._nest(child, scopes, imports, top=top)

    def _whole(self) -> str:
        """Of the whole module, whatever binds no name too, and its imports."""
        writer = _Writer(self, [], {})
        writer.write(self.tree.body)
        return _short("".join([*writer.parts, ascii(sorted(map(str, self.imports.items())))]))

    def to_index(self) -> dict[str, Any]:
        return {
            "units": [unit.to_lines() for unit in self.units],
            "names": {name: " ".join(map(str, units)) for name, units in self.names.items()},
            "imports": {name: " ".join(found) for name, found in self.imports.items()},
            "nested": {key: " ".join(map(str, itertools.chain(*found))) for key, found in self.nested.items()},
            "whole": self._whole(),
        }
