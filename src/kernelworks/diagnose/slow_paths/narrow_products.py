"""Products in a 16-bit type that this CPU multiplies slower than float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, line_of_program, seconds_of

PRODUCTS = {
    functional.linear, torch.matmul, torch.mm, torch.bmm, torch.addmm, Tensor.matmul, Tensor.__matmul__, Tensor.mm,
    Tensor.bmm, functional.conv1d, functional.conv2d, torch.conv1d, torch.conv2d,
}  # fmt: skip
NARROW = (torch.float16, torch.bfloat16)
SLOWER = 1.5  # times as long as float32
MOST_ELEMENTS = 1 << 22  # of an argument that is timed


class Products(Watcher):
    def __init__(self) -> None:
        self.calls: dict[tuple[Any, ...], int] = {}
        self.typical: dict[tuple[Any, ...], tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]] = {}

    def functions(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if function not in PRODUCTS or len(args) < 2 or not isinstance(args[0], Tensor):
            return
        first = args[0]
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else first.dtype
        if first.device.type != "cpu" or dtype not in NARROW:
            return
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if max(t.numel() for t in tensors) > MOST_ELEMENTS:
            return
        key = (function, dtype, *(tuple(t.shape) for t in tensors))
        self.calls[key] = self.calls.get(key, 0) + 1
        if key not in self.typical:
            narrow = [a.detach().to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            self.typical[key] = function, narrow, {"line": line_of_program(), **kwargs}

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        lost: dict[torch.dtype, float] = {}
        narrow_s: dict[torch.dtype, float] = {}
        lines: dict[torch.dtype, str] = {}
        for key in sorted(self.calls, key=lambda k: -self.calls[k])[:8]:
            function, args, kwargs = self.typical[key]
            kwargs = {n: v.to(key[1]) if isinstance(v, Tensor) else v for n, v in kwargs.items() if n != "line"}
            slow = seconds_of(function, *args, **kwargs)
            wide = [a.float() if isinstance(a, Tensor) else a for a in args]
            wide_kwargs = {n: v.float() if isinstance(v, Tensor) else v for n, v in kwargs.items()}
            fast = seconds_of(function, *wide, **wide_kwargs)
            lost[key[1]] = lost.get(key[1], 0.0) + (slow - fast) * self.calls[key]
            narrow_s[key[1]] = narrow_s.get(key[1], 0.0) + slow * self.calls[key]
            lines.setdefault(key[1], self.typical[key][2]["line"])
        for dtype, seconds in lost.items():
            factor = narrow_s[dtype] / max(narrow_s[dtype] - seconds, 1e-12)
            if factor > SLOWER:
                name = str(dtype).removeprefix("torch.")
                where = f"{lines[dtype]}: " if lines[dtype] else ""
                yield SlowPath(
                    f"{where}{name} products take {factor:.1f}x as long as float32 ones here: this CPU has no unit for "
                    "them that is faster; keep float32 on it", seconds,
                )  # fmt: skip
