"""Which op of ours could do a call of torch's, and which of its rows would be taken on this machine."""

from __future__ import annotations

from typing import Any

from kernelworks import certificates
from kernelworks.contract import Request, TensorSpec
from kernelworks.diagnose.trace import Call
from kernelworks.diagnose.work import Arguments, Operand
from kernelworks.dispatch import OPS

__all__ = ["OURS", "row_for"]

# aten op -> our op and the positions of its arguments among aten's.
OURS: dict[str, tuple[str, dict[str, int]]] = {
    "linear": ("linear", {"x": 0, "weight": 1, "bias": 2}),
    "scaled_dot_product_attention": ("attention", {"q": 0, "k": 1, "v": 2}),
    "gelu": ("gelu", {"x": 0}),
    "softmax": ("softmax", {"x": 0, "dim": 1}),
    "layer_norm": ("layer_norm", {"x": 0, "weight": 2, "bias": 3, "eps": 4}),
    "rms_norm": ("rms_norm", {"x": 0, "weight": 2, "eps": 3}),
    "cross_entropy_loss": ("cross_entropy", {"logits": 0, "target": 1}),
    "embedding": ("embedding", {"weight": 0, "ids": 1}),
}
TORCH = ("torch", "reference")


def row_for(call: Call, threads: int, device: str = "cpu", kind: str | None = None) -> str:
    """``kw.linear: avx512`` for the certified row that would be taken, "" where it is torch's own or we have no op.

    ``kind`` is the kind of machine, by default this one. Nothing is built for the question, so a row whose build fails
    later is named all the same.
    """
    known = OURS.get(call.name.removeprefix("aten::"))
    op = OPS.get(known[0]) if known else None
    if known is None or op is None:
        return ""
    arguments, positions = Arguments(call), known[1]
    args: dict[str, Any] = dict.fromkeys(op.passes["forward"].names)
    for name, position in positions.items():
        if name in args:
            item = arguments[position]
            args[name] = TensorSpec(item.shape, item.dtype, item.stride, device) if isinstance(item, Operand) else item
    request = Request(op.name, "forward", args, threads)
    for row in op.rows:
        if row.name in TORCH:
            return ""
        try:
            if row.guard(request) is None and certificates.invalid(op.name, row, kind) is None:
                return f"kw.{op.name}: {row.name}"
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            return ""
    return ""
