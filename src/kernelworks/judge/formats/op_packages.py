"""Our own ops: ``rms_norm``, or ``rms_norm:1024x4096`` for one of its cases. The reference is what a user writes in
torch, the inputs are the contract's, and every case of it is a shape: one that a candidate must take if the op is
asked for, one that it may refuse if a case is. On a GPU they are what is timed and verified there.

A candidate is a Python file with a function of the op's name, which takes the op's arguments in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kernelworks.build import cpp
from kernelworks.build.kernels import as_float64
from kernelworks.contract import Case, Kernel
from kernelworks.contract.bounds import Bound, shared_pairs
from kernelworks.dispatch.op import OPS, Op
from kernelworks.judge.formats import text
from kernelworks.judge.formats.loading import LoadedCandidate, module_of
from kernelworks.judge.problem import Candidate, Misread, Problem, Shape
from kernelworks.machine import machine
from kernelworks.verify.reference import flat_outputs, output_bounds

__all__ = ["candidate_in", "case_named", "is_op_name", "load", "load_candidate", "problem_of", "runnable_cpp_kernels"]

NAME = "op"
CASE_NAME = re.compile(r"(?P<word>[a-z]+ )?(?P<sizes>[1-9]\d*(x[1-9]\d*){1,2}) (?P<dtype>float32|bfloat16|float16)")


def is_op_name(name: str) -> bool:
    """Whether it names an op, and perhaps a case of it."""
    return name.partition(":")[0] in OPS


def _cases(op: str, device: str) -> dict[str, Case]:
    """What is timed first, then what a verification tries, largest dtype first."""
    contract = OPS[op].contract
    if device == "cpu":
        return {case.name: case for case in (*contract.bench_cases, *contract.cases)}
    found: dict[str, Case] = {}
    for case in (*contract.device_bench_cases, *contract.device_cases, *contract.bench_cases):
        found.setdefault(case.name, case)
    return found


def _case(op: str, device: str, name: str) -> Case | None:
    """Of a name that the contract gives, or of sizes and a dtype that the op's template makes one of."""
    known = _cases(op, device)
    if name in known:
        return known[name]
    said = CASE_NAME.fullmatch(name)
    made = getattr(OPS[op].template, "case_of", None)
    if said is None or made is None:
        return None
    sizes = tuple(map(int, said["sizes"].split("x")))
    case: Case | None = made(sizes, getattr(torch, said["dtype"]), (said["word"] or "").strip())
    return None if case is None else replace(case, name=name)


def case_named(op: str, device: str, name: str) -> Case:
    """Raises Misread if there is none of that name, and none can be made."""
    found = _case(op, device, name)
    if found is None:
        raise Misread(f"{op}: no case {name!r}")
    return found


def problem_of(name: str, device: str = "cpu") -> Problem:
    op, _, case = name.partition(":")
    known = _cases(op, device)
    mutates = OPS[op].contract.mutates
    if mutates:
        raise Misread(f"{op}: it writes to {', '.join(mutates)}; an op that only returns is accepted")
    if case and _case(op, device, case) is None:
        raise Misread(
            f"{op}: no case {case!r}; it has {', '.join([*known][:8])} and {max(0, len(known) - 8)} more, and ops of a "
            "template take sizes and a dtype (300x4096 bfloat16)"
        )
    first = case or next(iter(known))
    names = [first, *(n for n in known if n != first)]
    at = {first: len(known)} | {name: number for number, name in enumerate(known)}
    shapes = tuple(Shape(n, {"case": at[n]}, required=n == first or not case) for n in names)
    return Problem(op, NAME, {}, __name__, op, shapes, device=device)


def candidate_in(path: Path, source: str, problem: Problem) -> Candidate:
    known = text.functions(text.parse_module(source, str(path)))
    if problem.entry not in known:
        raise Misread(f"{path}: no function {problem.entry}; it has {', '.join(known) or 'no functions'}")
    return Candidate(path.stem, {"candidate.py": source}, problem.entry, text.language(source))


def runnable_cpp_kernels(op: Op) -> list[Kernel]:
    """An op's kernels in C++ that this CPU can run, best first, of one source."""
    here = [
        r for r in op.kernels
        if r.source is not None and r.source.suffix == ".cpp" and cpp.TARGETS[r.target].needs <= machine().features
    ]  # fmt: skip
    return [r for r in here if r.source == here[0].source]


def _ours(op: Op, device: str) -> Callable[..., Any]:
    """The forward of an op's best kernel, as a candidate is called: on a CPU of those in C++, if there are any."""
    kernels = runnable_cpp_kernels(op) if device == "cpu" else []
    return kernels[0].load("forward") if kernels else op


def load(problem: Problem, shape: Shape, folder: Path) -> Any:
    op = OPS[problem.entry]
    known = [*_cases(problem.entry, problem.device).values()]
    at = shape.sizes["case"]
    case = known[at] if at < len(known) else _case(problem.entry, problem.device, problem.shapes[0].name)
    assert case is not None
    names = op.passes["forward"].names

    def inputs() -> list[Any]:
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ()).item()))
        made = case.make(generator, case.dtypes[0])
        return [made.get(name) for name in names]

    def bound(args: list[Any]) -> Bound:
        given = dict(zip(names, args, strict=True))
        exact = {name: as_float64(value) for name, value in given.items()}
        reference = flat_outputs(op.contract.reference(**exact))
        most = output_bounds(op.contract, given, exact, reference, case.dtypes[0])
        native = flat_outputs(op.composite(*args))
        return Bound(op.contract.outputs, reference, most, native, (), (), {}, shared_pairs(native))

    loaded = SimpleNamespace(
        init=list, inputs=inputs, reference=lambda *init: op.composite, ours=lambda: _ours(op, problem.device)
    )
    if _has_complex_numbers(op, case):  # errors are not followed through them operator by operator
        loaded.bound = bound
    return loaded


def _has_complex_numbers(op: Op, case: Case) -> bool:
    """Whether an argument or a result of a case is complex."""
    made = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    results = op.forward_shapes(tuple(made.get(name) for name in op.passes["forward"].names))
    return any(t.is_complex() for t in flat_outputs([*made.values(), results]) if isinstance(t, torch.Tensor))


def load_candidate(problem: Problem, shape: Shape, candidate: Candidate, folder: Path) -> LoadedCandidate:
    module = module_of("judged_candidate", candidate.files["candidate.py"], folder)
    return LoadedCandidate(lambda *init: getattr(module, candidate.entry))
