"""Benches: the gate before the figures, the race's bookkeeping, baselines that compute the same op, saved results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from machines import Busy, record
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from kernelworks import ops
from kernelworks.contract import Case
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.choose import eligible_ways
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.plans import forget_all
from kernelworks.measure.bench import baselines, bench, benchmark, results
from kernelworks.measure.clock import page_faults
from kernelworks.measure.clock import race as timing
from kernelworks.measure.clock.noise import Ambiguous, Quiet
from kernelworks.measure.clock.race import Race, race
from kernelworks.measure.roofline import forecast
from kernelworks.ops.baselines import compiled_whole
from kernelworks.records import BenchResult, Variant

assert ops  # filling OPS is what it is imported for
ALL = sorted(OPS)


def calm() -> Quiet:
    return Quiet(window_s=0.0, times=Busy(0.0))


def small_bench(op: str = "rms_norm", **options: Any) -> list[BenchResult]:
    """One small case, no torch.compile, as short as a race can be."""
    settings: dict[str, Any] = {"compile": False, "budget_s": 0.0, "known": record(), "quiet": calm}
    return bench(op, **(settings | options))


@pytest.fixture
def small_case(monkeypatch: pytest.MonkeyPatch) -> Case:
    """rms_norm's only bench case, for the test: 4 rows of 64."""
    op = OPS["rms_norm"]
    case = Case("4x64", _arguments, dtypes=(torch.float32,))
    contract = dataclasses.replace(op.contract, bench_cases=(case,))
    monkeypatch.setattr(op, "contract", contract)
    return case


def _arguments(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "x": torch.randn(4, 64, generator=generator).to(dtype),
        "weight": torch.randn(64, generator=generator).to(dtype),
        "eps": 1e-6,
        "residual": None,
    }


# ---------------------------------------------------------------- the race


def test_variants_alternate_and_inputs_rotate() -> None:
    calls: list[tuple[str, int]] = []

    def variant(name: str) -> Callable[[int], None]:
        def call(index: int) -> None:
            calls.append((name, index))
            time.sleep(0.005)  # one call fills a sample, so a round calls each variant once

        return call

    found = race({"a": variant("a"), "b": variant("b")}, 3, budget_s=0.0, quiet=calm())
    rounds = calls[-14:]
    assert [name for name, _ in rounds] == list("abba" * 4)[:14]
    assert {index for name, index in rounds if name == "a"} == {0, 1, 2}
    assert {len(samples) for samples in found.samples.values()} == {7}
    assert all(0.005 <= found.stats(n).low <= found.stats(n).median <= found.stats(n).high for n in "ab")


def test_cold_variants_are_called_once_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    found = race({"a": calls.append}, 2, budget_s=0.0, cold=True, quiet=calm())
    assert len(calls) == len(found.samples["a"]) == 7
    assert set(calls) == {0, 1}


def test_noisy_windows_do_not_count() -> None:
    watch = Quiet(window_s=0.0, times=Busy(0.5, 0.0, 0.4, 0.0))
    found = race({"a": lambda i: time.sleep(0.003)}, 1, budget_s=0.0, quiet=watch)
    assert found.thrown == 2
    assert len(found.samples["a"]) == 7


def test_long_calls_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clock = list[int](), SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now))

    def slow(i: int) -> None:
        calls.append(i)
        clock.now += 0.02

    def samples(enough_s: float) -> tuple[int, int]:
        calls.clear()
        found = race({"a": slow}, 1, budget_s=0.0, enough_s=enough_s, quiet=calm())
        return found.stats("a").samples, len(calls)

    assert samples(math.inf) == (7, 4 + 1 + 7)  # to warm up, to see how long one takes, and the rounds
    assert samples(0.05) == (5, 4 + 1 + 5)
    monkeypatch.setattr(timing, "WARM_S", 0.03)
    assert samples(0.05) == (5, 2 + 1 + 5)


