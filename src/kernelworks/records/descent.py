"""What a program spends its time in, from the module down to the loop of machine code, of a CPU or of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.records.base import Record

__all__ = ["Descent", "DeviceKernel", "DeviceLoop", "FunctionTime", "HotLoop", "LoopCounts", "OperatorTime"]


@dataclass(frozen=True)
class LoopCounts:
    """One pass over the instructions of a loop."""

    instructions: int
    loads: int  # memory operands that are read, but for the stack's
    stores: int
    spills: int  # registers written to the stack, for want of registers
    reloads: int
    multiply_adds: int  # instructions, dot products among them
    other_arithmetic: int  # floating-point additions, multiplications, divisions, minima, maxima and roots
    gathers: int
    calls: int  # of other functions
    flop: float  # of all lanes
    vector_bits: int  # of the widest register that is used as a vector; 0 if there is none


@dataclass(frozen=True)
class HotLoop:
    """The innermost loop with the most samples of its function. Each line is an instruction with its samples."""

    share: float  # of the function's samples
    counts: LoopCounts
    lines: tuple[tuple[str, int], ...] = ()
    explained: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionTime:
    """A function of machine code that an operator's threads ran."""

    name: str  # as its author wrote it; "" if no symbol is known
    file: str  # the library's name; "" for code that was made while the program ran
    share: float  # of the operator's samples
    waits: bool = False  # for other threads: a barrier of OpenMP
    loop: HotLoop | None = None


@dataclass(frozen=True)
class DeviceLoop:
    """The hot loop of a GPU's kernel, told by its instructions: a trace holds no samples. ``lines``: each instruction
    with what it is there for."""

    whole: bool  # there is no loop: the whole kernel
    kernel_instructions: int
    counts: dict[str, int]  # by what they are there for
    lines: tuple[tuple[str, str], ...] = ()
    explained: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel that a GPU ran for an operator."""

    name: str
    maker: str  # "kernelworks", "inductor", "cuBLAS", "torch", ...
    runs: int
    seconds: float
    share: float  # of the operator's time on the GPU
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0  # a thread; 0 where the trace does not say
    shared_bytes: int = 0  # a block
    said: tuple[str, ...] = ()  # what its name and its launch tell
    source: str = ""  # the file that it was written in
    code: str = ""  # "recorded" or "compiled here"; "" if its code is not at hand
    ir: dict[str, int] = field(default_factory=dict)  # operations of Triton's IR
    ptx: dict[str, int] = field(default_factory=dict)
    loop: DeviceLoop | None = None


@dataclass(frozen=True)
class OperatorTime:
    """Calls of one operator from one place in the program. Times in seconds of one run."""

    operator: str  # "aten::addmm", "kernelworks::softmax"
    module: str  # dotted path in the model, equal layers folded
    source: str  # "file.py:123"
    code: str  # that line
    shapes: str
    calls: int  # in one run
    seconds: float  # wall clock under the profiler
    share: float  # of the run
    op: str  # of kernelworks, that computes the same; "" if there is none
    capability: str  # the instruction set that torch's own kernels were chosen for: "AVX512"
    kernel: str  # that the dispatcher took; "" if the operator is none of kernelworks'
    because: str
    declined: tuple[tuple[str, str], ...]
    kernel_source: str  # the file of the kernel's source, inside the package
    flop: float | None  # of all calls; None if nothing says how much work it is
    bytes: float | None
    bound_s: float | None  # at this machine's measured peaks; None without them
    bottleneck: str
    peak: str
    samples: int
    functions: tuple[FunctionTime, ...] = field(default_factory=tuple)
    kernels: tuple[DeviceKernel, ...] = ()  # that a GPU ran
    host_s: float = 0.0  # of the thread that called it, if a GPU did the work


@dataclass(frozen=True)
class Descent(Record):
    """``operators`` are those with the most time, of ``whole`` distinct ones."""

    program: str
    machine: str
    wall_s: float  # of one run under the profiler
    runs: int
    samples: int
    period_ms: float  # of CPU time between two samples; 0 of a trace
    operators: tuple[OperatorTime, ...]
    whole: int
    notes: tuple[str, ...] = ()
