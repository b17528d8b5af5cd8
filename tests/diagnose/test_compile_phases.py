"""Where a compile's seconds went is told by torch's own clocks, and what it found in inductor's caches."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch._dynamo.utils import compilation_time_metrics, counters

from kernelworks.diagnose.optimizations import compiler_choices
from kernelworks.diagnose.optimizations.compile_phases import PHASES, CompilePhases, phases_told


def test_a_process_that_compiles_nothing_says_nothing() -> None:
    assert CompilePhases().text() == ""


def test_phases_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: dict[str, list[float]] = {"compile_fx_inner": [1.0]}
    monkeypatch.setattr("torch._dynamo.utils.compilation_time_metrics", clocks)
    phases = CompilePhases()
    clocks |= {
        "compile_fx_inner": [1.0, 6.0], "async_compile.wait": [2.0, 0.5], "_compile.compile_inner": [9.0],
        "OutputGraph.call_user_compiler": [8.0], "CachingAutotuner.benchmark_all_configs": [0.01] * 50,
    }  # fmt: skip
    compiler_choices.halting_seconds.append(0.25)
    counters["inductor"]["fxgraph_cache_hit"] += 2
    counters["inductor"]["fxgraph_cache_miss"] += 1
    found = phases.seconds()
    assert found == pytest.approx({
        "tracing": 1.0, "inductor": 3.5, "waiting for kernels to be built": 2.5, "benchmarks of kernels": 0.5,
        "until compilers beside stood still for them": 0.25,
    })  # fmt: skip
    assert phases.text().endswith("; 2 of 3 graphs were in inductor's cache"), phases.text()
    assert phases.text().startswith("compiling took 1.0 s tracing, 3.5 s inductor, ")


def test_torch_has_the_clocks_that_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    x, factor = torch.ones(8, requires_grad=True), time.time_ns() % 1_000_000 / 1e6  # that no cache has yet
    phases, told = CompilePhases(), list[str]()
    with pytest.raises(ZeroDivisionError), phases_told(told.append):
        torch.compile(lambda y: (y * factor).tanh().sum())(x).backward()
        raise ZeroDivisionError
    on_cpu = {phase.clock for phase in PHASES} - {"halting", "CachingAutotuner.benchmark_all_configs"}
    assert on_cpu <= compilation_time_metrics.keys()
    assert {"inductor", "waiting for kernels to be built"} & phases.seconds().keys(), phases.text()
    assert phases.text().endswith("; 0 of 2 graphs were in inductor's cache"), phases.text()
    assert told == [phases.text()]
