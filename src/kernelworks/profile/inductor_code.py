"""Reading a module that inductor generated: its kernels, and what it calls in order.

The module's text is what runs, whichever cache it came from, so it is the one source of names that is always there. Of
each kernel it has the code; of each call the arguments, and in comments the nodes of the graphs it was made of. The
graph that was lowered (``CompiledFxGraph.inductor_post_grad_graph_str``, kept in inductor's cache too) has for each
node the operator, sizes, and the line of the program.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "VIEWS",
    "GeneratedModule",
    "Graph",
    "Invocation",
    "Kernel",
    "Node",
    "SizeExpression",
    "SizedTensor",
    "graph_of",
    "parse_module",
]

# Kernels are compiled by one of these.
COMPILERS = frozenset({"cpp_pybinding", "cpp", "triton", "cutedsl", "pallas", "metal", "halide", "cutlass", "cuda"})
MOST_NAMED = 4
# They only look at data in another way, or make numbers from nothing.
VIEWS = frozenset({
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze", "slice", "select",
    "alias", "detach", "as_strided", "split", "split_with_sizes", "unbind", "clone", "convert_element_type", "_to_copy",
    "getitem", "full", "scalar_tensor", "arange",
})  # fmt: skip
BACKWARD = re.compile(r"\s*# AOT ID: \['\d+_backward")
WORDS = re.compile(r"(?:cpp|triton)_(?:poi_|red_|per_|tem_|for_|mm_|split_scan_|unk_)?(?:fused_)?(.*?)(?:_\d+)?$")
SOURCES = re.compile(r"Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]")
FILE = re.compile(r"# File: (.*):(\d+) in ([^,]*), code: (.*)")
NODE = re.compile(r'\s+(\w+)(?:: "?([^"=]*)"?)? = (torch\.ops\.[\w.]+|[\w.]+)\((.*)\)')
SIZE = re.compile(r"[suk]s?\d+$|\w+numel$")  # It matches a variable that holds a number.
# It matches what stands between a comment and its call.
SKIPPED_LINE = re.compile(r"\s*(?:#|\w+numel = |stream\d+ = |del )")
NAME = re.compile(r"\b[a-zA-Z_]\w*\b")


@functools.cache
def _operators_in(words: str) -> list[str]:
    """The operators whose names stand in a row, joined by underscores; each the longest that torch knows."""
    found: list[str] = []
    at = 0
    while at < len(words):
        ends = [i for i in range(at + 1, len(words)) if words[i] == "_"] + [len(words)]
        end = next((i for i in reversed(ends) if hasattr(torch.ops.aten, words[at:i])), 0)
        if end:
            found.append(words[at:end])
        at = (end or ends[0]) + 1
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Kernel:
    """One kernel that inductor wrote: in C++, or for Triton."""

    name: str
    source: str

    @property
    def on_gpu(self) -> bool:
        return not self.name.startswith("cpp_")

    @property
    def fused_name(self) -> str:
        """What inductor's name for it says that it was made of: ``add_native_layer_norm``."""
        found = WORDS.match(self.name)
        return (found.group(1) if found else "") or self.name

    @property
    def display_name(self) -> str:
        """The same in words: ``inductor: add+native_layer_norm``."""
        named = _operators_in(self.fused_name)
        does = [name for name in named if name not in VIEWS] or named
        return (
            f"inductor: {'+'.join(does[:MOST_NAMED])}{'+...' if len(does) > MOST_NAMED else ''}" if does else self.name
        )


@dataclass(frozen=True)
class Invocation:
    """One call in the module: of a kernel by its name, or of an operator of torch's (``aten::addmm``).

    ``sources`` and ``operators`` are the nodes and operators it was made of, if a comment says so. ``arguments`` and
    ``results`` are names of the module's variables, each the first that had the block of memory. ``given`` are the
    arguments as far as the text tells them, each with its keyword or "": a tensor's sizes, a number, a list.
    """

    name: str
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    given: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class SizeExpression:
    """An expression of sizes that are known only as the graph runs."""

    text: str


@dataclass(frozen=True)
class SizedTensor:
    """A tensor as the text has it, its sizes numbers or expressions of sizes: ``dtype`` as torch calls it, "" for an
    input of the graph, which is ``of`` it."""

    shape: tuple[int | SizeExpression, ...]
    stride: tuple[int | SizeExpression, ...]
    dtype: str = ""
    of: str = ""


@dataclass(frozen=True)
class GeneratedModule:
    """What is in a module's text. ``inputs`` are the variables that the graph is called with, in order, and ``symbols``
    what each size is called that one of them holds."""

    kernels: dict[str, Kernel]
    invocations: tuple[Invocation, ...]
    inputs: tuple[str, ...] = ()
    symbols: tuple[tuple[str, str], ...] = ()
    backward: bool = False


