"""Which op of ours a call of torch's would reach once swapped, and which of its rows it would then take.

Nothing is decided here: the call is made again on tensors without data, through the function that a swapped model
calls in its place, and the dispatcher is asked about what arrives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelworks.choose import choose
from kernelworks.contract import Request
from kernelworks.diagnose.trace import Call
from kernelworks.diagnose.work import Arguments, Operand
from kernelworks.models.calls import FUNCTIONS, REDUCTIONS
from kernelworks.op import OPS
from kernelworks.watching import reached

__all__ = ["SPELLINGS", "Spelling", "called", "row_for"]


@dataclass(frozen=True)
class Spelling:
    """How an aten op is called from ``torch.nn.functional``: the function, and its names for the op's arguments."""

    function: str
    names: tuple[str, ...]


# aten op -> the function that torch's users call for it. A swapped model calls FUNCTIONS[function] in its place.
SPELLINGS: dict[str, Spelling] = {
    "linear": Spelling("linear", ("input", "weight", "bias")),
    "scaled_dot_product_attention": Spelling(
        "scaled_dot_product_attention",
        ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    ),
    "gelu": Spelling("gelu", ("input",)),  # which of its two forms is not recorded: both have the same rows
    "softmax": Spelling("softmax", ("input", "dim", "dtype")),
    "layer_norm": Spelling("layer_norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    "rms_norm": Spelling("rms_norm", ("input", "normalized_shape", "weight", "eps")),
    "cross_entropy_loss": Spelling(
        "cross_entropy", ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    ),
}
REDUCTION_CODES = dict(enumerate(("none", "mean", "sum")))  # ATen/core/Reduction.h
Make = Callable[[Operand], Tensor]


def row_for(call: Call, threads: int, device: str = "cpu", kind: str | None = None) -> str:
    """``kw.linear: avx512`` for the row that the call would take once swapped; "" where that is torch's own, or the
    call would stay torch's.

    ``kind`` is the kind of machine, by default this one. Nothing is built for the question, so a row whose build fails
    later is named all the same.
    """
    if call.name.removeprefix("aten::") not in SPELLINGS:
        return ""
    try:
        with FakeTensorMode():
            made = called(call, lambda operand: _without_data(operand, device))
            request = _asked(made, threads) if made is not None else None
        if request is None:
            return ""
        row = choose(OPS[request.op], request, kind=kind).row
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError):
        return ""  # arguments of another form than the profiler tells
    return f"kw.{request.op}: {row.name}" if row.source is not None else ""


def called(call: Call, make: Make, functions: Any = FUNCTIONS) -> Callable[[], Any] | None:
    """The call as its user wrote it, through ``functions``, on tensors that ``make`` makes; None where it has no
    spelling or ``functions`` (a mapping, or ``torch.nn.functional``) has no such function."""
    spelling = SPELLINGS.get(call.name.removeprefix("aten::"))
    if spelling is None:
        return None
    named: dict[str, Any] = {}
    for name, item in zip(spelling.names, Arguments(call).items, strict=False):
        value = make(item) if isinstance(item, Operand) else item
        if name == "reduction" and isinstance(value, int):
            value = REDUCTION_CODES.get(value, REDUCTIONS[0])
        if value is not None:
            named[name] = value
    function = (
        functions.get(spelling.function) if isinstance(functions, dict) else getattr(functions, spelling.function)
    )
    return None if function is None else functools.partial(function, **named)


def _without_data(operand: Operand, device: str) -> Tensor:
    return torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device=device)


def _asked(made: Callable[[], Any], threads: int) -> Request | None:
    """What a call asks of the dispatcher; None where it stays torch's."""
    with torch.no_grad():
        found = reached(made)
    if found is None:
        return None
    op, args, _ = found
    request: Request = op.request("forward", args)
    return dataclasses.replace(request, threads=threads)
