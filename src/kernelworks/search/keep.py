"""What a search found, put into its op package: measured once more beside the kernel as it is, at all sizes that are
timed, verified in full, and only then written.

What can be kept is a kernel of ours with other constants, as an entry in the package's tuning.toml by which it is
compiled from then on (``build.constants``); and any other kernel in C++ of an op, as the package's ``searched.py`` and
a line that adds it to the op's kernels, for the forward (``build.kernels.searched_kernel``). Kernels take every size
and dtype of the contract: what takes fewer fails its verification. The verification runs in a copy of this package,
where the entry stands already; nothing of the package is touched before it holds, and then by renames, the certificate
first. So whatever is killed, and whenever, the package is as it was, or as it was verified.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelworks.build.configs import with_configs
from kernelworks.build.constants import TABLE, with_entry
from kernelworks.build.cpp import TARGETS
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import op_packages, text
from kernelworks.judge.harness import Budget
from kernelworks.judge.problem import Problem
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.session import Sitting
from kernelworks.machine import environment, gpu, machine
from kernelworks.records import GpuPeaks, Peaks, Verification, from_json
from kernelworks.records.json_text import json_messages
from kernelworks.records.judgement import Judgement, Speed
from kernelworks.records.search import BETTER, KeepResult, Search, SizeSpeedup
from kernelworks.search import our_kernels_gpu
from kernelworks.search.our_kernels_cpp import constants_in, modules, own_text_predicate, precompiled_files, text_of
from kernelworks.search.workers import cores

__all__ = ["keep", "keepable"]

PACKAGE = Path(__file__).resolve().parent.parent
WORKER = "kernelworks.search.verification_worker"
KERNELS_MODULE = "kernelworks.build.kernels"
HEAD = """# A kernel that a search found, put here by `kernelworks search --keep`. What was measured of it, beside the
# kernel that was the best until then:
# mypy: ignore-errors
# ruff: noqa
"""

Say = Callable[[str], None]


class NotKept(Exception):
    """It is not kept; the text says why."""


@dataclass(frozen=True)
class Change:
    """What keeping would do: the kernel that is another one from then on, and the new texts of files."""

    kernel: str
    files: Mapping[Path, str]


def keepable(problem: Problem) -> None:
    """Raises ValueError if what is found for a problem has no op package, or the package cannot be written."""
    if problem.format != op_packages.NAME:
        raise ValueError(
            f"keep takes an op of ours, whose package the kernel goes into; got {problem.name}, a problem in the "
            f"format {problem.format} (--out FILE writes its best candidate)"
        )
    contract = OPS[problem.entry].contract
    verified_cases = {one.name for one in (*contract.device_bench_cases, *contract.device_cases)}
    if problem.device == "cuda" and problem.shapes[0].name not in verified_cases:
        raise ValueError(
            f"keep takes a size that a verification of {problem.entry} reaches on a GPU, got {problem.shapes[0].name} "
            f"(it has {', '.join([*verified_cases][:8])}; --out FILE writes the best candidate)"
        )
    op_package = OPS[problem.entry].op_package
    if not os.access(op_package, os.W_OK):
        raise ValueError(f"keep writes to {op_package}, which this user may not")


def keep(
    found: Search, problem: Problem, *, budget: Budget, peaks: Peaks | GpuPeaks | None, say: Say
) -> KeepResult:  # fmt: skip
    """Puts the best of a search into its op package, or says why not. Raises OSError if a file cannot be written;
    those that were written before it are as they were then."""
    op_kernel, sizes = "", list[SizeSpeedup]()
    try:
        code = _best(found)
        change = _change(problem, code)
        op_kernel = change.kernel
        for one in _measured(found, problem, code, budget, peaks, say):
            sizes.append(one)
        change = _change(problem, code, [_record(found, one) for one in sizes])
        verification, certificate = _verified(problem.entry, change, say)
    except NotKept as error:
        return KeepResult(problem.entry, op_kernel, (), tuple(sizes), None, str(error))
    certificates.write(certificate)  # it speaks for a kernel that nobody has yet; the other way round nobody would run
    _write(change.files)
    return KeepResult(
        problem.entry, op_kernel, tuple(str(path) for path in change.files), tuple(sizes), verification, ""
    )


def _best(found: Search) -> str:
    """The text of what is better than what the search began with. Raises NotKept."""
    if found.outcome != BETTER or found.best is None or found.best.again is None:
        raise NotKept(f"nothing was found that is better than what the search began with ({found.outcome})")
    speed = _speed(found.best.again, found.over)
    if speed is None or speed.ambiguous:
        said = "" if speed is None else f": {speed.low:.3f} to {speed.high:.3f} times as quick as {found.over}"
        raise NotKept(f"the judge's word on its speed is ambiguous{said}; search again on a quiet machine")
    return found.best.code


def _speed(found: Judgement, over: str) -> Speed | None:
    return next((speed for speed in found.speeds if speed.over == over), None)


def _change(problem: Problem, code: str, measured: Sequence[Mapping[str, object]] = ()) -> Change:
    """Raises NotKept if an op package has no place for such a text."""
    op, op_package = problem.entry, OPS[problem.entry].op_package
    if problem.device == "cuda":
        return _configured(problem, code, measured)
    kept = constants_in(op, code)
    if kept is None:
        return _own_kernel(op, code, op_package, measured)
    op_kernel, constants = kept
    path = op_package / TABLE
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    return Change(op_kernel, {path: with_entry(before, op_kernel, constants, measured)})


def _configured(problem: Problem, code: str, measured: Sequence[Mapping[str, object]]) -> Change:
    """Entries of the package's table for the GPU kernels that are launched otherwise, at exactly these sizes: nothing
    else was measured. Raises NotKept."""
    kept = our_kernels_gpu.sets_in(problem, code)
    if kept is None:
        raise NotKept("for a GPU an op package takes its own kernels launched otherwise; --out FILE writes its text")
    op_kernel, sets = kept
    path = OPS[problem.entry].op_package / TABLE
    its = our_kernels_gpu.picked_configs(problem.entry, problem.shapes[0].name)[op_kernel]
    entries = [
        {
            "op_kernel": op_kernel, "kernel": kernel,
            "when": {name: [size, size] for name, size in dims}
            | ({} if dtype is None else {"dtype": [str(dtype).removeprefix("torch.")]}),
            "set": sets[kernel, dims, dtype], "measured": list(measured),
        }
        for (kernel, dims, dtype), was in its.items() if sets[kernel, dims, dtype] != was
    ]  # fmt: skip
    return Change(op_kernel, {path: with_configs(path.read_text(encoding="utf-8"), entries)})


def _own_kernel(op: str, code: str, op_package: Path, measured: Sequence[Mapping[str, object]]) -> Change:
    """A kernel as a file of the op package, and a line that adds it to the op's kernels. Raises NotKept."""
    if text.language(code) != "c++":
        raise NotKept(
            f"it is in {text.language(code)}: an op package takes its own kernels with other constants, and kernels in "
            "C++; --out FILE writes its text"
        )
    noted = "".join(f"# {json.dumps(one)}\n" for one in measured)
    init = op_package / "__init__.py"
    files = {op_package / "searched.py": f"{HEAD}{noted}\n{code}"}
    before = init.read_text(encoding="utf-8")
    if "searched_kernel(" not in before:
        files[init] = _with_kernel(before)
    return Change("searched", files)


