"""What a ladder climbs: one computation with its float64 reference, its bound, its cost and its baselines."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["Baseline", "Format", "Inputs", "Problem", "Size", "problem_of"]

Size = dict[str, int]
Inputs = dict[str, Tensor]
Baseline = Callable[
    [Inputs, int], Callable[[], Tensor] | None
]  # prepares the call for inputs and threads; None declines
Arguments = Callable[[Size, Inputs, Tensor, int], tuple[Any, ...]]
UNITS = ("GFLOP/s", "GB/s")


@dataclass(frozen=True)
class Format:
    """How some rungs take their inputs: bfloat16, blocks of 8-bit integers. Named by a rung's header.

    ``encode`` makes from the problem's inputs what the rung receives; ``exact`` makes from what it receives the float64
    inputs of the problem's reference, so that a rung answers for its arithmetic and not for the rounding of its inputs.
    What is None is the problem's own. ``baselines`` get what the rung gets.
    """

    encode: Callable[[Inputs], Inputs]
    exact: Callable[[Inputs], Inputs]
    bound: Callable[[Inputs, Tensor], Tensor] | None = None
    bytes: Callable[[Size], float] | None = None
    baselines: dict[str, Baseline] | None = None
    signature: tuple[Any, ...] | None = None
    arguments: Arguments | None = None


@dataclass(frozen=True)
class Problem:
    """One computation. A rung exports ``symbol`` with C linkage and fills one output.

    ``size`` is what is timed, ``verification_sizes`` what is tried before (odd sizes, edges of tiles), ``also`` further
    sizes that only the last rung is verified and timed at. ``inputs(size, generator)`` makes the tensors, on the
    generator's device; ``reference`` takes them in float64; ``bound(exact, reference)`` is the largest error allowed,
    elementwise, derived and not chosen. ``flop`` and ``bytes`` are of one call, bytes compulsory ones. ``unit`` says
    which of the two is the rate: "GFLOP/s" against multiply-adds of ``arithmetic``, or "GB/s" against reads of memory.

    On the CPU a rung has the ctypes ``signature`` and gets ``arguments(size, given, out, threads)``; ``rows`` names
    the dimension of which slow rungs are timed on a part (the work of one row is that of every other). On a GPU
    (``device="cuda"``) its parameters are the inputs in their order, the output, each value of the size as long long,
    and scratch if its header asks for some; ``output`` is the output's name where a header speaks of it. ``tiled``
    gives the shape that a launch's tiles divide, where that is not the output's: of the inputs, where much becomes
    little. With ``language="triton"`` a rung is a Python file, and ``symbol`` a function of it, which launches: its
    parameters are the inputs in their order, the output, each value of the size, and the number of multiprocessors.

    ``formats`` by name, for rungs that take their inputs in another one. ``baselines`` by name, torch's
    default first; ``said`` says in words what each is. ``lessons`` is the file of the library that took the last rung's
    ideas.
    """

    title: str
    symbol: str
    size: Size
    verification_sizes: tuple[Size, ...]
    inputs: Callable[[Size, torch.Generator], Inputs]
    shape: Callable[[Size], tuple[int, ...]]
    reference: Callable[[Inputs], Tensor]
    bound: Callable[[Inputs, Tensor], Tensor]
    flop: Callable[[Size], float]
    bytes: Callable[[Size], float]
    signature: tuple[Any, ...] = ()
    arguments: Arguments | None = None
    baselines: dict[str, Baseline] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    rows: str = ""
    lessons: str = ""
    device: str = "cpu"
    language: str = ""  # "triton"; else C++, and CUDA C++ on a GPU
    dtype: torch.dtype = torch.float32  # of the output
    output: str = "C"
    tiled: Callable[[Size], tuple[int, ...]] | None = None
    unit: str = "GFLOP/s"
    arithmetic: str = "float32"
    also: tuple[Size, ...] = ()
    formats: dict[str, Format] = field(default_factory=dict)

    def encode_inputs(self, name: str, given: Inputs) -> Inputs:
        """What a rung of this format receives."""
        return self.formats[name].encode(given) if name else given

    def exact_inputs(self, name: str, received: Inputs) -> Inputs:
        """What it received, in float64."""
        return self.formats[name].exact(received) if name else {n: value.double() for n, value in received.items()}

    def bound_of(self, name: str) -> Callable[[Inputs, Tensor], Tensor]:
        return (self.formats[name].bound if name else None) or self.bound

    def baselines_of(self, name: str) -> dict[str, Baseline]:
        found = self.formats[name].baselines if name else None
        return self.baselines if found is None else found

    def work(self, name: str, size: Size) -> float:
        """10^9 of what ``unit`` counts, in one call."""
        if self.unit == "GFLOP/s":
            return self.flop(size) / 1e9
        return ((self.formats[name].bytes if name else None) or self.bytes)(size) / 1e9


def problem_of(folder: Path) -> Problem:
    """The ``PROBLEM`` in a ladder's ``problem.py``. Raises ValueError if there is none of use."""
    path = folder / "problem.py"
    if not path.is_file():
        raise ValueError(f"{folder} is no ladder: it has no problem.py")
    found = runpy.run_path(str(path)).get("PROBLEM")
    if not isinstance(found, Problem):
        raise ValueError(f"{path} defines no PROBLEM of kernelworks.climb.problem.Problem")
    if found.unit not in UNITS or found.device not in ("cpu", "cuda"):
        raise ValueError(f"{path}: unit must be one of {', '.join(UNITS)} and device cpu or cuda")
    if found.language not in ("", "triton") or (found.language and found.device != "cuda"):
        raise ValueError(f'{path}: language must be "triton", of the device cuda, or left out')
    if found.device == "cpu" and (found.arguments is None or not found.signature):
        raise ValueError(f"{path}: on the CPU a problem needs a signature and arguments")
    return found
