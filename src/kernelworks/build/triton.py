"""Triton kernels, compiled once for each specialisation of their arguments and launched directly.

Triton's own launch looks up, checks and converts in Python (7 to 14 us). Here the compiled function goes through
``launch.cpp`` (about 2 us, most of it the driver's), which keeps the table of specialisations.

Without a GPU a kernel can still be run (``TRITON_INTERPRET=1``, on CPU tensors) and compiled (on meta tensors, for
sm_90): see ``verify.triton_interpreter`` and ``verify.resources``.
"""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernelworks.build.cache import building
from kernelworks.build.configs import Configs, configs
from kernelworks.build.launcher import (
    COOPERATIVE,
    SERIALIZATION,
    TRITON,
    UNKNOWN,
    check_status,
    launch_log,
    launcher,
    load,
    recording,
)

__all__ = [
    "CompiledKernel",
    "Configs",
    "Kernel",
    "Launch",
    "compiling",
    "configs",
    "interpreting",
    "kernel",
    "multiprocessors",
    "recording",
    "without_gpu",
]

WITHOUT_GPU = (9, 0)  # the compute capability that kernels are compiled for on meta tensors
TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "launch_pdl",
    "launch_cooperative_grid",
    "enable_fp_fusion",
)

kernel: Callable[[Any], Any] = triton.jit  # a device function, typed whatever this version of Triton says

_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