def _with_kernel(source: str) -> str:
    """An op package's text with the kernel put before its others. Raises NotKept if it has no ``OP = ...``."""
    body = ast.parse(source).body
    made = [one for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "OP"]
    ours = [one for one in body if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("kernelworks.")]
    behind = [
        one for one in ours if (one.module or "") > KERNELS_MODULE
    ]  # of which the import of the kernel's maker comes
    if len(made) != 1 or not behind:
        raise NotKept("its op package has no plain line that makes the op, behind which a kernel could be named")
    lines = source.splitlines(keepends=True)
    lines.insert(made[0].end_lineno or 0, f"OP.kernels = (searched_kernel(__file__, {_target()!r}), *OP.kernels)\n")
    lines.insert(behind[0].lineno - 1, f"from {KERNELS_MODULE} import searched_kernel\n")
    return "".join(lines)


def _target() -> str:
    """The instruction set that a kernel compiled for this CPU may use."""
    return next(name for name in reversed(TARGETS) if TARGETS[name].needs <= machine().features)


# ---------------------------------------------------------------- measured


def _measured(
    found: Search, problem: Problem, code: str, budget: Budget, peaks: Peaks | GpuPeaks | None, say: Say
) -> Iterator[SizeSpeedup]:
    """The kernel as it is and what is to be kept, judged at one sitting for each size that it is for: on a CPU those
    that ``bench`` times, too. Raises NotKept if it is no quicker at the size that was searched, slower at another, or
    not right."""
    op, asked = problem.entry, problem.shapes[0].name
    as_it_is = _as_it_is(problem, code)
    others = [case.name for case in OPS[op].contract.bench_cases] if problem.device == "cpu" else []
    alone, beside = (None, None) if found.workers == 1 else cores.turns(problem.device)
    with Nursery(modules=modules(problem)) as nursery:
        for case in dict.fromkeys((asked, *others)):
            at = f"{op} {case}"
            with Sitting(
                op_packages.problem_of(f"{op}:{case}", problem.device), over=(found.over,), budget=budget,
                threads=found.threads, peaks=peaks, nursery=nursery,
                progress=lambda what, at=at: say(f"{at}: {what}"),  # type: ignore[misc]
                known=own_text_predicate(problem), provided=precompiled_files(problem), alone=alone, beside=beside,
            ) as sitting:  # fmt: skip
                before, after = (sitting.judge_text("kernel", one, "c++") for one in (as_it_is, code))
            one = _beside(case, found.over, before, after)
            yield one
            if case == asked and one.low <= 1:
                said = f"{one.low:.3f} to {one.high:.3f} times as quick as the kernel as it is"
                raise NotKept(f"beside each other at {case} it is {said}: that is ambiguous")
            if one.high < 1:
                raise NotKept(f"it is slower than the kernel as it is at {case}: {one.low:.3f} to {one.high:.3f} times")


