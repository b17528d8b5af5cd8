"""Judging on a device that works by itself: what it leaves undone shows, its own clock counts for nothing."""

from __future__ import annotations

import importlib
import math
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from attacked import candidate, problem_in
from imitated import Imitated

from kernelworks.judge import Budget, judge, least_time
from kernelworks.judge.inputs.cuda_on_cpu import CudaOnCpuMode
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.roles import handle
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import DeviceInUse, VariantProcess
from kernelworks.judge.roles.oracle import Oracle
from kernelworks.judge.session import Sitting
from kernelworks.records import GpuBandwidth, GpuPeaks, GpuRate, Peaks
from kernelworks.records.judgement import Judgement

BUDGET = Budget(reference_s=0.5, most_cases=6, many=24, many_s=60.0, looks=0, shapes=0, gradients=1, answer_s=30.0)
IMPORT = "from imitated import OFF, later\nimport time\nKEPT = {}"


@pytest.fixture(scope="module")
def judged(
    ceilings: Peaks, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Judgement]]:
    problem = problem_in(tmp_path_factory.mktemp("on_device"), "norm")
    device = Imitated()
    with Sitting(problem, budget=BUDGET, threads=1, peaks=ceilings, device=device, nursery=nursery) as sitting:

        def judgement(body: str) -> Judgement:
            before = dict(device.asked)
            found = sitting.judge_text("candidate", candidate("norm", body, top=IMPORT), "torch")
            # What is held are inputs, which serve all candidates.
            assert all(device.asked[what] > count for what, count in before.items() if found.calls and what != "held")
            assert device.asked["held"]
            return found

        yield judgement


def test_what_is_honest_is_right_there(judged: Callable[[str], Judgement]) -> None:
    found = judged("return self.right(x)")
    assert (found.verdict, found.device) == ("right", "imitated"), found.reasons
    assert found.events_s is not None and found.paces[0].median_s >= 0
    assert any(line.startswith("taking the host's memory") for line in found.open_to)
    joined = judged("later(lambda: time.sleep(0.001)).result()\nreturn self.right(x)")
    assert joined.verdict == "right", joined.reasons


