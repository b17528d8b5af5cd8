"""What inductor chooses by times as it compiles: they are taken while nothing works beside, or not at all.

Of a Triton kernel it compiles several configurations and times them at the kernel's first call. Before it pads a matrix
product to an aligned size, on a GPU, it times both. With tuned kernels it times templates of products too. It keeps
what it chose on disk. A choice among times that others disturbed would stay for good.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from kernelworks.measure.clock.work_beside import timed_section

__all__ = ["choosing_nothing", "choosing_undisturbed", "halting_seconds"]

WAITS_S = 20.0  # a process that compiles beside others, for what one that measures has chosen, in all
LOOKS_EACH_S = 0.2
halting_seconds: list[float] = []  # that this process waited until others stood, before each of inductor's benchmarks


@contextlib.contextmanager
def choosing_undisturbed() -> Iterator[None]:
    """Within, inductor's own benchmarks count as timed."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.triton_heuristics import (
        CachingAutotuner,  # takes seconds: only if something is compiled
    )
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    def alone(was: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(was)
        def benchmark(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            with timed_section():
                halting_seconds.append(time.perf_counter() - begin)
                return was(*args, **kwargs)

        return benchmark

    with (
        _replaced(CachingAutotuner, "autotune_to_one_config", alone),
        _replaced(AlgorithmSelectorCache, "benchmark", alone),
        _replaced(pad_mm, "get_do_bench", lambda was: lambda: alone(was())),
        _built_whole(),
    ):
        yield


@contextlib.contextmanager
def choosing_nothing() -> Iterator[None]:
    """Within, the first configuration of a kernel is called, without a benchmark, and no choice is kept: for a process
    that compiles beside others. Whether a product is padded is part of what inductor keeps of a graph: where the
    process that measures has not chosen that after ``WAITS_S`` there is a ``RuntimeError``."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.autotune_cache import AutotuneCache
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def first(was: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tuner, *args, **kwargs: {each: float(n) for n, each in enumerate(tuner.launchers)}

    def nothing(was: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(was)  # a kernel is kept with its graph, and names what saves its choice
        def saves(*args: Any, **kwargs: Any) -> None:
            return None

        return saves

    waits = _Waits()

    with (
        _replaced(CachingAutotuner, "benchmark_all_configs", first),
        _replaced(AutotuneCache, "save", nothing),
        _replaced(pad_mm, "get_cached_should_pad", waits.until_known),
        _replaced(pad_mm, "get_do_bench", lambda was: lambda: _not_timed),
        _built_whole(),
    ):
        yield


def _not_timed(*_: Any, **__: Any) -> float:
    raise RuntimeError("whether it pads a product is chosen by times, and is not chosen yet")


class _Waits:
    """A process's waits for choices of another one: ``WAITS_S`` in all."""

    def __init__(self) -> None:
        self.left_s = WAITS_S

    def until_known(self, was: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(was)
        def look(*args: Any) -> Any:
            while (found := was(*args)) is None and self.left_s > 0:
                time.sleep(LOOKS_EACH_S)
                self.left_s -= LOOKS_EACH_S
            return found

        return look


@contextlib.contextmanager
def _built_whole() -> Iterator[None]:
    """Within, what inductor builds of C++ has its name once it is whole: inductor takes what has the name for whole,
    and a linker that is ended with its process would leave a part of a library in the user's cache for good."""
    from torch._inductor.cpp_builder import CppBuilder

    def whole(was: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(was)
        def build(self: Any) -> Any:
            target, output = getattr(self, "_target_file", ""), getattr(self, "_output", "")
            part = f"{target}.{os.getpid()}"
            if not target or not output.endswith(target):  # named in another way: a relative one, or of another torch
                return was(self)
            self._output = output.removesuffix(target) + part
            try:
                found = was(self)
                os.replace(part, target)
            finally:
                self._output = output
                with contextlib.suppress(OSError):
                    os.unlink(part)
            return found

        return build

    with _replaced(CppBuilder, "build", whole):
        yield


@contextlib.contextmanager
def _replaced(
    kind: type | ModuleType, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """A method or a function, as it is named in the versions of torch that have it."""
    was = kind.__dict__.get(name)
    if was is None:
        yield
        return
    setattr(kind, name, make(was))
    try:
        yield
    finally:
        setattr(kind, name, was)
