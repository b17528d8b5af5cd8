"""Attention maps that ``nn.MultiheadAttention`` computes, as it does unless told not to, and that nobody reads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from kernelworks.contract.leaves import leaves
from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, seconds_of

__all__ = ["NEED_WEIGHTS", "Maps", "Unread"]


NEED_WEIGHTS = 5  # its place among the arguments


class Unread:
    """Modules whose maps were made in a run and read by no function of torch's, and did not outlive the run."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[nn.MultiheadAttention, list[Any]]] = {}
        self.read: set[int] = set()
        self.calls: dict[int, int] = {}

    def note_made(self, module: nn.Module, output: Any) -> None:
        if isinstance(module, nn.MultiheadAttention) and isinstance(output, tuple) and isinstance(output[1], Tensor):
            self.made.setdefault(id(module), (module, []))[1].append(weakref.ref(output[1]))
            self.calls[id(module)] = self.calls.get(id(module), 0) + 1

    def note_read(self, args: Any) -> None:
        if not self.made:
            return
        read = {id(t) for t in leaves(args).values()}
        for its, (_, maps) in self.made.items():
            if any(id(alive) in read for alive in (each() for each in maps) if alive is not None):
                self.read.add(its)

    def modules(self) -> list[nn.MultiheadAttention]:
        """After the run: what a name of the program's still holds may be read yet."""
        return [
            module
            for its, (module, maps) in self.made.items()
            if its not in self.read and all(each() is None for each in maps)
        ]


class Maps(Watcher):
    def __init__(self) -> None:
        self.unread = Unread()
        self.typical: dict[int, tuple[Sequence[Any], Mapping[str, Any]]] = {}

    def functions(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if getattr(function, "__name__", "") not in ("__get__", "size", "dim"):
            self.unread.note_read((args, kwargs))

    def modules(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if isinstance(module, nn.MultiheadAttention):
            self.typical.setdefault(id(module), (args, kwargs))

    def outputs(self, module: nn.Module, output: Any) -> None:
        self.unread.note_made(module, output)

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        lost, slow_s, count = 0.0, 0.0, 0
        for module in self.unread.modules():
            args, kwargs = self.typical[id(module)]
            without = {**kwargs, "need_weights": False} if len(args) < NEED_WEIGHTS else None
            if without is None:
                continue
            slow = seconds_of(module, *args, **kwargs)
            fast = seconds_of(module, *args, **without)
            times = self.unread.calls[id(module)]
            lost, slow_s, count = lost + (slow - fast) * times, slow_s + slow * times, count + 1
        if lost > 0:
            modules = "1 nn.MultiheadAttention computes" if count == 1 else f"{count} nn.MultiheadAttention compute"
            yield SlowPath(
                f"{modules} attention maps that nobody reads, {slow_s / (slow_s - lost):.1f}x as long as without here: "
                "call with need_weights=False", lost,
            )  # fmt: skip
