"""What kernels take of a multiprocessor, without a GPU: every case of an op compiled for sm_90 on meta tensors.

    python -m kernelworks.verify.resources OP [--all] [--target sm_80]

Prints each compiled kernel with registers and local bytes a thread (spills show there), and shared memory a block.
``--all`` takes every case; by default the device cases and the bench cases. ``--target``: an entry of ``GPU_TARGETS``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import TensorSpec
from kernelworks.dispatch.meta_arguments import on_meta
from kernelworks.dispatch.op import OPS
from kernelworks.machine.gpu_targets import GPU_TARGETS, HOPPER, GpuTarget, compiled_for
from kernelworks.verify.reference import flat_outputs

__all__ = ["is_declined", "main", "resources"]


def is_declined(op: Any, op_kernel: str, pass_: str, args: Sequence[Any]) -> bool:
    """Whether the kernel would not take this call on a GPU, so that its kernels are never launched for it."""

    def placed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(placed, value))
        return dataclasses.replace(value, device="cuda") if isinstance(value, TensorSpec) else value

    request = op.request(pass_, args)
    on_gpu = dataclasses.replace(request, args={name: placed(value) for name, value in request.args.items()})
    return op.kernel(op_kernel).guard(on_gpu) is not None


def resources(
    op: Any, op_kernel: str, *, everything: bool = False, dtypes: tuple[torch.dtype, ...] = (),
    target: GpuTarget = HOPPER,
) -> list[tuple[str, str, str, dict[str, int]]]:  # fmt: skip
    """(case and dtype, kernel, constants, resources) of all kernels that forward and backward launch, in
    ``dtypes`` or all that a case has, of the calls that the kernel takes on a GPU of ``target``. Runs nothing."""
    triton = importlib.import_module("kernelworks.build.triton")
    with compiled_for(target), triton.without_gpu(target.capability):
        return _of_cases(triton, op, op_kernel, everything, dtypes)


def _of_cases(
    triton: Any, op: Any, op_kernel: str, everything: bool, dtypes: tuple[torch.dtype, ...]
) -> list[tuple[str, str, str, dict[str, int]]]:
    contract, found, seen = op.contract, [], set()
    cases = [*contract.device_cases, *contract.bench_cases, *(contract.cases if everything else ())]
    names = op.passes["forward"].names
    for case in cases:
        for dtype in [d for d in case.dtypes if not dtypes or d in dtypes]:
            given = case.make(torch.Generator().manual_seed(0), dtype)
            args = [on_meta(given.get(name)) for name in names]
            if is_declined(op, op_kernel, "forward", args):
                continue
            with triton.compiling() as compiled:
                outputs = op.kernel(op_kernel).load("forward")(*args)
                if "backward" in op.kernel(op_kernel).passes and case.gradients and contract.differentiable:
                    backward = op.passes["backward"]
                    kept = dict(zip(names, args, strict=True)) | dict(
                        zip(contract.returned_outputs, flat_outputs(outputs), strict=False)
                    )
                    grads = {f"grad_{n}": v for n, v in kept.items() if isinstance(v, Tensor)}
                    have = {**kept, **grads, "needs": [True] * len(backward.returns)}
                    given_back = [have.get(n) for n in backward.names]
                    if not is_declined(op, op_kernel, "backward", given_back):
                        op.kernel(op_kernel).load("backward")(*given_back)
            for made in compiled:
                if made not in seen:
                    seen.add(made)
                    label = f"{case.name} {str(dtype).removeprefix('torch.')}"
                    found.append((label, made.kernel, made.constants, made.resources()))
    return found


def main() -> None:
    from kernelworks import ops  # noqa: F401  fills OPS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("op")
    parser.add_argument("--kernel", default="triton")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--target", choices=list(GPU_TARGETS), default=HOPPER.name)
    args = parser.parse_args()
    target = GPU_TARGETS[args.target]
    for label, kernel, constants, taken in resources(OPS[args.op], args.kernel, everything=args.all, target=target):
        print(f"{label:32s} {kernel:24s} {constants:60s} " + " ".join(f"{k} {v}" for k, v in taken.items()))


if __name__ == "__main__":
    main()
