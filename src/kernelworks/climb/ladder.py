"""Ladders on disk: ``ladders/<name>/problem.py`` and ``NN_idea.cpp``, ``NN_idea.cu`` or, in Triton, ``NN_idea.py``, one
idea a rung, each with a header that says what it tests and what it expects before anything is measured.

A header is the first lines of the file, ``// key: text`` (``# key: text`` in Python), longer texts continued on lines
indented by two more:

| key | meaning |
|---|---|
| title | the technique by its standard name, then a picture if it helps: ``Serpentine tile order: there and back`` |
| hypothesis | what the rung before was bound by, and why this one should not be |
| predicts | times as quick as the rung before; none for the first |
| next | what this one is bound by |
| loads | bytes that each multiply-add moves, by level: ``L1 12, L3 4`` |
| format | of the problem's formats, the one its inputs come in; the problem's own without it |
| multiples | what sizes must be multiples of: ``M 128, N 128, K 64``; verification sizes that are not are left out |
| target | C++: what it is compiled for, a target of ``build.cpp``; of several the first that this machine runs |
| threads | C++: ``1``, or ``1, all`` |
| rows | C++: how many rows of the problem a slow rung is timed on; all without it |
| launch | CUDA: ``threads 256, tile 128 x 128, shared 32768, cluster 2, grid tiles, workspace 4096``; see ``Launch`` |
| maps | CUDA: operands that arrive as tensor maps, with the rows and columns of a copy: ``A 128 x 64`` |
| spills | CUDA, Triton: bytes a thread that it may keep in local memory; 0 without it |
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from kernelworks.build.cpp import TARGETS
from kernelworks.climb import baselines, baselines_cub, baselines_ggml
from kernelworks.climb.ladder_folders import ladder_folder
from kernelworks.climb.problem import Problem, Size, problem_of
from kernelworks.machine import machine

__all__ = ["FOR_PROBLEMS", "Ladder", "Launch", "Rung", "ladder_named"]

FOR_PROBLEMS = (baselines, baselines_cub, baselines_ggml)  # what the problems of ladders import

KEYS = {"title", "hypothesis", "predicts", "next", "loads", "format", "multiples"}
OWN_KEYS = {"cpp": {"target", "threads", "rows"}, "cu": {"launch", "maps", "spills"}, "py": {"spills"}}
REQUIRED_KEYS = {
    "cpp": {"title", "target", "threads", "hypothesis", "next"},
    "cu": {"title", "launch", "hypothesis", "next"},
    "py": {"title", "hypothesis", "next"},
}
SUFFIXES = {"cpu": "cpp", "cuda": "cu"}
GPU_TARGETS = {"cu": "sm_90a", "py": "sm_90"}
COMMENTS = {"py": "#"}  # else //
GRIDS = ("", "tiles", "multiprocessors")


@dataclass(frozen=True)
class Launch:
    """How a CUDA rung is started.

    ``tile`` is rows x columns of the output that a block computes, its last two dimensions; an output of one
    dimension is one column. Where the problem says what is ``tiled``, it is of that. ``grid`` "": a block for each
    tile, columns of tiles along x, rows along y. "tiles": all along x. "multiprocessors": along x ``each`` blocks
    for every multiprocessor, at most one for each tile, each of which walks over tiles. The grid's x is rounded up
    to a whole ``cluster``, of multiprocessors down to one. ``shared`` is dynamic shared memory in bytes,
    ``workspace`` bytes of scratch that are zero before the first launch and that a rung leaves as it needs them.
    ``early`` (``early yes``): its blocks may start while the launch before is ending, and wait for that by
    themselves (griddepcontrol.wait).
    """

    threads: int
    tile: tuple[int, int]
    shared: int = 0
    cluster: int = 1
    grid: str = ""
    workspace: int = 0
    early: bool = False
    each: int = 1

    def blocks(self, shape: tuple[int, ...], multiprocessors: int) -> tuple[int, int, int]:
        """The grid for an output of this shape, or for whatever is tiled."""
        rows, columns = (*shape, 1)[-2:] if len(shape) < 2 else shape[-2:]
        for outer in shape[:-2]:
            rows *= outer
        down, across = -(-rows // self.tile[0]), -(-columns // self.tile[1])
        if not self.grid:
            return self._whole(across), down, 1
        tiles = self._whole(down * across)
        if self.grid == "tiles":
            return tiles, 1, 1
        return max(self.cluster, min(tiles, self.each * multiprocessors // self.cluster * self.cluster)), 1, 1

    def _whole(self, count: int) -> int:
        return -(-count // self.cluster) * self.cluster


@dataclass(frozen=True)
class Rung:
    """One step. On the CPU ``threads`` is (1,) or (1, 0), 0 for all cores; ``rows`` 0 means all; ``target`` is the one
    of ``targets`` that this machine compiles it for."""

    number: int
    path: Path
    title: str
    target: str
    threads: tuple[int, ...]
    rows: int
    loads: dict[str, float]
    hypothesis: str
    predicts: float | None
    next: str
    format: str = ""
    multiples: dict[str, int] = field(default_factory=dict)
    launch: Launch | None = None
    maps: dict[str, tuple[int, int]] = field(default_factory=dict)  # rows and columns of one copy, by operand
    spills: int = 0
    targets: tuple[str, ...] = ()

    @property
    def language(self) -> str:
        return self.path.suffix[1:]

    def takes(self, size: Size) -> bool:
        """Whether the size is one that the rung asks for."""
        return all(size.get(name, 0) % count == 0 for name, count in self.multiples.items())

    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def code(self) -> str:
        """The file without its header."""
        return "".join(self.text().splitlines(keepends=True)[_header_lines(self.text(), self.language) :])

    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Ladder:
    name: str
    folder: Path
    problem: Problem
    rungs: tuple[Rung, ...]

    def sha256(self) -> str:
        """Of ``problem.py``."""
        return hashlib.sha256((self.folder / "problem.py").read_bytes()).hexdigest()


def ladder_named(name: str) -> Ladder:
    """A ladder by its name or its folder. Raises ValueError for one that does not exist or cannot be read."""
    folder = ladder_folder(name)
    problem = problem_of(folder)
    suffix = "py" if problem.language == "triton" else SUFFIXES[problem.device]
    paths = sorted(p for p in folder.iterdir() if re.fullmatch(rf"\d\d_\w+\.{suffix}", p.name))
    if not paths:
        raise ValueError(f"{folder} has no rung: a file NN_idea.{suffix}")
    rungs = tuple(rung_of(path) for path in paths)
    for rung in rungs:
        if rung.format and rung.format not in problem.formats:
            raise ValueError(f"{rung.path.name}: the problem has no format {rung.format!r}")
    return Ladder(folder.name, folder, problem, rungs)


def _header_lines(text: str, language: str) -> int:
    lines, mark = text.splitlines(), COMMENTS.get(language, "//")
    return next((i for i, line in enumerate(lines) if not line.startswith(mark)), len(lines))


def _header(path: Path) -> dict[str, str]:
    text, language = path.read_text(encoding="utf-8"), path.suffix[1:]
    found: dict[str, str] = {}
    key, mark = "", COMMENTS.get(language, "//")
    for line in text.splitlines()[: _header_lines(text, language)]:
        start = re.match(rf"{mark} (\w+): (.*)", line)
        if start:
            key = start[1]
            found[key] = start[2]
        elif key:
            found[key] += " " + line[len(mark) :].strip()
    return found


def rung_of(path: Path) -> Rung:
    """The rung in a file. Raises ValueError if its header lacks a key or has one that means nothing."""
    found, language = _header(path), path.suffix[1:]
    needed, known = REQUIRED_KEYS[language], KEYS | OWN_KEYS[language]
    if found.keys() - known or needed - found.keys():
        wrong = ", ".join(sorted(found.keys() - known)) or f"no {', '.join(sorted(needed - found.keys()))}"
        raise ValueError(f"{path.name}: the header must give {', '.join(sorted(needed))}; it has {wrong}")
    targets = tuple(part.strip() for part in found.get("target", GPU_TARGETS.get(language, "")).split(","))
    if language == "cpp" and not TARGETS.keys() >= set(targets):
        raise ValueError(f"{path.name}: target must be of {', '.join(TARGETS)}, got {found['target']!r}")
    try:
        return Rung(
            number=int(path.name[:2]), path=path, title=found["title"], target=_target_here(targets), targets=targets,
            threads=tuple(0 if part.strip() == "all" else int(part) for part in found.get("threads", "0").split(",")),
            rows=int(found.get("rows", 0)),
            loads={level: float(count) for level, count in _pairs(found.get("loads", ""), r"[\d.]+").items()},
            hypothesis=found["hypothesis"], predicts=float(found["predicts"]) if "predicts" in found else None,
            next=found["next"], format=found.get("format", ""),
            multiples={name: int(count) for name, count in _pairs(found.get("multiples", ""), r"\d+").items()},
            launch=_launch(found["launch"]) if "launch" in found else None,
            maps={name: _box(box) for name, box in _pairs(found.get("maps", ""), r"\d+ x \d+").items()},
            spills=int(found.get("spills", 0)),
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _target_here(names: tuple[str, ...]) -> str:
    """The first that this machine runs, or the last."""
    here = (name for name in names[:-1] if TARGETS[name].needs <= machine().features)
    return next(here, names[-1])


def _pairs(text: str, value: str) -> dict[str, str]:
    """``name value`` parts between commas. Raises ValueError for a part that is not one."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(rf"(\w+) ({value})", part)
        if match is None:
            raise ValueError(f"{part!r} is not a name and a value")
        found[match[1]] = match[2]
    return found


def _box(text: str) -> tuple[int, int]:
    rows, columns = text.split(" x ")
    return int(rows), int(columns)


def _launch(text: str) -> Launch:
    """Raises ValueError if the text does not describe a launch."""
    found = _pairs(text, r"\d+ x \d+|\w+")
    known = {"threads", "tile", "shared", "cluster", "grid", "workspace", "early", "each"}
    if found.keys() - known or {"threads", "tile"} - found.keys() or found.get("grid", "") not in GRIDS:
        raise ValueError(f"launch must give threads and tile, and may give {', '.join(sorted(known))}; got {text!r}")
    return Launch(
        threads=int(found["threads"]), tile=_box(found["tile"]), shared=int(found.get("shared", 0)),
        cluster=int(found.get("cluster", 1)), grid=found.get("grid", ""), workspace=int(found.get("workspace", 0)),
        early=found.get("early") == "yes", each=int(found.get("each", 1)),
    )  # fmt: skip
