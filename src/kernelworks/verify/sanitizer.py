"""Small cases of one kernel, plainly called, for a checker that watches the process from outside:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python -m kernelworks.verify.sanitizer OP ROW

Forward and backward of the contract's cases in the dtypes the kernel takes, one of each size, the largest first, and
not many: under a checker a kernel runs tens of times slower. ``--elements`` leaves out what is larger; ``--cases``
names the cases instead, those of the GPU too. Prints every call, so that a run that is cut off says how far it came;
exits with 1 where none was made.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time

import torch
from torch import Tensor

from kernelworks.contract import FLOATS, Case
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import has_gpu
from kernelworks.verify.parity import makes_gradients
from kernelworks.verify.reference import device_of, flat_outputs, to_device

__all__ = ["main", "select_cases"]

MOST_CALLS = 8


@functools.cache
def _size(case: Case) -> int:
    made = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    return sum(t.numel() for t in flat_outputs(list(made.values())) if isinstance(t, Tensor))


def select_cases(op: Op, names: tuple[str, ...] = (), elements: int | None = None) -> list[tuple[Case, torch.dtype]]:
    """The cases called ``names`` in every dtype that they have, or in the one behind an @, in that order; else one of
    each size up to ``elements``, the largest first.

    Raises ValueError for a name that no case has.
    """
    if names:
        named = {case.name: case for case in (*op.contract.cases, *op.contract.device_cases)}
        found = []
        for name in names:
            called, at, only = name.partition("@")
            if called not in named:
                raise ValueError(f"{op.name} has no case {called!r}")
            cases = [(named[called], d) for d in FLOATS if d in named[called].dtypes]
            found += [(case, d) for case, d in cases if not at or str(d) == f"torch.{only}"]
        return found
    sizes: dict[int, Case] = {}
    for case in op.contract.cases:
        sizes.setdefault(_size(case), case)
    kept = [sizes[size] for size in sorted(sizes, reverse=True) if elements is None or size <= elements]
    return [(case, dtype) for case in kept for dtype in FLOATS if dtype in case.dtypes]


def _call(op: Op, kernel: str, case: Case, dtype: torch.dtype) -> bool:
    """One forward, and its backward where there is one. False where the kernel declines.

    Nothing is compared, so that little more runs on the GPU than the kernel itself: the checker watches torch's kernels
    too.
    """
    device, names = device_of(op, kernel), op.passes["forward"].names
    given = case.make(torch.Generator().manual_seed(0), dtype)
    args = [to_device(given.get(name), device) for name in names]
    if op.kernel(kernel).guard(op.request("forward", args)):
        return False
    leaves = []
    wanted = [n for n in op.contract.differentiable if n in names and isinstance(args[names.index(n)], Tensor)]
    if case.gradients and makes_gradients(op, kernel, tuple(args), tuple(wanted)):
        leaves = [args[names.index(n)].requires_grad_() for n in wanted]
    outputs = [o for o in flat_outputs(op(*args, kernel=kernel)) if isinstance(o, Tensor) and o.requires_grad]
    if leaves and outputs:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)
    if has_gpu():
        torch.cuda.synchronize()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("op")
    parser.add_argument("kernel")
    parser.add_argument("--calls", type=int, default=MOST_CALLS, help="at most so many, whatever the cases")
    parser.add_argument("--elements", type=int, help="leaves out cases whose tensors have more elements together")
    parser.add_argument("--cases", default="", help="these alone: NAME or NAME@DTYPE, separated by semicolons")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no call begins later than this")
    given = parser.parse_args()
    from kernelworks import ops  # noqa: F401  fills OPS

    op, last = OPS[given.op], time.monotonic() + given.seconds
    try:
        op.kernel(given.kernel)
        cases = select_cases(op, tuple(filter(None, given.cases.split(";"))), given.elements)
    except ValueError as error:
        parser.error(str(error))
    calls = 0
    for case, dtype in cases:
        begin = time.monotonic()
        if calls >= given.calls:
            break
        if begin > last:
            print(f"out of time at {case.name} {str(dtype).removeprefix('torch.')}")
            break
        if _call(op, given.kernel, case, dtype):
            calls += 1
            taken = time.monotonic() - begin
            print(f"call {calls}: {case.name} {str(dtype).removeprefix('torch.')} {taken:.1f} s", flush=True)
    print(f"{calls} calls of {op.name}.{given.kernel}")
    return 0 if calls else 1


if __name__ == "__main__":
    sys.exit(main())
