"""What all ranks of a group hold, one after the other, on all of them."""

from __future__ import annotations

from typing import Any

from kernelworks.contract.ranks import name_of
from kernelworks.dispatch.signature import Array
from kernelworks.ops.communication.all_gather.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "all_gather"]


def all_gather(x: Array, group: Any = None, *, out: Array | None = None, kernel: str | None = None) -> Array:
    """What the ranks of a process group hold, one after the other along the first dimension; every rank has all of it.

    ``output = x of rank 0, x of rank 1, ...``, bit for bit. A new tensor, as from torch's functional collective
    ``all_gather_tensor(x, 0, group)``; with ``out`` it is ``torch.distributed.all_gather_into_tensor(out, x, group)``.

    Args:
        x: [N, ...], float32, bfloat16, float16 or int64, any strides; on every rank the same shape and dtype.
        group: a process group or its name; None is torch's default group, "self" the process alone.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation, the same on all ranks; by default torch's backend runs (gloo, NCCL).
            "avx512", "avx2" and "scalar" are for ranks of one host, through memory that they share.

    Returns:
        ``output`` [R N, ...] for R ranks, of x's dtype. It has no gradient: ``torch.distributed.nn.functional``
        has one.

    Error bound: none, the values are moved. The same bits on every rank.
    Cost: no arithmetic; a rank reads x and R - 1 times as much of the others', and writes output once.
    Raises: TypeError, ValueError naming the argument, also where x asks for a gradient. Of a kernel of ours ValueError
    on every rank where ranks differ in shape or dtype, before anything is written; RuntimeError naming a rank that has
    ended, does not come within the group's timeout, or is on another host. RuntimeError where ``kernel`` cannot run.
    Source: Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in MPICH.
    """
    TEMPLATE.refuse_gradient(x)
    result: Array = OP.call(x, name_of(group), out, kernel)
    return result


OP = TEMPLATE.op(CONTRACT)
