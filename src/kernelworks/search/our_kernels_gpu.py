"""Kernels of ours on a GPU as candidates: the kernel as it is, in a text that says how its kernels are launched.

What may be otherwise is what the op package's tuning.toml picks for the sizes of the problem: rows and columns of a
tile, warps, stages, registers. What is tried of each is what the package's ``[[space]]`` lists for these sizes; if it
lists nothing, halves and doubles. A kernel of ours in CUDA C++ has the GPU kernels alone that its source makes, which
are those that its table names: there a whole entry of the table is one choice.

A candidate is a file of the judge's format for ops, with those as its constants and its ``SPACE``; what launches it
(``triton``, ``cuda``) runs in the candidate's own process, on a copy of the package's module.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelworks.build.cache import BuildError
from kernelworks.build.configs import Configs, Point, RecordingConfigs, configs, execute_with_configs
from kernelworks.contract import Kernel
from kernelworks.dispatch.meta_arguments import on_meta
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import op_packages
from kernelworks.judge.problem import Problem
from kernelworks.search.space import Space, space_in
from kernelworks.verify.resources import is_declined

__all__ = ["cuda", "picked_configs", "precompiled_files", "sets_in", "text_at", "texts_of", "triton"]

REGISTERS = (64, 80, 96, 128, 168)  # a thread
FEW = {"num_stages": 5, "STAGES": 3}  # stages: every number up to this is one
MOST = {"num_warps": 32}

TEXT = '''"""{op}: our kernel {kernel}, launched as the constants below say."""

from kernelworks.search.our_kernels_gpu import {kind}

{constants}
SPACE = {{
{space}
}}

_run = {kind}({op!r}, {kernel!r}, {{
{given}
}})


def {op}(*arguments):
    return _run(*arguments)
'''


def _choices(name: str, value: Any, values_to_try: Sequence[Any]) -> list[Any]:
    """What a setting may be, with what it is."""
    if isinstance(value, bool):
        return [False, True]
    if values_to_try or isinstance(value, str):
        found = [value, *values_to_try]
    elif name == "maxnreg":
        found = [value, *REGISTERS]
    elif name in FEW:
        found = [value, *range(1, FEW[name] + 1)]
    else:
        found = [int(value * factor) for factor in (1 / 4, 1 / 2, 1, 2, 4)]
        found = [number for number in found if 1 <= number <= MOST.get(name, number)]
    found = list(dict.fromkeys(found))
    return found if isinstance(value, str) else sorted(found)


# ---------------------------------------------------------------- what the kernel picks


@contextlib.contextmanager
def _unlaunched() -> Iterator[None]:
    """GPU kernels are neither compiled nor run: what is asked of a kernel of ours is what it would launch."""
    from kernelworks.build import cuda as cuda_build
    from kernelworks.build import triton as triton_build

    kinds: tuple[Any, ...] = (triton_build.Launch, cuda_build.Kernel)
    before = [kind.__call__ for kind in kinds]
    for kind in kinds:
        kind.__call__ = lambda *_: None
    try:
        yield
    finally:
        for kind, its in zip(kinds, before, strict=True):
            kind.__call__ = its


def _module(op_kernel: Kernel) -> Path:
    """What launches the GPU kernels of a kernel of ours."""
    assert op_kernel.source is not None
    return op_kernel.source if op_kernel.source.suffix == ".py" else op_kernel.source.with_name(f"{op_kernel.name}.py")


@functools.cache
def picked_configs(op: str, shape: str) -> dict[str, dict[Point, dict[str, Any]]]:
    """Kernels of an op on a GPU that take a case, best first -> what its forward picks of the package's table, of those
    that pick anything."""
    case, found = op_packages.case_named(op, "cuda", shape), OPS[op]
    given = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    args = [on_meta(given.get(name)) for name in found.passes["forward"].names]
    picks: dict[str, dict[Point, dict[str, Any]]] = {}
    for op_kernel in found.kernels:
        if (
            op_kernel.device != "cuda"
            or op_kernel.source is None
            or is_declined(found, op_kernel.name, "forward", args)
        ):
            continue
        watched = RecordingConfigs(configs(op_kernel.source), op_kernel.name)
        with _unlaunched():
            execute_with_configs(_module(op_kernel), watched).forward(*args)
        if watched.points:
            picks[op_kernel.name] = watched.points
    return picks


# ---------------------------------------------------------------- as texts


def texts_of(problem: Problem) -> list[str]:
    """The candidates of an op's kernels on a GPU as they are, each with its space, at the problem's own case."""
    picks = picked_configs(problem.entry, problem.shapes[0].name)
    return [_text(problem.entry, op_kernel, points) for op_kernel, points in picks.items()]


def text_at(problem: Problem, op_kernel: str) -> str:
    """The candidate of one of those kernels as it is."""
    return _text(problem.entry, op_kernel, picked_configs(problem.entry, problem.shapes[0].name)[op_kernel])


def _text(op: str, op_kernel: str, points: Mapping[Point, dict[str, Any]]) -> str:
    found = OPS[op].kernel(op_kernel)
    assert found.source is not None
    table = configs(found.source)
    whole = found.target != "triton"
    constants: dict[str, Any] = {}
    space: dict[str, list[Any]] = {}
    given = []
    for (kernel, dims, dtype), its in points.items():
        if whole:
            constants[kernel.upper()] = json.dumps(its)
            space[kernel.upper()] = _entries(table, op_kernel, kernel, its)
            given.append(f"    {kernel!r}: {kernel.upper()},")
            continue
        values_to_try = table.candidates(kernel, op_kernel=op_kernel, dtype=dtype, **dict(dims))
        names = {setting: f"{kernel}_{setting}".upper() for setting in its}
        for setting, name in names.items():
            constants[name] = its[setting]
            space[name] = _choices(setting, its[setting], [one[setting] for one in values_to_try if setting in one])
        given.append(f"    {kernel!r}: {{{', '.join(f'{s!r}: {n}' for s, n in names.items())}}},")
    return TEXT.format(
        op=op, kernel=op_kernel, kind="cuda" if whole else "triton", given="\n".join(given),
        constants="\n".join(f"{name} = {value!r}" for name, value in constants.items()),
        space="\n".join(f"    {name!r}: {values!r}," for name, values in space.items() if len(values) > 1),
    )  # fmt: skip


def _entries(table: Configs, op_kernel: str, kernel: str, own: Mapping[str, Any]) -> list[str]:
    """The kernels that there are: what the table's entries set, whatever sizes they are for."""
    sets = [
        own,
        *(entry["set"] for entry in table.entries if (entry["op_kernel"], entry["kernel"]) == (op_kernel, kernel)),
    ]
    return list(dict.fromkeys(map(json.dumps, sets)))


