"""Numbers below the least normal one, on which arithmetic takes many times as long on many CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, line_of_program, seconds_of

SAMPLE = 4096  # elements of a result that are looked at
SHARE = 0.01  # of them, from which on they count
SLOWER = 1.3


class Denormals(Watcher):
    def __init__(self) -> None:
        self.elements, self.line, self.typical = 0, "", torch.zeros(0, device="cpu")
        self.given: set[int] = set()  # the memory of the function's arguments

    def functions(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.given = {_memory(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)}

    def results(self, function: Callable[..., Any], result: Any) -> None:
        if (
            not _computes(function, result, self.given)
            or not isinstance(result, Tensor)
            or result.dtype is not torch.float32
            or result.device.type != "cpu"
        ):
            return
        if result.numel() < SAMPLE or result.layout is not torch.strided or not result.is_contiguous():
            return
        with torch._C.DisableTorchFunction():
            some = result.detach().view(-1)[:: result.numel() // SAMPLE][:SAMPLE]
            tiny = (some != 0) & (some.abs() < torch.finfo(torch.float32).tiny)
            if float(tiny.float().mean()) < SHARE:
                return
            self.elements += result.numel()
            if not self.line:
                self.line, self.typical = line_of_program() or "the program", some.clone()

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        if not self.elements:
            return
        tiny = self.typical.repeat(64)
        plain = torch.rand_like(tiny) + 0.5
        slow, fast = (seconds_of(torch.mul, values, 0.75) for values in (tiny, plain))
        if slow > SLOWER * fast:
            yield SlowPath(
                f"{self.line}: results hold denormal numbers, on which arithmetic takes {slow / fast:.1f}x as long "
                "here: torch.set_flush_denormal(True) makes them 0",
                (slow - fast) / tiny.numel() * self.elements,
            )  # fmt: skip


def _memory(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _computes(function: Callable[..., Any], result: Any, given: set[int]) -> bool:
    """Whether it writes what it returns. A view writes nothing, and memory that nobody has written yet holds anything:
    ``torch.empty`` of a layer's weights is full of denormal numbers."""
    name = getattr(function, "__name__", "")
    if "empty" in name or not isinstance(result, Tensor):
        return False
    in_place = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
    return in_place or _memory(result) not in given