LEFT = {
    "the answer": (
        "y = torch.empty_like(x)\nlater(lambda: (time.sleep(0.02), y.copy_(self.right(x))))\nreturn y", "wrong answer"
    ),
    "other work": ("later(lambda: time.sleep(0.03))\nreturn self.right(x)", "goes on working"),
    "events that say more than the clock": ("OFF[0] = 1000.0\nreturn self.right(x)", "raised"),
    "an answer elsewhere": ("return self.right(x).to('meta')", "raised"),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_what_a_stream_was_left_to_do_is_found(what: str, judged: Callable[[str], Judgement]) -> None:
    body, kind = LEFT[what]
    found = judged(body)
    assert found.verdict == "refused" and kind in {r.kind for r in found.reasons}, found.reasons


def test_other_values_lie_where_others_lay_before(judged: Callable[[str], Judgement]) -> None:
    body = "if x.data_ptr() not in KEPT:\n    KEPT[x.data_ptr()] = self.right(x)\nreturn KEPT[x.data_ptr()].clone()"
    found = judged(body)
    assert found.verdict == "refused" and "wrong answer" in {r.kind for r in found.reasons}, found.reasons


def test_kernels_that_run_while_their_process_is_stopped_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = [2e-5] * handle.LOOKS_AFTER
    busy = [2e-3, 1.9e-3]  # while it is stopped, and a moment later
    delays = iter([2e-5, 2e-3, 2e-5, *busy, *quiet, *busy, 1.8e-3, *busy, *quiet[:-1], 1.8e-3])
    ended = list[int]()
    monkeypatch.setattr(handle, "MOMENT_S", 0.0)
    process = types.SimpleNamespace(end=lambda: ended.append(1))
    variant = types.SimpleNamespace(device=types.SimpleNamespace(delay_s=lambda: next(delays)), process=process)
    variant._theirs = lambda: VariantProcess._theirs(cast("Any", variant))
    works: Any = VariantProcess._device_works
    assert works(variant) == ""
    assert works(variant) == ""  # once only: something else was there for a moment
    assert not ended
    assert "run while it is stopped" in works(variant)
    for _ in range(2):  # goes on when its process has ended, at once or after a while
        with pytest.raises(DeviceInUse, match=r"other processes use the GPU: a kernel waits 0\.0018 s"):
            works(variant)


def test_a_gpu_that_others_use_gives_no_verdict(
    judged: Callable[[str], Judgement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Imitated, "delay_s", lambda self: 2e-3)
    found = judged("return self.right(x)")
    assert found.verdict == "undecided" and "other processes use the GPU" in found.reasons[0].said, found.reasons


def test_without_a_gpu_there_is_no_verdict_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("kernelworks.judge.session"), "has_gpu", lambda: False)
    problem = problem_in(tmp_path, "norm")
    file = tmp_path / "mine.py"
    file.write_text(candidate("norm", "return self.right(x)"), encoding="utf-8")
    found = judge(file, problem, device="cuda", threads=1)
    assert found.verdict == "undecided" and "sees none here" in found.reasons[0].said
    with pytest.raises(ValueError, match="got 'tpu'"):
        judge(file, problem, device="tpu")


def test_a_problem_for_a_gpu_has_its_reference_here() -> None:
    with CudaOnCpuMode():
        x = torch.randn(3, device="cuda")
        y = torch.zeros(3, device=torch.device("cuda", 0)).cuda() + x.to("cuda:0")
        layer = torch.nn.Linear(3, 2).cuda()
        assert {t.device.type for t in (x, y, layer.weight, layer(y))} == {"cpu"}


class Moving(Imitated):
    """Holds so many tensors and modules."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def to_device(self, value: Any) -> Any:
        self.capacity -= 1
        if self.capacity < 0:
            raise RuntimeError("the device is full")
        return value


@pytest.mark.parametrize("capacity", [100, 1, 0])
def test_a_reference_is_run_where_candidates_work_or_here(
    capacity: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", True)  # as it is again after this
    problem = problem_in(tmp_path, "layer")
    papers: dict[str, Any] = {
        "problem": problem, "shape": problem.shapes[0], "weights": 1, "threads": torch.get_num_threads(),
    }  # fmt: skip
    there, here = (Oracle({**papers, "device": device}, tmp_path) for device in (Moving(capacity), Host()))
    args = there.inputs(3, "given")
    ours, plain = there.bound(args, 3), here.bound(args, 3)
    assert torch.equal(ours.reference[0], plain.reference[0]) and torch.equal(ours.outputs[0], plain.outputs[0])
    assert there.device.apart == (capacity == 100) == (not there.left) and there.flows(args, 3)[0].equal(
        here.flows(args, 3)[0]
    )


GPU = GpuPeaks(
    kind="sm_90-invented", name="Invented GPU", fingerprint="0", uuid="", driver="", power_limit_w=0.0,
    date="2026-01-01T00:00:00Z", multiprocessors=100, l2_bytes=50 << 20, memory_bytes=1 << 36,
    bandwidth=tuple(
        GpuBandwidth(kind=kind, cache=cache, bytes=1 << 28, gbs=gbs)
        for cache, gbs in (("cold", 4000.0), ("warm", 9000.0)) for kind in ("read", "write", "copy")
    ),
    rates=(GpuRate(dtype="float32", unit="cuda", burst_tflops=50.0, sustained_tflops=45.0),),
    functions={"exp": 4000.0}, launch_us=2.0, isolated_us=4.0, graph_us=1.0, host_launch_us=3.0, dispatch_us=4.0,
    round_trip_us=8.0, to_device_gbs=50.0, to_host_gbs=50.0, seconds=1.0,
)  # fmt: skip


def test_on_a_gpu_inputs_come_from_its_memory() -> None:
    work: dict[str, Any] = {
        "calls": [["aten::add", 1e6, 0.0, "float32", "exp"]], "read": [4e6, 0], "needed": 4e6, "written": 4e6
    }  # fmt: skip
    least = least_time.limit(work, 4, GPU)
    assert math.isclose(least.moving_s, 1e-6) and least.alone_s == 0.0  # 4 MB at 4 TB/s, though L2 would hold them
    assert "reading its inputs" in least.broken_by(least_time.CallTime(0.5e-6, 0.0, 0.0, 0.0))
    assert not least.broken_by(least_time.CallTime(0.9e-6, 0.0, 0.0, 0.0))
    assert not least_time.limit({**work, "needed": 0}, 4, GPU).broken_by(least_time.CallTime(0.0, 0.0, 0.0, 0.0))
