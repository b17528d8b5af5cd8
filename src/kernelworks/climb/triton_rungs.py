"""A rung in Triton: a Python file with a function that launches. Called on tensors, on a GPU or by the interpreter;
compiled for sm_90 on tensors without memory, also where there is no GPU.

Both come to the same kernel: signature, constants and options are made by the functions that a launch makes them with.
"""

from __future__ import annotations

import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import jit

from kernelworks.build import BuildError
from kernelworks.build.triton import CompiledKernel
from kernelworks.climb.ladder import Rung
from kernelworks.climb.problem import Inputs, Problem, Size
from kernelworks.climb.sass import hot_loop_of
from kernelworks.machine import gpu, has_gpu
from kernelworks.machine.source_module import execute_file

__all__ = ["CompiledLaunch", "TritonLoader", "compile_triton_rung", "rung_function"]

TARGET = GPUTarget("cuda", 90, 32)
MULTIPROCESSORS = 132  # of the GPU that is compiled for; the interpreter's rungs walk with two programs
INTERPRETED_PROGRAMS = 2
_compiling = threading.Lock()  # what a launch does is one function of Triton's
_loaded: dict[tuple[str, int], Any] = {}
_meta: dict[str, dict[str, Tensor]] = {}


@dataclass(frozen=True)
class CompiledLaunch:
    """A kernel that a call of a rung launches, and on what grid."""

    kernel: CompiledKernel
    grid: tuple[int, ...]

    def resources(self) -> dict[str, int]:
        """Registers and local bytes (spills and stack) a thread, shared bytes a block."""
        found = self.kernel.resources()
        return {
            "registers": found["reg"], "local_bytes": found["stack"] + found["local"],
            "shared_bytes": self.kernel.shared_bytes,
        }  # fmt: skip

    def hot_loop(self, *, moving: bool) -> tuple[tuple[str, ...], dict[str, int], str]:
        """As ``sass.hot_loop`` gives it."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.kernel.cubin)
            file.flush()
            return hot_loop_of(Path(file.name), self.kernel.name, moving=moving)


def rung_function(rung: Rung, symbol: str) -> Callable[..., Any]:
    """The function that a rung's file defines. Raises BuildError if the file cannot be loaded or has none."""
    key = (str(rung.path), rung.path.stat().st_mtime_ns)
    if key not in _loaded:
        try:
            module = execute_file(f"rung_{rung.path.stem}", rung.path)
        except Exception as error:
            raise BuildError(f"{rung.path.name}: {type(error).__name__}: {error}") from error
        _loaded[key] = module
    function = getattr(_loaded[key], symbol, None)
    if not callable(function):
        raise BuildError(f"{rung.path.name} defines no function {symbol}")
    return function  # type: ignore[no-any-return]


class TritonLoader:
    """The rungs of one problem as calls."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def call(self, rung: Rung, size: Size, given: Inputs, out: Tensor) -> Callable[[], Tensor]:
        """Launches on whatever stream is current then. Raises BuildError; the call what the rung raises."""
        function = rung_function(rung, self.problem.symbol)
        many = gpu().multiprocessors if has_gpu() else INTERPRETED_PROGRAMS
        arguments = (*given.values(), out, *size.values(), many)

        def run() -> Tensor:
            function(*arguments)
            return out

        return run


def compile_triton_rung(problem: Problem, rung: Rung) -> CompiledLaunch:
    """The kernel that a call at the timed size launches, of several the one with the most code. Raises BuildError.

    Cost: 0.3 to 5 s the first time on a machine."""
    function = rung_function(rung, problem.symbol)
    with _compiling, _collected() as found:
        try:
            function(*_tensors(problem).values(), *problem.size.values(), MULTIPROCESSORS)
        except BuildError:
            raise
        except Exception as error:
            raise BuildError(f"{rung.path.name}: {_reason(error)}") from error
    if not found:
        raise BuildError(f"{rung.path.name}: {problem.symbol} launches no kernel")
    return max(found, key=lambda one: len(one.kernel.cubin))


def _tensors(problem: Problem) -> dict[str, Tensor]:
    """Inputs and output of the timed size, without memory."""
    if problem.title not in _meta:
        made = problem.inputs(problem.size, torch.Generator().manual_seed(0))
        found = {name: value.to("meta") for name, value in made.items()}
        found[problem.output] = torch.empty(problem.shape(problem.size), dtype=problem.dtype, device="meta")
        _meta[problem.title] = found
    return _meta[problem.title]


def _reason(error: BaseException) -> str:
    """What Triton's compiler minds, without the source that it quotes."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(getattr(error, "error_message", None) or error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[-1]}"


@contextmanager
def _collected() -> Iterator[list[CompiledLaunch]]:
    """Launches inside compile their kernel for sm_90 and run nothing."""
    found: list[CompiledLaunch] = []
    kind: Any = jit.JITFunction
    launch = kind.run

    def compiled(self: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        found.append(_compiled(self, given, grid, named))

    kind.run = compiled
    try:
        yield found
    finally:
        kind.run = launch


def _compiled(kernel: Any, given: tuple[Any, ...], grid: Any, named: dict[str, Any]) -> CompiledLaunch:
    named |= {"debug": False, "instrumentation_mode": ""}
    backend = make_backend(TARGET)
    binder = jit.create_function_from_signature(inspect.signature(kernel.fn), kernel.params, backend)
    bound, specialised, options = binder(*given, **named)
    options, signature, constants, attributes = kernel._pack_args(backend, named, bound, specialised, options)
    made: Any = triton.compile(
        ASTSource(kernel, signature, constants, attributes), target=TARGET, options=options.__dict__
    )
    meta = made.metadata
    return CompiledLaunch(
        CompiledKernel(
            kernel=kernel.__name__, constants="", cubin=made.asm["cubin"], name=meta.name, threads=32 * meta.num_warps,
            shared_bytes=meta.shared, clusters=meta.num_ctas, flags=0, scratch_bytes=meta.global_scratch_size,
        ),
        tuple(grid(bound) if callable(grid) else grid),
    )  # fmt: skip
