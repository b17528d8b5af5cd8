"""``torch.tensor`` of a list of NumPy arrays, which is read number by number."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, line_of_program, replaced_attribute, seconds_of

MAKERS = ("tensor", "as_tensor")


def _stacked(arrays: Any) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.stack(arrays))


class Lists(Watcher):
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.typical: dict[str, Any] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        numpy: Any = sys.modules.get("numpy")
        with contextlib.ExitStack() as stack:
            for name in MAKERS if numpy is not None else ():
                stack.enter_context(replaced_attribute(torch, name, self._timed(getattr(torch, name), numpy)))
            yield

    def _timed(self, make: Any, numpy: Any) -> Any:
        def made(data: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(data, (list, tuple)) or not data or not isinstance(data[0], numpy.ndarray):
                return make(data, *args, **kwargs)
            begun = time.perf_counter()
            found = make(data, *args, **kwargs)
            took, line = time.perf_counter() - begun, line_of_program()
            self.seconds[line] = self.seconds.get(line, 0.0) + took
            self.typical.setdefault(line, data)
            return found

        return made

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        for line, data in self.typical.items():
            factor = seconds_of(torch.tensor, data) / seconds_of(_stacked, data)
            yield SlowPath(
                f"{line}: torch.tensor reads a list of arrays number by number, {factor:.0f}x as long as "
                "torch.from_numpy(numpy.stack(...)) here", self.seconds[line] * (1 - 1 / max(1.0, factor)),
            )  # fmt: skip
