"""What the tables of reductions and losses are to Python; ``python tools/schemas.py`` calls it.

Writes the public functions of all entries (``__init__.py``: signatures, overloads, docstrings) and their stages as
Triton's (``triton.py``) beside the table. With ``--check`` writes nothing and exits with 1 if something is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from kernelworks.templates.activation_table import rename_calls
from kernelworks.templates.reduction_stages.entry import ReductionEntry, Stage
from kernelworks.templates.reduction_stages.loss import LossEntry
from kernelworks.templates.reduction_stages.loss_table import LossTable, gradients_of, stage_of
from kernelworks.templates.reduction_stages.op_table import ReductionTable
from written_tables import WRITTEN, formatted, load_table, stale_files, write_files

__all__ = ["main", "names", "stage_text", "stale"]

LINE = {"where": "tl.where", "abs": "tl.abs", "exp": "exponential", "log": "logarithm", "sqrt": "root",
        "log1p": "log_one_more"}  # fmt: skip
ELEMENT = LINE | {"exp": "element_exponential", "log": "element_logarithm", "log1p": "element_log_one_more"}
CONSTANTS = {"INFINITY": 'float("inf")', "NAN": 'float("nan")'}


TABLE: ReductionTable = load_table("reduction/reduction_table")
LOSSES: LossTable = load_table("reduction/loss_table")


# ---------------------------------------------------------------- Triton

TRITON_HEAD = '''"""The table of {what} on the GPU. {written}"""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.reduction_stages.triton_launches import loss_functions, reduction_functions
from kernelworks.templates.reduction_stages.launches import LossArguments
from kernelworks.tile.reduction_stages.line_functions import element_exponential, element_log_one_more
from kernelworks.tile.reduction_stages.line_functions import element_logarithm
from kernelworks.tile.reduction_stages.line_launches import LineStage, LineStages
from kernelworks.tile.reduction_stages.stage_reduction import exponential, log_one_more, logarithm, root
'''


def is_narrow(text: str, combine: str = "") -> bool:
    """Whether float32 loses nothing of an expression: it picks operands, numbers, 1, 0 and NaN, with either sign, and
    compares what float32 compares as float64 does (also a difference with 0, which it keeps the sign of). A ``sum``
    must be one of 1 and 0."""
    tree = ast.parse(text, mode="eval").body
    return _is_unit(tree) if combine == "sum" else _picks(tree)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0.0


def _chosen(node: ast.expr) -> list[ast.expr] | None:
    """What a ``where`` chooses of, if its condition is exact."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "where":
        return node.args[1:] if _compares(node.args[0]) else None
    return None


