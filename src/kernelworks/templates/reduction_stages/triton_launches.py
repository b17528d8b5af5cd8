"""The launches of a table's reductions on a GPU, by the functions that are written of an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.triton import Configs
from kernelworks.contract.reduced_dims import reduced_lines, reduced_shape
from kernelworks.contract.row_layout import Lines
from kernelworks.templates.reduction_stages.launches import LossArguments, align_dims, flow_of, loss_call, spread_view
from kernelworks.tile.reduction_stages.line_launches import LineStages, reduce_lines, write_line_gradients

__all__ = ["loss_functions", "reduction_functions"]


def reduction_functions(
    configs: Configs, empty: float, ahead: Mapping[str, LineStages], back: Mapping[str, LineStages],
    by_number: Mapping[float, str],
) -> tuple[Callable[..., Tensor], Callable[..., Any]]:  # fmt: skip
    """An entry's ``forward(x, dim, keepdim, *numbers)`` and ``backward(grad, x, dim, keepdim, *numbers)``, by the names
    of its variants. ``empty`` is the result of lines without elements; a variant that ``back`` has not spreads what
    flows in."""

    def variant(numbers: tuple[Any, ...]) -> str:
        return by_number[float(numbers[0])] if by_number else ""

    def forward(x: Tensor, dim: Any, keepdim: bool, *numbers: Any, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(reduced_shape(tuple(x.shape), dim, keepdim), dtype=x.dtype, device=x.device)
        if not x.numel():
            return out.fill_(empty)
        where = reduced_lines(x, dim)
        reduce_lines(configs, ahead[variant(numbers)], (where.tensor,), where, tuple(map(float, numbers)), out)
        return out

    def backward(grad: Tensor, x: Tensor, dim: Any, keepdim: bool, *numbers: Any, out: Any = None) -> Any:
        said, told = back.get(variant(numbers)), tuple(map(float, numbers))
        if said is None:
            return spread_view(grad, x, dim, keepdim, out)
        given, dims, turn = align_dims(x, dim)
        made = torch.empty_like(given) if out is None or turn else out
        if x.numel():
            where = reduced_lines(given, dims, ordered=True)
            flow = flow_of(grad, x, dim, keepdim).contiguous()
            write_line_gradients(configs, said, (where.tensor,), where, told, flow, (made,))
        if turn is None:
            return made
        return turn(made) if out is None else out.copy_(turn(made))

    return forward, backward


def loss_functions(
    configs: Configs, said: LossArguments, ahead: Mapping[str, LineStages], back: Mapping[str, LineStages]
) -> tuple[Callable[..., Tensor], Callable[..., Any]]:
    """A loss's ``forward(*args)`` and ``backward(grad, *args, needs)``, by the names of its variants."""

    def forward(*args: Any, out: Tensor | None = None) -> Tensor:
        call = loss_call(said, args)
        if out is None:
            out = torch.empty(call.shape, dtype=args[0].dtype, device=args[0].device)
        if not args[0].numel():
            return out.fill_(call.empty)
        where = Lines(call.operands[0], *call.lines)
        reduce_lines(configs, ahead[call.variant], call.operands, where, (*call.numbers, call.divisor), out)
        return out

    def backward(grad: Tensor, *rest: Any, out: Any = None) -> Any:
        *args, needs = rest
        call = loss_call(said, tuple(args))
        made = tuple(torch.empty_like(call.operands[i]) for i in range(2)) if out is None else tuple(out)
        if args[0].numel():
            where = Lines(call.operands[0], *call.lines)
            numbers, wanted = (
                (*call.numbers, call.divisor),
                tuple(m if n else None for m, n in zip(made, needs, strict=True)),
            )
            if out is not None:
                wanted = made
            write_line_gradients(configs, back[call.variant], call.operands, where, numbers, grad.contiguous(), wanted)
        return made

    return forward, backward
