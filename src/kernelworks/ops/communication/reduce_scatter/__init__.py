"""What all ranks of a group hold, reduced; each rank has its part of the result."""

from __future__ import annotations

from typing import Any

from kernelworks.contract.ranks import name_of
from kernelworks.dispatch.signature import Array
from kernelworks.ops.communication.reduce_scatter.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "reduce_scatter"]


def reduce_scatter(
    x: Array, op: str = "sum", group: Any = None, *, out: Array | None = None, kernel: str | None = None
) -> Array:
    """What the ranks of a process group hold, reduced element by element; rank r has part r of the result.

    ``output = part r of x of rank 0 (+) x of rank 1 (+) ...``, in float32, rounded once: R parts for R ranks, along the
    first dimension. A new tensor, as from torch's functional collective ``reduce_scatter_tensor(x, op, 0, group)``;
    with ``out`` it is ``torch.distributed.reduce_scatter_tensor(out, x, op, group)``.

    Args:
        x: [R N, ...], float32, bfloat16, float16 or int64, any strides; on every rank the same shape and dtype.
        op: "sum", "max" or "min". Sums of int64 wrap.
        group: a process group or its name; None is torch's default group, "self" the process alone.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation, the same on all ranks; by default torch's backend runs (gloo, NCCL).
            "avx512", "avx2" and "scalar" are for ranks of one host, through memory that they share.

    Returns:
        ``output`` [N, ...] of x's dtype. It has no gradient: ``torch.distributed.nn.functional`` has one.

    Error bound: |output - exact| <= (R - 1) 2^-24 (|x of rank 0| + |x of rank 1| + ...), in 16 bits u |output| more;
    "max", "min" and int64 are exact. torch's gloo rounds 16 bits between ranks, from three ranks on beyond this bound.
    Cost: R - 1 flop an element of the output; a rank reads x and (R - 1) / R as much of the others', and writes output
    once.
    Raises: TypeError, ValueError naming the argument, also where the ranks do not divide the first dimension or x asks
    for a gradient. Of a kernel of ours ValueError on every rank where ranks differ in shape, dtype or op, before
    anything is written; RuntimeError naming a rank that has ended, does not come within the group's timeout, or is on
    another host. RuntimeError where ``kernel`` cannot run.
    Source: Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in MPICH.
    """
    TEMPLATE.refuse_gradient(x)
    result: Array = OP.call(x, op, name_of(group), out, kernel)
    return result


OP = TEMPLATE.op(CONTRACT)
