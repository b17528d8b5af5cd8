"""The op packages of the table of activations: ``python tools/activations.py [--check]``.

Writes each entry's folder in ``ops/activation/`` and the family's names in ``ops/__init__.py``. With ``--check`` writes
nothing and exits with 1 if something is out of date.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelworks.ops.activation.table import ENTRIES
from kernelworks.templates.activation import Activation, count_operations

__all__ = ["files_of", "main", "stale"]

ROOT = Path(__file__).resolve().parents[1]
OPS = ROOT / "src" / "kernelworks" / "ops"
FAMILY = OPS / "activation"
WRITTEN = "Written by `make docs` from ops/activation/table.py: changes are lost."

CPP = {
    "exp": "exponential", "expm1": "exponential_less_one", "log1p": "log_one_more", "sigmoid": "logistic",
    "tanh": "hyperbolic_tangent",
}  # fmt: skip
TRITON = {"where": "tl.where", "abs": "tl.abs", "expm1": "exp_less_one", "log1p": "log_one_more"}
OF_TILE = ("exp_less_one", "log_one_more", "sigmoid", "tanh")


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b(\w+)\(", lambda m: f"{names.get(m[1], m[1])}(", text)


def _cpp_of(text: str) -> str:
    return re.sub(r"(?<![\w.])(\d+\.\d+(?:e-?\d+)?)", r"\1f", _renamed(text, CPP))


def _reads(entry: Activation, text: str) -> list[str]:
    """The names of ``let`` that an expression reads, with those that they read."""
    found: set[str] = set()
    for name in reversed(entry.let):
        if re.search(rf"\b{name}\b", " ".join((text, *(entry.let[n] for n in found)))):
            found.add(name)
    return [name for name in entry.let if name in found]


def pointwise_cpp(entry: Activation) -> str:
    lines = [f"// {entry.name}: {entry.formula}", f"// {WRITTEN}", '#include "activation.hpp"', ""]
    lines += ["namespace kw {", "namespace {", ""]
    for suffix, text, given in (("value", entry.value, ["x"]), ("gradient", entry.gradient, ["grad", "x"])):
        parameters = ", ".join(f"[[maybe_unused]] V {name}" for name in (*given, *entry.numbers))
        lines.append(f"inline V {entry.name}_{suffix}({parameters}) {{")
        lines += [f"    const V {name} = {_cpp_of(entry.let[name])};" for name in _reads(entry, text)]
        lines += [f"    return {_cpp_of(text)};", "}", ""]
    lines += ["}  // namespace", "}  // namespace kw", ""]
    count = len(entry.numbers)
    macro, numbers = ("KW_NUMBERS", f"{count}, ") if count else ("KW_POINTWISE", "")
    for suffix, kind, given in (("value", "", ["x"]), ("gradient", "_BACKWARD", ["grad", "x"])):
        names = (*given, *entry.numbers)
        autos, plain = ", ".join(f"auto {name}" for name in names), ", ".join(names)
        lines.append(f"{macro}{kind}({entry.name}, {numbers}({autos}), {entry.name}_{suffix}({plain}))")
    return "\n".join(lines) + "\n"


def triton_py(entry: Activation) -> str:
    body: list[str] = []
    for suffix, text, given in (("value", entry.value, ["x"]), ("gradient", entry.gradient, ["grad", "x"])):
        body += ["", "", "@kernel", f"def {suffix}({', '.join((*given, *entry.numbers))}):"]
        body += [f"    {name} = {_renamed(entry.let[name], TRITON)}" for name in _reads(entry, text)]
        body.append(f"    return {_renamed(text, TRITON)}")
    text = "\n".join(body)
    called = [name for name in OF_TILE if re.search(rf"(?<![\w.]){name}\(", text)]
    unread = "" if "tl." in text else "  # noqa: F401  Triton's interpreter looks for it"
    imports = [f"import triton.language as tl{unread}", ""]
    if re.search(r"(?<![\w.])exp\(", text):
        imports.append("from kernelworks.tile.exp import exp")
    source = "functions"
    if entry.numbers:
        imports.append("from kernelworks.build.triton import kernel")
        called.append("functions")
    else:
        source = "functions, kernel"
    tile = [f"from kernelworks.tile.activation import {', '.join(sorted(called))}"] if called else []
    of_tile = [] if entry.numbers else [f"from kernelworks.tile.functions import {source}"]
    ordered = [i for i in imports if i.startswith("import") or not i]
    ordered += sorted(i for i in (*imports, *tile, *of_tile) if i.startswith("from"))
    head = f'"""{entry.name} on the GPU. {WRITTEN}"""\n\n' + "\n".join(ordered)
    return f"{head}\n{text}\n\n\nforward, backward = functions(__file__, value, gradient)\n"


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "-q", "--stdin-filename", str(FAMILY / "made.py"), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


CONTRACT = '''"""What {name} promises. {written}"""

from kernelworks.ops.activation.table import ENTRIES
from kernelworks.templates.activation import template_of

__all__ = ["CONTRACT", "ENTRY", "TEMPLATE"]

ENTRY = ENTRIES["{name}"]
TEMPLATE = template_of(ENTRY, __file__)
CONTRACT = TEMPLATE.contract
'''

INIT = '''"""{name}: {formula}.

