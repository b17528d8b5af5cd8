"""Where the seconds of a compile went, by torch's own clocks, and what was found in inductor's caches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernelworks.diagnose.optimizations.compiler_choices import halting_seconds

__all__ = ["CompilePhases", "phases_told"]


class _Phase(NamedTuple):
    """Seconds of a clock of torch, less those of another that runs within it."""

    says: str
    clock: str
    less: str = ""


HALTING = "halting"
PHASES = (
    _Phase("tracing", "_compile.compile_inner", "OutputGraph.call_user_compiler"),
    _Phase("AOTAutograd", "create_aot_dispatcher_function", "compile_fx.<locals>.fw_compiler_base"),
    _Phase("inductor", "compile_fx_inner", "async_compile.wait"),
    _Phase("waiting for kernels to be built", "async_compile.wait"),
    _Phase("benchmarks of kernels", "CachingAutotuner.benchmark_all_configs"),
    _Phase("until compilers beside stood still for them", HALTING),
)
LEAST_S = 0.1  # of a phase that is told
FOUND, BUILT = "fxgraph_cache_hit", "fxgraph_cache_miss"


class CompilePhases:
    """What torch's compiler has done in this process since this was made."""

    def __init__(self) -> None:
        self._clocks, self._graphs = _clocks(), _graphs()

    def seconds(self) -> dict[str, float]:
        """Of each phase that took some time."""
        now = _clocks()

        def took(clock: str) -> float:
            return now.get(clock, 0.0) - self._clocks.get(clock, 0.0)

        found = {phase.says: took(phase.clock) - (took(phase.less) if phase.less else 0.0) for phase in PHASES}
        return {says: seconds for says, seconds in found.items() if seconds >= LEAST_S}

    def text(self) -> str:
        """For a reader; "" if it has compiled nothing."""
        found, built = (now - was for now, was in zip(_graphs(), self._graphs, strict=True))
        seconds = self.seconds()
        if not seconds and not found + built:
            return ""
        said = ", ".join(f"{took:.1f} s {says}" for says, took in seconds.items()) or "next to nothing"
        return f"compiling took {said}; {found} of {found + built} graphs were in inductor's cache"


@contextlib.contextmanager
def phases_told(say: Callable[[str], None]) -> Iterator[None]:
    """Says what was compiled within, if anything was, though it raised."""
    phases = CompilePhases()
    try:
        yield
    finally:
        if said := phases.text():
            say(said)


def _clocks() -> dict[str, float]:
    from torch._dynamo.utils import compilation_time_metrics  # takes seconds: only if something is compiled

    return {HALTING: sum(halting_seconds)} | {clock: sum(took) for clock, took in compilation_time_metrics.items()}


def _graphs() -> tuple[int, int]:
    from torch._dynamo.utils import counters

    return int(counters["inductor"][FOUND]), int(counters["inductor"][BUILT])
