"""Edits a file of a program's own source: places are found by syntax, and changed by character offset.

Everything else stays as it was, to the letter. A change is refused if the file would no longer be Python.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["DEFS", "NoPlace", "Source"]

Edit = tuple[int, int, str]  # from, to, the new text; in characters of the file
Def = ast.FunctionDef | ast.AsyncFunctionDef
DEFS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With)
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


class NoPlace(Exception):
    """A change has no place in this source; the text says why."""


class Source:
    """One file. Raises OSError if it cannot be read, SyntaxError or ValueError if it is no Python."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tokenize.open(path) as file:
            encoding = file.encoding
        with path.open(encoding=encoding, newline="") as file:
            self.text = file.read()
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        self.tree = ast.parse(self.text)
        self.lines = _lines(self.text)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[Edit] = []
        self._imports: list[str] = []
        self._parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    # ------------------------------------------------------------ what is there

    def names_of(self, value: Any) -> list[tuple[str, str]]:
        """The global names of this file's module that hold an object, each with ""; else the names of lists and
        dictionaries that hold it, with its index there."""
        spaces = [vars(module) for name, module in list(sys.modules.items()) if self.is_of(name)]
        names = [name for space in spaces for name, held in space.items() if held is value]
        inside = [
            (name, f"[{key!r}]")
            for space in spaces
            for name, held in space.items()
            if type(held) in (list, dict)
            for key, each in (held.items() if type(held) is dict else enumerate(held))
            if each is value and isinstance(key, (str, int))
        ]
        return list(dict.fromkeys([(name, "") for name in names] or inside))

    def is_of(self, module: Any) -> bool:
        """Whether it is the file of a module, by its name."""
        file = getattr(sys.modules.get(str(module)), "__file__", None)
        try:
            return isinstance(file, str) and os.path.samefile(file, self.path)
        except OSError:
            return False

    def assignments_to(self, name: str, *, within: str = "", around: ast.AST | None = None) -> list[ast.stmt]:
        """The statements that give a name its value: outside of functions and classes, ``within`` a class of that name,
        or in the functions ``around`` one."""
        found = [statement for statement, target, _ in self._assignments() if ast.unparse(target) == name]
        if around is not None:
            outer = [each for each in self._outer(around) if isinstance(each, ast.FunctionDef)]
            return [each for each in found if self._inner(each, DEFS) in outer]
        if within:
            classes = (self._inner(each, (ast.ClassDef,)) for each in found)
            return [s for s, of in zip(found, classes, strict=True) if getattr(of, "name", "") == within]
        return [each for each in found if self._inner(each, DEFS) is None]

    def makes(self, statement: ast.stmt, kind: str) -> bool:
        """Whether its value is a call that makes an object of a class, by the name of that."""
        value = getattr(statement, "value", None)
        return value is not None and _makes(value, kind)

    def constructions_of(self, kind: str) -> list[tuple[ast.stmt, str]]:
        """The statements that build an object of a class, by the name of the class, with the name that the object
        gets."""
        found = []
        for statement, target, value in self._assignments():
            if isinstance(target, (ast.Name, ast.Attribute)) and _makes(value, kind):
                found.append((statement, ast.unparse(target)))
        return found

    def _assignments(self) -> Iterator[tuple[ast.stmt, ast.expr, ast.expr]]:
        """Each statement that gives a name its value, with both; several names in one statement are several."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
                yield node, target, value
                if isinstance(target, ast.Tuple):
                    several = value.elts if isinstance(value, ast.Tuple) else ()
                    values = several if len(several) == len(target.elts) else [value] * len(target.elts)
                    yield from ((node, each, its) for each, its in zip(target.elts, values, strict=True))
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                yield node, node.target, node.value

    def holds(self, statement: ast.AST, node: ast.AST) -> bool:
        """Whether a node is a part of a statement."""
        return any(each is statement for each in self._outer(node))

    def calls(self, name: str) -> list[ast.Call]:
        """The calls of something by its last name."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _last(node.func) == name]

    def function(self, code: CodeType) -> Def | None:
        """The definition that a code was made of."""
        for node in ast.walk(self.tree):
            named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name
            if named and _first_line(node) == code.co_firstlineno:  # type: ignore[arg-type]
                return node  # type: ignore[return-value]
        return None

    def text_of(self, node: ast.AST) -> str:
        begin, end = self._span(node)
        return self.text[begin:end]

    def _outer(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node lies in, from the inside."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def _inner(self, node: ast.AST, kinds: tuple[type, ...]) -> ast.AST | None:
        """The innermost of some kinds that a node lies in."""
        return next((each for each in self._outer(node) if isinstance(each, kinds)), None)

    def _body_of(self, statement: ast.AST) -> tuple[list[ast.stmt], int]:
        """The statements among which one stands, and its place there."""
        for _, value in ast.iter_fields(self._parents[statement]):
            if isinstance(value, list) and any(each is statement for each in value):
                return value, next(place for place, each in enumerate(value) if each is statement)
        raise NoPlace("it stands in no block of statements")

    # ------------------------------------------------------------ what is written

    def after(self, statement: ast.stmt, name: str, lines: Sequence[str], *, after_uses: bool = False) -> None:
        """Lines behind a statement that gives a name its value, and behind those that go on with it (``model.eval()``,
        ``model = model.to(device)``); ``after_uses``: behind all that do something with it before it is called, as
        whoever loads its weights."""
        body, place = self._body_of(statement)
        last = place
        while last + 1 < len(body) and _goes_on(body[last + 1], name):
            last += 1
        for at in range(last + 1, len(body) if after_uses else 0):
            if isinstance(body[at], ast.Return) or _calls(body[at], name):
                break
            last = at if not isinstance(body[at], DEFS) and _mentions(body[at], name) else last
        self._insert_line(body[last].end_lineno or 0, self._indent(body[last]), lines)

    def decorate(self, node: Def, line: str) -> None:
        """Adds a decorator outside of all others but those that make a method static."""
        outer = [each for each in node.decorator_list if _last(each) in ("staticmethod", "classmethod", "property")]
        at = max((each.end_lineno or 0 for each in outer), default=_first_line(node) - 1)
        self._insert_line(at, self._indent(node), [line])

    def ahead_of(self, node: Def | None, lines: Sequence[str]) -> None:
        """Adds lines before a definition; without one, at the start."""
        if node is None:
            self.at_start(lines)
        else:
            self._insert_line(_first_line(node) - 1, " " * node.col_offset, lines)

    def at_start(self, lines: Sequence[str]) -> None:
        """Adds lines after the imports."""
        self._insert_line(self._imported(), "", lines)

    def importing(self, modules: Sequence[str]) -> None:
        """Imports modules by their own names, if the file does not yet."""
        known = {
            alias.asname or alias.name
            for node in self.tree.body
            if isinstance(node, ast.Import) and (node.end_lineno or 0) <= self._imported()
            for alias in node.names
        }
        self._imports += [name for name in modules if name not in known and name not in self._imports]

    def keyword(self, call: ast.Call, name: str, value: str) -> None:
        """Gives a call ``name=value``."""
        for keyword in call.keywords:
            if keyword.arg == name:
                self.replace_node(keyword.value, value)
                return
        if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp) and not call.keywords:
            raise NoPlace("its one argument is a generator, which would need parentheses of its own")
        begin, end = self._span(call)
        tokens = [token for token in self._tokens(begin, end - 1) if token.type not in LAYOUT]
        last = tokens[-1]
        at = self._offset_of(last.end)
        said = f"{name}={value}"
        if last.string == "(":
            self._edits.append((at, at, said))
        elif last.string == "," and last.end[0] < (call.end_lineno or 0):
            line = self.lines[last.end[0] - 1]
            indent = line[: len(line) - len(line.lstrip())]
            self._insert_line(last.end[0], indent, [f"{said},"])
        else:
            self._edits.append((at, at, f" {said}" if last.string == "," else f", {said}"))

    def replace_node(self, node: ast.AST, text: str) -> None:
        self._edits.append((*self._span(node), text))

    def rename_call(self, call: ast.Call, name: str) -> None:
        self.replace_node(call.func, name)

    def statement(self, call: ast.Call, lines: Callable[[str], list[str]], name: str) -> None:
        """Puts lines in the place of a statement that is a call, or that names its result; ``name`` if it names
        none."""
        whole: Any = self._parents[call]
        if isinstance(whole, ast.Assign) and len(whole.targets) == 1 and isinstance(whole.targets[0], ast.Name):
            name = whole.targets[0].id
        elif not isinstance(whole, ast.Expr):
            raise NoPlace(f"what is called in {self.path.name}:{call.lineno} is part of an expression")
        indent = self._indent(whole)
        begin, end = self._span(whole)
        self._edits.append((begin, end, f"{self.newline}{indent}".join(lines(name))))

    # ------------------------------------------------------------ places

    def mark(self) -> tuple[int, int]:
        return len(self._edits), len(self._imports)

    def back_to(self, mark: tuple[int, int]) -> None:
        del self._edits[mark[0] :]
        del self._imports[mark[1] :]

    def _offset(self, line: int, column: int) -> int:
        """Of a line from 1 and a column in bytes, as syntax trees have them."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    def _offset_of(self, place: tuple[int, int]) -> int:
        """Of a line from 1 and a column in characters, as tokens have them."""
        return self._starts[place[0] - 1] + place[1]

    def _span(self, node: Any) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _indent(self, statement: ast.AST) -> str:
        """The indentation of a statement. Raises NoPlace if its line holds others."""
        begin, end = self._span(statement)
        first = self.text[self.text.rfind("\n", 0, begin) + 1 : begin]
        rest = self.text[end : (self.text.find("\n", end) + 1 or len(self.text) + 1) - 1].strip()
        if first.strip() or (rest and not rest.startswith("#")):
            raise NoPlace(f"{self.path.name}:{getattr(statement, 'lineno', 0)} holds other statements too")
        return first

    def _tokens(self, begin: int, end: int) -> Iterator[tokenize.TokenInfo]:
        for token in tokenize.generate_tokens(io.StringIO(self.text, newline="").readline):
            if begin <= self._offset_of(token.start) and self._offset_of(token.end) <= end:
                yield token

    def _imported(self) -> int:
        """The last line of the imports at the start of a file, whatever it sets between them."""
        last = 0
        for place, node in enumerate(self.tree.body):
            if isinstance(node, BLOCKS):
                break
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not place
            if text or isinstance(node, (ast.Import, ast.ImportFrom)):
                last = node.end_lineno or 0
        return last

    def _insert_line(self, line: int, indent: str, lines: Sequence[str]) -> None:
        """Adds lines after the one of that number."""
        at = self._starts[min(line, len(self.lines))]
        text = "".join(f"{indent}{each}".rstrip() + self.newline for each in lines)
        if at and not self.text[:at].endswith("\n"):
            text = self.newline + text
        self._edits.append((at, at, text))

    # ------------------------------------------------------------ the whole

    def edited_text(self) -> str:
        """The file with all edits. Raises NoPlace if that is no longer Python."""
        edits = list(self._edits)
        if self._imports:
            at = self._starts[self._imported()]
            edits.insert(0, (at, at, "".join(f"import {name}{self.newline}" for name in self._imports)))
        text, done = [], 0
        for begin, end, new in sorted(edits, key=lambda edit: edit[:2]):
            if begin < done:
                raise NoPlace("another change has changed the same text")
            text += [self.text[done:begin], new]
            done = end
        made = "".join([*text, self.text[done:]])
        try:
            ast.parse(made)
        except (SyntaxError, ValueError) as error:
            raise NoPlace("with it the file would not be valid Python") from error
        return made

    def diff(self, base: Path) -> str:
        """The change as a unified diff, with paths from ``base``; "" if there is none.

        No line ``diff --git`` stands ahead of it: with one, git takes the paths from the root of the repository, and
        ``git apply`` in a folder below it changes nothing, without a word. A tab ends a name that may hold blanks.
        """
        try:
            made = self.edited_text()
        except NoPlace:
            return ""
        if made == self.text:
            return ""
        name = self.path.relative_to(base).as_posix()
        before, after = (_ended(_lines(text)) for text in (self.text, made))
        end = "\t" if " " in name else ""
        lines = difflib.unified_diff(before, after, f"a/{name}{end}", f"b/{name}{end}")
        return "".join(line.replace(OPEN, f"\n{NO_END}\n") for line in lines)


OPEN, NO_END = "\0", "\\ No newline at end of file"


def _lines(text: str) -> list[str]:
    """Lines as Python counts them, with their line ends."""
    return io.StringIO(text, newline="").readlines()


def _ended(lines: list[str]) -> list[str]:
    """Lines, of which the last is marked if it has no line end."""
    return [line if line.endswith("\n") else line + OPEN for line in lines]


def _last(node: ast.AST) -> str:
    """The last name of what is called or named."""
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _makes(value: ast.AST, kind: str) -> bool:
    """Whether an expression is a call of a class, or of what a class has to make one (``from_pretrained``), with calls
    of the object's own methods behind it (``.eval().to(device)``)."""
    while isinstance(value, ast.Call):
        if _last(value.func) == kind:
            return True
        if not isinstance(value.func, ast.Attribute):
            return False
        if not isinstance(value.func.value, ast.Call) and _last(value.func.value) == kind:
            return True
        value = value.func.value
    return False


def _first_line(node: Def) -> int:
    return min((each.lineno for each in node.decorator_list), default=node.lineno)


def _mentions(statement: ast.stmt, name: str) -> bool:
    named = (each for each in ast.walk(statement) if isinstance(each, (ast.Name, ast.Attribute)))
    return any(ast.unparse(each) == name for each in named)


def _calls(statement: ast.stmt, name: str) -> bool:
    """Whether it calls, at once, what has a name."""
    calls = (each for each in ast.walk(statement) if isinstance(each, ast.Call))
    return not isinstance(statement, DEFS) and any(ast.unparse(each.func) == name for each in calls)


def _goes_on(statement: ast.stmt, name: str) -> bool:
    """Whether a statement is a call on what has a name (``model.eval()``), or gives that name to what one makes."""
    value: Any = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign):
        if len(statement.targets) != 1 or ast.unparse(statement.targets[0]) != name:
            return False
    elif not isinstance(statement, ast.Expr):
        return False
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
        if ast.unparse(value) == name:
            return True
    return False