{written}
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.{name}.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "{name}"]


@overload
def {name}({own}, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def {name}({theirs}, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def {name}({code}, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``{formula}``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.{described}
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: {forward:g} operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: {source}.
    """
    if torchs{asked}:
        return TORCH_SIGNATURE({together}, torchs, {{{beside}}}, out, kernel)
    return OP.call({placed}, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs({torchs}) -> tuple[Any, ...] | str:
    return {returned}


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {{"input": "x"}}{operator})
'''


def _in_place(entry: Activation) -> bool:
    try:
        return "inplace" in inspect.signature(entry.torch).parameters
    except ValueError:  # a function of C++
        return False


def init_py(entry: Activation) -> str:
    in_place, name = _in_place(entry), entry.name
    presets = {n: "" if real.preset is None else f" = {real.preset!r}" for n, real in entry.numbers.items()}
    floats = [f"{n}: float{preset}" for n, preset in presets.items()]
    theirs = ["input: Array", *floats, *(["inplace: bool = False"] if in_place else [])]
    code = ["x: Any = ABSENT", *(f"{n}: Any{preset or ' = ABSENT'}" for n, preset in presets.items())]
    plain = ["input: Any", *(f"{n}: Any{preset}" for n, preset in presets.items())]
    if in_place:
        code.append("inplace: Any = False")
        plain.append("inplace: bool = False")
    values = ", ".join(("input", *entry.numbers))
    values = f"({values},)" if not entry.numbers else f"({values})"
    reason = '"in place, torch\'s own function writes" if inplace else '
    # Without another argument of torch's, two overloads by position would be one.
    positional = ", ".join((*theirs, "*")) if in_place else ", ".join(("*", *theirs))
    return INIT.format(
        name=name, formula=entry.formula, written=WRITTEN, source=entry.source, own=", ".join(("x: Array", *floats)),
        theirs=positional, code=", ".join(code), placed=", ".join(("x", *entry.numbers)),
        together=values.replace("input", "x"),
        described="".join(f"\n        {n}: {real}." for n, real in entry.numbers.items()),
        asked=" or inplace is not False" if in_place else "", beside='"inplace": inplace' if in_place else "",
        torchs=", ".join(plain), returned=(reason if in_place else "") + values,
        operator=f', operator="{entry.operator}"' if entry.operator else "",
        forward=count_operations(entry, entry.value),
    )  # fmt: skip


README = """# {name}

{written}

    output = {value}
    grad_x = {gradient}
{let}
{formula}. {source}.

## Bound

A running error analysis of these expressions in float32 (`src/kernelworks/templates/running_error.py`), and one
rounding to the dtype. The definition is torch's function in float64, of the numbers rounded to float32: some of torch's
own 16-bit kernels round them to the dtype, and take an element between the two for one on the other side.

## Cost

{forward:g} operations an element forward, {backward:g} backward; x in, output out.

## Choices

All but the expressions is the pointwise template's
([docs/explanation/op-templates.md](../../../../../docs/explanation/op-templates.md)). No GPU has run the kernels of
`triton.py`: they have no certificate, and torch's function runs there.
"""


def readme_md(entry: Activation) -> str:
    let = "".join(f"    {name} = {text}\n" for name, text in entry.let.items())
    return README.format(
        name=entry.name, written=WRITTEN, value=entry.value, gradient=entry.gradient, let=let and f"\nwith\n\n{let}",
        formula=entry.formula, source=entry.source, forward=count_operations(entry, entry.value),
        backward=count_operations(entry, entry.gradient),
    )  # fmt: skip


def files_of(entry: Activation) -> Iterator[tuple[str, str]]:
    """The files of an entry's op package, by name."""
    yield "README.md", readme_md(entry)
    yield "__init__.py", _formatted(init_py(entry))
    yield "contract.py", CONTRACT.format(name=entry.name, written=WRITTEN)
    yield "pointwise.cpp", pointwise_cpp(entry)
    yield "triton.py", _formatted(triton_py(entry))
    yield "tuning.toml", 'template = "pointwise"\n'


def _families() -> str:
    text = (OPS / "__init__.py").read_text(encoding="utf-8")
    block = re.search(r'    "activation": \((.*?)\n    \),', text, re.S)
    assert block is not None
    names = sorted({*re.findall(r'"(\w+)"', block[1]), *ENTRIES})
    made = "".join(f'\n        "{name}",' for name in names)
    return text.replace(block[0], f'    "activation": ({made}\n    ),')


def stale() -> dict[Path, str]:
    """What is to be written, by file."""
    wanted = {FAMILY / name / file: text for name, entry in ENTRIES.items() for file, text in files_of(entry)}
    wanted[OPS / "__init__.py"] = _families()
    return {p: text for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text}


def main(arguments: list[str]) -> int:
    found = stale()
    if "--check" not in arguments:
        for path, text in found.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if found and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
