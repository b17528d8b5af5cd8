"""The sanitizer's part of a GPU's record: which cases it runs, what it keeps of a tool's words, and how it goes on."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from op_kernels import certified
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from kernelworks.build import cuda, triton
from kernelworks.build.launch_code import walk_kernel
from kernelworks.build.source_index import FILES
from kernelworks.contract import FLOATS, Case, Kernel
from kernelworks.dispatch.meta_arguments import on_meta
from kernelworks.dispatch.op import OPS, Op
from kernelworks.verify import sanitizer
from kernelworks.verify.reference import flat_outputs
from kernelworks.verify.resources import is_declined

ROOT = Path(__file__).resolve().parents[2]
HEAD = {"date": "2026-01-01", "commit": "c"}
SAID = """========= COMPUTE-SANITIZER
call 1: N=4096 bfloat16
========= Error: Race reported between Write access at _sum+0x120
=========     and Read access at _sum+0x170 [256 hazards]
=========
========= Error: Race reported between Write access at _sum+0x190
=========     and Read access at _sum+0x170 [256 hazards]
1 calls of rms_norm.triton
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


@pytest.fixture
def part() -> Any:
    spec = importlib.util.spec_from_file_location("h200_sanitizer", ROOT / "benchmarks" / "h200_sanitizer.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- the cases


def test_cases_are_named_or_the_largest_of_each_size() -> None:
    op = OPS["softmax"]
    sizes = [sanitizer._size(case) for case, _ in sanitizer.select_cases(op, elements=50_000)]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) <= 50_000
    assert len(set(sizes)) == len({case.name for case, _ in sanitizer.select_cases(op, elements=50_000)})
    found = [(case.name, dtype) for case, dtype in sanitizer.select_cases(op, ("N=4096", "many rows@bfloat16"))]
    assert found == [*(("N=4096", dtype) for dtype in FLOATS), ("many rows", torch.bfloat16)]
    with pytest.raises(ValueError, match="softmax has no case 'none such'"):
        sanitizer.select_cases(op, ("N=4096", "none such"))


