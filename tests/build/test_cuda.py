"""CUDA C++ kernels where there may be no GPU: every kernel compiles for Hopper, and none spills."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from op_kernels import certified

from kernelworks import ops  # noqa: F401  fills OPS
from kernelworks.build import BuildError, cuda
from kernelworks.contract import Kernel
from kernelworks.dispatch.op import OPS

KERNELS = [
    pytest.param(
        kernel, id=f"{op.name}.{kernel.name}", marks=[pytest.mark.thorough] if certified(op, kernel.name) else []
    )
    for op in OPS.values()
    for kernel in op.kernels
    if kernel.target == "sm_90a"
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_kernel_spills(kernel: Kernel) -> None:
    assert kernel.source is not None
    kernels = cuda.resources(kernel.source)
    assert kernels
    assert {kernel: taken for kernel, taken in kernels.items() if taken["stack"] or taken["local"]} == {}


def test_a_compile_error_says_where(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void f(float* x) { y[0] = 1; }\n')
    with pytest.raises(BuildError, match=r'wrong\.cu.*\n.*wrong\.cu\(1\): error: identifier "y" is undefined'):
        cuda.cubin(source)


def test_a_header_of_ours_enters_the_hash(tmp_path: Path) -> None:
    source, header = tmp_path / "kernel.cu", tmp_path / "part.cuh"
    source.write_text('#include "part.cuh"\n')
    header.write_text("// one\n")
    before = cuda.source_hash(source)
    header.write_text("// two\n")
    cuda.source_hash.cache_clear()
    assert cuda.source_hash(source) != before


def test_a_launch_on_the_cpu_is_refused(tmp_path: Path) -> None:
    kernel = cuda.Kernel(tmp_path / "none.cu", "f", threads=32)
    with pytest.raises(ValueError, match="runs on CUDA tensors, got cpu"):
        kernel((1, 1, 1), torch.ones(1))
