"""The record of a GPU's ops, without one: what is timed, workers and their pipes, and a record that goes on."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelworks.dispatch.op import OPS
from kernelworks.records import AutotunedCall, AutotuneResult

BF16 = torch.bfloat16
ROOT = Path(__file__).resolve().parents[2]
HEAD = {"machine": {"name": "a"}, "versions": {"torch": "2"}, "date": "2026-02-02", "commit": "new", "sources": {}}


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("h200_ops")


@pytest.fixture
def cases(ops: Any) -> Any:
    return importlib.import_module("h200_cases")


@pytest.mark.parametrize("name", ["relu", "silu_mul", "rms_norm", "softmax", "embedding", "linear"])
def test_an_op_is_measured_by_its_contract(name: str, ops: Any, cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the record has no shapes of its own for it: both passes, ours beside what users write."""
    monkeypatch.setattr(cases, "compiled", lambda name: OPS[name])  # which takes seconds
    op = OPS[name]
    case = next(c for c in op.contract.cases if c.gradients and torch.bfloat16 in c.dtypes and "3" in c.name)
    forward, backward = cases.of_contract(cases.Asked(op, case, "cpu"))
    for one in (forward, backward):
        assert {"eager", "ours"} <= one.arms.keys() and (one.bytes or one.flop) and one.shape == case.name
        want = ops.flat(one.truth())
        assert all(ops.off(call, want) < 2e-2 for call in one.arms.values()), one.pass_
        assert op.kernel(ops.row_of(one)).hash is not None
        work = ops.work_of(one)
        assert work["read"] > 0 and work["written"] > 0 and work["dims"]


def test_every_op_with_a_row_for_a_gpu_stands_in_the_table(cases: Any) -> None:
    """Of sizes that fill one; each line once."""
    found = cases.groups()
    assert len({str(group) for group in found}) == len(found)
    rows = {name for name in OPS if any(r.device == "cuda" for r in OPS[name].kernels)}
    assert len(rows) > 0.8 * len(OPS)
    timed = {group.op for group in found}
    assert {n for n in rows if not OPS[n].contract.mutates} <= timed <= rows  # one that writes is adamw_ alone
    assert {group.op for group in cases.small_calls()} <= rows


