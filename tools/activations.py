"""What a table of activations is to Python; ``python tools/schemas.py`` calls it.

Writes the public functions of all entries (``__init__.py``: signatures, overloads, docstrings) and their expressions as
Triton's (``triton.py``) beside the table. With ``--check`` writes nothing and exits with 1 if something is out of date.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

from kernelworks.templates.activation import Activation, count_operations
from kernelworks.templates.activation_table import Table, names_read, rename_calls

__all__ = ["WRITTEN", "formatted", "main", "names", "stale"]

CONTRACT = Path(__file__).resolve().parents[1] / "src/kernelworks/ops/activation/table/contract.py"
WRITTEN = "Written by `make docs`: changes are lost."
TRITON = {"where": "tl.where", "abs": "tl.abs", "expm1": "exp_less_one", "log1p": "log_one_more"}
OF_TILE = ("exp_less_one", "log_one_more", "sigmoid", "tanh")


def _table() -> Table:
    """The table, without the package that is written of it: that may be of other entries."""
    spec = importlib.util.spec_from_file_location("entries", CONTRACT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table: Table = module.TABLE
    return table


TABLE = _table()


def formatted(text: str, path: str) -> str:
    """As ``ruff format`` and its order of imports have it in a file of this path."""
    for verb in (("check", "-q", "--select", "I,F401", "--fix"), ("format", "-q")):
        command = [sys.executable, "-m", "ruff", *verb, "--stdin-filename", path, "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


# ---------------------------------------------------------------- Triton

TRITON_HEAD = '''"""The table of activations on the GPU. {written}"""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions, {of_tile}
from kernelworks.tile.exp import exp
'''


class _Division(ast.NodeTransformer):
    """``a / b`` as a rounded quotient: Triton's own of float32 may be two units in the last place off, which the bound
    has no room for. By a constant it is exact enough."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div) or isinstance(node.right, ast.Constant):
            return node
        called = ast.Attribute(ast.Name("tl", ast.Load()), "div_rn", ast.Load())
        return ast.Call(called, [node.left, node.right], [])


def _expression(text: str) -> str:
    """An expression of the table in Triton's words."""
    renamed = rename_calls(text, TRITON)
    divided = ast.unparse(_Division().visit(ast.parse(renamed, mode="eval")))
    return divided if "div_rn" in divided else renamed


def _triton(entry: Activation) -> str:
    body = ""
    for part, text, given in (("value", entry.value, ["x"]), ("gradient", entry.gradient, ["grad", "x"])):
        body += f"\n\n@kernel\ndef {entry.name}_{part}({', '.join((*given, *entry.numbers))}):\n"
        body += "".join(f"    {name} = {_expression(entry.let[name])}\n" for name in names_read(entry, text))
        body += f"    return {_expression(text)}\n"
    made = f"{entry.name}_forward, {entry.name}_backward"
    return f"{body}\n\n{made} = functions(__file__, {entry.name}_value, {entry.name}_gradient)\n"


def triton_py() -> str:
    body = "".join(map(_triton, TABLE.entries.values()))
    text = TRITON_HEAD.format(written=WRITTEN, of_tile=", ".join(OF_TILE)) + body
    return formatted(text, str(TABLE.folder / "triton.py"))


# ---------------------------------------------------------------- public functions

HEAD = '''"""Activations, the ops of the table in ``contract.py``. {written}"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.activation.table.contract import TABLE

__all__ = [{names}]
'''

OWN = '''

def {name}({own}, *, out: Array | None = None, kernel: str | None = None) -> Array:
    """{doc}"""
    result: Array = {op}.call({placed}, out, kernel)
    return result


{op} = TABLE.op("{name}")
'''

BOTH = '''

@overload
def {name}({own}, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def {name}({theirs}, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def {name}({code}, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """{doc}"""
    if torchs{asked}:
        return {op}.torch_signature(({placed},), torchs, {{{beside}}}, out, kernel)
    return {op}.call({placed}, out, kernel)


{op} = TABLE.op("{name}")
'''

DOC = """``{formula}``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.{described}
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: {cost:g} operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: {source}.
    """


def _face(entry: Activation) -> str:
    name, torchs = entry.name, entry.in_place
    presets = {n: "" if real.preset is None else f" = {real.preset!r}" for n, real in entry.numbers.items()}
    floats = [f"{n}: float{preset}" for n, preset in presets.items()]
    theirs = ["input: Array", *floats, *(["inplace: bool = False"] if torchs else [])]
    code = ["x: Any = ABSENT", *(f"{n}: Any{preset or ' = ABSENT'}" for n, preset in presets.items())]
    doc = DOC.format(
        formula=entry.formula, source=entry.source, cost=count_operations(entry, entry.value),
        described="".join(f"\n        {n}: {real}." for n, real in entry.numbers.items()),
    )  # fmt: skip
    # Without another argument of torch's, two overloads by position would be one.
    return (BOTH if entry.is_torchs else OWN).format(
        name=name, op=name.upper(), doc=doc, own=", ".join(("x: Array", *floats)),
        theirs=", ".join((*theirs, "*")) if torchs else ", ".join(("*", *theirs)),
        code=", ".join((*code, *(["inplace: Any = False"] if torchs else []))),
        placed=", ".join(("x", *entry.numbers)), asked=" or inplace is not False" if torchs else "",
        beside='"inplace": inplace' if torchs else "",
    )  # fmt: skip


def init_py() -> str:
    names = ", ".join(f'"{name}"' for name in sorted((*TABLE.entries, *map(str.upper, TABLE.entries))))
    body = "".join(map(_face, TABLE.entries.values()))
    return formatted(HEAD.format(written=WRITTEN, names=names) + body, str(TABLE.folder / "__init__.py"))


def names() -> dict[str, tuple[str, ...]]:
    """The ops of each table, by its op package."""
    return {TABLE.source.name: tuple(sorted(TABLE.entries))}


def stale() -> dict[Path, str]:
    """What is to be written, by file."""
    wanted = {TABLE.folder / "__init__.py": init_py(), TABLE.folder / "triton.py": triton_py()}
    return {p: text for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text}


def main(arguments: list[str]) -> int:
    found = stale()
    if "--check" not in arguments:
        for path, text in found.items():
            path.write_text(text, encoding="utf-8")
    return 1 if found and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