def _picks(node: ast.expr) -> bool:
    chosen = _chosen(node)
    if chosen is not None:
        return all(map(_picks, chosen))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "abs" and _picks(node.args[0])
    if isinstance(node, ast.UnaryOp):
        return _picks(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return (_is_zero(node.left) and _picks(node.right)) or (
            isinstance(node.left, ast.Name) and _is_unit(node.right)
        )
    return isinstance(node, ast.Name | ast.Constant)


def _is_unit(node: ast.expr) -> bool:
    """1, 0, a difference of them, or 0 times what a difference may make NaN."""
    chosen = _chosen(node)
    if chosen is not None:
        return all(map(_is_unit, chosen))
    if isinstance(node, ast.UnaryOp):
        return _is_unit(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _is_unit(node.left) and _is_unit(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _is_zero(node.left) and (_picks(node.right) or _differs(node.right))
    return isinstance(node, ast.Constant) and node.value in (0.0, 1.0)


def _differs(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _picks(node.left) and _picks(node.right)


def _compares(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        return _compares(node.left) and _compares(node.right)
    if not isinstance(node, ast.Compare):
        return False
    (right,) = node.comparators
    return (_picks(node.left) and _picks(right)) or (_is_zero(right) and _differs(node.left))


def _function(
    name: str, given: str, text: str, operands: Sequence[str], stages: Sequence[Stage], numbers: Sequence[str]
) -> str:
    """An expression, or several in a tuple, as a function of tuples. What is divided by a number is multiplied by its
    reciprocal, which is found once."""
    for n in numbers:
        if operands:
            text = re.sub(rf"/ {n}\b", f"* (1.0 / {n})", text)
    read = set(re.findall(r"[A-Za-z_]\w*", text))
    body = [f"{n} = operand[{i}]" for i, n in enumerate(operands) if n in read]
    body += [f"{stage.name} = found[{i}]" for i, stage in enumerate(stages) if stage.name in read]
    body += [f"{n} = number[{i}]" for i, n in enumerate(numbers) if n in read]
    lines = "".join(f"    {line}\n" for line in body)
    said = rename_calls(text, ELEMENT if operands else LINE)
    for constant, triton in CONSTANTS.items():
        said = said.replace(constant, triton)
    return f"\n\n@kernel\ndef {name}({given}):\n{lines}    return {said}\n"


def stage_text(
    name: str, operands: Sequence[str], stages: Sequence[Stage], numbers: Sequence[str], coefficient: str = "",
    gradients: Sequence[str] = (),
) -> tuple[str, str]:  # fmt: skip
    """The functions of one pass, and ``Stages(...)`` of them."""
    text, said = "", []
    for i, stage in enumerate(stages):
        term, finish = f"{name}_term_{i}", f"{name}_finish_{i}"
        text += _function(term, "operand, found, n, number", stage.term, operands, stages[:i], numbers)
        text += _function(finish, "s, found, n, number", stage.finish, (), stages[:i], numbers)
        narrow = is_narrow(stage.term, stage.combine)
        said.append(f'LineStage({term}, "{stage.combine}", {finish}, {narrow})')
    made = f"({''.join(f'{each}, ' for each in said)})"
    if not gradients:
        return text, f"LineStages({made})"
    text += _function(f"{name}_coefficient", "grad, found, n, number", coefficient, (), stages, numbers)
    results = f"({''.join(f'{g}, ' for g in gradients)})"
    text += _function(
        f"{name}_element", "operand, found, n, coefficient, number", results, operands, stages, numbers
    )  # fmt: skip
    return text, f"LineStages({made}, {name}_coefficient, {name}_element, {all(map(is_narrow, gradients))})"


def _triton(entry: ReductionEntry) -> str:
    text, ahead, back = "", "", ""
    for chosen, variant in entry.variants.items():
        name, numbers = f"{entry.name}_{chosen}" if chosen else entry.name, tuple(entry.numbers)
        body, said = stage_text(f"_{name}", ("x",), variant.stages, numbers)
        text, ahead = text + body, f'{ahead}"{chosen}": {said}, '
        if variant.gradient:
            gradient = (variant.gradient,)
            body, said = stage_text(f"_{name}_back", ("x",), variant.back, numbers, variant.coefficient, gradient)
            text, back = text + body, f'{back}"{chosen}": {said}, '
    by_number = ", ".join(f'float("{number}"): "{chosen}"' for number, chosen in entry.by_number.items())
    empty = f'float("{0.0 if entry.empty is None else entry.empty}")'
    made = f"{entry.name}_forward, {entry.name}_backward"
    call = f"reduction_functions(configs(__file__), {empty}, {{{ahead}}}, {{{back}}}, {{{by_number}}})"
    return f"{text}\n\n{made} = {call}\n"


def _triton_of_loss(entry: LossEntry) -> str:
    text, ahead, back, numbers = "", "", "", (*entry.numbers, "divisor")
    for chosen, variant in entry.variants.items():
        name = f"_{entry.name}_{chosen}" if chosen else f"_{entry.name}"
        body, said = stage_text(name, variant.operands, (stage_of(variant),), numbers)
        text, ahead = text + body, f'{ahead}"{chosen}": {said}, '
        gradients = gradients_of(variant)
        body, said = stage_text(f"{name}_back", variant.operands, (), numbers, "grad / divisor", gradients)
        text, back = text + body, f'{back}"{chosen}": {said}, '
    made = f"{entry.name}_forward, {entry.name}_backward"
    call = f"loss_functions(configs(__file__), {entry.launch_arguments!r}, {{{ahead}}}, {{{back}}})"
    return f"{text}\n\n{made} = {call}\n"


def triton_py() -> str:
    body = TRITON_HEAD.format(written=WRITTEN, what="reductions") + "".join(map(_triton, TABLE.entries.values()))
    return formatted(body, TABLE.folder / "triton.py")


def triton_of_losses() -> str:
    body = TRITON_HEAD.format(written=WRITTEN, what="losses") + "".join(map(_triton_of_loss, LOSSES.entries.values()))
    return formatted(body, LOSSES.folder / "triton.py")


# ---------------------------------------------------------------- public functions

HEAD = '''"""{what}, the ops of the table in ``contract.py``. {written}"""

from typing import Any, overload

import torch

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.{table}.contract import TABLE

__all__ = [{names}]
'''

BOTH = '''

@overload
def {name}({own}, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def {name}({theirs}, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def {name}({code}, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """{doc}"""
    if torchs or rest{alone}:
        return {op}.torch_signature(({places}, *rest), torchs, {{{beside}}}, out, kernel)
    return {op}.call({placed}, out, kernel)


{op} = TABLE.op("{name}")
'''

DOC = """{describe}

    ``{formula}``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: {none}.{described}
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype{empty}.

    Error bound: {bounded}.
    The same bits for any number of threads.
    Cost: {flop:g} operations an element{functions}; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: {source}
    """
DIM = "int | tuple[int, ...] | list[int]"


def _preset(value: object) -> str:
    return "float('inf')" if value == float("inf") else repr(value)


def _theirs(entry: ReductionEntry | LossEntry) -> str:
    """torch's signature, with arrays in the place of tensors; what may be given by name alone comes last."""
    said, starred = [], False
    for name, parameter in inspect.signature(entry.torchs, eval_str=True).parameters.items():
        if (parameter.kind is parameter.KEYWORD_ONLY or name == "out") and not starred:
            said, starred = [*said, "*"], True
        if name == "out":  # what every public function has
            continue
        kind = inspect.formatannotation(parameter.annotation).replace("torch.Tensor", "Array")
        preset = "" if parameter.default is parameter.empty else f" = {_preset(parameter.default)}"
        said.append(f"{name}: {kind}{preset}")
    return ", ".join(said if starred else [*said, "*"])


def _face(entry: ReductionEntry) -> str:
    numbers = [f"{n}: float = {_preset(preset)}" for n, preset in entry.presets.items()]
    dim = f"dim: {DIM} | None = None" if entry.every else f"dim: {DIM}"
    first = [*numbers, dim] if entry.before_dim else [dim]
    last = [] if entry.before_dim else numbers
    places = ["x", *(entry.numbers if entry.before_dim else ()), "dim"]
    names = ("keepdim", *(() if entry.before_dim else entry.numbers))
    any_of = [re.sub(r": [^=]+", ": Any ", p) if "=" in p else f"{p.split(':')[0]}: Any = ABSENT" for p in first]
    described = "".join(f"\n        {n}: {kind}." for n, kind in entry.numbers.items())
    doc = DOC.format(
        describe=entry.describe, formula=entry.formula, flop=entry.flop, described=described,
        source=textwrap.fill(f"{entry.source}.", 108, subsequent_indent=8 * " "),
        none="one, a list of them, or None for all" if entry.every else "one, or a list of them", bounded=entry.bounded,
        empty="" if entry.empty is None else f"; {entry.empty:g} where a line has no elements",
        functions=f" and {entry.exponentials:g} exponentials" * (entry.exponentials > 0),
    )  # fmt: skip
    return BOTH.format(
        name=entry.name, op=entry.name.upper(), doc=doc, alone=f" or {entry.alone}" * bool(entry.alone),
        own=", ".join(("x: Array", *first, "*", "keepdim: bool = False", *last)), theirs=_theirs(entry),
        code=", ".join(("x: Any = ABSENT", *any_of, "*rest: Any", "keepdim: Any = False",
                        *(re.sub(r": float", ": Any", n) for n in last))),
        places=", ".join(places), beside=", ".join(f'"{n}": {n}' for n in names),
        placed=", ".join(("x", "dim", "keepdim", *entry.numbers)),
    )  # fmt: skip


def init_py() -> str:
    names = ", ".join(f'"{name}"' for name in sorted((*TABLE.entries, *map(str.upper, TABLE.entries))))
    head = HEAD.format(written=WRITTEN, names=names, what="Reductions", table="reduction_table")
    return formatted(head + "".join(map(_face, TABLE.entries.values())), TABLE.folder / "__init__.py")


LOSS_DOC = """{describe}

    ``{formula}``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.{described}
        reduction: {words}.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: {flop:g} operations an element{functions}; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: {source}
    """


def _face_of_loss(entry: LossEntry) -> str:
    kinds = dict.fromkeys(entry.weights, "Array | None = None") | {"reduction": 'str = "mean"'}
    kinds |= dict.fromkeys(entry.flags, "bool = False") | {n: f"float = {entry.presets[n]!r}" for n in entry.numbers}
    named = list(kinds)
    described = "".join(f"\n        {n}: {entry.arguments[n]}." for n in named if n != "reduction")
    doc = LOSS_DOC.format(
        describe=entry.describe, formula=entry.formula, described=described, flop=entry.flop,
        words=" or ".join(f'``"{word}"``' for word in entry.words),
        functions=f" and {entry.functions:g} elementary functions" * (entry.functions > 0),
        source=textwrap.fill(f"{entry.source}.", 108, subsequent_indent=8 * " "),
    )  # fmt: skip
    return BOTH.format(
        name=entry.name, op=entry.name.upper(), doc=doc, alone="",
        own=", ".join(("x: Array", "target: Array", "*", *(f"{n}: {kind}" for n, kind in kinds.items()))),
        theirs=_theirs(entry),
        code=", ".join(("x: Any = ABSENT", "target: Any = ABSENT", "*rest: Any",
                        *(f"{n}: Any = {kind.split(' = ')[1]}" for n, kind in kinds.items()))),
        places="x, target", beside=", ".join(f'"{n}": {n}' for n in named), placed=", ".join(("x", "target", *named)),
    )  # fmt: skip


def init_of_losses() -> str:
    names = ", ".join(f'"{name}"' for name in sorted((*LOSSES.entries, *map(str.upper, LOSSES.entries))))
    head = HEAD.format(written=WRITTEN, names=names, what="Losses", table="loss_table").replace("import torch\n\n", "")
    return formatted(head + "".join(map(_face_of_loss, LOSSES.entries.values())), LOSSES.folder / "__init__.py")


def names() -> dict[str, tuple[str, ...]]:
    """The ops of both tables, by their op packages."""
    return {table.source.name: tuple(sorted(table.entries)) for table in (TABLE, LOSSES)}


def stale() -> dict[Path, str]:
    """What is to be written, by file."""
    wanted = {
        TABLE.folder / "__init__.py": init_py(), TABLE.folder / "triton.py": triton_py(),
        LOSSES.folder / "__init__.py": init_of_losses(), LOSSES.folder / "triton.py": triton_of_losses(),
    }  # fmt: skip
    return stale_files(wanted)


def main(arguments: list[str]) -> int:
    return write_files(stale(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
