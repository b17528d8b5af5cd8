"""A CUDA rung as a call: compiled by NVRTC, loaded once, its parameters put together as its header asks. Whoever
launches rungs asks ``rung_loader``, which knows those in Triton too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from kernelworks.build.cuda import cubin, tensor_map
from kernelworks.build.launcher import SERIALIZATION, LoadedFunction, check_status, launcher, load
from kernelworks.climb.ladder import Rung
from kernelworks.climb.problem import Inputs, Problem, Size
from kernelworks.machine import gpu

__all__ = ["RungCaller", "RungLoader", "rung_loader"]

TENSOR_MAP_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


class RungLoader:
    """The rungs of one problem on the current GPU."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.device = problem, torch.cuda.current_device()
        self.loaded: dict[int, LoadedFunction] = {}
        self.scratch: dict[int, Tensor] = {}

    def of(self, rung: Rung) -> LoadedFunction:
        """Raises BuildError, LaunchError."""
        if rung.number not in self.loaded:
            assert rung.launch is not None  # rung_of asks for it
            ask = rung.launch
            self.loaded[rung.number] = load(
                cubin(rung.path), self.problem.symbol, self.device, threads=ask.threads, shared=ask.shared,
                cluster=ask.cluster, flags=SERIALIZATION if ask.early else 0,
            )  # fmt: skip
            if ask.workspace:
                self.scratch[rung.number] = torch.zeros(ask.workspace, dtype=torch.uint8, device="cuda")
        return self.loaded[rung.number]

    def grid(self, rung: Rung, size: Size) -> tuple[int, int, int]:
        assert rung.launch is not None
        return rung.launch.blocks((self.problem.tiled or self.problem.shape)(size), gpu().multiprocessors)

    def call(self, rung: Rung, size: Size, given: Inputs, out: Tensor) -> Callable[[], Tensor]:
        """Launches on whatever stream is current then. Raises BuildError, LaunchError, ValueError."""
        number, grid = self.of(rung).number, self.grid(rung, size)
        operands = {**given, self.problem.output: out}
        unknown = rung.maps.keys() - operands.keys()
        if unknown:
            raise ValueError(f"{rung.path.name}: maps speaks of {', '.join(unknown)}; there are {', '.join(operands)}")
        arguments: list[Any] = [
            _map(value, *rung.maps[name]) if name in rung.maps else value for name, value in operands.items()
        ]
        arguments += [*size.values(), *([self.scratch[rung.number]] if rung.number in self.scratch else [])]
        launch, device, what = launcher().launch_function, self.device, f"launching {rung.path.name} on grid {grid}"

        def run() -> Tensor:
            check_status(launch(number, device, _stream(device), *grid, *arguments), what)
            return out

        return run


class RungCaller(Protocol):
    def call(self, rung: Rung, size: Size, given: Inputs, out: Tensor) -> Callable[[], Tensor]: ...


def rung_loader(problem: Problem) -> RungCaller:
    if problem.language == "triton":
        from kernelworks.climb.triton_rungs import TritonLoader

        return TritonLoader(problem)
    return RungLoader(problem)


def _map(value: Tensor, rows: int, columns: int) -> Tensor:
    """Raises ValueError for what cannot be copied in bulk."""
    if value.dtype not in TENSOR_MAP_DTYPES or not value.is_contiguous():
        raise ValueError(f"maps are for contiguous tensors of {', '.join(map(str, TENSOR_MAP_DTYPES))}")
    height, width = math.prod(value.shape[:-1]), value.shape[-1]
    return tensor_map(value, height, width, width, rows, columns)
