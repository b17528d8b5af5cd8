"""Measured rates do not contradict each other: what does is measured again, or follows from the others and says so."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from machines import Busy, gpu_record, record
from rich.console import Console

from kernelworks.measure import peaks
from kernelworks.measure.clock.noise import Quiet
from kernelworks.measure.peaks import cache, gpu, mending, survey
from kernelworks.measure.peaks.mending import NOISE, doubts, repair_record, suspects
from kernelworks.measure.peaks.relations import FLOORS, HOST, Relation, rates_of, relations_of
from kernelworks.measure.roofline import bound as roofline
from kernelworks.records import FlopRate, GpuPeaks, Peaks, from_json, to_json
from kernelworks.report import gpu as gpu_report
from kernelworks.report import machine as machine_report
from kernelworks.report import page

RECORDS: dict[str, Callable[[], Peaks | GpuPeaks]] = {"CPU": record, "GPU": gpu_record}


def broken(found: Peaks | GpuPeaks) -> list[Relation]:
    rates = rates_of(found)
    return [line for line in relations_of(found) if rates[line.more] < NOISE * line.factor * rates[line.less] * 0.999]


def changed(found: Any, by: dict[str, float]) -> Any:
    """A record with the named rates multiplied."""
    return mending._put(found, {name: rates_of(found)[name] * factor for name, factor in by.items()}, {})


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_without_contradictions_is_left_as_it_is(name: str) -> None:
    found = RECORDS[name]()
    assert len(relations_of(found)) > 20 and not broken(found) and repair_record(found) is found


@pytest.mark.parametrize("name", RECORDS)
def test_laws_do_not_contradict_each_other(name: str) -> None:
    """What goes round a circle asks for no more than itself."""
    laws = mending._closed(relations_of(RECORDS[name]()))
    assert all(factor * laws.get(less, {}).get(more, (0.0, ""))[0] <= 1.0 + 1e-9
               for more, its in laws.items() for less, (factor, _) in its.items())  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_one_figure_that_is_far_off_is_the_one_that_is_doubted(name: str) -> None:
    """Too low by much: it alone is replaced, by what the others allow."""
    found = RECORDS[name]()
    rates, doubted = rates_of(found), 0
    for point in rates:
        wrong = changed(found, {point: 1e-3})
        made = repair_record(wrong)
        assert not broken(made)
        if not broken(wrong):
            continue  # nothing is known of it
        doubted += 1
        assert list(made.inferred) == [point], (point, made.inferred)
        now = rates_of(made)
        assert all(now[other] == pytest.approx(rates_of(wrong)[other], rel=1e-12) for other in rates if other != point)
        assert now[point] <= 1.001 * rates[point] / NOISE and now[point] > rates_of(wrong)[point]
    assert doubted > len(rates) / 2


@pytest.mark.parametrize("name", RECORDS)
def test_many_figures_that_are_off_leave_no_contradiction(name: str) -> None:
    found = RECORDS[name]()
    draw, names = random.Random(0), sorted(rates_of(found))
    for _ in range(200):
        off = draw.sample(names, draw.randint(1, len(names) // 2))
        wrong = changed(found, {point: 10 ** draw.uniform(-4, 2 * draw.random()) for point in off})
        made = repair_record(wrong)
        assert not broken(made)
        rates, now = rates_of(wrong), rates_of(made)
        assert all(now[point] == pytest.approx(rates[point], rel=1e-12) for point in now if point not in made.inferred)
        assert repair_record(made) is made
        assert from_json(type(made), to_json(made)) == made


@pytest.mark.parametrize("name", RECORDS)
def test_figures_that_are_too_low_here_and_there_leave_the_right_ones_untouched(name: str) -> None:
    """As a neighbour's bursts have it: few points, a fifth of all, and never too high."""
    found = RECORDS[name]()
    draw, names = random.Random(1), sorted(rates_of(found))
    for _ in range(200):
        off = set(draw.sample(names, len(names) // 5))
        made = repair_record(changed(found, {point: 10 ** draw.uniform(-4, -1) for point in off}))
        assert set(made.inferred) <= off
        assert not broken(made)


def test_what_was_measured_on_a_busy_machine() -> None:
    """float32 at 7 GFLOP/s on two threads and 96 on one, exp 1,800 times slower, float64 above float32, and all
    levels of memory alike."""
    found = record()
    flops = (
        FlopRate("float32", "avx512", 1, 96.0), FlopRate("float32", "avx512", 2, 7.0),
        FlopRate("float64", "avx512", 1, 48.0), FlopRate("float64", "avx512", 2, 95.0),
    )  # fmt: skip
    functions = tuple(dataclasses.replace(f, gops=f.gops / 1800) for f in found.functions if f.threads == 2)
    bandwidth = tuple(
        dataclasses.replace(b, gbs=9.0) if b.kind == "read" and b.threads == 2 else b for b in found.bandwidth
    )
    functions += tuple(f for f in found.functions if f.threads == 1)
    wrong = dataclasses.replace(found, flops=flops, functions=functions, bandwidth=bandwidth)
    made = repair_record(wrong)
    rates = rates_of(made)
    assert not broken(made)
    assert rates["float32 avx512, 1 thread"] == 96.0 and rates["float64 avx512, 2 threads"] == 95.0
    assert rates["float32 avx512, 2 threads"] >= 96.0 and rates["exp avx512, 2 threads"] >= 5.0
    assert rates["L1 read, 2 threads"] >= rates["L2 read, 2 threads"] >= rates["DRAM read, 2 threads"] >= 40.0
    assert "float32 avx512, 1 thread contradicts it" in made.inferred["float32 avx512, 2 threads"] or (
        "no slower" in made.inferred["float32 avx512, 2 threads"]
    )
    bound = roofline.bound(1e9, 0, 0, 0, "float32", 2, made)
    assert bound.terms["compute"] <= 1 / 96 * 1.001


def test_of_two_the_one_from_a_noisy_window_is_doubted() -> None:
    laws = [Relation("a", "b", 1.0, "why")]
    assert list(suspects({"a": 1.0, "b": 2.0}, laws)) == ["a"]  # noise slows
    many = "acdefg"
    alike = dict.fromkeys(many, 1.0)
    assert list(suspects({**alike, "b": 4.0}, [Relation(x, "b", 1.0, "") for x in many])) == ["b"]
    assert list(suspects({"a": 1.0, "b": 4.0, "c": 1.0, "d": 1.0},
                         [Relation(x, "b", 1.0, "") for x in "acd"], ["b"])) == ["b"]  # fmt: skip


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_rate_follows_from_the_others(rate: float) -> None:
    found = record()
    flops = tuple(dataclasses.replace(f, gflops=rate) if f.threads == 2 else f for f in found.flops)
    made = repair_record(dataclasses.replace(found, flops=flops))
    assert all(math.isfinite(each) and each > 0 for each in rates_of(made).values()) and not broken(made)
    alone = dataclasses.replace(found, bandwidth=(), functions=(), flops=(FlopRate("float32", "avx512", 1, rate),))
    assert repair_record(alone).flops == () and repair_record(alone).inferred


# ---------------------------------------------------------------- measuring and the cache


class Played(survey.Point):
    """A point that gives figures one after the other."""

    def measure(self, quiet: Quiet) -> None:
        self.found.append(next(self.figures))  # type: ignore[attr-defined]


def played(item: Any, rate: str, *figures: float) -> Any:
    made = Played(item, rate, lambda rounds: (1.0, 1.0))
    made.__dict__["figures"] = iter(figures)
    return made


@pytest.mark.parametrize(
    ("again", "kept", "said"), [((390e9,), 390.0, False), ((7e9, 7e9), 200.0, True), ((6e9, 8e9), 200.0, True)]
)
def test_what_contradicts_others_is_measured_again_and_then_follows(again: Any, kept: float, said: bool) -> None:
    items = (FlopRate("float32", "avx512", 1, 0.0), FlopRate("float32", "avx512", 2, 0.0))
    points = [played(items[0], "gflops", 200e9), played(items[1], "gflops", 7e9, *again)]
    watch = Quiet(window_s=0.0, times=Busy(0.0))
    for point in points:
        point.measure(watch)

    def now() -> Peaks:
        return record(bandwidth=(), functions=(), flops=tuple(point.measured_record() for point in points))

    survey._again(points, now, watch, None)
    made = repair_record(now())
    assert made.flops[0].gflops == 200.0 and made.flops[1].gflops == pytest.approx(kept)
    assert bool(made.inferred) is said


@pytest.fixture
def own_cache(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    cache.forget_peaks()
    yield tmp_path
    cache.forget_peaks()


def test_an_old_entry_that_contradicts_itself_is_mended_as_it_is_read(own_cache: Any) -> None:
    wrong = changed(record(), {"float32 avx512, 2 threads": 0.02})
    path = cache.save_peaks(wrong)
    note = json.loads(path.read_text())
    note["peaks"].pop("inferred")  # as it was written before there were any
    note["sha256"] = cache._digest(json.dumps(note["peaks"], sort_keys=True))
    path.write_text(json.dumps(note))
    for held in (peaks.cached_peaks(), peaks.get_peaks()):
        assert held is not None and list(held.inferred) == ["float32 avx512, 2 threads"] and not broken(held)
    cache._written(cache._rough_path(), wrong)
    rough = cache._recent(cache._rough_path(), 60.0)
    assert rough is not None and rough.inferred and not broken(rough)


# ---------------------------------------------------------------- what is shown


def shown(found: Any, draw: Callable[..., Any]) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(draw(found, 300))
    return console.export_text()


@pytest.mark.parametrize(
    ("found", "draw", "point"),
    [
        (record(), machine_report.peaks, "float32 avx512, 2 threads"),
        pytest.param(record(), machine_report.peaks, "L1 read, 2 threads", marks=pytest.mark.thorough),
        pytest.param(record(), machine_report.peaks, "exp avx512, 2 threads", marks=pytest.mark.thorough),
        (gpu_record(), gpu_report.gpu, "bfloat16 torch.mm burst"),
        pytest.param(gpu_record(), gpu_report.gpu, "read cold, 1073741824 bytes", marks=pytest.mark.thorough),
        pytest.param(gpu_record(), gpu_report.gpu, "exp", marks=pytest.mark.thorough),
    ],
)
def test_the_terminal_and_the_page_mark_what_follows_from_others(
    found: Any, draw: Callable[..., Any], point: str
) -> None:
    made = repair_record(changed(found, {point: 0.02}))
    assert list(made.inferred) == [point]
    for text in (shown(made, draw), "".join(page.machine(made))):
        assert text.count("*") >= 2 and point in text and made.inferred[point] in text.replace("\n", " ")
    for text in (shown(found, draw), "".join(page.machine(found))):
        assert "contradict" not in text


def test_floors_of_a_gpu_are_times() -> None:
    found = dataclasses.replace(gpu_record(), launch_us=50.0)
    assert list(doubts(found)) == ["launch_us"]
    made = repair_record(found)
    assert made.launch_us <= 3.0 / NOISE and "launch_us" in made.inferred and not broken(made)
    assert set(FLOORS) <= set(rates_of(found))


def test_a_gpus_figures_that_contradict_others_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of them by what measures it; the better figure of both is kept."""
    right = gpu_record()
    memory = SimpleNamespace(here=None, evict=None)
    for cache_ in ("cold", "warm"):
        found = {(b.kind, b.bytes): b for b in right.bandwidth if b.cache == cache_}
        setattr(memory, cache_, lambda kind, size, found=found: found[kind, size])
    monkeypatch.setattr(gpu, "_chains", lambda here, step: (right.rates[0], right.functions))
    monkeypatch.setattr(gpu, "_products", lambda evict, empty_s, step: list(right.rates[1:]))
    monkeypatch.setattr(gpu, "_floors", lambda evict: {name: getattr(right, name) for name in FLOORS})
    for point in rates_of(right):
        wrong, steps = changed(right, {point: 1e-3}), list[str]()
        again = gpu._again(wrong, memory, steps.append)  # type: ignore[arg-type]
        if not doubts(wrong):
            assert again == wrong and not steps
            continue
        assert not doubts(again)
        if point not in HOST:
            assert rates_of(again)[point] == pytest.approx(rates_of(right)[point])


def test_units_of_other_machines_are_no_contradictions() -> None:
    """Zen 4 does 512 bits in two turns, but dot products in two units; others do them in one."""
    rates = {
        ("float32", "scalar"): 13.9, ("float64", "scalar"): 14.4, ("float32", "avx2"): 118.0,
        ("float64", "avx2"): 58.8, ("float32", "avx512"): 118.0, ("float64", "avx512"): 58.9,
    }  # fmt: skip
    for bfloat16, int8 in ((471.0, 470.0), (120.0, 120.0), (236.0, 472.0)):
        more = {("bfloat16", "avx512_bf16"): bfloat16, ("int8", "avx512_vnni"): int8}
        flops = tuple(FlopRate(*kind, n, rate * n) for kind, rate in (rates | more).items() for n in (1, 2))
        assert not doubts(record(flops=flops, functions=()))
