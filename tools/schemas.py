"""What torch and type checkers know of the ops before any op package is loaded: ``python tools/schemas.py [--check]``.

Writes ``ops/generated.py`` from the op packages, and what is written of their tables (``activations.py``,
``optimizers.py``, ``reductions.py``); with ``--check`` writes nothing and exits with 1 if it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

import activations
import optimizers
import reductions
from kernelworks import ops
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.registry import OP_PACKAGES

__all__ = ["GENERATED", "generate", "main"]

GENERATED = Path(__file__).resolve().parents[1] / "src" / "kernelworks" / "ops" / "generated.py"

HEAD = '''"""Ops as type checkers see them, and their schemas for torch. Written by `make docs`: changes are lost."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
{imports}

    __all__ = [
{names}
    ]

# Op packages that hold many ops, and the names of these.
TABLES: dict[str, tuple[str, ...]] = {{
{tables}
}}

# Of each op that torch has a function for, the aten operator that this calls or what that would be called.
OPERATORS: dict[str, str] = {{
{operators}
}}

SCHEMAS = {{
{schemas}
}}
'''


def generate() -> str:
    """The text of the file, as the op packages have it now."""
    tables = activations.names() | optimizers.names() | reductions.names() | ops.SIBLINGS
    ops.take_tables(tables)
    imports = sorted(f"    from {package} import {name} as {name}" for name, package in OP_PACKAGES.items())
    names = [f'        "{name}",' for name in sorted(OP_PACKAGES)]
    schemas = []
    for name in OP_PACKAGES:
        schemas.append(f'    "{name}": {{')
        schemas += [f'        "{p}": "{definition.schema}",' for p, definition in OPS[name].passes.items()]
        schemas.append("    },")
    said = (f'    "{table}": ({" ".join(f"{name!r}," for name in entries)}),' for table, entries in tables.items())
    operators = [f'    "{n}": "{s.operator}",' for n in OP_PACKAGES if (s := OPS[n].torch_signature) is not None]
    return HEAD.format(
        imports="\n".join(imports), names="\n".join(names), tables="\n".join(said).replace("'", '"'),
        operators="\n".join(operators), schemas="\n".join(schemas),
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    if any(tool.main(arguments) for tool in (activations, optimizers, reductions)):
        return 1
    made = generate()
    stale = not GENERATED.is_file() or GENERATED.read_text(encoding="utf-8") != made
    if stale and "--check" not in arguments:
        GENERATED.write_text(made, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