def _shaped(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """A case's arguments without their values, of which large ones have many; with them where sizes hang on values."""
    generator = torch.Generator().manual_seed(0)
    try:
        with FakeTensorMode():
            return case.make(generator, dtype)
    except (DynamicOutputShapeException, DataDependentOutputException):
        return case.make(generator, dtype)


def _run(op: Op, kernel: str, case: Case, dtype: torch.dtype) -> bool:
    """Every pass of a kernel on meta tensors; False where it declines more than their device."""
    names = op.passes["forward"].names
    given = _shaped(case, dtype)
    args = [on_meta(given.get(name)) for name in names]
    if "meta" not in (op.kernel(kernel).guard(op.request("forward", args)) or "meta"):
        return False
    beside = kernel.startswith("triton_")  # another kernel that takes what this one declines
    if beside and is_declined(op, kernel, "forward", args):
        return False
    outputs = op.kernel(kernel).load("forward")(*args)
    if not case.gradients or "backward" not in op.kernel(kernel).passes:
        return True
    backward = op.passes["backward"]
    have = dict(zip(names, args, strict=True)) | dict(
        zip(op.contract.returned_outputs, flat_outputs(outputs), strict=False)
    )
    have |= {f"grad_{n}": v for n, v in have.items() if isinstance(v, Tensor)}
    have["needs"] = [True] * len(backward.returns)
    given_back = [have.get(n) for n in backward.names]
    if beside and is_declined(op, kernel, "backward", given_back):
        return True
    op.kernel(kernel).load("backward")(*given_back)
    if "training" in op.kernel(kernel).passes:
        _, kept = op.kernel(kernel).load("training")(*args, have["needs"])
        op.kernel(kernel).load("resumed")(kept, have[f"grad_{op.contract.outputs[0]}"])
    return True


def _every(op: Op, kernel: str) -> set[str]:
    """The names of a kernel's kernels: those of its one source, or of the modules in its room and what they share."""
    source = op.kernel(kernel).source
    assert source is not None
    if source.suffix == ".cu":
        return set(cuda.resources(source))
    reached = filter(None, (FILES.path_of(module) for module, _ in walk_kernel(op.kernel(kernel)).reached))
    files = {f for f in reached if "tile" in f.parts} | set(source.parent.glob("*.py"))
    modules = [m for m in list(sys.modules.values()) if Path(vars(m).get("__file__") or "/") in files]
    kernels = [v for module in modules for v in vars(module).values() if isinstance(v, triton.Kernel)]
    return {kernel.function.__name__ for kernel in kernels}


# A line that is sorted has at most so many elements as registers hold: the kernels of longer ones are topk's. The
# gradient of a sum is the same scan backwards: the scan of gradients is cumprod's. The gated delta rule goes two
# ways, each a kernel of its own, as its gradients are. Cells of recurrent layers call the functions of activations,
# whose kernel is of elements. The gradient of a mean is a view. What a loss or a mean reads once needs no line that is
# held for its next stage. Exponentials and roots of lines are functions of a module that has stages of its own.
# Depthwise filters, rows that programs share and lines side by side have kernels of their own beside those of others.
LOSSES = ("hinge_embedding", "huber", "l1", "mse", "smooth_l1")
UNREACHED = {
    "sort.triton": frozenset({"_long", "_join"}), "cumsum.triton": frozenset({"_flow"}),
    "gated_delta_rule.triton": frozenset({"_chunked", "_states", "_backward", "_of_vectors"}),
    "gated_delta_rule.triton_chunked": frozenset({"_recurrent", "_states", "_backward", "_of_vectors"}),
    "gated_delta_rule.triton_backward": frozenset({"_recurrent"}),
    "gru.triton": frozenset({"_elements"}), "lstm.triton": frozenset({"_elements"}),
    "mean.triton": frozenset({"_elements", "_held"}),
    **{f"{name}_loss.triton": frozenset({"_held"}) for name in LOSSES},
    "binary_cross_entropy_with_logits.triton": frozenset({"_held"}), "kl_div.triton": frozenset({"_held"}),
    "logsumexp.triton": frozenset({"_stage"}), "norm.triton": frozenset({"_stage"}),
    "std.triton": frozenset({"_stage"}),
    "conv2d.triton": frozenset({"_of_filters"}),
    "layer_norm.triton_split": frozenset({"_forward", "_backward", "_column_sums"}),
    "rms_norm.triton_split": frozenset({"_forward", "_backward", "_column_sums"}),
    **{f"{n}.triton_columns": frozenset({"_sweep", "_held", "_elements"}) for n in ("amax", "amin", "mean", "sum")},
    "argmax.triton_columns": frozenset({"_along"}), "argmin.triton_columns": frozenset({"_along"}),
}  # fmt: skip


def _listed(op: Op, kernel: Kernel) -> Any:
    """What kernels a source in CUDA C++ has is known once it is compiled."""
    assert kernel.source is not None
    known = kernel.source.suffix == ".cu" and certified(op, kernel.name)
    return pytest.param(
        op.name, kernel.name, id=f"{op.name}.{kernel.name}", marks=[pytest.mark.thorough] if known else []
    )


@pytest.mark.parametrize(
    ("name", "kernel"), [_listed(op, kernel) for op in OPS.values() for kernel in op.kernels if kernel.device == "cuda"]
)
def test_the_cases_of_a_row_reach_each_of_its_kernels(
    part: Any, name: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled for them: a launch on meta tensors only notes its name."""
    op, seen, calls = OPS[name], set[str](), 0
    monkeypatch.setattr(triton.Launch, "__call__", lambda self, grid, *a: seen.add(self.kernel.function.__name__))
    monkeypatch.setattr(cuda.Kernel, "__call__", lambda self, grid, *a: seen.add(self.name))
    told = part.arguments(name, kernel)
    given = dict(zip(told[::2], told[1::2], strict=True))
    names = tuple(filter(None, given.get("--cases", "").split(";")))
    cases = sanitizer.select_cases(op, names, int(given["--elements"]) if "--elements" in given else None)
    for case, dtype in cases:
        if calls < int(given["--calls"]):
            calls += _run(op, kernel, case, dtype)
    every = _every(op, kernel)
    beyond = UNREACHED.get(f"{name}.{kernel}", frozenset[str]())
    assert every and not every - seen - beyond and not beyond & seen


# ---------------------------------------------------------------- what racecheck found once


def fused_with_a_neighbours(made: triton.CompiledKernel, file: Path) -> list[str]:
    """Fused multiply-adds whose addend another lane has just handed over: the lanes round the sum differently."""
    file.write_bytes(made.cubin)
    tool = Path(importlib.import_module("triton").__file__).parent / "backends/nvidia/bin/nvdisasm"
    text = subprocess.run([str(tool), "-c", str(file)], capture_output=True, text=True, check=True).stdout
    handed, found = set(), []
    for instruction, operands in re.findall(r"\*/\s+(?:@!?P\d\s+)?([A-Z0-9_.]+)\s+(.*?) ;", text):
        names = [name.strip().removesuffix(".reuse") for name in operands.split(",")]
        if instruction.startswith("SHFL"):
            handed.add(names[1])
            continue
        if instruction.startswith("FFMA") and names[-1] in handed:
            found.append(f"{instruction} {operands}")
        handed.discard(names[0])
    return found


@pytest.mark.parametrize("fused", [False, True])
def test_lanes_that_store_one_sum_of_pieces_agree_on_it(fused: bool, tmp_path: Path) -> None:
    """All lanes of a kernel store its sum to one place in shared memory. racecheck saw two values there where products
    were fused into the sum; with them the same kernel shows it here."""
    loss = importlib.import_module("kernelworks.ops.reduction.cross_entropy.triton")
    launch = loss.shape(32003, torch.bfloat16).finish[1]
    if fused:
        launch = loss.FINISH.at(**{**launch.constants, "enable_fp_fusion": True})
    target = torch.empty(4, dtype=torch.int64, device="meta")
    pieces, kernel = torch.empty((4, 4), device="meta"), torch.empty(4, device="meta")
    with triton.compiling() as made:
        launch(
            (1, 1, 1), target, pieces, pieces, kernel, torch.empty((), device="meta"), pieces, None, 4, 32003, 4, -100
        )
    assert bool(fused_with_a_neighbours(made[0], tmp_path / "kernel.cubin")) == fused


# ---------------------------------------------------------------- the record


def test_of_a_tools_words_each_finding_is_kept_once_and_the_summary_last(part: Any) -> None:
    assert part.words(SAID) == [
        "Error: Race reported between Write access at _sum+0x190",
        "and Read access at _sum+0x170 [256 hazards]",
        "RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)",
    ]


def line(part: Any, tool: str, **changes: Any) -> dict[str, Any]:
    found = {
        "op": "rms_norm", "kernel": "triton", "tool": tool, "exit": 0, "calls": 3, "summary": ["0 errors"],
        "arguments": part.arguments("rms_norm", "triton"), "source_hash": OPS["rms_norm"].kernel("triton").hash(),
    }  # fmt: skip
    return {**found, **changes}


def test_a_record_keeps_the_runs_of_unchanged_rows_and_makes_the_others(
    part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    old = [
        line(part, "memcheck"),
        line(part, "racecheck", exit=9, summary=["1 error"]),
        line(part, "memcheck", op="gelu", source_hash="changed since"),
    ]
    file.write_text(json.dumps({"date": "2025-01-01", "commit": "b", "rows": old}))
    made: list[tuple[str, str, str]] = []

    def run(op: str, kernel: str, tool: str, limit: float) -> dict[str, Any]:
        made.append((op, kernel, tool))
        status = None if op == "gelu" else 0
        on_record = json.loads(file.read_text())["rows"]
        assert any(r["op"] == "rms_norm" and r["tool"] == "memcheck" for r in on_record)
        return line(part, tool, op=op, exit=status, source_hash=OPS[op].kernel(kernel).hash())

    monkeypatch.setattr(part, "run", run)
    how = {"limit": 60.0, "within": 100.0, "again": False, "tools": set()}
    found = part.measure(file, HEAD, {"rms_norm.triton", "gelu.triton"}, **how)
    assert sorted(made) == [
        ("gelu", "triton", "memcheck"), ("gelu", "triton", "racecheck"), ("rms_norm", "triton", "racecheck"),
    ]  # fmt: skip
    kept = {(r["op"], r["tool"]): r for r in json.loads(file.read_text())["rows"]}
    assert kept["rms_norm", "memcheck"]["date"] == "2025-01-01" and kept["rms_norm", "racecheck"]["exit"] == 0
    assert kept["rms_norm", "racecheck"]["date"] != "2025-01-01"
    assert "gelu.triton memcheck" in found["not_done"] and "rms_norm.triton racecheck" not in found["not_done"]
    made.clear()
    part.measure(file, HEAD, {"rms_norm.triton"}, **how)
    assert not made
    part.measure(file, HEAD, {"rms_norm.triton"}, **{**how, "again": True, "tools": {"memcheck"}})
    assert made == [("rms_norm", "triton", "memcheck")]
    made.clear()
    part.measure(file, HEAD, {"gelu"}, **{**how, "within": 1.0})
    assert not made, "no time is left for a run"


def test_a_run_without_an_end_replaces_none_that_had_one(part: Any, tmp_path: Path) -> None:
    runs = part.Runs(tmp_path / "record.json", HEAD, False)
    runs.add(line(part, "memcheck"))
    runs.add(line(part, "memcheck", exit=None))
    runs.add(line(part, "memcheck", exit=1, calls=0))
    runs.add(line(part, "memcheck", calls=1, cut_off="out of time at N=4096 bfloat16"))
    assert [(r["exit"], r["calls"]) for r in runs.found()["rows"]] == [(0, 3)]
    runs.add(line(part, "memcheck", exit=9, cut_off="out of time at N=4096 bfloat16"))
    assert [r["exit"] for r in runs.found()["rows"]] == [9], "what was found counts, however far the run came"


def test_a_run_that_takes_too_long_is_ended(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho call 1: something\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = part.run("rms_norm", "triton", "memcheck", 0.5)
    assert found["exit"] is None and found["calls"] == 1 and found["summary"][-1] == "not done within 0 s"
    assert found["seconds"] < 30