def _as_it_is(problem: Problem, code: str) -> str:
    """Our kernel that a text is to be better than. Raises NotKept."""
    kept = our_kernels_gpu.sets_in(problem, code) if problem.device == "cuda" else None
    found = text_of(problem.entry) if kept is None else our_kernels_gpu.text_at(problem, kept[0])
    if found is None:
        raise NotKept(f"{problem.entry} has no kernel in C++ on this CPU that it could be compared with")
    return found


def _beside(case: str, over: str, before: Judgement, after: Judgement) -> SizeSpeedup:
    if after.verdict != "right":
        why = after.reasons[0].said if after.reasons else after.verdict
        raise NotKept(f"the judge says of it at {case}: {after.verdict}: {why}")
    was, now = _speed(before, over), _speed(after, over)
    if was is None or now is None:
        raise NotKept(f"the judge took no times at {case} (the kernel as it is: {before.verdict})")
    ours = next((pace.median_s for pace in after.paces if pace.variant == "candidate"), 0.0)
    return SizeSpeedup(case, now.ratio / was.ratio, now.low / was.high, now.high / was.low, now.ratio, ours)


def _on(found: Search) -> dict[str, object]:
    on_gpu = found.best is not None and found.best.first.device == "cuda"
    return {"gpu": gpu().name, "driver": gpu().driver} if on_gpu else {"cpu": machine().name}


def _record(found: Search, one: SizeSpeedup) -> dict[str, object]:
    """Of what was measured, as the package's table has it."""
    return {
        "case": one.case, "us": round(one.seconds * 1e6, 3), "over_before": round(one.ratio, 3),
        "low": round(one.low, 3), "high": round(one.high, 3), f"over_{found.over}": round(one.over, 3),
        "threads": found.threads, **_on(found), "torch": str(torch.__version__),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip


# ---------------------------------------------------------------- verified


def _verified(op: str, change: Change, say: Say) -> tuple[Verification, certificates.Certificate]:
    """The whole verification of the kernel, in a copy of this package that has the change. Raises NotKept."""
    from kernelworks.report.verify import is_verified

    with tempfile.TemporaryDirectory(prefix="kernelworks-keep-") as scratch:
        copy = Path(scratch) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for path, whole in change.files.items():
            (copy / path.relative_to(PACKAGE)).write_text(whole, encoding="utf-8")
        said = _ran(op, change.kernel, Path(scratch), say)
    if "verification" not in said:
        raise NotKept(f"its verification came to no end: {said['error']}")
    verification = from_json(Verification, json.dumps(said["verification"]))
    if not is_verified(verification):
        first = verification.failures[0] if verification.failures else None
        why = f"{first.case} {first.dtype}: {first.message}" if first else f"{verification.checks}"
        raise NotKept(f"its verification fails: {why}")
    return verification, certificates.Certificate(
        op=op, kernel=change.kernel, source_hash=str(said["hash"]), toolchain=str(said["toolchain"]),
        kind=verification.kind,
        cases=verification.cases, worst=verification.worst, mutants_rejected=verification.mutants_rejected,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), worst_by_dtype=verification.worst_by_dtype,
    )  # fmt: skip


def _ran(op: str, kernel: str, folder: Path, say: Say) -> dict[str, object]:
    """What the process of the verification says, as it goes and at its end."""
    paths = os.pathsep.join((str(folder), *(path for path in sys.path if path)))
    said: dict[str, object] = {"error": "it said nothing"}
    with subprocess.Popen(
        [sys.executable, "-m", WORKER, op, kernel], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=folder, env=environment.variables() | {"PYTHONPATH": paths},
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        try:
            for one in json_messages(process.stdout):
                if "at" in one:
                    say(f"verification: {one['at']}")
                else:
                    said = one
            errors = process.stderr.read().strip().splitlines()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        return {"error": errors[-1] if errors else f"exit code {process.returncode}"}
    return said


# ---------------------------------------------------------------- written


def _write(files: Mapping[Path, str]) -> None:
    """All of them; where one cannot be written, those before it are as they were. Raises OSError."""
    before: dict[Path, str | None] = {}
    try:
        for path, whole in files.items():
            before[path] = path.read_text(encoding="utf-8") if path.exists() else None
            environment.write_whole(path, whole, ".keep-")
    except BaseException:
        for path, was in before.items():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True) if was is None else environment.write_whole(path, was, ".keep-")
        raise