def _of_ours(problem: Problem, code: str) -> tuple[str, Space] | None:
    """The kernel that a text is of, and its space; None if it is another than ours at a point of our own space."""
    space = space_in(code)
    if space is None:
        return None
    for op_kernel, points in picked_configs(problem.entry, problem.shapes[0].name).items():
        own = space_in(_text(problem.entry, op_kernel, points))
        if own is not None and (own.family, own.choices) == (space.family, space.choices):
            inside = all(space.at[name] in values for name, values in own.choices.items())
            return (op_kernel, space) if inside else None
    return None


def sets_in(problem: Problem, code: str) -> tuple[str, dict[Point, dict[str, Any]]] | None:
    """The kernel that a text is of, and with what it launches each of the GPU kernels that are picked at the problem's
    case; None where the text is another than ours with other constants. Raises Misread."""
    found = _of_ours(problem, code)
    if found is None:
        return None
    op_kernel, space = found
    made: dict[Point, dict[str, Any]] = {}
    for point, its in picked_configs(problem.entry, problem.shapes[0].name)[op_kernel].items():
        kernel = point[0]
        if OPS[problem.entry].kernel(op_kernel).target != "triton":
            made[point] = json.loads(str(space.at.get(kernel.upper(), json.dumps(its))))
        else:
            made[point] = {name: space.at.get(f"{kernel}_{name}".upper(), value) for name, value in its.items()}
    return op_kernel, made


def precompiled_files(problem: Problem) -> list[Path]:
    """What a candidate's process would compile whatever its constants are: the launcher, and the GPU kernels in CUDA
    C++."""
    from kernelworks.build import cuda as cuda_build
    from kernelworks.build.cpp import build_library
    from kernelworks.build.launcher import SOURCE

    op_kernels = [OPS[problem.entry].kernel(name) for name in picked_configs(problem.entry, problem.shapes[0].name)]
    found = []
    with contextlib.suppress(BuildError):  # a candidate says what is wrong
        found.append(build_library(SOURCE, "scalar"))
        found += [
            cuda_build.build_cubin(op_kernel.source)
            for op_kernel in op_kernels
            if op_kernel.target != "triton" and op_kernel.source is not None
        ]
    return [path for made in found for path in (made, made.with_suffix(".json"))]


# ---------------------------------------------------------------- in the candidate's process


class _Given(Configs):
    """An op package's configurations, but for the GPU kernels of a kernel of ours that have others here."""

    def __init__(self, base: Configs, op_kernel: str, sets: Mapping[str, Mapping[str, Any]]) -> None:
        self.base, self.op_kernel, self.sets = base, op_kernel, sets

    def pick(
        self, kernel: str, *, op_kernel: str = "triton", dtype: torch.dtype | None = None, **dims: int
    ) -> dict[str, Any]:
        if op_kernel == self.op_kernel and kernel in self.sets:
            return dict(self.sets[kernel])
        return self.base.pick(kernel, op_kernel=op_kernel, dtype=dtype, **dims)


def triton(op: str, op_kernel: str, sets: Mapping[str, Mapping[str, Any]]) -> Callable[..., Any]:
    """The forward of an op's kernel, its GPU kernels launched with these settings whatever the sizes are."""
    found = OPS[op].kernel(op_kernel)
    assert found.source is not None
    run: Callable[..., Any] = execute_with_configs(
        _module(found), _Given(configs(found.source), op_kernel, sets)
    ).forward
    return run


def cuda(op: str, op_kernel: str, sets: Mapping[str, str]) -> Callable[..., Any]:
    """The same of a kernel of ours in CUDA C++, each of whose GPU kernels is named by a whole entry of the table, as
    JSON."""
    return triton(op, op_kernel, {kernel: json.loads(its) for kernel, its in sets.items()})
