"""Measured peaks: measured only on a quiet machine, cached only whole, and the bound that follows from them."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch
from machines import MIB, Busy, record

from kernelworks.build import library
from kernelworks.machine import machine
from kernelworks.measure import peaks
from kernelworks.measure.clock import noise
from kernelworks.measure.clock.noise import Ambiguous, CpuTimes, Quiet, foreign_share
from kernelworks.measure.peaks import cache, survey
from kernelworks.measure.roofline import bound as roofline
from kernelworks.measure.roofline.bound import DISPATCH_CALLS
from kernelworks.records import FlopRate, Peaks, from_json, to_json

# ---------------------------------------------------------------- quiet windows


def test_foreign_share_leaves_out_our_own_time() -> None:
    before = CpuTimes(wall_s=0.0, busy_s=100.0, own_s=3.0, cores=2)
    assert foreign_share(before, CpuTimes(10.0, 106.8 + 10.0, 13.0, 2)) == pytest.approx(0.34)
    assert foreign_share(before, CpuTimes(10.0, 105.0, 13.0, 2)) == 0.0


def test_cpu_times_count_our_own_work() -> None:
    before = noise.cpu_times()
    while noise.cpu_times().own_s < before.own_s + 0.05:
        pass
    after = noise.cpu_times()
    assert after.wall_s > before.wall_s
    assert after.busy_s >= before.busy_s > 0
    assert after.cores >= 1


def test_noisy_windows_are_thrown_away() -> None:
    watch = Quiet(window_s=0.0, times=Busy(0.5, 0.3, 0.02))
    numbers = iter(range(10))
    assert watch.collect(lambda: next(numbers)) == [2]
    assert (watch.kept_windows, watch.thrown_windows) == (1, 2)
    assert watch.share == pytest.approx(0.02)


def test_a_busy_machine_is_refused_in_words() -> None:
    watch = Quiet(window_s=0.0, patience=5, times=Busy(0.34))
    with pytest.raises(Ambiguous, match=r"^ambiguous: other processes used 34% of the cores while measuring L1$") as e:
        watch.collect(lambda: 0, "L1")
    assert e.value.share == pytest.approx(0.34)
    assert watch.kept_windows == 0 and watch.thrown_windows == 5


def test_measure_refuses_on_a_busy_machine() -> None:
    with pytest.raises(Ambiguous, match=r"^ambiguous: other processes used 34% of the cores"):
        peaks.measure(quiet=Quiet(window_s=0.0, patience=2, times=Busy(0.34)))


def test_a_later_burst_does_not_spoil_the_first_round() -> None:
    watch = Quiet(window_s=0.0, patience=1, times=Busy(0.0, 0.0, 0.5))
    items = [survey.Floor("a", lambda: 1.0), survey.Floor("b", lambda: 2.0)]
    assert survey._rounds(items, watch, None) == 1
    assert [item.best for item in items] == [1.0, 2.0]


def test_what_two_rounds_agree_on_is_not_measured_again() -> None:
    told = {"steady": iter([1.0, 1.02]), "slowed once": iter([2.0, 1.0, 1.0]), "never twice": iter([4.0, 2.0, 1.0])}
    items = [survey.Floor(what, lambda values=values: next(values)) for what, values in told.items()]
    steps: list[str] = []
    watch = Quiet(window_s=0.0, times=Busy(0.0))
    assert survey._rounds(items, watch, lambda what, *_: steps.append(what)) == survey.ROUNDS
    assert [item.best for item in items] == [1.0, 1.0, 1.0]
    assert [len(item.found) for item in items] == [2, 3, 3]
    assert steps[-2:] == ["round 3: slowed once", "round 3: never twice"]


# ---------------------------------------------------------------- measuring


def test_everything_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short round on the real kernels: complete, positive, and ordered where the hardware orders it."""
    monkeypatch.setattr(survey, "ROUNDS", 1)
    monkeypatch.setattr(survey, "SAMPLE_S", 0.0005)
    steps: list[tuple[str, int, int]] = []
    found = peaks.measure(lambda *s: steps.append(s), quiet=Quiet(window_s=0.0, times=Busy(0.0)))
    counts = {1, machine().cores}
    assert {b.threads for b in found.bandwidth} == counts
    assert {(b.level, b.kind) for b in found.bandwidth} == set(
        itertools.product(survey.working_sets(machine(), 1), survey.KINDS)
    )
    rates = [b.gbs for b in found.bandwidth] + [f.gflops for f in found.flops] + [f.gops for f in found.functions]
    assert all(0 < rate < 1e6 for rate in rates)
    assert 0 < found.fork_join_us < 1e5 and 0 < found.page_fault_us < 1e3 and 0.1 < found.dispatch_us < 1e3
    assert len(steps) > len(rates)
    assert from_json(Peaks, to_json(found)) == found


