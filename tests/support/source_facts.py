"""What the rules of the tree ask of a Python file, from one walk over its syntax tree: there are two thousand files."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SourceFacts", "source_facts"]

FACE = ("kw", "kernelworks", "ops", "calls")  # what ops are attributes of


@dataclass
class SourceFacts:
    modules: set[str] = field(default_factory=set)  # that are imported
    names_of: dict[str, set[str]] = field(default_factory=dict)  # module -> what is imported from it, absolutely
    functions: list[tuple[int, str, int, bool]] = field(default_factory=list)  # line, name, lines, a Triton kernel
    strings: set[str] = field(default_factory=set)  # but those of `__all__`
    attributes: set[tuple[str, str]] = field(default_factory=set)  # of the face


@functools.cache
def source_facts(path: Path) -> SourceFacts:
    """Of a file that does not change while the tests run."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), SourceFacts()
    tree.body = [n for n in tree.body if not (isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.strings.add(node.value)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in FACE:
                found.attributes.add((node.value.id, node.attr))
        elif isinstance(node, ast.Import):
            found.modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.modules.add(node.module or "")
            if node.module and not node.level:
                found.names_of.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            kernel = any(ast.unparse(mark).startswith("triton.jit") for mark in node.decorator_list)
            found.functions.append((node.lineno, node.name, length, kernel))
    return found
