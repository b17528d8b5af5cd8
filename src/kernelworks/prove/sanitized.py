"""Small cases of one row, plainly called, for a checker that watches the process from outside:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python -m kernelworks.prove.sanitized OP ROW

Forward and backward of the contract's cases in the dtypes the row takes, at most a few of each size: under a checker a
kernel runs tens of times slower. Prints how many calls were made; exits with 1 where none was.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from kernelworks.contract import FLOATS, Case
from kernelworks.dispatch import OPS, Op
from kernelworks.machine import has_gpu
from kernelworks.prove.truth import device_of, flat_outputs, placed

__all__ = ["main"]

MOST_CALLS = 8


def _size(op: Op, case: Case) -> int:
    made = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    return sum(t.numel() for t in flat_outputs(list(made.values())) if isinstance(t, Tensor))


def _call(op: Op, row: str, case: Case, dtype: torch.dtype) -> bool:
    """One forward, and its backward where there is one. False where the row declines.

    Nothing is compared, so that little but the row's kernels runs: the checker watches torch's too.
    """
    device, names = device_of(op, row), op.passes["forward"].names
    given = case.make(torch.Generator().manual_seed(0), dtype)
    args = [placed(given.get(name), device) for name in names]
    if op.row(row).guard(op.request("forward", args)):
        return False
    leaves = []
    if case.gradients and "backward" in op.row(row).passes:
        wanted = [args[names.index(n)] for n in op.contract.differentiable if n in names]
        leaves = [leaf.requires_grad_() for leaf in wanted if isinstance(leaf, Tensor)]
    outputs = [o for o in flat_outputs(op(*args, row=row)) if isinstance(o, Tensor) and o.requires_grad]
    if leaves and outputs:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)
    if has_gpu():
        torch.cuda.synchronize()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("op")
    parser.add_argument("row")
    given = parser.parse_args()
    from kernelworks import ops  # noqa: F401  fills OPS

    op = OPS[given.op]
    sizes: dict[int, Case] = {}
    for case in op.contract.cases:  # one case of each size, largest first
        sizes.setdefault(_size(op, case), case)
    calls = 0
    for size in sorted(sizes, reverse=True):
        for dtype in (d for d in FLOATS if d in sizes[size].dtypes):
            if calls < MOST_CALLS:
                calls += _call(op, given.row, sizes[size], dtype)
    print(f"{calls} calls of {op.name}.{given.row}")
    return 0 if calls else 1


if __name__ == "__main__":
    sys.exit(main())
