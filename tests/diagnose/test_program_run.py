"""The run itself on record: modules whose times add to the wall clock, spans of operators, source around calls."""

from __future__ import annotations

import linecache
import math
from pathlib import Path

import machines
import pytest
import torch
from test_compiled_gpu import recorded as compiled_on_gpu
from test_gpu import NAMES
from test_gpu import diagnosis as on_gpu
from torch import nn
from trace_events import read_trace

from kernelworks.diagnose import diagnose
from kernelworks.diagnose.account import program_run
from kernelworks.diagnose.account.account import Entry, Group
from kernelworks.diagnose.account.program_run import layers_text, module_tree, operator_spans, source_lines
from kernelworks.profile.calls import Call, Place, fold
from kernelworks.records import Diagnosis, from_json, to_json
from kernelworks.records.program_run import ModuleTime
from kernelworks.report.diagnosis_page.perfetto_trace import trace_events


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 64)
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(self.up(x))
        return inner + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def on_cpu() -> Diagnosis:
    """Forward, backward and step of a small network."""
    net, x = Net(), torch.randn(256, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return diagnose(step, peaks=machines.record(), budget_s=1.0, rough=True)


def check_tree(found: Diagnosis) -> dict[str, ModuleTime]:
    assert found.modules is not None
    modules = {module.path: module for module in found.modules.modules}
    assert len(modules) == len(found.modules.modules)
    assert math.isclose(sum(m.own_s for m in modules.values()), found.wall_s, rel_tol=1e-9)
    for hotspot in found.hotspots:
        assert hotspot.module in modules
    seen: set[str] = set()
    for path, module in modules.items():
        seen.add(path)
        above = path.rpartition(".")[0]
        assert not above or above in seen  # a module comes after the one it is in
        inner = [m for p, m in modules.items() if path and p.rpartition(".")[0] == path]
        assert math.isclose(module.seconds, module.own_s + sum(m.seconds for m in inner), rel_tol=1e-9, abs_tol=1e-12)
        assert module.least_s <= module.seconds / module.instances * (1 + 1e-9) <= module.most_s * (1 + 2e-9)
        assert fold(module.slowest) == path
        its = [h.seconds for h in found.hotspots if h.module == path]
        if path:
            assert math.isclose(module.own_s, sum(its), rel_tol=1e-6, abs_tol=1e-9)
    return modules


def check_spans(found: Diagnosis) -> None:
    spans = found.spans
    assert spans is not None and spans.starts_ns[0] == 0
    assert list(spans.starts_ns) == sorted(spans.starts_ns)
    assert len(spans.starts_ns) == len(spans.lengths_ns) == len(spans.hotspots)
    calls = dict.fromkeys(range(len(found.hotspots)), 0)
    for number in spans.hotspots:
        calls[number] += 1
    for number, hotspot in enumerate(found.hotspots):
        assert calls[number] <= hotspot.calls
    assert sum(calls.values()) == len(spans.starts_ns)


def test_a_few_layers_are_named() -> None:
    assert layers_text("Net.features.*", ["Net.features.8", "Net.features.4", "Net.features.8"]) == "Net.features.4, .8"
    assert layers_text("a.*.b", ["a.1.b"]) == "a.1.b"  # one layer, whole
    assert layers_text("a.*.b", ["a.1.b", "a.2.b"]) == ""
    assert layers_text("a.*", [f"a.{i}" for i in range(5)]) == ""
    assert layers_text("a.b", ["a.b"]) == layers_text("", [""]) == layers_text("a.*", ["elsewhere"]) == ""


def test_the_modules_of_a_training_step_add_to_its_wall_clock(on_cpu: Diagnosis) -> None:
    modules = check_tree(on_cpu)
    assert modules["Net.layers.*"].instances == 3
    assert modules["Net.layers"].own_s == 0
    assert modules["Net.layers.*.inner.*"].instances == 6  # of each layer's Sequential two
    assert modules["Net.layers.*"].slowest in {f"Net.layers.{i}" for i in range(3)}
    assert modules[""].own_s > 0  # loss and optimizer
    assert from_json(Diagnosis, to_json(on_cpu)) == on_cpu


@pytest.mark.parametrize("name", [*NAMES, "compiled", "graphed"])
def test_the_modules_of_a_gpu_program_add_to_its_wall_clock(name: str) -> None:
    check_tree(on_gpu(name) if name in NAMES else compiled_on_gpu(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_spans_of_a_gpu_program_hold_its_kernels(name: str) -> None:
    found = on_gpu(name)
    check_spans(found)
    assert found.spans is not None and found.spans.device is not None
    device = found.spans.device
    columns = (device.starts_ns, device.lengths_ns, device.streams, device.names, device.hotspots)
    assert len({len(column) for column in columns}) == 1
    assert min(device.lengths_ns) >= 0 and max(device.names) == len(device.texts) - 1
    assert min(device.hotspots) >= -1 and max(device.hotspots) < len(found.hotspots)
    runs: dict[str, int] = {}
    for at in device.names:
        runs[device.texts[at]] = runs.get(device.texts[at], 0) + 1
    assert found.gpu is not None
    for kernel in found.gpu.kernels[:5]:
        assert runs[kernel.name] >= kernel.runs


@pytest.mark.parametrize("name", [*NAMES, "compiled", "graphed"])
def test_the_trace_file_of_a_gpu_program_holds_every_span(name: str) -> None:
    record = on_gpu(name) if name in NAMES else compiled_on_gpu(name)
    found = read_trace(trace_events(record))
    assert record.spans is not None and record.spans.device is not None
    assert sum(map(len, found[record.program].values())) == len(record.spans.starts_ns)
    assert sum(map(len, found[record.peaks.name].values())) == len(record.spans.device.starts_ns)


def test_the_spans_of_a_cpu_program_are_its_calls(on_cpu: Diagnosis) -> None:
    check_spans(on_cpu)
    spans = on_cpu.spans
    assert spans is not None and spans.device is None
    ends = [start + length for start, length in zip(spans.starts_ns, spans.lengths_ns, strict=True)]
    assert all(end <= start for end, start in zip(ends, spans.starts_ns[1:], strict=False))


def test_the_source_around_a_call_is_on_record(on_cpu: Diagnosis) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    found = next(h for h in on_cpu.hotspots if h.op == "add" and h.module == "Net.layers.*")
    assert found.code is not None
    number = int(found.source.rpartition(":")[2])
    assert found.code.lines[number - found.code.first].strip() == "return inner + x"
    assert list(found.code.lines) == lines[found.code.first - 1 : found.code.first - 1 + len(found.code.lines)]
    assert len(found.code.lines) == 5


# ---------------------------------------------------------------- odd programs


def group(path: str, seconds: float, start: int = 0, op: str = "mm") -> Group:
    call = Call(f"aten::{op}", start, start + int(seconds * 1e9), place=Place(fold(path), "a.py:1", 0, path))
    entry = Entry(call, seconds, None, None, {})
    return Group(op, call.place, "", [entry])


def test_a_sequence_inside_a_sequence_keeps_its_levels() -> None:
    groups = [group("Sequential.0.1", 1.0), group("Sequential.0.0", 2.0), group("Sequential.1", 4.0), group("", 8.0)]
    found = {m.path: m for m in module_tree(groups, 16.0).modules}
    assert found["Sequential"].seconds == 7.0
    assert found["Sequential.*"].seconds == 7.0 and found["Sequential.*"].instances == 2
    assert (found["Sequential.*"].least_s, found["Sequential.*"].most_s) == (3.0, 4.0)
    assert found["Sequential.*"].slowest == "Sequential.1"
    assert found["Sequential.*.*"].seconds == 3.0
    assert found[""].own_s == 9.0  # what no group holds ran outside every module


def test_a_place_whose_path_is_another_modules_counts_for_its_module() -> None:
    call = Call("aten::mm", 0, 10, place=Place("Net.layers.*", "a.py:1", 0, "layers.0"))
    found = module_tree([Group("mm", call.place, "", [Entry(call, 1.0, None, None, {})])], 1.0)
    assert {m.path for m in found.modules} == {"", "Net", "Net.layers", "Net.layers.*"}


def test_a_run_of_nothing_has_a_tree_and_no_spans() -> None:
    assert [(m.path, m.seconds) for m in module_tree([], 2.0).modules] == [("", 2.0)]
    assert operator_spans([], []) is None


def test_of_very_many_calls_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_run, "MOST_SPANS", 3)
    groups = [group("", 1e-6, start) for start in (9000, 1000, 5000, 3000, 7000)]
    found = operator_spans(groups, [0, 1, 2, 3, 4])
    assert found is not None
    assert (found.starts_ns, found.hotspots, found.left_out) == ((0, 2000, 4000), (1, 3, 2), 2)


def test_source_that_is_gone_or_shorter_by_now_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\n" + "x" * 999 + "\n", encoding="utf-8")
    linecache.checkcache()
    found = source_lines(str(file), "a.py:1")
    assert found is not None and (found.first, found.lines[:2]) == (1, ("one", "two"))
    assert len(found.lines[2]) == program_run.MOST_COLUMNS
    for name, source in (
        (str(file), "a.py:4"), (str(file), "a.py:0"), (str(tmp_path / "b.py"), "b.py:1"), ("", "a.py:1"),
        (str(file), ""), (str(tmp_path), "a.py:1"),
    ):  # fmt: skip
        assert source_lines(name, source) is None