@dataclass
class Node:
    """One node of the graph that was lowered: ``target`` is an operator (``aten::addmm``), a placeholder has none."""

    name: str
    target: str = ""
    inputs: tuple[str, ...] = ()
    source: str = ""  # file.py:123
    code: str = ""  # that line
    dtype: str = ""  # "f32"
    users: list[str] = field(default_factory=list)


Graph = dict[str, Node]


@functools.lru_cache(maxsize=256)
def parse_module(text: str) -> GeneratedModule:
    """The kernels and calls of a module by its text. Nothing of a text that Python cannot read."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return GeneratedModule({}, ())
    kernels: dict[str, Kernel] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            compiler = _dotted(statement.value.func).rpartition(".")[2]
            name = _dotted(statement.targets[0])
            if compiler in COMPILERS and name:
                texts = [a.value for a in statement.value.args if isinstance(a, ast.Constant)]
                kernels[name] = Kernel(name, max((t for t in texts if isinstance(t, str)), key=len, default=""))
    lines = text.splitlines()
    found: list[Invocation] = []
    inputs: tuple[str, ...] = ()
    symbols: dict[str, str] = {}
    for function in _functions(tree):
        walk = _Walk(kernels, lines)
        found += walk.calls(function.body)
        inputs = walk.inputs if function.name == "call" else inputs
        symbols |= walk.symbols
    return GeneratedModule(kernels, tuple(found), inputs, tuple(symbols.items()), bool(BACKWARD.match(text)))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions that call kernels: ``call``, parts of it that a CUDA graph holds, and subgraphs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.name.startswith(("call", "partition_", "subgraph_"))):
            yield node


class _Walk:
    """Through a function in order: which variables are other names or parts of a block, and the tensors' sizes."""

    def __init__(self, kernels: dict[str, Kernel], lines: list[str]) -> None:
        self.kernels, self.lines = kernels, lines
        self.same: dict[str, str] = {}
        self.sizes: dict[str, SizedTensor] = {}
        self.inputs: tuple[str, ...] = ()  # of the graph
        self.symbols: dict[str, str] = {}
        self.numbers: dict[str, SizeExpression] = {}

    def calls(self, body: Sequence[ast.stmt]) -> Iterator[Invocation]:
        for statement in body:
            inner = [block for word in ("body", "orelse") for block in getattr(statement, word, [])]
            if inner:  # ``with device_guard:``
                yield from self.calls(inner)
                continue
            value = getattr(statement, "value", None)
            targets = [_dotted(t) for t in statement.targets] if isinstance(statement, ast.Assign) else []
            name = _operator(_dotted(value.func), self.kernels) if isinstance(value, ast.Call) else ""
            if name and isinstance(value, ast.Call):
                yield self._invocation(name, value, targets, statement.lineno)
            elif isinstance(value, ast.Call) and _dotted(value.func) == "assert_size_stride":
                self._checked(value)
            elif len(targets) == 1 and value is not None and targets[0]:
                self._assigned(targets[0], value)
            elif isinstance(statement, ast.Assign) and isinstance(value, ast.Name) and value.id == "args":
                self.inputs = tuple(_names(statement.targets[0]))

    def _invocation(self, name: str, value: ast.Call, targets: list[str], line: int) -> Invocation:
        given = [n for a in value.args for n in _names(a)]
        out = [*targets, *(n for k in value.keywords if k.arg == "out" for n in _names(k.value))]
        arguments, results = (tuple(self.same.get(n, n) for n in names) for names in (given, out))
        said = [("", self._value(a)) for a in value.args]
        said += [(k.arg, self._value(k.value)) for k in value.keywords if k.arg and k.arg != "stream"]
        return Invocation(name, arguments, results, *_comment(self.lines, line - 2), given=tuple(said))

    def _assigned(self, target: str, value: ast.expr) -> None:
        """``buf1 = buf0``, ``buf2 = buf1[0]``, ``reinterpret_tensor(buf1, ...)``, a new block, or ``s0 = arg1_1``."""
        of = _names(value)
        if isinstance(value, ast.Name) and value.id in self.inputs:
            self.symbols[target] = value.id
        if target.endswith("numel"):
            self.numbers[target] = SizeExpression(ast.unparse(value))
        fresh = isinstance(value, ast.Call) and _dotted(value.func).startswith("empty_strided")
        if len(of) == 1 and not fresh:
            self.same[target] = self.same.get(of[0], of[0])
        sized = self._value(value)
        if isinstance(sized, SizedTensor):
            self.sizes[target] = sized

    def _checked(self, value: ast.Call) -> None:
        """``assert_size_stride(buf1, (8, 8), (8, 1))`` says the sizes of what an operator returned, or was given."""
        name = _dotted(value.args[0])
        shape, stride = _sizes(value.args[1]), _sizes(value.args[2])
        if isinstance(shape, tuple) and isinstance(stride, tuple):
            known = self.sizes.get(name)
            self.sizes[name] = SizedTensor(shape, stride, known.dtype if known else "", self.same.get(name, name))

    def _value(self, node: ast.expr) -> Any:
        """What an argument is, None if the text does not tell."""
        if isinstance(node, ast.Name):
            number = self.numbers.get(node.id) or (SizeExpression(node.id) if SIZE.match(node.id) else None)
            return self.sizes.get(node.id, number)
        if isinstance(node, ast.Call) and len(node.args) >= 3:
            function = _dotted(node.func)
            at = 1 if function == "reinterpret_tensor" else 0
            shape, stride = _sizes(node.args[at]), _sizes(node.args[at + 1])
            if not isinstance(shape, tuple) or not isinstance(stride, tuple):
                return None
            if function.startswith("empty_strided"):
                return SizedTensor(shape, stride, _dotted(node.args[2]).removeprefix("torch."))
            known = self._value(node.args[0])
            of = known.of if isinstance(known, SizedTensor) else _dotted(node.args[0])
            return SizedTensor(shape, stride, known.dtype if isinstance(known, SizedTensor) else "", of)
        return SizeExpression(ast.unparse(node)) if isinstance(node, ast.BinOp) else _literal(node)