def interpreting() -> bool:
    """Whether Triton's interpreter is on, so that kernels run on CPU tensors."""
    return bool(triton.knobs.runtime.interpret)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a device has: the H200's 132 where the kernel is only compiled, 2 when interpreted."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 132 if device.type == "meta" else 2


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled specialisation, as the driver loads it."""

    kernel: str
    constants: str
    cubin: bytes
    name: str
    threads: int
    shared_bytes: int
    clusters: int
    flags: int
    scratch_bytes: int  # of global memory, a block

    def resources(self) -> dict[str, int]:
        """Registers, stack and local bytes a thread (spills show there), as the tool beside Triton's assembler says."""
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            done = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True)
        found = {k.lower(): int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", done.stdout)}
        return {**found, "shared": self.shared_bytes, "threads": self.threads}


_compiled_hooks: list[Callable[[CompiledKernel], None]] = []


@contextmanager
def compiling() -> Iterator[list[CompiledKernel]]:
    """Collects what is compiled inside: kernels that are launched on meta tensors are compiled and not run."""
    found: list[CompiledKernel] = []
    _compiled_hooks.append(found.append)
    try:
        yield found
    finally:
        _compiled_hooks.remove(found.append)


@contextmanager
def without_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Kernels that are launched on meta tensors inside are compiled for this compute capability."""
    global WITHOUT_GPU
    was, WITHOUT_GPU = WITHOUT_GPU, capability
    try:
        yield
    finally:
        WITHOUT_GPU = was


class Kernel:
    """A ``triton.jit`` function. ``at(**constants)`` fixes its constexprs and options; what that returns launches."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._launches: dict[tuple[tuple[str, Any], ...], Launch] = {}

    def at(self, **constants: Any) -> Launch:
        """The launch for these constexprs and options (num_warps, num_stages, ...); made once. Cost: 0.3 us."""
        key = tuple(constants.items())
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = Launch(self, constants)
        return found


class Launch:
    """A kernel with its constants: ``launch((x, y, z), *arguments)`` on the current stream of the arguments' device.

    ``arguments`` are the kernel's parameters that are no constexpr, in order, a tensor first. Raises LaunchError.
    """

    __slots__ = ("_launch", "_lock", "_scratch", "_seen", "constants", "kernel", "site")

    def __init__(self, kernel: Kernel, constants: dict[str, Any]) -> None:
        self.kernel, self.constants = kernel, constants
        self.site = -1
        self._launch: Callable[..., int] | None = None
        self._scratch = 0
        self._seen: dict[Any, CompiledKernel] = {}
        self._lock = threading.Lock()

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        device = arguments[0].get_device()
        if device < 0 or self._launch is None:
            return self._first(grid, device, arguments)
        scratch = None
        if self._scratch:
            blocks = grid[0] * grid[1] * grid[2]
            scratch = torch.empty(self._scratch * blocks, dtype=torch.uint8, device=arguments[0].device)
        status = self._launch(self.site, device, _stream(device), *grid, scratch, *arguments)
        if status:
            return self._missed(status, grid, device, arguments)
        if launch_log.launches is not None:
            launch_log.launches.append((self, grid, arguments))
        return None

    def _first(self, grid: tuple[int, int, int], device: int, arguments: tuple[Any, ...]) -> None:
        """The first launch on a GPU, and every one elsewhere."""
        if device >= 0:
            with self._lock:
                if self._launch is None:
                    self.site = launcher().site()
                    self._launch = launcher().launch
            return self(grid, *arguments)
        if arguments[0].is_meta:
            self.compile_for(arguments, WITHOUT_GPU)
        elif not interpreting():
            raise ValueError(f"{self.kernel.function.__name__} runs on CUDA tensors, got {arguments[0].device}")
        elif all(grid):
            with _disable_current_modes():  # what the interpreter asks of torch is not the caller's doing
                self.kernel.function[grid](*arguments, **self.constants)
        if launch_log.launches is not None:
            launch_log.launches.append((self, grid, arguments))
        return None

    def _missed(self, status: int, grid: tuple[int, int, int], device: int, arguments: tuple[Any, ...]) -> None:
        name = self.kernel.function.__name__
        if status != UNKNOWN:
            check_status(status, f"launching {name} on grid {grid}")
        self._bind(device, arguments)
        self(grid, *arguments)

    def _bind(self, device: int, arguments: tuple[Any, ...]) -> None:
        """Compiles and loads the function for arguments like these."""
        with building(), _disable_current_modes():  # loading asks things of torch that are not the caller's doing
            made = self.compile_for(arguments, torch.cuda.get_device_capability(device))
            function = load(
                made.cubin, made.name, device, threads=made.threads, shared=made.shared_bytes, cluster=made.clusters,
                flags=made.flags,
            )  # fmt: skip
        self._scratch = max(self._scratch, made.scratch_bytes)
        launcher().bind(self.site, function.number, device, *arguments)

    @property
    def scratches(self) -> bool:
        """Whether a launch takes scratch memory of its own."""
        return self._scratch > 0

    def prepare_launch(self, grid: tuple[int, int, int], *arguments: Any) -> Callable[..., None]:
        """This launch with all but its tensors fixed: what is returned takes the tensors alone, in order, of the
        dtypes given here and on the same device. A third less host time than calling the launch."""
        device = arguments[0].get_device()
        fixed = [(isinstance(a, Tensor), None if isinstance(a, Tensor) else a) for a in arguments]  # keeps no tensor

        def merged(*tensors: Tensor) -> None:
            given = iter(tensors)
            self(grid, *(next(given) if comes else a for comes, a in fixed))

        if device < 0:
            return merged
        if self._launch is None:
            with self._lock:
                self.site, self._launch = launcher().site(), launcher().launch
        number = launcher().prepare(self.site, device, *grid, *arguments)
        if number == UNKNOWN:
            self._bind(device, arguments)
            number = launcher().prepare(self.site, device, *grid, *arguments)
        if self._scratch:
            return merged
        relaunch = launcher().relaunch

        def again(*tensors: Tensor) -> None:
            if relaunch(number, _stream(device), *tensors):
                merged(*tensors)

        return again

    def compile_for(self, arguments: Sequence[Any], capability: tuple[int, int]) -> CompiledKernel:
        """This kernel compiled for arguments like these. Cost: 0.1 to 5 s the first time on a machine."""
        names = [p.name for p in self.kernel.function.params]
        plain = {p.name for p in self.kernel.function.params if p.do_not_specialize}  # one build for all their values
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        given = iter(arguments)
        for i, name in enumerate(names):
            if name in self.constants:
                signature[name], constants[(i,)] = "constexpr", self.constants[name]
                continue
            type_, divisible = _specialised(name, next(given))
            signature[name] = type_
            if type_ == "constexpr":
                constants[(i,)] = None
            elif divisible and name not in plain:
                attributes[(i,)] = [["tt.divisibility", 16]]
        options = {k: v for k, v in self.constants.items() if k not in names}
        unknown = [k for k in options if k not in OPTIONS]
        if unknown or next(given, self) is not self:
            raise TypeError(f"{self.kernel.function.__name__} takes {names} and {OPTIONS}, got {unknown or arguments}")
        key = (capability, tuple(signature.items()), tuple(attributes))
        if key not in self._seen:
            self._seen[key] = self._compile(signature, constants, attributes, options, capability)
        for hook in _compiled_hooks:
            hook(self._seen[key])
        return self._seen[key]

    def _compile(
        self, signature: dict[str, str], constants: dict[Any, Any], attributes: dict[Any, Any], options: dict[str, Any],
        capability: tuple[int, int],
    ) -> CompiledKernel:  # fmt: skip
        kind: Any = ASTSource
        if self.kernel.function.is_gluon():  # written in Triton's lower level
            kind = importlib.import_module("triton.experimental.gluon._runtime").GluonASTSource
        source = kind(self.kernel.function, signature, constants, attributes)
        made = triton.compile(source, target=GPUTarget("cuda", 10 * capability[0] + capability[1], 32), options=options)
        meta = made.metadata
        flags = (
            TRITON | (COOPERATIVE if meta.launch_cooperative_grid else 0) | (SERIALIZATION if meta.launch_pdl else 0)
        )
        return CompiledKernel(
            kernel=self.kernel.function.__name__,
            constants=", ".join(f"{k}={v}" for k, v in self.constants.items()),
            cubin=made.asm["cubin"],
            name=meta.name,
            threads=32 * meta.num_warps,
            shared_bytes=meta.shared,
            clusters=meta.num_ctas,
            flags=flags,
            scratch_bytes=meta.global_scratch_size,
        )


def _specialised(name: str, value: Any) -> tuple[str, bool]:
    """Triton's type of an argument, and whether it is known to be divisible by 16; as ``Key`` in launch.cpp has it."""
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}", value.is_meta or value.data_ptr() % 16 == 0
    if value is None:
        return "constexpr", False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{name} must be a tensor, int, float or None, got {type(value).__name__}; flags are constexprs"
        )
    if isinstance(value, float):
        return "fp32", False
    return ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0
