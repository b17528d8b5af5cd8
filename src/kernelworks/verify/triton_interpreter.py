"""Kernels in Triton tried without a GPU: its interpreter runs their kernels on CPU tensors, against float64.

    TRITON_INTERPRET=1 python -m kernelworks.verify.triton_interpreter OP [--kernel ROW] [--case NAME] [--dtype float32]

The contract's small cases, forward in every layout with guarded buffers, and backward. It verifies nothing about the
GPU: no certificate is written. A program instance takes milliseconds, so cases with many kernels are slow.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from typing import Any

import torch

from kernelworks.contract import Case
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import environment
from kernelworks.verify.parity import parities
from kernelworks.verify.reference import flat_outputs

__all__ = ["failures", "main"]


def _round_as_a_gpu() -> None:
    """The interpreter cuts float32 off where it should round to bfloat16, loses some subnormals, and multiplies
    matrices of bfloat16 as the integers that it keeps them in."""
    importlib.import_module("kernelworks.build.triton_interpreter_costs").cut_costs()
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    types: Any = importlib.import_module("triton.language")
    cut = interpreter._convert_float

    def convert(value: Any, from_: Any, to: Any, mode: Any) -> Any:
        if (from_, to) == (types.float32, types.bfloat16):
            rounded = torch.tensor(value).to(torch.bfloat16)
            return rounded.view(torch.int16).numpy().view("uint16")
        if (from_, to) == (types.bfloat16, types.float32):
            return torch.tensor(value.view("int16")).view(torch.bfloat16).float().numpy().view("uint32")
        return cut(value, from_, to, mode)

    def dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        wide = [
            interpreter.TensorHandle(convert(x.data, x.dtype, types.float32, None).view("float32"), types.float32)
            if x.dtype.scalar == types.bfloat16
            else x
            for x in (a, b)
        ]
        return narrow_dot(self, *wide, *more)

    interpreter._convert_float = convert
    narrow_dot = interpreter.InterpreterBuilder.create_dot
    interpreter.InterpreterBuilder.create_dot = dot


def _elements(op: Op, case: Case) -> int:
    made = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    return sum(t.numel() for t in flat_outputs(list(made.values())) if isinstance(t, torch.Tensor))


def failures(
    op: Op, kernel: str, case: str | None = None, dtypes: str | None = None, most: int | None = None
) -> tuple[int, list[str]]:
    """How many cases were tried, and a line for each that failed. ``most`` elements a case; ``dtypes`` with commas."""
    tried, wrong = 0, []
    for found in op.contract.cases:
        if (case is not None and found.name != case) or (most is not None and _elements(op, found) > most):
            continue
        for kind in found.dtypes:
            if dtypes is not None and str(kind).removeprefix("torch.") not in dtypes.split(","):
                continue
            for parity in parities(op, kernel, found, kind):
                tried += 1
                if not parity.ok:
                    wrong.append(
                        f"{parity.op}.{parity.kernel} {parity.pass_} {parity.case} {parity.dtype}: {parity.message}"
                    )
    return tried, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("op")
    parser.add_argument("--kernel", default="triton")
    parser.add_argument("--case")
    parser.add_argument("--dtype", help="one, or several with commas between")
    parser.add_argument("--most", type=int, help="only cases with at most this many elements")
    args = parser.parse_args()
    if not environment.is_interpreting():
        print("set TRITON_INTERPRET=1", file=sys.stderr)
        return 2
    from kernelworks import ops  # noqa: F401  fills OPS

    _round_as_a_gpu()
    begin = time.perf_counter()
    tried, wrong = failures(OPS[args.op], args.kernel, args.case, args.dtype, args.most)
    for line in wrong:
        print(line)
    print(f"{args.op}.{args.kernel}: {tried} cases, {len(wrong)} wrong, {time.perf_counter() - begin:.0f} s")
    return 1 if wrong or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