def _sizes(node: ast.expr) -> tuple[int | SizeExpression, ...] | None:
    """Numbers, or expressions of the sizes that the graph was given."""
    if not isinstance(node, ast.Tuple):
        return None
    found = [(_literal(each), each) for each in node.elts]
    return tuple(value if isinstance(value, int) else SizeExpression(ast.unparse(each)) for value, each in found)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _operator(dotted: str, kernels: dict[str, Kernel]) -> str:
    """What a call is of: a kernel's own name, an operator's full one, else nothing."""
    first, _, rest = dotted.partition(".")
    if first in kernels and rest in ("", "run"):
        return first
    if first == "extern_kernels":
        return f"aten::{rest}"
    if dotted.startswith("torch.ops.") and dotted.count(".") >= 3:
        namespace, name = dotted.split(".")[2:4]
        return "" if name.startswith("_reinterpret") or namespace == "inductor" else f"{namespace}::{name}"
    if first in ("aten", "_quantized"):
        return f"{first.strip('_')}::{rest.partition('.')[0]}"
    return ""


def _comment(lines: list[str], at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the comment above a line says of its nodes."""
    while at >= 0 and SKIPPED_LINE.match(lines[at]):
        found = SOURCES.search(lines[at])
        if found:
            nodes, operators = (tuple(w.strip() for w in text.split(",") if w.strip()) for text in found.groups())
            return nodes, tuple(o.removeprefix("aten.") for o in operators)
        at -= 1
    return (), ()


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _names(node: ast.AST) -> list[str]:
    """The variables whose blocks an expression is of: not the functions that it calls, nor its sizes."""
    if isinstance(node, ast.Call):
        node = ast.Tuple(node.args[:1] if _dotted(node.func) == "reinterpret_tensor" else node.args, ast.Load())
    if isinstance(node, ast.Subscript):
        return _names(node.value)
    if isinstance(node, (ast.Tuple, ast.List)):
        return [name for each in node.elts for name in _names(each)]
    return [node.id] if isinstance(node, ast.Name) and not SIZE.match(node.id) else []


@functools.lru_cache(maxsize=256)
def graph_of(text: str) -> Graph:
    """The graph by its readable text, each node with the line that it comes from."""
    nodes: Graph = {}
    source = code = ""
    for line in text.splitlines():
        said = FILE.search(line)
        if said:
            source, code = f"{Path(said.group(1)).name}:{said.group(2)}", said.group(4)
            continue
        if line.lstrip().startswith("def forward("):
            for name, kind in re.findall(r'(\w+): "([^"]*)"', line):
                nodes[name] = Node(name, dtype=kind.partition("[")[0])
            continue
        if "# No stacktrace" in line:
            source = code = ""
        made = NODE.match(line)
        if made is None:
            continue
        name, kind, function, arguments = made.groups()
        inputs = tuple(n for n in NAME.findall(arguments.partition(";")[0]) if n in nodes)
        nodes[name] = Node(name, _target(function), inputs, source, code, (kind or "").partition("[")[0])
        for its in dict.fromkeys(inputs):
            nodes[its].users.append(name)
    return nodes


def _target(function: str) -> str:
    parts = function.split(".")
    return f"{parts[2]}::{parts[3]}" if function.startswith("torch.ops.") and len(parts) > 3 else function
