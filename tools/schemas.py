"""What torch and type checkers know of the ops before any op package is loaded: ``python tools/schemas.py [--check]``.

Writes ``ops/generated.py`` from the op packages; with ``--check`` writes nothing and exits with 1 if it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

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

SCHEMAS = {{
{schemas}
}}
'''


def generate() -> str:
    """The text of the file, as the op packages have it now."""
    imports = sorted(f"    from {package} import {name} as {name}" for name, package in OP_PACKAGES.items())
    names = [f'        "{name}",' for name in sorted(OP_PACKAGES)]
    schemas = []
    for name in OP_PACKAGES:
        schemas.append(f'    "{name}": {{')
        schemas += [f'        "{p}": "{definition.schema}",' for p, definition in OPS[name].passes.items()]
        schemas.append("    },")
    return HEAD.format(imports="\n".join(imports), names="\n".join(names), schemas="\n".join(schemas))


def main(arguments: list[str]) -> int:
    made = generate()
    stale = not GENERATED.is_file() or GENERATED.read_text(encoding="utf-8") != made
    if stale and "--check" not in arguments:
        GENERATED.write_text(made, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
