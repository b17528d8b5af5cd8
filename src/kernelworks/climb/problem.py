"""What a ladder climbs: one computation with its float64 reference, its bound, its cost and the peers to race."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["Peer", "Problem", "Size", "problem_of"]

Size = dict[str, int]
Given = dict[str, Tensor]
Peer = Callable[[Given, int], Callable[[], Tensor] | None]  # prepares the call for inputs and threads; None declines


@dataclass(frozen=True)
class Problem:
    """One computation. A rung exports ``symbol`` with C linkage and the ctypes ``signature``, and fills one output.

    ``size`` is what is timed, ``proof_sizes`` what is tried before (odd sizes, edges of tiles). ``inputs(size,
    generator)`` makes the tensors; ``reference`` takes them in float64; ``bound(exact, reference)`` is the largest
    error allowed, elementwise, derived and not chosen. ``flop`` and ``bytes`` are of one call, bytes compulsory ones.
    ``arguments(size, given, out, threads)`` are those of a rung's function. ``rows`` names the dimension of which slow
    rungs are timed on a part (the work of one row is that of every other). ``lessons`` is the file of the library
    that took the last rung's ideas.
    """

    title: str
    symbol: str
    signature: tuple[Any, ...]
    size: Size
    proof_sizes: tuple[Size, ...]
    inputs: Callable[[Size, torch.Generator], Given]
    shape: Callable[[Size], tuple[int, ...]]
    reference: Callable[[Given], Tensor]
    bound: Callable[[Given, Tensor], Tensor]
    flop: Callable[[Size], float]
    bytes: Callable[[Size], float]
    arguments: Callable[[Size, Given, Tensor, int], tuple[Any, ...]]
    peers: dict[str, Peer] = field(default_factory=dict)
    rows: str = ""
    lessons: str = ""


def problem_of(folder: Path) -> Problem:
    """The ``PROBLEM`` in a ladder's ``problem.py``. Raises ValueError where there is none."""
    path = folder / "problem.py"
    if not path.is_file():
        raise ValueError(f"{folder} is no ladder: it has no problem.py")
    found = runpy.run_path(str(path)).get("PROBLEM")
    if not isinstance(found, Problem):
        raise ValueError(f"{path} defines no PROBLEM of kernelworks.climb.problem.Problem")
    return found