def test_calls_that_no_timing_speaks_for_are_benchmarked_before_they_are_timed(
    ops: Any, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, made, benchmarked = torch.ones(4), [], []

    def group() -> Iterator[Any]:
        made.append(len(benchmarked))
        for name in ("gelu", "relu"):
            arms = {"ours": lambda name=name: benchmarked.append(name)}
            yield cases.Case(name, "forward", "4", arms, lambda: x, asked=(x,))

    def autotune(call: Callable[[], Any], budget_s: float) -> AutotuneResult:
        call()
        lines = [AutotunedCall("gelu", what, "", "", "torch", f"the {what} has no memory") for what in ("forward", "x")]
        return AutotuneResult((), 1, tuple(lines), 0.0)

    monkeypatch.setattr(ops.kw, "autotune", autotune)
    monkeypatch.setattr(ops, "known", lambda case: case.op == "relu")
    monkeypatch.setattr(ops, "timed", lambda case, peak: {"op": case.op, "peak": peak})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = list(ops.measured(cases.Group("gelu", "4", group), 1.0))
    assert [line["op"] for line in found] == ["gelu", "relu"]
    assert benchmarked == ["gelu"] and made == [0, 1]  # and made anew, so that what was found serves gradients too
    # Why torch stands in the line of what is quicker by far, the line itself says.
    assert [line.get("unsettled") for line in found] == ["the forward has no memory", None]


def test_all_ways_of_a_race_are_run_before_it(ops: Any, cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward: what is compiled only in the race takes its time."""
    x, weight = torch.ones(2, 8), torch.ones(8)
    case = cases.Case("rms_norm", "backward", "2x8", {}, lambda: x, asked=(x, weight, 1e-6, None))
    way = next(iter(OPS["rms_norm"].passes["forward"].names))
    monkeypatch.setattr(ops, "eligible_ways", lambda op, request: ({"reference+reference": ()}, {}))
    case.wanted = (way,)
    ((grad,),) = [call() for call in ops.ways(case)]
    assert grad.shape == x.shape and not x.requires_grad


def test_a_call_is_known_by_what_is_there_today(ops: Any, cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timing by which torch is quicker than one row says nothing of another."""
    x = torch.ones(4)
    case, row = cases.Case("gelu", "forward", "4", {}, lambda: x, asked=(x, "none")), OPS["gelu"].kernel("scalar")
    lost = SimpleNamespace(beats_torch=False, is_noisy=False, way="scalar", among="")
    for held, there, known in (
        ([], ["scalar"], False),
        ([lost], ["scalar"], True),
        ([lost], ["scalar", "another"], False),
        ([SimpleNamespace(beats_torch=True)], ["scalar", "another"], True),
    ):
        monkeypatch.setattr(ops.tuning_records, "valid_records", lambda *given, held=held: (held, []))
        monkeypatch.setattr(ops, "eligible_ways", lambda *given, there=there: (dict.fromkeys(there, (row,)), {}))
        assert ops.known(case) is known, (held, there)


def test_a_baseline_that_declines_leaves_the_others(ops: Any) -> None:
    def no() -> None:
        raise RuntimeError("No available kernel.\nAborting")

    found, unable = ops.able({"cudnn": no, "ours": lambda: 1, "eager": lambda: 2})
    assert list(found) == ["ours", "eager"] and unable == {"cudnn": "RuntimeError: No available kernel."}
    with pytest.raises(RuntimeError, match="no baseline runs"):
        ops.able({"cudnn": no, "ours": lambda: 1})
    with pytest.raises(RuntimeError, match="No available"):
        ops.able({"cudnn": lambda: 1, "ours": no})


# ---------------------------------------------------------------- workers, and the record


class Thread:
    """A worker's process, as a thread of the test's."""

    def __init__(self, life: Callable[[Any], None], pipe: Any) -> None:
        threading.Thread(target=life, args=(pipe,), daemon=True).start()

    def kill(self) -> None:
        pass


def working(ops: Any, order: list[Any], hangs: set[int], dies: set[int], prepared: list[int]) -> Callable[..., Any]:
    def life(pipe: Any) -> None:
        pipe.send(None)
        while True:
            try:
                what, number, *_ = pipe.recv()
            except EOFError:
                return
            if what == "prepare":
                prepared.append(number)
                if number in hangs:
                    time.sleep(600)
            elif number in dies:
                pipe.close()
                return
            else:
                group = order[number]
                pipe.send({"op": group.op, "pass": "forward", "shape": group.name, "kernel": "r", "source_hash": "h"})
            pipe.send(None)

    def started(count: int, work: Any) -> list[Any]:
        crew = []
        for _ in range(count):
            ours, theirs = multiprocessing.Pipe()
            crew.append(importlib.import_module("h200_crew").Worker(Thread(life, theirs), ours))
        return crew

    return started


@pytest.fixture
def bench(ops: Any, cases: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    order = [cases.Group("gelu", str(n), lambda: iter(())) for n in range(6)]

    def arrange(hangs: set[int] = frozenset(), dies: set[int] = frozenset(), **head: Any) -> list[int]:  # type: ignore[assignment]
        prepared: list[int] = []
        monkeypatch.setattr(ops, "started", working(ops, order, hangs, dies, prepared))
        monkeypatch.setattr(ops, "table", lambda: order)
        monkeypatch.setattr(ops, "head", lambda: {**HEAD, "sources": {"gelu.r": "h"}, **head})
        monkeypatch.setattr(ops, "copy_rate", lambda: 4000.0)
        monkeypatch.setattr(ops, "shown", str)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        return prepared

    return arrange


def test_all_lines_go_on_record_whatever_becomes_of_a_worker(ops: Any, bench: Any, tmp_path: Path) -> None:
    """One hangs in a compiler, one ends while it measures: the others' lines are there."""
    file = tmp_path / "ops.json"
    prepared = bench(hangs={2}, dies={4})
    assert len(ops.measure(file, set(), workers=3, within=0.4)["bad"]) == 1
    assert sorted(prepared) == list(range(6))
    found = json.loads(file.read_text())
    assert [row["shape"] for row in found["rows"]] == ["0", "1", "2", "3", "5"] and found["copy_gbs"] == 4000.0
    assert list(tmp_path.iterdir()) == [file]
    again = bench()
    assert not ops.measure(file, set(), workers=2, within=5)["bad"]  # a second call makes what is missing
    assert again == [4] and len(json.loads(file.read_text())["rows"]) == 6


def test_what_is_on_record_of_the_same_sources_is_not_measured_again(ops: Any, bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "ops.json"
    bench()
    ops.measure(file, set(), workers=1, within=5)
    for head, again, measured in (
        ({}, False, []),
        ({}, True, list(range(6))),
        ({"sources": {"gelu.r": "another"}}, False, list(range(6))),
        ({"versions": {"torch": "3"}}, False, list(range(6))),
    ):
        prepared = bench(**head)
        ops.measure(file, {"gelu"}, again=again, workers=1, within=5)
        assert prepared == measured, head
    prepared = bench()
    ops.measure(file, {"relu"}, workers=1, within=5)
    assert prepared == []


def test_lines_of_another_commit_keep_its_name(ops: Any, cases: Any, tmp_path: Path) -> None:
    file = tmp_path / "ops.json"
    old = {"op": "rope", "pass": "forward", "shape": "1", "ms": {}, "group": "rope 1"}
    rows = [old, {**old, "shape": "2", "group": "rope 2"}]  # which is in no table any more
    file.write_text(json.dumps({**HEAD, "commit": "old and first", "date": "2026-01-01", "rows": rows}))
    order = [cases.Group(op, "1", lambda: iter(())) for op in ("gelu", "rope")]
    record, group = ops.Record(file, HEAD, order), order[0]
    record.add(group, {"op": "gelu", "pass": "forward", "shape": "1"})
    found = json.loads(file.read_text())
    assert found["commit"] == "new and old" and [r["commit"] for r in found["rows"]] == ["new", "old"]
    assert found["rows"][1]["date"] == "2026-01-01"
    ops.Record(file, {**HEAD, "machine": {"name": "b"}}, []).write()
    assert json.loads(file.read_text())["rows"] == []  # figures of another machine stand in no table with these
