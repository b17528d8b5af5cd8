"""Rows made of C++: one table line names the sources, and gives a row for each instruction set."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernelworks.build.cpp import TARGETS, library, source_hash, toolchain
from kernelworks.contract import Request, Row
from kernelworks.machine import machine

__all__ = ["as_float64", "cpp_rows", "in_float64", "into", "python_row", "threads"]

Launch = Callable[..., Any]
Guard = Callable[[Request], str | None]

# The usual room: one portable source for every instruction set, and the plain one for reading.
SIMD_TARGETS: Mapping[str, str] = {"avx512": "simd.cpp", "avx2": "simd.cpp", "scalar": "scalar.cpp"}

_forked = False
_get_num_threads = torch.get_num_threads


def _after_fork() -> None:
    global _forked
    _forked = True


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def threads() -> int:
    """How many threads a kernel may use: torch's count, and 1 in a forked child, where OpenMP's pool is gone."""
    return 1 if _forked else _get_num_threads()


def cpp_rows(
    room: Path,
    *,
    forward: Launch,
    backward: Launch | None = None,
    targets: Mapping[str, str] = SIMD_TARGETS,
    guards: Mapping[str, Guard] | None = None,
    guard: Guard | None = None,
) -> list[Row]:
    """One row per target, best first in the order of ``targets`` (target name -> source file in ``room``).

    ``forward(library, *args, out=None)`` and ``backward(library, *args, out=None)`` allocate what is not given and
    call the library's functions. ``guard`` holds for every row, ``guards[target]`` for one.
    """
    launches = {"forward": forward} | ({"backward": backward} if backward else {})
    rows = []
    for name, source in targets.items():
        rows.append(
            Row(
                name=name,
                target=name,
                load=functools.partial(_load, room / source, name, launches),
                guard=functools.partial(_decline, name, tuple(g for g in (guard, (guards or {}).get(name)) if g)),
                source=room / source,
                hash=functools.partial(source_hash, room / source, name),
                toolchain=toolchain,
                passes=tuple(launches),
            )
        )
    return rows


def _load(source: Path, target: str, launches: Mapping[str, Launch], pass_: str) -> Callable[..., Any]:
    _watch_forks()
    return functools.partial(launches[pass_], library(source, target))


def _decline(target: str, guards: tuple[Guard, ...], request: Request) -> str | None:
    if request.device != "cpu":
        return f"runs on CPU tensors, got {request.device}"
    missing = TARGETS[target].needs - machine().features
    if missing:
        return f"this CPU has no {', '.join(sorted(missing))}"
    for guard in guards:
        reason = guard(request)
        if reason:
            return reason
    return None


def python_row(name: str, forward: Launch, backward: Launch | None = None, guard: Guard | None = None) -> Row:
    """The ``torch`` row (what the user has today) or the ``reference`` row: plain torch, no certificate needed."""
    launches = {"forward": forward} | ({"backward": backward} if backward else {})
    return Row(
        name=name,
        target=name,
        load=launches.__getitem__,
        guard=guard or (lambda request: None),
        passes=tuple(launches),
    )


def into(result: Any, out: Any) -> Any:
    """``result`` (a tensor or a tuple of them), copied into ``out`` where that is given."""
    if out is None:
        return result
    for target, value in zip(out, result, strict=True) if isinstance(result, tuple) else ((out, result),):
        target.copy_(value)
    return out


def as_float64(value: Any) -> Any:
    """``value`` with every floating-point tensor, also in lists, in float64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return [as_float64(v) for v in value] if isinstance(value, (list, tuple)) else value


def in_float64(reference: Callable[..., tuple[torch.Tensor, ...]]) -> Launch:
    """The ``reference`` row's forward: the contract's definition in float64, rounded once to the first input's dtype.

    One output is returned as a tensor, several as a tuple.
    """

    def forward(first: torch.Tensor, *args: Any, out: Any = None) -> Any:
        outputs = tuple(t.to(first.dtype) for t in reference(*as_float64((first, *args))))
        return into(outputs if len(outputs) > 1 else outputs[0], out)

    return forward
