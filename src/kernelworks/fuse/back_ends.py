"""What makes the kernel of an expression on a kind of device: C++ on CPUs, Triton on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelworks.build.cpp import SIMD, flags_of, toolchain
from kernelworks.build.kernels import triton_toolchain
from kernelworks.build.sources import hash_of, with_includes
from kernelworks.fuse import cpu_kernel
from kernelworks.fuse.cpp_text import cpp_text
from kernelworks.fuse.expression import Expression
from kernelworks.fuse.trace import FuseError
from kernelworks.fuse.triton_text import FILES

__all__ = ["BackEnd", "back_end_of", "cpu_back_end", "gpu_back_end"]


@dataclass(frozen=True)
class BackEnd:
    """``text``: all that an expression's kernel is made of, and ``function`` that kernel. Expressions with one
    ``common_text`` share a kernel, whatever their sizes. ``sums``: whether it adds up over rows. ``toolchain``: what
    else its result hangs on. ``nanoseconds``: what one thread needs, None if there are no threads to share."""

    target: str
    sums: bool
    text: Callable[[Expression], str]
    common_text: Callable[[Expression], str]
    function: Callable[[Expression], Any]
    toolchain: Callable[[], list[str]]
    nanoseconds: Callable[[Expression], float | None]


def back_end_of(device: str) -> BackEnd:
    """Raises FuseError for a device that has none, BuildError without Triton."""
    if device == "cpu":
        return cpu_back_end()
    if device.startswith("cuda"):
        return gpu_back_end()
    raise FuseError(f"fuse: tensors on {device}; accepted are those of a CPU or a CUDA GPU")


def cpu_back_end() -> BackEnd:
    target, header = cpu_kernel.target_here(), SIMD / cpu_kernel.HEADER
    return BackEnd(
        target, True, cpp_text, cpp_text, lambda e: cpu_kernel.cpu_function(e, target),
        lambda: [toolchain(), str(flags_of(header, target)), hash_of("", with_includes(header, SIMD))],
        cpu_kernel.nanoseconds,
    )  # fmt: skip


def gpu_back_end() -> BackEnd:
    version = triton_toolchain()
    from kernelworks.fuse import gpu_kernel

    return BackEnd(
        "triton", False, gpu_kernel.triton_texts, lambda e: gpu_kernel.triton_texts(e, loops=False),
        gpu_kernel.triton_function, lambda: [version, hash_of("", FILES)], lambda e: None,
    )  # fmt: skip
