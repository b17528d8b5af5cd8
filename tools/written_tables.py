"""What the tools that write of a table share: the table itself, how a text is laid out, what is out of date."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["OPS", "WRITTEN", "RoundedDivision", "formatted", "load_table", "stale_files", "write_files"]

OPS = Path(__file__).resolve().parents[1] / "src/kernelworks/ops"
WRITTEN = "Written by `make docs`: changes are lost."


def load_table(op_package: str) -> Any:
    """The table of an op package (``family/name``), without the package that is written of it: that may be of other
    entries."""
    name = op_package.replace("/", "_")
    spec = importlib.util.spec_from_file_location(f"{name}_entries", OPS / op_package / "contract.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TABLE


def formatted(text: str, path: Path) -> str:
    """As ``ruff format`` and its order of imports have it in a file of this path."""
    for verb in (("check", "-q", "--select", "I,F401", "--fix"), ("format", "-q")):
        command = [sys.executable, "-m", "ruff", *verb, "--stdin-filename", str(path), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def stale_files(wanted: Mapping[Path, str]) -> dict[Path, str]:
    """Those of the texts that are to be written, by file."""
    return {p: text for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text}


def write_files(stale: Mapping[Path, str], arguments: list[str]) -> int:
    """Writes them, or with ``--check`` in the arguments says by 1 that there are some."""
    if "--check" in arguments:
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


class RoundedDivision(ast.NodeTransformer):
    """``a / b`` as a call of a rounded quotient: Triton's own of float32 may be two units in the last place off, which
    a bound has no room for. ``constants``: also where b is one, by which it is exact enough."""

    def __init__(self, quotient: str, *, constants: bool) -> None:
        self.quotient, self.constants = quotient, constants

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div) or (isinstance(node.right, ast.Constant) and not self.constants):
            return node
        return ast.Call(ast.parse(self.quotient, mode="eval").body, [node.left, node.right], [])
