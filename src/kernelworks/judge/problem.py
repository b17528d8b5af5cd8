"""What is judged: a problem and a candidate, as plain data. Nothing of either runs where these are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Candidate", "Misread", "Problem", "Shape"]


class Misread(ValueError):
    """A problem or candidate that is not of its format: names the file and the field, what came, what is accepted."""


@dataclass(frozen=True)
class Shape:
    """One set of sizes at which a problem can be built: ``sizes`` stand in place of its own constants. A wrong answer
    at one that is not ``required`` is a remark: the problem does not promise that a candidate takes it. ``weighted``:
    norms have other weights than the ones and zeros that they begin with."""

    name: str  # "own", "batch_size=3"
    sizes: Mapping[str, int] = field(default_factory=dict)
    required: bool = True
    weighted: bool = False


@dataclass(frozen=True)
class Problem:
    """``files`` are all texts that ``loader`` needs, by relative names; ``loader`` is the module that builds it, in a
    process that runs foreign code; ``entry`` names the reference in them. The first of the ``shapes`` is its own.
    ``tolerance`` is the format's own (atol, rtol), shown beside the derived bound and never used. ``remarks`` say what
    was read in a way that its author may not expect."""

    name: str
    format: str
    files: Mapping[str, str]
    loader: str
    entry: str
    shapes: tuple[Shape, ...]
    device: str = "cpu"
    tolerance: tuple[float, float] | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """``language`` is "torch", "triton", "c++", "cuda" or "python" (operators of its own), as its text says: whether
    it has kernels that can be silenced, and what runs them. ``known``: every word of it is ours, so that it keeps no
    answers of inputs that it has seen."""

    name: str
    files: Mapping[str, str]
    entry: str
    language: str
    known: bool = False