def test_a_busy_machine_gives_no_figures(small_case: Case) -> None:
    with pytest.raises(Ambiguous, match="other processes used 34% of the cores"):
        small_bench(quiet=lambda: Quiet(window_s=0.0, patience=3, times=Busy(0.34)))


def test_percentiles_and_pooling() -> None:
    one = Race({"a": [float(i) for i in range(1, 11)], "b": [2.0] * 10}, thrown=1, faults=2)
    timed = one.stats("a")
    assert (timed.median, timed.low, timed.high, timed.samples) == (5.5, 2.0, 10.0, 10)
    assert one.ratio("a", "b") == 2.75
    both = one + Race({"a": [100.0] * 10, "b": [1.0] * 10}, thrown=3, faults=0)
    assert (both.stats("a").samples, both.thrown, both.faults) == (20, 4, 2)
    assert both.stats("a").high == 100.0


def test_page_faults_are_kept_out() -> None:
    """A fresh 32 MiB output faults 8192 times; inside, after glibc has settled, it hardly does."""
    x = torch.zeros(8 << 20)
    with page_faults.without_page_faults() as raised:
        if not raised:
            assert not hasattr(__import__("ctypes").CDLL(None), "mallopt")
            return
        for _ in range(6):
            torch.relu(x)
        before = page_faults.minor_faults()
        torch.relu(x)
        assert page_faults.minor_faults() - before < 1000


def test_what_a_race_told_malloc_makes_nothing_slower_afterwards() -> None:
    """A process whose outputs of 16 MiB cause no page faults before a race has none after it."""
    x = torch.zeros(4 << 20)
    with page_faults.without_page_faults():
        torch.relu(x)
    for _ in range(6):
        torch.relu(x)
    before = page_faults.minor_faults()
    for _ in range(4):
        torch.relu(x)
    assert page_faults.minor_faults() - before < 1000


# ---------------------------------------------------------------- the gate


def test_a_right_kernel_has_figures(small_case: Case) -> None:
    (result,) = small_bench(kernels=("scalar", "reference"), caches=("warm",))
    assert result.gate == ""
    assert [a.name for a in result.variants] == ["kernelworks", "scalar", "reference", "eager"]
    assert all(a.median_us > 0 and a.samples >= 14 and 0 <= (a.worst or 0) <= 1 for a in result.variants)
    assert (result.case, result.dtype, result.cache) == ("4x64", "float32", "warm")
    assert result.flop == 4 * 4 * 64 and result.bytes == 2 * 4 * 64 * 4 + 64 * 4
    assert result.bound_us == pytest.approx(1.0)  # the imaginary machine's dispatch floor
    for variant in result.variants:
        assert variant.share_of_bound == pytest.approx(result.bound_us / variant.median_us)


WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "one NaN": lambda y: torch.where(torch.arange(y.numel()).view(y.shape) == 7, math.nan, y),
    "one element": lambda y: torch.where(torch.arange(y.numel()).view(y.shape) == 7, y * 1.0001, y),
    "shape": lambda y: y[:-1],
    "slightly": lambda y: y * (1 + 64 * 2.0**-24),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_kernel_has_none(small_case: Case, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The gate stops it before anything is timed."""

    def wrong(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: None) -> torch.Tensor:
        return WRONG[fault](torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps))

    monkeypatch.setattr(benchmark, "race", lambda *a, **k: pytest.fail("a wrong row was timed"))
    monkeypatch.setattr(benchmark, "_public", lambda op: wrong)
    (result,) = small_bench(baselines=False)
    assert result.gate.startswith("kernelworks: output 0: ")
    assert result.variants == ()


def test_a_kernel_that_goes_wrong_while_it_is_timed_has_none(small_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right when judged, from then on a copy of its first answer: what a cached output would look like."""
    first: dict[int, torch.Tensor] = {}

    def stale(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: None) -> torch.Tensor:
        right = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
        if len(first) < benchmark.SETS:
            first[len(first)] = right
            return right
        return first[0]

    monkeypatch.setattr(benchmark, "_public", lambda op: stale)
    (result,) = small_bench(baselines=False)
    assert result.gate.startswith("kernelworks: after timing:")
    assert result.variants == ()


def test_a_baseline_of_another_op_is_no_baseline(small_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPS["rms_norm"], "as_written", lambda x, weight, eps, residual: x)
    (result,) = small_bench()
    assert result.gate.startswith("eager: output 0: off by")
    assert result.variants == ()


def test_a_baseline_that_rounds_more_is_still_benchmarked(small_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: None) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps) * (1 + 24 * 2.0**-24)

    monkeypatch.setattr(OPS["rms_norm"], "as_written", rounded)
    (result,) = small_bench()
    assert result.gate == ""
    worst = {a.name: a.worst for a in result.variants}
    assert worst["eager"] is not None and worst["eager"] > 1