@pytest.mark.parametrize("target", survey.targets(machine()))
def test_peak_kernels_count_what_they_do(target: str) -> None:
    """Twice the rounds is twice the counted work, and the time is not nothing: the loop was not folded away."""
    kernels = library(survey.FLOPS_SOURCE, target)
    result = torch.zeros(3, dtype=torch.float64)
    names = ["fma32", "fma64"] + ["dot_bf16"] * (target == "avx512_bf16")
    for name in names:
        getattr(kernels, name)(result, 1000, 1)
        short = result[2].item()
        getattr(kernels, name)(result, 2_000_000, 1)
        seconds, threads, work = result.tolist()
        assert work == 2000 * short > 0
        assert threads == 1
        assert work / seconds < 1e13, f"{name} {target}: folded away"


def test_working_sets_nest() -> None:
    here = machine()
    for threads in (1, here.cores, 16):
        sets = list(survey.working_sets(here, threads).values())
        assert all(size % 8192 == 0 for size in sets)
        assert sets[0] < sets[-1]
    sizes = dict(here.cache_bytes)
    for level, size in survey.working_sets(here, 1).items():
        assert size < sizes.get(level, here.memory_bytes)


# ---------------------------------------------------------------- the cache


@pytest.fixture
def own_cache(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    cache.forget_peaks()
    yield tmp_path
    cache.forget_peaks()


def test_cache_round_trip(own_cache, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    calls: list[int] = []
    monkeypatch.setattr(cache, "measure", lambda progress=None: calls.append(1) or record())
    assert peaks.cached_peaks() is None
    assert peaks.get_peaks() == record()
    cache.forget_peaks()
    assert peaks.cached_peaks() == record()
    assert peaks.get_peaks() == record()
    assert len(calls) == 1
    peaks.get_peaks(again=True)
    assert len(calls) == 2
    assert [p.suffix for p in (own_cache / "peaks").iterdir()] == [".json"]


@pytest.mark.parametrize("fault", ["truncated", "edited", "empty", "not_json", "other_machine", "binary"])
def test_a_bad_entry_is_measured_again(own_cache, monkeypatch, fault: str) -> None:  # type: ignore[no-untyped-def]
    path = cache.save_peaks(record())
    text = path.read_text()
    if fault == "truncated":
        path.write_text(text[: len(text) // 2])
    elif fault == "edited":
        path.write_text(text.replace('"dispatch_us": 1.0', '"dispatch_us": 0.001'))
    elif fault == "empty":
        path.write_text("")
    elif fault == "not_json":
        path.write_text("[1, 2]")
    elif fault == "binary":
        path.write_bytes(bytes(range(256)))
    else:
        cache.save_peaks(record(fingerprint="of another machine"))
    assert peaks.cached_peaks() is None
    monkeypatch.setattr(cache, "measure", lambda progress=None: record(dispatch_us=7.0))
    assert peaks.get_peaks().dispatch_us == 7.0
    assert json.loads(path.read_text())["peaks"]["dispatch_us"] == 7.0


def test_an_unwritable_cache_still_returns_the_result(own_cache, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (own_cache / "peaks").write_text("a file where the folder should be")
    monkeypatch.setattr(cache, "measure", lambda progress=None: record())
    with pytest.warns(UserWarning, match="could not be cached"):
        assert peaks.get_peaks() == record()


# ---------------------------------------------------------------- the bound


def test_each_term_names_its_bottleneck() -> None:
    here = record()
    streaming = roofline.bound(1e6, 0, 400e6, float("inf"), torch.float32, 1, here)
    assert streaming.seconds == pytest.approx(10e-3)  # 400 MB at 40 GB/s
    assert (streaming.bottleneck, streaming.level, streaming.peak) == ("memory DRAM", "DRAM", "DRAM read 40 GB/s")
    product = roofline.bound(4e9, 0, 1e6, 1e6, torch.float32, 2, here)
    assert product.seconds == pytest.approx(10e-3)  # 4 GFLOP at 2 x 200 GFLOP/s
    assert product.bottleneck == "compute" and product.peak == "float32 avx512 400 GFLOP/s"
    soft = roofline.bound(1e6, 50e6, 1e6, 1e6, torch.float32, 1, here)
    assert soft.seconds == pytest.approx(10e-3) and soft.bottleneck == "transcendental"
    tiny = roofline.bound(10, 0, 40, 40, torch.float32, 1, here)
    assert tiny.seconds == pytest.approx(1e-6) and tiny.bottleneck == "dispatch"


@pytest.mark.parametrize(
    ("dtype", "isa", "gflops"),
    [
        (torch.float32, None, 200), (torch.bfloat16, None, 400), (torch.float16, None, 200), ("float32", "avx2", 100),
        (torch.bfloat16, "avx512", 200), (torch.bfloat16, "avx512_bf16", 400), (torch.float32, "scalar", 10),
    ],
)  # fmt: skip
def test_the_unit_follows_dtype_and_isa(dtype: object, isa: str | None, gflops: float) -> None:
    assert roofline.bound(gflops * 1e9, 0, 0, 0, dtype, 1, record(), isa).terms["compute"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("footprint", "threads", "level", "gbs"),
    [
        (40 * 1024, 1, "L1", 400), (60 * 1024, 1, "L2", 200), (60 * 1024, 2, "L1", 800), (1.5 * MIB, 1, "L3", 100),
        (1.5 * MIB, 2, "L2", 400), (30 * MIB, 2, "L3", 200), (64 * MIB, 1, "DRAM", 40), (1e9, 2, "DRAM", 80),
    ],
)  # fmt: skip
def test_the_level_follows_the_footprint(footprint: float, threads: int, level: str, gbs: float) -> None:
    limit = roofline.bound(0, 0, 1e9, footprint, "float32", threads, record())
    assert limit.level == level
    assert limit.seconds == pytest.approx(1 / gbs)


def test_the_last_cache_counts_as_far_as_it_was_measured() -> None:
    """Between what an L3 was measured with and twice its size the rate falls steadily: others may have the rest."""
    bandwidth = [
        dataclasses.replace(b, working_set_bytes=4 * MIB) if b.level == "L3" else b for b in record().bandwidth
    ]
    here = record(bandwidth=tuple(bandwidth))
    sizes = (6, 8, 16, 32, 64)  # two threads measured 4 MiB each
    times = [roofline.bound(0, 0, 1e9, size * MIB, "float32", 1, here).seconds for size in sizes]
    assert times[0] == times[1] == pytest.approx(1 / 100)
    assert times[3] == pytest.approx((24 / 56) / 40 + (32 / 56) / 100)
    assert times == sorted(times) and times[4] == pytest.approx(1 / 40)


def test_just_beyond_the_last_cache_the_bound_is_continuous() -> None:
    times = [roofline.bound(0, 0, 1e9, f * MIB, "float32", 1, record()).seconds for f in (32, 32.01, 48, 63.99, 64)]
    assert times == sorted(times)
    assert times[1] < 1.01 * times[0] and times[4] < 1.01 * times[3]
    assert times[2] == pytest.approx(0.5 / 100 + 0.5 / 40)


def test_writes_may_stream() -> None:
    """A non-temporal copy at 60 GB/s beats reading at 40: half read, half written is bound by it, and no less."""
    here = record()
    assert roofline.bound(0, 0, 120e6, 1e9, "float32", 1, here, written_bytes=60e6).seconds == pytest.approx(2e-3)
    assert roofline.bound(0, 0, 120e6, 1e9, "float32", 1, here, written_bytes=20e6).seconds == pytest.approx(
        80e6 / 40e9 + 40e6 / 60e9
    )
    in_cache = roofline.bound(0, 0, 120e3, 30e3, "float32", 1, here, written_bytes=60e3)
    assert in_cache.terms["memory"] == pytest.approx(120e3 / 400e9)


def test_threads_between_one_and_all() -> None:
    here = record(
        cores=8,
        flops=(FlopRate("float32", "avx512", 1, 100.0), FlopRate("float32", "avx512", 8, 500.0)),
    )
    times = [roofline.bound(1e9, 0, 0, 0, "float32", n, here).terms["compute"] for n in (1, 2, 4, 5, 8, 16)]
    assert times == pytest.approx([1 / 100, 1 / 200, 1 / 400, 1 / 500, 1 / 500, 1 / 500])


def test_ridge_and_latency() -> None:
    here = record()
    ridge = roofline.bound(190e6, 0, 40e6, 1e9, "float32", 1, here)  # 0.95 ms against 1 ms
    assert ridge.bottleneck == "ridge memory DRAM/compute"
    clear = roofline.bound(160e6, 0, 40e6, 1e9, "float32", 1, here)
    assert clear.bottleneck == "memory DRAM"
    assert roofline.bottleneck_of(clear, 1e-3) == "memory DRAM"
    assert roofline.bottleneck_of(clear, 1e-3 / 0.6 * 0.999) == "memory DRAM"
    assert roofline.bottleneck_of(clear, 1e-3 / 0.6 * 1.001) == "latency"
    tiny = roofline.bound(10, 0, 40, 40, "float32", 1, here)
    assert roofline.bottleneck_of(tiny, 1.2e-6) == "dispatch"
    assert roofline.bottleneck_of(tiny, 9e-6) == "dispatch"
    assert roofline.bottleneck_of(tiny, DISPATCH_CALLS * 1e-6 * 1.01) == "latency"
