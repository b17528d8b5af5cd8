"""What a table of optimizers is to Python; ``python tools/schemas.py`` calls it.

Writes the public functions of all entries (``__init__.py``: signatures, docstrings) and their steps as Triton's
(``triton.py``) beside the table. With ``--check`` writes nothing and exits with 1 if something is out of date.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from kernelworks.contract.arguments import Flag
from kernelworks.contract.numbers import Ordinal
from kernelworks.templates.activation_table import rename_calls
from kernelworks.templates.optimizers.step_entry import Optimizer, template_of
from kernelworks.templates.optimizers.step_table import OptimizerTable
from written_tables import WRITTEN, RoundedDivision, formatted, load_table, stale_files, write_files

__all__ = ["main", "names", "stale"]

TRITON = {"where": "tl.where", "abs": "tl.abs", "sqrt": "root"}


FLAGS = {
    "maximize": "climb instead of descend",
    "nesterov": "whether the update takes the gradient once more",
}

TABLE: OptimizerTable = load_table("optimizer/optimizer_table")

# ---------------------------------------------------------------- Triton

TRITON_HEAD = '''"""The table of optimizers on the GPU. {written}"""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.optimizers.step_table import quotient, root, steps
'''


def _expression(text: str) -> str:
    """An expression of the table in Triton's words."""
    return ast.unparse(
        RoundedDivision("quotient", constants=True).visit(ast.parse(rename_calls(text, TRITON), mode="eval"))
    )


def _triton(entry: Optimizer) -> str:
    name, values = entry.name.rstrip("_"), ["p", *entry.states]
    body = f"\n\n@kernel\ndef {name}_element(place, g, number):\n"
    body += "".join(f"    {value} = place[{i}]\n" for i, value in enumerate(values))
    body += "".join(f"    {constant} = number[{i}]\n" for i, constant in enumerate(entry.constants))
    body += "".join(f"    {result} = {_expression(text)}\n" for result, text in entry.steps.items())
    body += f"    return {', '.join(values)}\n"
    of = (
        f"__file__, {name}_element, {entry.lists!r}, {entry.written_lists!r}, {tuple(entry.numbers)!r}, "
        f"{dict(entry.constants)!r}"
    )
    return f"{body}\n\n{name}_forward, {name}_prepare = steps({of})\n"


def triton_py() -> str:
    body = "".join(map(_triton, TABLE.entries.values()))
    return formatted(TRITON_HEAD.format(written=WRITTEN) + body, TABLE.folder / "triton.py")


# ---------------------------------------------------------------- public functions

HEAD = '''"""Steps of optimizers, the ops of the table in ``contract.py``. {written}"""

from collections.abc import Sequence

import torch

from kernelworks.dispatch.signature import Array
from kernelworks.ops.optimizer.optimizer_table.contract import TABLE

__all__ = [{names}]
'''

FUNCTION = '''

def {name}({lists}, *, {numbers}, kernel: str | None = None) -> None:
    """{doc}"""
    with torch.no_grad():
        {op}.call({places}, None, kernel)


{op} = TABLE.op("{name}")
'''

DOC = """One step, in place, over lists of tensors.

    With::

{formula}

    where g is the gradient (its negative where ``maximize``), t is
    ``step`` and wd is ``weight_decay``.

    Args:
        params: the tensors p, float32, bfloat16 or float16, any strides.
        grads: one for each parameter, of its shape and dtype.
{described}
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: params and states are overwritten. There is no gradient through a step: the op runs outside autograd,
    and parameters that require grad are accepted. No tensor that is written may share memory with another.

    Error bound: a running error analysis of the step in float32, and the rounding of each result to its dtype.
    Cost: {flop:g} operations an element; reads {read} tensors once and writes {written} once.
    Raises: TypeError, ValueError naming the argument, before anything is written; RuntimeError where ``kernel`` cannot
    run.
    Source: {source}.
    """


def _number(name: str, kind: object) -> str:
    if isinstance(kind, Flag):
        return f"{name}: bool = False"
    return f"{name}: {'int' if isinstance(kind, Ordinal) else 'float'}"


def _face(entry: Optimizer) -> str:
    states = [
        f"        {name}: {letter}, one for each parameter, of its shape; of its dtype or float32."
        for letter, name in entry.states.items()
    ]
    numbers = [
        f"        {name}: {FLAGS[name] if isinstance(kind, Flag) else kind}." for name, kind in entry.numbers.items()
    ]
    formula = "\n".join(f"        {part}" for part in entry.formula.split(", "))
    flop = template_of(entry, TABLE.op_package).work[0]
    doc = DOC.format(
        formula=formula, source=entry.source, described="\n".join((*states, *numbers)), flop=flop,
        read=len(entry.lists), written=len(entry.written_lists),
    )  # fmt: skip
    return FUNCTION.format(
        name=entry.name, op=entry.name.upper(), doc=doc, places=", ".join((*entry.lists, *entry.numbers)),
        lists=", ".join(f"{name}: Sequence[Array]" for name in entry.lists),
        numbers=", ".join(_number(name, kind) for name, kind in entry.numbers.items()),
    )  # fmt: skip


def init_py() -> str:
    names_ = ", ".join(f'"{name}"' for name in sorted((*TABLE.entries, *map(str.upper, TABLE.entries))))
    body = "".join(map(_face, TABLE.entries.values()))
    return formatted(HEAD.format(written=WRITTEN, names=names_) + body, TABLE.folder / "__init__.py")


def names() -> dict[str, tuple[str, ...]]:
    """The ops of the table, by its op package."""
    return {TABLE.source.name: tuple(sorted(TABLE.entries))}


def stale() -> dict[Path, str]:
    """What is to be written, by file."""
    wanted = {TABLE.folder / "__init__.py": init_py(), TABLE.folder / "triton.py": triton_py()}
    return stale_files(wanted)


def main(arguments: list[str]) -> int:
    return write_files(stale(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
