"""Records that look like real ones, for everything that only draws. The figures in them are invented for the tests."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

# Read when torch loads OpenMP. Both workers' threads share the cores, and a thread that spins while it waits keeps one
# from the other worker: half of the time of the parity tests went there.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Rows of ours run wherever they are proved, in the processes that tests start too: which one is quicker here and now is
# asked of timings in the tests that are about those.
os.environ["KERNELWORKS_CHOOSE"] = "listed"
# A process of a test with a cache of its own compiles no way into ops: that takes 15 s.
os.environ["KERNELWORKS_NATIVE"] = "found"
# What is compiled beside other workers, on a machine that others use too, may take minutes.
os.environ.setdefault("KERNELWORKS_COMPILE_SECONDS", "1200")

import one_op
import pytest

from kernelworks.records import (
    Bandwidth,
    BenchResult,
    Diagnosis,
    Fix,
    FlopRate,
    FunctionRate,
    Hotspot,
    MapKernel,
    MapOp,
    Parity,
    Peaks,
    Variant,
    Verification,
)

if TYPE_CHECKING:
    from kernelworks.judge.process.pool import Nursery

# Started first, in this order: no worker is then left with one long test when the other has nothing more to take.
LONG = ("test_triton", "test_parity", "test_faulty_kernels", "test_opcheck")
# Of an op one after the other: what is right on a case is computed for the first that asks.
OF_THE_SAME_CASES = ("test_parity", "test_loose_bounds", "test_mutants")
# Started last: the type checker has looked at the package meanwhile, and what it found is in its cache.
LAST = "test_typing"

LEVELS = (("L1", 16 << 10, 450.0), ("L2", 512 << 10, 255.0), ("L3", 8 << 20, 105.0), ("DRAM", 256 << 20, 42.0))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="what `make test` has no time for, too")
    parser.addoption("--seed", type=int, help="the number of the first of a night's random programs")
    parser.addoption("--shuffle", type=int, help="in the order that is drawn with this number: no test needs another")
    parser.addoption("--op", help="the tests of one op: what is asked of every op, and what its own files ask")


def pytest_configure(config: pytest.Config) -> None:
    one_op.asked.every_kernel = config.getoption("--all") or config.getoption("--op") is not None


def pytest_collectstart() -> None:
    gc.disable()  # until all tests are collected: passes over two million objects that stay take a quarter of the time


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are about no op are not even read where the tests of one are asked for: that takes a minute."""
    if config.getoption("--op") is None or not collection_path.name.startswith("test_"):
        return None
    return None if one_op.lists_ops(collection_path.read_text(encoding="utf-8")) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    op = config.getoption("--op")
    if op is not None:
        items[:] = [item for item in items if one_op.is_test_of(op, item.path.stem, item.name)]
    if not config.getoption("--all"):
        left = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    turns = {**{stem: turn for turn, stem in enumerate(LONG, -len(LONG))}, LAST: 1}
    turns |= dict.fromkeys(OF_THE_SAME_CASES, turns[OF_THE_SAME_CASES[0]])
    items.sort(key=lambda item: (turns.get(item.path.stem, 0), _op_of(item)))
    if config.getoption("--shuffle") is not None:
        random.Random(config.getoption("--shuffle")).shuffle(items)


def _op_of(item: pytest.Item) -> str:
    """The op that a test of those files is given."""
    given = getattr(item, "callspec", None) if item.path.stem in OF_THE_SAME_CASES else None
    op = given and (given.params.get("op") or given.params.get("tried"))
    return getattr(op, "name", "")


def pytest_collection_finish() -> None:
    """A process that has collected all tests holds two million objects. A diagnosis walks over all that there are, many
    times, and each full collection of garbage does: over those of the test alone, from here on."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of Python's that the package starts are forks of one that has loaded torch and the package, which
    takes three seconds: for tests that are not about how they start."""
    import forked

    own, quick = sys.executable, forked.interpreter()
    monkeypatch.setattr(sys, "executable", quick)
    for name in ("kernelworks.verify", "kernelworks.verify.ranks", "kernelworks.measure.autotune.worker"):
        worker = sys.modules.get(name)
        if worker is not None and worker.WORKER[0] == own:
            monkeypatch.setattr(worker, "WORKER", (quick, *worker.WORKER[1:]))


