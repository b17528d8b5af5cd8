"""The sum, the largest or the smallest of what all ranks of a group hold, on all of them."""

from __future__ import annotations

from typing import Any

from kernelworks.contract.ranks import name_of
from kernelworks.dispatch.signature import Array
from kernelworks.ops.communication.all_reduce.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "all_reduce"]


def all_reduce(
    x: Array, op: str = "sum", group: Any = None, *, out: Array | None = None, kernel: str | None = None
) -> Array:
    """What the ranks of a process group hold, reduced element by element; every rank has the whole result.

    ``output = x of rank 0 (+) x of rank 1 (+) ...``, in float32, rounded once. A new tensor, as torch's functional
    collectives give one; ``out=x`` is ``torch.distributed.all_reduce(x, op, group)``, in place.

    Args:
        x: any shape, float32, bfloat16, float16 or int64, any strides; on every rank the same shape and dtype.
        op: "sum", "max" or "min". Sums of int64 wrap.
        group: a process group or its name; None is torch's default group, "self" the process alone.
        out: where to write: a contiguous tensor like the output; may be x.
        kernel: the name of one implementation, the same on all ranks; by default torch's backend runs (gloo, NCCL).
            "avx512", "avx2" and "scalar" are for ranks of one host, through memory that they share.

    Returns:
        ``output``, of x's shape and dtype. It has no gradient: ``torch.distributed.nn.functional.all_reduce`` has.

    Error bound: |output - exact| <= (R - 1) 2^-24 (|x of rank 0| + |x of rank 1| + ...) for R ranks, in 16 bits
    u |output| more; "max", "min" and int64 are exact. The same bits on every rank, with our kernels whatever the number
    of threads. torch's gloo rounds 16 bits between ranks, from three ranks on beyond this bound.
    Cost: R - 1 flop an element; a rank reads x and 2 (R - 1) / R as much of the others', and writes output once.
    Raises: TypeError, ValueError naming the argument, also where x asks for a gradient. Of a kernel of ours ValueError
    on every rank where ranks differ in shape, dtype or op, before anything is written; RuntimeError naming a rank that
    has ended, does not come within the group's timeout, or is on another host. RuntimeError where ``kernel`` cannot
    run.
    Source: Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in MPICH.
    """
    TEMPLATE.refuse_gradient(x)
    result: Array = OP.call(x, op, name_of(group), out, kernel)
    return result


OP = TEMPLATE.op(CONTRACT)
