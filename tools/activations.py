"""What a table of activations is to Python; ``python tools/schemas.py`` calls it.

Writes the public functions of all entries (``__init__.py``: signatures, overloads, docstrings) and their expressions as
Triton's (``triton.py``) beside the table. With ``--check`` writes nothing and exits with 1 if something is out of date.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from kernelworks.templates.activation import Activation, count_operations
from kernelworks.templates.activation_table import Table, names_read, rename_calls
from written_tables import WRITTEN, RoundedDivision, formatted, load_table, stale_files, write_files

__all__ = ["main", "names", "stale"]

TRITON = {"where": "tl.where", "abs": "tl.abs", "expm1": "exp_less_one", "log1p": "log_one_more"}
OF_TILE = ("exp_less_one", "log_one_more", "sigmoid", "tanh")


TABLE: Table = load_table("activation/table")


# ---------------------------------------------------------------- Triton

TRITON_HEAD = '''"""The table of activations on the GPU. {written}"""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.activation import functions, {of_tile}
from kernelworks.tile.exp import exp
'''


def _expression(text: str) -> str:
    """An expression of the table in Triton's words."""
    renamed = rename_calls(text, TRITON)
    divided = ast.unparse(RoundedDivision("tl.div_rn", constants=False).visit(ast.parse(renamed, mode="eval")))
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
    return formatted(text, TABLE.folder / "triton.py")


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
    return formatted(HEAD.format(written=WRITTEN, names=names) + body, TABLE.folder / "__init__.py")


def names() -> dict[str, tuple[str, ...]]:
    """The ops of each table, by its op package."""
    return {TABLE.source.name: tuple(sorted(TABLE.entries))}


def stale() -> dict[Path, str]:
    """What is to be written, by file."""
    wanted = {TABLE.folder / "__init__.py": init_py(), TABLE.folder / "triton.py": triton_py()}
    return stale_files(wanted)


def main(arguments: list[str]) -> int:
    return write_files(stale(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
