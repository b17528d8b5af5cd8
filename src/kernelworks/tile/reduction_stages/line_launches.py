"""Launches of the kernels of ``line_stages.py``: which program takes what of which lines."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from kernelworks.build.triton import Configs, interpreting
from kernelworks.contract.row_layout import Lines
from kernelworks.tile.reduction_stages.line_stages import ELEMENTS, HELD, JOIN, SWEEP

PART = 8192  # elements that a part has at least
LONGEST = 16384  # elements of a line that one program holds
WIDEST = 16  # bytes of a load
MOST_OPERANDS, MOST_NUMBERS, MOST_RESULTS = 4, 2, 2
STARTS = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}


class LineStage(NamedTuple):
    """One number of a line; ``narrow``: float32 holds its terms and those before."""

    term: Any
    combine: str
    finish: Any
    narrow: bool = False


class LineStages(NamedTuple):
    """One pass of a variant; of a backward also what an element's gradients are, ``narrow`` as a stage's."""

    stages: tuple[LineStage, ...]
    coefficient: Any = None
    element: Any = None
    narrow: bool = False


def _power(n: int) -> int:
    return int(triton.next_power_of_2(n))


class _Grid(NamedTuple):
    """Lines as tiles: of unit stride all are one block of them."""

    outer: int
    lines: int
    outer_stride: int
    line_stride: int
    taken: int
    block: int

    @property
    def blocks(self) -> int:
        return int(triton.cdiv(self.lines, self.taken))


def _grid(x: Lines, tile: int, least: int) -> _Grid:
    """Of ``tile`` elements, of lines side by side ``least`` of them if there are as many, more of short ones."""
    if x.inner == 1:
        block = min(tile, _power(x.n))
        return _Grid(1, x.outer, 0, x.outer_stride, min(tile // block, _power(x.outer)), block)
    taken = min(_power(x.inner), max(least, tile // _power(x.n)))
    return _Grid(x.outer, x.inner, x.outer_stride, 1, taken, min(tile // taken, _power(x.n)))


def _padded(values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return (*values, *(None,) * (count - len(values)))


def holds_lines(x: Lines) -> bool:
    """Whether one program holds a line."""
    return x.inner == 1 and x.n <= LONGEST


def reduce_lines(
    configs: Configs, said: LineStages, operands: tuple[Tensor, ...], x: Lines, numbers: tuple[Any, ...],
    out: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """Runs the stages and writes the last to ``out``; returns what all came to, where more than ``out`` asks for it.
    ``x`` says where the lines of every operand lie."""
    if out is not None and len(said.stages) > 1 and len(operands) == 1 and holds_lines(x):
        _hold_lines(said, operands[0], x, numbers, out, None, None)
        return None
    name, along = ("along", True) if x.inner == 1 else ("down", False)
    settings = configs.pick(name, N=x.n, inner=x.inner, dtype=x.tensor.dtype)
    programs, loads, warps = settings.pop("PROGRAMS"), settings.pop("LOADS"), settings["num_warps"]
    tile = 32 * warps * min(WIDEST // x.tensor.itemsize, _power(x.n if along else x.inner))
    t = _grid(x, tile, min(0 if along else settings.pop("COLUMNS"), tile))
    ahead = min(max(loads // len(operands), 1), _power(triton.cdiv(x.n, t.block)))
    count = t.outer * t.lines
    wanted = triton.cdiv(programs, t.outer * t.blocks)
    parts = min(wanted, triton.cdiv(x.n, max(PART // t.taken, t.block)))
    length = triton.cdiv(triton.cdiv(x.n, parts), t.block) * t.block
    parts = triton.cdiv(x.n, length)
    device, last = out.device if out is not None else x.tensor.device, len(said.stages) - 1
    keeps = last > 0 or out is None
    found = torch.empty((last + 1, count), dtype=torch.float64, device=device) if keeps else None
    partial = torch.empty((parts, count), dtype=torch.float64, device=device) if parts > 1 else None
    given, told = _padded(operands, MOST_OPERANDS), _padded(numbers, MOST_NUMBERS)
    early = not interpreting()
    for i, stage in enumerate(said.stages):
        kind = {"FINISH": stage.finish, "COMBINE": stage.combine, "START": STARTS[stage.combine], "STAGE": i}
        to = out if i == last else None
        SWEEP.at(
            TERM=stage.term, NARROW=stage.narrow, OPERANDS=len(operands), AXIS=1 if along else 0, LINES=t.taken,
            BLOCK=t.block, AHEAD=ahead, SINGLE=length <= t.block * ahead, WHOLE=t.lines % t.taken == 0,
            ONCE=i == last and out is not None, EARLY=early, **kind, **settings,
        )(
            (t.outer * t.blocks * parts, 1, 1), *given, to, found, partial, *told, x.n, t.lines, t.blocks, count,
            t.outer_stride, t.line_stride, x.stride, parts, length,
        )  # fmt: skip
        if partial is not None:
            many = _power(parts)
            taken = max(1, min(1024 // many, _power(count)))
            options = {"launch_pdl": True} if early else {}
            JOIN.at(LINES=taken, PARTS=many, EARLY=early, **kind, **options, num_warps=4)(
                (triton.cdiv(count, taken), 1, 1), partial, to, found, *told, x.n, count, parts
            )
    return found


def held_lines(x: Lines) -> tuple[int, int, int]:
    """Of a program that holds lines: how many, the elements of a tile's line, and its warps."""
    block = _power(x.n)
    taken = max(1, min(2048 // block, _power(x.outer)))
    return taken, block, min(max(taken * block // 512, 1), 16)


def _hold_lines(
    said: LineStages, x: Tensor, where: Lines, numbers: tuple[Any, ...], out: Tensor | None, grad: Tensor | None,
    to: Tensor | None,
) -> None:  # fmt: skip
    taken, block, warps = held_lines(where)
    one, two = _padded(said.stages, 2)
    kinds: dict[str, Any] = {}
    for end, stage in (("", one), ("_1", two)):
        if stage is None:
            stage = LineStage(None, "sum", None)
        kinds |= {
            f"TERM{end}": stage.term, f"FINISH{end}": stage.finish, f"COMBINE{end}": stage.combine,
            f"START{end}": STARTS[stage.combine], f"NARROW{end}": stage.narrow,
        }  # fmt: skip
    HELD.at(
        STAGES=len(said.stages), COEFFICIENT=said.coefficient, ELEMENT=said.element, PICKS=said.narrow, LINES=taken,
        BLOCK=block, WHOLE=block == where.n, num_warps=warps, **kinds,
    )(
        (triton.cdiv(where.outer, taken), 1, 1), x, out, grad, to, *_padded(numbers, MOST_NUMBERS), where.n,
        where.outer, where.outer_stride,
    )  # fmt: skip


def write_line_gradients(
    configs: Configs, said: LineStages, operands: tuple[Tensor, ...], x: Lines, numbers: tuple[Any, ...], grad: Tensor,
    made: tuple[Tensor | None, ...],
) -> None:  # fmt: skip
    """Runs the stages, and writes the gradients of each element into tensors that lie as the operands do."""
    if len(operands) == 1 and holds_lines(x):
        return _hold_lines(said, operands[0], x, numbers, None, grad, made[0])
    found = reduce_lines(configs, said, operands, x, numbers, None) if said.stages else None
    settings = configs.pick("elements", N=x.n, inner=x.inner, dtype=x.tensor.dtype)
    t = _grid(x, settings.pop("TILE"), settings.pop("COLUMNS"))
    tiles = triton.cdiv(x.n, t.block)
    ELEMENTS.at(
        COEFFICIENT=said.coefficient, ELEMENT=said.element, STAGES=len(said.stages), PICKS=said.narrow,
        OPERANDS=len(operands), AXIS=1 if x.inner == 1 else 0, LINES=t.taken, BLOCK=t.block,
        WHOLE=x.n % t.block == 0 and t.lines % t.taken == 0, **settings,
    )(
        (t.outer * t.blocks * tiles, 1, 1), *_padded(operands, MOST_OPERANDS), grad, *_padded(made, MOST_RESULTS),
        found, *_padded(numbers, MOST_NUMBERS), x.n, t.lines, t.blocks, tiles, t.outer * t.lines,
        t.outer_stride, t.line_stride, x.stride,
    )  # fmt: skip
    return None