@pytest.fixture
def made_anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The test's file, run once more: what it makes is among the objects that are found, which what was made when tests
    were collected is not. To find that, all of a process's objects would be walked over, many times."""
    spec = importlib.util.spec_from_file_location(f"{request.module.__name__}_made_anew", request.path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(autouse=True, scope="session")
def _entered_through_cpp() -> None:
    """Calls take their way in C++, as on a machine where it was built; `through_python` has them go without."""
    from kernelworks.build import native

    assert native.build() is not None, f"half of the tests are about the way in C++: {native.fallback_reason()}"


@pytest.fixture(autouse=True, scope="session")
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixes of tests brought is nothing to calibrate the user's predictions by, and no worker waits until another
    one has measured: both lie in folders of this worker's, but where a test has a cache of its own."""
    from kernelworks.machine import environment

    users, cache_dir = os.environ.get("KERNELWORKS_CACHE"), environment.cache_dir
    folder = tmp_path_factory.mktemp("kept")

    def apart(kind: str) -> Path:
        own = kind in ("history", "locks") and os.environ.get("KERNELWORKS_CACHE") == users
        return folder / kind if own else cache_dir(kind)

    environment.cache_dir = apart
    yield
    environment.cache_dir = cache_dir


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    """What the tests of other files have left is no longer among the objects of the process, as what was collected is
    not: every diagnosis walks over them all, and each full collection does. Where inductor has compiled something, a
    diagnosis asks a thousand files for the names of its kernels."""
    gc.collect()
    gc.freeze()
    yield
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is not None and codecache.PyCodeCache.modules:
        sys.modules["torch"]._dynamo.reset()
        codecache.PyCodeCache.cache_clear()


# What these are about is what stands around a kernel: which one is taken, with what, and what comes of its results.
AROUND_KERNELS = ("dispatch", "estimators", "limits", "nn", "ops")


@pytest.fixture(autouse=True, scope="module")
def _coded_plainly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels that certificates speak for run the code of the plain ones there: to compile all takes minutes."""
    from eligible import coded_plainly

    with coded_plainly() if request.path.parent.name in AROUND_KERNELS else contextlib.nullcontext():
        yield


@pytest.fixture
def through_python() -> Iterator[None]:
    """Every op's calls go through Python while the test runs."""
    from kernelworks.build import native
    from kernelworks.dispatch.op import OPS

    for op in OPS.values():
        op.entry.use_module(None)
    yield
    for op in OPS.values():
        op.entry.use_module(native.find_extension())


# What these are about is not whether others use the machine, which they do: the workers of a test run, to begin with.
CALM = ("diagnose", "trust", "test_cli")


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody else uses, whatever goes on; tests of noise put their own reader in its place."""
    if request.path.parent.name in CALM or request.path.stem in CALM:
        from kernelworks.measure.clock import noise

        monkeypatch.setattr(noise, "cpu_times", lambda: noise.CpuTimes(time.monotonic(), 0.0, 0.0, 2))


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of diagnoses write a hundred pages. Their rooflines, half a second each, are left to the tests of pages."""
    if request.path.parent.name == "diagnose":
        from kernelworks.report import plot

        monkeypatch.setattr(plot, "roofline", lambda *given: "")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where the judge's processes are born, once for all tests of a worker: it takes seconds to load torch."""
    from kernelworks.judge.process.pool import Nursery

    with Nursery(interpreted=True) as born:
        yield born


@pytest.fixture(scope="session")
def ceilings() -> Peaks:
    """A machine of two cores."""
    bandwidth = [
        Bandwidth(level, size, kind, threads, gbs * factor * (1 if threads == 1 else 1.9))
        for level, size, gbs in LEVELS
        for kind, factor in (("read", 1.0), ("copy", 0.9), ("copy_nt", 1.3))
        for threads in (1, 2)
        if kind != "copy_nt" or level in ("L3", "DRAM")
    ]
    flops = [
        FlopRate(dtype, isa, threads, gflops * threads)
        for dtype, isa, gflops in (
            ("float32", "scalar", 17.0),
            ("float32", "avx2", 135.0),
            ("float32", "avx512", 268.0),
            ("bfloat16", "avx512_bf16", 540.0),
            ("int8", "avx512_vnni", 980.0),
        )
        for threads in (1, 2)
    ]
    functions = [
        FunctionRate(name, "avx512", threads, gops * threads)
        for name, gops in (("exp", 4.1), ("tanh", 2.7), ("erf", 2.2), ("log", 3.0))
        for threads in (1, 2)
    ]
    return Peaks(
        kind="x86_64-vendor-family1-model1-avx512_bf16",
        name="Invented CPU of two cores",
        fingerprint="0" * 16,
        date="2026-01-01T00:00:00Z",
        cores=2,
        bandwidth=tuple(bandwidth),
        flops=tuple(flops),
        functions=tuple(functions),
        dispatch_us=0.8,
        fork_join_us=0.4,
        page_fault_us=0.25,
        foreign_share=0.01,
        versions={"torch": "2.13.0"},
    )


def _region(op: str, module: str, seconds: float, regime: str, achieved: float | None, **more: object) -> Hotspot:
    back = 0.0 if achieved is None else seconds * (1 - achieved)
    base = Hotspot(
        op=op, module=module, source="model.py:123", shapes="[4096, 384] x [384, 384]", calls=12, seconds=seconds,
        share=seconds / 0.4, bottleneck=regime, peak="DRAM read 80.0 GB/s" if regime == "memory" else "",
        achieved=achieved, low_s=back * 0.6, high_s=back * 0.9, action="swap in kernelworks.linear (avx512)",
        flop=1e9, bytes=4e7, modelled=achieved is not None,
    )  # fmt: skip
    return dataclasses.replace(base, **more)


@pytest.fixture(scope="session")
def diagnosis(ceilings: Peaks) -> Diagnosis:
    """A program of 400 ms whose footer adds to its wall clock, with a region of every regime, one with a nasty name."""
    regions = (
        _region("linear", "encoder.layer.*.attention.self.query", 0.120, "compute", 0.45, flop=1.2e10, bytes=1.2e8),
        _region("attention", "encoder.layer.*.attention", 0.080, "memory", 0.20, flop=2e9, bytes=2e9),
        _region("gelu", "encoder.layer.*.intermediate", 0.060, "transcendental", 0.30, flop=6e8, bytes=4e8),
        _region("layer_norm", "encoder.layer.*.output", 0.030, "memory", 0.65, flop=2e8, bytes=3e8),
        _region("add", "", 0.020, "allocation", 0.10, flop=5e7, bytes=6e8),
        _region("item", "", 0.010, "host", 0.02, flop=0.0, bytes=8.0),
        _region("mul", "<lambda> & co", 0.005, "dispatch", 0.05, flop=1e4, bytes=1e5),
        _region("unique_dim", "", 0.015, "unmodelled", None, flop=0.0, bytes=0.0, action="", high_s=0.0, low_s=0.0),
    )
    footer = {
        "at peak": 0.1503, "above the memory roofline": 0.0702, "above the compute roofline": 0.0811,
        "dispatch": 0.0202, "Python overhead (host)": 0.0301, "allocation (page faults)": 0.0179, "unexplained": 0.0302,
    }  # fmt: skip
    fix = Fix(
        replaced=("12 x nn.LayerNorm -> kernelworks.layer_norm", "36 x nn.Linear -> kernelworks.linear"),
        left=("1 x nn.Embedding: already at its ceiling",),
        before_s=0.400, after_s=0.265, predicted_gain_s=0.120, gain_s=0.135, error_before=3.1e-6, error_after=2.9e-6,
        agrees=True, rounds=7, notes=("weights are not copied",),
    )  # fmt: skip
    return Diagnosis(
        program="examples/program.py:step",
        sentence="This program runs at 38% of what this machine can do; 171 ms of 400 ms recoverable, "
        "most of it in linear (encoder.layer.*.attention.self.query).",
        wall_s=sum(footer.values()),
        hotspots=regions,
        time_breakdown=footer,
        unmodelled=("unique_dim: 15.0 ms in 12 calls, no formula for its flop and bytes",),
        findings=("every fresh output over 32 MiB page-faults; raise MALLOC_MMAP_THRESHOLD_ or pass out=",),
        threads=2,
        peaks=ceilings,
        versions={"torch": "2.13.0", "kernelworks": "0.1.0"},
        date="2026-01-01T00:00:00Z",
        fix=fix,
    )


@pytest.fixture(scope="session")
def proofs() -> list[Verification]:
    """One proof that holds and one that does not."""
    checks = {"guard_pages": True, "inputs_untouched": True, "deterministic": True, "two_threads": True}
    failure = Parity(
        "softmax", "avx2", "forward", "length 17", "float32", 3.2, False, "element [0, 16] is 0.3, should be 0.2",
        "kernelworks verify softmax.avx2 --case 'length 17'",
    )  # fmt: skip
    return [
        Verification("softmax", "avx512", "kind", 412, 0.43, "length 1009 bfloat16", (), 6, 6, checks, 3.2, True),
        Verification("softmax", "avx2", "kind", 412, 3.2, "length 17 float32", (failure,), 5, 6, checks, 3.4, False),
    ]


@pytest.fixture(scope="session")
def benches() -> list[BenchResult]:
    """One case that passed its gate and one that did not."""
    arms = (
        Variant("eager", 120.0, 118.0, 124.0, 30),
        Variant("inductor", 90.0, 88.0, 97.0, 30),
        Variant("kernelworks", 40.0, 39.5, 41.0, 30, 0.81),
    )
    good = BenchResult("softmax", "[1024, 1024]", "float32", 2, "cold", 1e7, 8e6, 32.4, "memory", arms, "avx512", "", 1)
    return [good, dataclasses.replace(good, case="[17, 33]", gate="eager was wrong on these inputs")]


@pytest.fixture(scope="session")
def map_ops() -> list[MapOp]:
    """Two families."""
    rows = (
        MapKernel("avx512", "avx512", "2026-01-01", "", 0.43, 0.81, 2.25, "inductor"),
        MapKernel("avx2", "avx2", "", "not proved on this kind of machine"),
        MapKernel("torch", "torch", "", "", None, 0.3, 0.7, "inductor"),
        MapKernel("reference", "reference", "", ""),
    )
    return [
        MapOp("softmax", "reduction", "exp(x - max x) / sum exp(x - max x)", "a paper", rows, "ops/reduction/softmax"),
        MapOp("gelu", "activation", "x Phi(x)", "a paper", rows, "ops/activation/gelu"),
    ]
