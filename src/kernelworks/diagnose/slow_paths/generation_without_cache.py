"""Tokens generated without a cache: the model reads the whole text again for each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, line_of_program

LEAST_STEPS = 4


class Prefixes(Watcher):
    def __init__(self) -> None:
        self.last: dict[int, Tensor] = {}
        self.steps: dict[int, list[int]] = {}
        self.lines: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.begun: dict[int, float] = {}
        self.seconds: dict[int, float] = {}
        self.within = 0

    def modules(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.within += 1
        ids = next(
            (a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dtype in (torch.int64, torch.int32)),
            None,
        )
        if self.within > 1 or ids is None or ids.dim() != 2:
            return
        its, before = id(module), self.last.get(id(module))
        grown = before is not None and ids.shape[0] == before.shape[0] and ids.shape[1] == before.shape[1] + 1
        if grown and before is not None and torch.equal(ids[:, :-1], before):
            self.steps.setdefault(its, []).append(ids.shape[1])
            self.begun[its] = time.perf_counter()
            self.lines[its], self.names[its] = line_of_program(), type(module).__name__
        self.last[its] = ids.detach().clone()

    def outputs(self, module: nn.Module, output: Any) -> None:
        self.within -= 1
        begun = self.begun.pop(id(module), None)
        if begun is not None and not self.within:
            self.seconds[id(module)] = self.seconds.get(id(module), 0.0) + time.perf_counter() - begun

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        for its, lengths in self.steps.items():
            if len(lengths) < LEAST_STEPS:
                continue
            again = sum(lengths) / len(lengths)
            seconds = self.seconds.get(its, 0.0)
            yield SlowPath(
                f"{self.lines[its]}: {self.names[its]} generates without a cache: each of {len(lengths)} "
                f"steps reads {again:.0f} tokens again for one new one, {min(1.0, seconds / wall_s):.0%} of the time: "
                "keep keys and values (use_cache=True)", seconds * (1 - 1 / again),
            )  # fmt: skip
