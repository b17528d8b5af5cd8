"""What the compiler made of a rung, without running it: also where there is no GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.build import BuildError, cpp, cuda
from kernelworks.climb.assembly import inner_loop
from kernelworks.climb.ladder import Ladder, Rung
from kernelworks.climb.problem import Problem
from kernelworks.climb.registers import one_pass
from kernelworks.climb.residency import resident_blocks
from kernelworks.climb.sass import hot_loop, usage

__all__ = ["CompiledRung", "build_rung", "compile_rung"]


@dataclass(frozen=True)
class CompiledRung:
    rung: int
    error: str = ""
    resources: dict[str, int] = field(default_factory=dict)  # of a GPU: as in a climb's record
    instructions: dict[str, int] = field(default_factory=dict)
    loop: int = 0  # instructions of the hot loop
    note: str = ""


def build_rung(problem: Problem, rung: Rung) -> None:
    """Compiles it in whatever language it is. Raises BuildError."""
    if rung.language == "cpp":
        cpp.build_library(rung.path, rung.target)
    elif rung.language == "cu":
        cuda.build_cubin(rung.path)
    else:
        from kernelworks.climb.triton_rungs import compile_triton_rung

        compile_triton_rung(problem, rung)


def compile_rung(ladder: Ladder, rung: Rung) -> CompiledRung:
    if rung.language == "py":
        return _compile_in_triton(ladder, rung)
    try:
        if rung.launch is None:
            return CompiledRung(rung.number, loop=len(inner_loop(cpp.build_library(rung.path, rung.target))))
        cuda.build_cubin(rung.path)
    except BuildError as error:
        return CompiledRung(rung.number, error=str(error))
    taken, _ = usage(rung.path, ladder.problem.symbol)
    if taken is not None and taken["local_bytes"] > rung.spills:
        wrong = f"{taken['local_bytes']} bytes a thread spill to local memory; its header allows {rung.spills}"
        return CompiledRung(rung.number, error=wrong, resources=taken)
    if taken is not None:
        taken["shared_bytes"] += rung.launch.shared
        if not resident_blocks(rung.launch.threads, taken["registers"], taken["shared_bytes"]):
            wrong = f"no multiprocessor holds a block of {rung.launch.threads} threads of it"
            return CompiledRung(rung.number, error=wrong, resources=taken)
    loop, instructions, why = hot_loop(rung.path, ladder.problem.symbol, moving=ladder.problem.unit == "GB/s")
    return CompiledRung(rung.number, "", (taken or {}) | one_pass(loop), instructions, len(loop), why)


def _compile_in_triton(ladder: Ladder, rung: Rung) -> CompiledRung:
    from kernelworks.climb.triton_rungs import compile_triton_rung

    try:
        made = compile_triton_rung(ladder.problem, rung)
    except BuildError as error:
        return CompiledRung(rung.number, error=str(error))
    taken = made.resources()
    if taken["local_bytes"] > rung.spills:
        wrong = f"{taken['local_bytes']} bytes a thread spill to local memory; its header allows {rung.spills}"
        return CompiledRung(rung.number, error=wrong, resources=taken)
    loop, instructions, why = made.hot_loop(moving=ladder.problem.unit == "GB/s")
    return CompiledRung(rung.number, "", taken | one_pass(loop), instructions, len(loop), why)