def test_a_baseline_that_cannot_run_is_noted(small_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**args: Any) -> None:
        raise RuntimeError("no compiler\nmore text")

    monkeypatch.setattr(baselines, "inductor_baseline", lambda op: broken)
    (result,) = small_bench(compile=True)
    assert result.notes[:1] == ("inductor did not run: RuntimeError: no compiler",)
    assert [a.name for a in result.variants] == ["kernelworks", "eager"]


def test_where_torch_would_run_the_first_verified_kernel_is_timed_too(
    small_case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr(tuning_records, "SHIPPED_DIR", tmp_path)
    monkeypatch.setattr(tuning_records, "_folder", lambda place: tmp_path)
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: None)
    tuning_records.reread()
    forget_all()
    (result,) = small_bench(baselines=False)
    forget_all()
    op = OPS["rms_norm"]
    best = next(iter(eligible_ways(op, op.request("forward", (torch.ones(4, 8), None, 1e-6, None)))[0]))
    assert result.chosen == "torch" and [variant.name for variant in result.variants] == ["kernelworks", best]


def test_threads_are_set_and_put_back(small_case: Case) -> None:
    before = torch.get_num_threads()
    (result,) = small_bench(threads=1, baselines=False)
    assert result.threads == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": "no_such_op"}, "op must be one of"), ({"cases": ["no such case"]}, "cases must be among"),
        ({"kernels": ["no_such_kernel"]}, "kernel must be one of"),
        ({"caches": ["hot"]}, "caches must be among warm, cold"),
    ],
)  # fmt: skip
def test_bad_requests_name_what_is_accepted(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        small_bench(**arguments)


# ---------------------------------------------------------------- baselines


@functools.cache
def smallest(op: Op) -> tuple[Case, torch.dtype]:
    """The cheapest bench case of an op. Sizes say which: nothing is drawn but for a case that reads what it drew."""

    def size(case: Case) -> float:
        with contextlib.suppress(DataDependentOutputException), FakeTensorMode():
            return cost(case.make(torch.Generator().manual_seed(0), narrowest(case)))
        return cost(case.make(torch.Generator().manual_seed(0), narrowest(case)))

    def cost(args: dict[str, Any]) -> float:
        request = op.request("forward", [args.get(n) for n in op.passes["forward"].names])
        return op.contract.cost(request).flop + op.contract.cost(request).bytes

    def narrowest(case: Case) -> torch.dtype:
        return min(case.dtypes, key=lambda dtype: dtype.itemsize)

    case = min(op.contract.bench_cases, key=size)
    return case, narrowest(case)


@pytest.mark.parametrize("name", ALL)
def test_every_baseline_computes_the_op(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each op's eager line and each peer that runs here, judged on the op's smallest bench case."""
    monkeypatch.setattr(benchmark, "SETS", 1)
    op = OPS[name]
    case, dtype = smallest(op)
    with torch.inference_mode():
        entered = benchmark._Bench(op, case, dtype, benchmark._inputs(op, case, dtype))
        benchmark._enter_all(entered, (), baselines=True, compile=False)
    assert entered.notes == []
    assert [e.name for e in entered.entrants][:2] == ["kernelworks", "eager"]
    assert {e.name: e.wrong for e in entered.entrants if e.wrong} == {}


def test_a_baseline_that_this_cpu_has_no_instructions_for_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    for dtype, there in ((torch.float32, True), (torch.bfloat16, False)):
        given = {"x": torch.ones(2, 8, dtype=dtype), "weight": torch.ones(4, 8, dtype=dtype)}
        assert (baselines.library_baselines(OPS["linear"], "cpu")["mkldnn"](given) is not None) == there


def test_a_compiled_baseline_never_runs_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond torch's own limit of recompiles, where a peer would be timed unfused, and past what cannot be compiled."""
    ran: list[bool] = []

    def baseline(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            ran.append(True)
        return x + 1

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=8):
        made = compiled_whole(baseline)
        for size in range(2, 13):
            assert torch.equal(made(torch.zeros(size)), torch.ones(size))
        assert not ran
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled_whole(lambda x: torch._dynamo.graph_break() or x)(torch.zeros(2))


@pytest.mark.parametrize("name", ALL)
def test_every_op_has_bench_cases_with_a_bound(name: str) -> None:
    op = OPS[name]
    assert op.contract.bench_cases
    case, dtype = smallest(op)
    args = case.make(torch.Generator().manual_seed(0), dtype)
    request = op.request("forward", [args.get(n) for n in op.passes["forward"].names])
    least = forecast.limit(op, request, record(), math.inf)
    assert 0 < least.seconds < 10


# ---------------------------------------------------------------- results and predictions


def kept(dtype: str = "float32", bound_us: float = 10.0, median_us: float = 20.0, **changes: Any) -> BenchResult:
    result = BenchResult(
        op="rms_norm", case="c", dtype=dtype, threads=1, cache="warm", flop=1.0, bytes=1.0, bound_us=bound_us,
        bottleneck="memory DRAM", chosen="avx2", gate="", thrown=0,
        variants=(Variant("kernelworks", median_us, median_us, median_us, 9), Variant("eager", 50.0, 50.0, 50.0, 9)),
    )  # fmt: skip
    return dataclasses.replace(result, **changes)


def test_saved_results_come_back(tmp_path: Path) -> None:
    path = results.save_results([kept()], tmp_path / "deep" / "rms_norm.json", command="kernelworks bench rms_norm")
    assert results.read_results(path) == [kept()]
    held = json.loads(path.read_text())
    assert set(held) == {"machine", "date", "commit", "versions", "command", "gate", "results"}
    assert held["machine"]["cores"] >= 1 and held["versions"]["torch"] == torch.__version__
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_no_document_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{}", "not JSON", '{"results": [{"op": "x"}]}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError):
            results.read_results(tmp_path / "x.json")


def test_prediction_follows_the_nearest_measured_case() -> None:
    op = OPS["rms_norm"]
    x, weight = torch.empty(1024, 4096), torch.empty(4096)
    request = dataclasses.replace(op.request("forward", [x, weight, 1e-6, None]), threads=1)
    least = forecast.limit(op, request, record(), op.contract.cost(request).bytes)
    near, far = least.seconds * 1e6 * 2, least.seconds * 1e6 * 100

    def ask(*held: BenchResult, kernel: str = "avx2") -> float | None:
        return forecast.predict(op, request, kernel, record(), held)

    a, b = kept(bound_us=near, median_us=4 * near), kept(bound_us=far, median_us=2 * far)
    assert ask(a, b) == pytest.approx(4 * least.seconds)
    assert ask(b) == pytest.approx(2 * least.seconds)
    assert ask(a, kept(bound_us=near, median_us=3 * near, threads=7)) == pytest.approx(4 * least.seconds)
    assert ask() is None
    assert ask(kept(dtype="bfloat16")) is None
    assert ask(dataclasses.replace(a, gate="wrong")) is None
    assert ask(a, kernel="scalar") is None
