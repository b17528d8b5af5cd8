"""What a diagnosis says is what was seen: nothing of native code, sleep or other threads, no promise from a bound."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from made_tuning_records import add_tuning_record, no_tuning_records
from torch import Tensor

from kernelworks.build import native
from kernelworks.diagnose import diagnose
from kernelworks.diagnose.account import hotspots as sorting
from kernelworks.diagnose.account.account import account, time_breakdown
from kernelworks.diagnose.account.hotspots import _advice, _with_gain, drop_promises, find_hotspots, rescale_to_fix
from kernelworks.diagnose.account.on_cpu import HOST, NATIVE, OTHERS, PARTS, UNSEEN, WAITING, Cpu
from kernelworks.diagnose.forecast.races import GainRange, Promise, Races
from kernelworks.diagnose.optimizations import OPTIMIZATIONS
from kernelworks.diagnose.rules import RULES, Advice, Rule, View
from kernelworks.diagnose.rules.patterns import GATE, NORM
from kernelworks.diagnose.sentence import RoughFigures, sentence
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.choose import eligible_ways
from kernelworks.dispatch.op import OPS
from kernelworks.machine import environment
from kernelworks.measure.autotune import candidates as autotune_candidates
from kernelworks.measure.clock.duel import Duel
from kernelworks.measure.clock.noise import Noise
from kernelworks.measure.clock.page_faults import minor_faults
from kernelworks.nn.expected_kernels import NOT_TIMED_REASON, TORCH_WON_REASON
from kernelworks.profile.on_cpu import fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.sampler import LEAST_LOOKS, SURE_S, GapBreakdown, Look, break_down_gaps
from kernelworks.profile.trace import Call, Place, Trace
from kernelworks.records import Diagnosis, Fix, Hotspot, Peaks
from kernelworks.records.fix import APPLIED, REJECTED, TriedOptimization

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)
US, MS = 1_000, 1_000_000  # ns


@pytest.fixture(scope="session")
def machine(ceilings: Peaks) -> Peaks:
    return dataclasses.replace(ceilings, cache_bytes={"L3": 32 << 20})


# ---------------------------------------------------------------- looks

# (late in us, had no core in us, asleep, others' CPU as a share, alone) -> what the program did
LOOKS: dict[str, tuple[tuple[int, int, bool, float, bool], str | None]] = {
    "the lock was free, the thread ran": ((50, 0, False, 0.0, True), "native"),
    "the lock came late: native code kept it": ((9000, 0, False, 0.0, True), "native"),
    "the lock came when the interpreter switches": ((1150, 60, False, 0.0, True), "python"),
    "the lock was free, the thread slept": ((50, 0, True, 0.0, True), "waiting"),
    "asleep, its native code's threads worked": ((50, 0, True, 0.9, True), "native"),
    "asleep, other threads of the program worked": ((50, 0, True, 0.9, False), "others"),
    "late because a neighbour had the core": ((5000, 4500, False, 0.0, True), None),
    "about to switch, but a neighbour had the core": ((1150, 900, False, 0.0, True), None),
    "late beyond what the neighbour explains": ((9000, 3000, False, 0.0, True), "native"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look(name: str) -> None:
    (late, delayed, asleep, others, alone), kind = LOOKS[name]
    look = Look(0, 2 * MS, late * US, delayed * US, asleep, round(others * 2 * MS), alone)
    assert look.kind == kind


def _call(name: str, start: int, end: int, **more: Any) -> Call:
    return Call(
        name, start, end, shapes=[[64, 64]], strides=[[64, 1]], dtypes=[torch.float32], scalars=[None],
        place=Place("M", "m.py:1", 0, "M"), **more,
    )  # fmt: skip


def _looks(begin: int, end: int, kind: str, step: int = MS) -> list[Look]:
    late = {"native": 50, "waiting": 50, "python": 1150}[kind] * US
    return [Look(at - step, at, late, 0, kind == "waiting", 0, True) for at in range(begin + step, end + 1, step)]


def test_a_long_gap_is_cut_by_what_was_seen_in_it() -> None:
    trace = Trace(0, 100 * MS, [_call("aten::relu", 80 * MS, 90 * MS)], 1, 0, None)
    looks = [*_looks(0, 60 * MS, "native"), *_looks(60 * MS, 80 * MS, "python"), *_looks(90 * MS, 100 * MS, "waiting")]
    found = break_down_gaps([trace], [looks], ["aten::relu"])
    assert found.of(0).share("native") == pytest.approx(0.75) and found.of(0).share("waiting") == 0
    assert found.of(1).share("waiting") == pytest.approx(1.0)


def test_short_gaps_are_judged_together_and_on_several_looks_alone() -> None:
    """Ops of 100 us, a gap of 1 ms before each: looks that fall near an op's end do not count."""
    count = 4 * LEAST_LOOKS
    calls = [_call("aten::relu", (i + 1) * 1100 * US - 100 * US, (i + 1) * 1100 * US) for i in range(count)]
    trace = Trace(0, count * 1100 * US, calls, count, 0, None)
    inside = [i * 1100 * US + 500 * US for i in range(count)]
    near = [i * 1100 * US + round(SURE_S * 0.5e9) for i in range(1, count)]
    for places, share in ((inside, 0.5), (inside[: LEAST_LOOKS - 1], 0.0), (near, 0.0)):
        looks = [Look(at - 1100 * US, at, 50 * US, 0, False, 0, True) for at in places]
        found = break_down_gaps([trace], [looks], [c.name for c in calls])
        assert found.of(3).share("native") == pytest.approx(share, abs=0.05)


# ---------------------------------------------------------------- parts and words of invented programs


def _found(machine: Peaks, **kinds: float) -> tuple[dict[str, float], tuple[Hotspot, ...], float]:
    """A program of 100 ms whose one op takes 10 ms, with the shares of its gap."""
    call = _call("aten::relu", 90 * MS, 100 * MS)
    trace = Trace(0, 100 * MS, [call], 1, 0, None)
    looks, at = list[Look](), 0
    for kind, share in kinds.items():
        looks += _looks(at, at + round(share * 90) * MS, kind)
        at += round(share * 90) * MS
    line = fit_timeline(0.1, [trace], trace, FLOORS)
    line = dataclasses.replace(line, outside=break_down_gaps([trace], [looks], ["aten::relu"]))
    groups = account(line, Cpu(machine, FLOORS, 2))
    return time_breakdown(groups, line.wall, PARTS), find_hotspots(groups, line.wall, Races(0.0, 2))[0], line.wall


def test_what_was_seen_in_gaps_has_its_own_parts(machine: Peaks) -> None:
    parts, found, wall = _found(machine, native=0.5, waiting=0.3, python=0.2)
    assert list(parts) == list(PARTS) and sum(parts.values()) == pytest.approx(wall)
    assert parts[NATIVE] == pytest.approx(0.045, rel=0.02) and parts[WAITING] == pytest.approx(0.027, rel=0.02)
    assert parts[HOST] == pytest.approx(0.018, rel=0.02)
    for hotspot in found:
        if hotspot.op in UNSEEN:
            assert not hotspot.modelled and hotspot.high_s == hotspot.low_s == hotspot.allows_s == 0.0
            assert hotspot.achieved is None and hotspot.source == "m.py:1"
    assert sum(r.seconds for r in found) == pytest.approx(wall)


HEADS = {
    "all Python": ({"python": 1.0}, "this program runs at"),
    "half native": ({"native": 0.5, "python": 0.5}, "55% of this program was modelled, and that part runs at"),
    "native alone": (
        {"native": 1.0},
        "90% of this program's 100 ms was not modelled, so nothing is predicted for it: native",
    ),
    "asleep": (
        {"waiting": 1.0},
        "90% of this program's 100 ms was not modelled, so nothing is predicted for it: waiting",
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_head_speaks_of_what_was_modelled(name: str, machine: Peaks) -> None:
    kinds, begins = HEADS[name]
    parts, found, wall = _found(machine, **kinds)
    if name in ("native alone", "asleep"):  # ... and the one op unmodelled too
        found = tuple(dataclasses.replace(r, modelled=False) if r.op == "relu" else r for r in found)
        begins = begins.replace("90%", "100%").replace("55%", "50%")
    text = sentence(parts, found, wall)
    assert text.startswith(begins), text
    assert " 0% of what" not in text


def test_a_compiled_program_is_not_told_that_it_runs_at_nothing() -> None:
    hotspot = _hotspot("## Call CompiledFxGraph abc ##", seconds=0.95, modelled=False)
    other = _hotspot("add", seconds=0.05)
    text = sentence({"at peak": 0.01, "unexplained": 0.95}, (hotspot, other), 1.0)
    assert " 0% of what" not in text and "graphs of torch.compile" in text and "95%" in text


def _hotspot(op: str, seconds: float, low: float = 0.0, high: float = 0.0, allows: float = 0.0, **more: Any) -> Hotspot:
    base = Hotspot(
        op=op, module="", source="", shapes="", calls=1, seconds=seconds, share=seconds, bottleneck="compute", peak="",
        achieved=0.5, low_s=low, high_s=high, action="swap in kw.linear: avx512", flop=1.0, bytes=1.0, modelled=True,
        allows_s=allows,
    )  # fmt: skip
    return dataclasses.replace(base, **more)


BACK = "100 to 200 ms of 1000 ms recoverable, most of it in linear"
ROOFLINE = "up to 500 ms at the roofline (theoretical limit)"
PROMISES = {
    "a kernel that was benchmarked": ((0.1, 0.2, 0.5), f"; {BACK}; {ROOFLINE}"),
    "a bound alone": ((0.0, 0.0, 0.5), f"; no known optimization is predicted to gain; {ROOFLINE}"),
    "nothing": ((0.0, 0.0, 0.001), "; no known optimization is predicted to gain"),
    "all that the roofline leaves": ((0.1, 0.2, 0.2), f"; {BACK}"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMISES)
def test_recoverable_is_a_prediction_and_the_roofline_is_called_one(name: str) -> None:
    (low, high, allows), ends = PROMISES[name]
    found = (_hotspot("linear", 0.9, low, high, allows), _hotspot("add", 0.1))
    assert sentence({"at peak": 0.5, "unexplained": 0.0}, found, 1.0).endswith(ends)


FIX = Fix((), (), 1.0, 0.9, 0.12, 0.1, 1e-7, 1e-7, True, 3, (), 0.02)


NONE = dataclasses.replace(FIX, rounds=0, predicted_gain_s=0.0)
LEFT = {
    "nothing at all": (
        _hotspot("add", 1.0),
        "; no optimization gains here; no other optimization is predicted to gain",
    ),
    "a bound": (
        _hotspot("add", 1.0, allows=0.5),
        f"; no optimization gains here; no other optimization is predicted to gain; {ROOFLINE}",
    ),
    "of what nothing is said": (
        _hotspot("waiting", 1.0, modelled=False),
        "so nothing is predicted for it: waiting 1000 ms; no optimization gains here",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_nothing_is_said_twice(name: str) -> None:
    hotspot, ends = LEFT[name]
    text = sentence({"at peak": 0.5, "unexplained": 0.0}, (hotspot,), 1.0, NONE)
    assert (
        text.endswith(ends)
        and text.count("no optimization gains") == 1
        and "nothing" not in text.replace("nothing is predicted for it", "")
    )


def test_a_fix_measured_roughly_is_not_called_ambiguous_too() -> None:
    """The exit code is that of rough figures."""
    noise = Noise(0.5, 0.0, 1.0)
    fix = dataclasses.replace(FIX, ambiguous=str(noise))
    parts, found = {"at peak": 0.5, "unexplained": 0.0}, (_hotspot("add", 1.0),)
    assert sentence(parts, found, 1.0, fix).startswith("ambiguous: the fix was measured while")
    asked = dataclasses.replace(fix, rough=True)
    assert sentence(parts, found, 1.0, asked, RoughFigures(noise, 0.9, 1.1)).startswith("rough, since")
    assert sentence(parts, found, 1.0, asked).startswith("rough, as to the fix, which was measured while")


def test_of_what_was_not_modelled_nothing_is_predicted_nor_denied() -> None:
    found = (_hotspot("native code outside torch", 1.0, modelled=False),)
    text = sentence({"at peak": 0.0, "unexplained": 0.0}, found, 1.0)
    assert text.endswith("nothing is predicted for it: native code outside torch 1000 ms")


@pytest.mark.parametrize(
    ("fix", "high", "says"),
    [
        (FIX, 0.12, "the fix was predicted to bring 120 ms and brought 100 ms"),
        (dataclasses.replace(FIX, rounds=0, predicted_gain_s=-0.01), 0.0, "no optimization gains here"),
        (dataclasses.replace(FIX, refused="slower"), 0.0, "the fix is refused: slower"),
    ],
)
def test_table_and_headline_say_what_the_fix_predicts(fix: Fix, high: float, says: str) -> None:
    """Kernels were benchmarked at 300 ms; the whole program says less: then it is less everywhere."""
    found = rescale_to_fix(
        (_hotspot("linear", 0.9, 0.2, 0.3, 0.5, op_kernel="kw.linear: avx512"), _hotspot("add", 0.1, 0, 0.01)), fix
    )
    assert found[0].high_s == pytest.approx(high) and found[1].high_s == 0.01
    assert found[0].action.startswith("swap in" if high else "kw.linear: avx512 is not applied")
    text = sentence({"at peak": 0.5, "unexplained": 0.0}, found, 1.0, fix)
    assert says in text


@pytest.mark.parametrize(
    ("outcome", "promised", "says"),
    [
        ({}, True, "try model.to"),
        ({"outcome": APPLIED, "gain_s": 0.1}, True, "try model.to"),
        ({"gain_s": -0.1, "why": "slower"}, False, "channels_last is not applied: it was measured"),
        ({"predicted_gain_s": -0.1, "why": "it loses 100 ms"}, False, "applied: it is predicted not to gain"),
        ({"why": "the budget was over"}, True, "try model.to"),
    ],
)
def test_what_a_fix_did_not_apply_is_not_advised(outcome: dict[str, Any], promised: bool, says: str) -> None:
    """That convolutions with their channels last are slower here has been seen: nobody is told to try."""
    shapes, strides = ((4, 64, 56, 56), (64, 64, 3, 3)), ((200704, 3136, 56, 1), (576, 9, 3, 1))
    view = View("conv2d", "M", "m.py:1", shapes, ("float32",) * 2, 1, 1.0, 1.0, "compute", 0.1, strides=strides)
    tried = TriedOptimization("channels_last", "", "", "", **{"outcome": REJECTED, "why": "", **outcome})
    fix = dataclasses.replace(FIX, optimizations=(tried,)) if outcome else None
    group: Any = SimpleNamespace(is_modelled=True, gap="", parts={})
    found = _advice(view, group, Promise(), Races(0.0, 2), fix)
    assert (found.high > 0) == promised and says in found.action
    assert {rule.optimization for rule in RULES if rule.optimization} <= {one.name for one in OPTIMIZATIONS}


# ---------------------------------------------------------------- kernels are benchmarked, not presumed


def _linear() -> Call:
    return Call(
        "aten::linear", 0, 10 * MS, shapes=[[8, 64], [64, 64], []], strides=[[64, 1], [64, 1], []],
        dtypes=[torch.float32, torch.float32, None], scalars=[None, None, None], place=Place("M", "m.py:1", 0, "M"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("raced", "low", "high", "says"),
    [
        (GainRange(0.3, 0.5), 0.003, 0.005, "swap in kw.linear: avx512"),
        (GainRange(0.0, 0.0), 0.0, 0.0, "kw.linear: avx512 was benchmarked and is no faster here"),
        (None, 0.0, 0.0, "nothing predicted: kw.linear: avx512 was not benchmarked"),
    ],
)
def test_a_kernel_is_predicted_to_gain_what_it_won(
    raced: GainRange | None, low: float, high: float, says: str, machine: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Races, "of", lambda self, call: Promise("kw.linear: avx512", raced, may=True))
    trace = Trace(0, 10 * MS, [_linear()], 1, 0, None)
    line = fit_timeline(0.01, [trace], trace, FLOORS)
    found = find_hotspots(account(line, Cpu(machine, FLOORS, 2)), line.wall, Races(0.0, 2))[0][0]
    assert (found.low_s, found.high_s) == pytest.approx((low, high))
    assert says in found.action and found.allows_s > 0.009
    (disturbed,) = drop_promises([found])
    assert not disturbed.high_s and not disturbed.action.startswith("swap in")


SEVERAL = Advice("a norm made of many ops", "swap in kw.rms_norm: one op", 0.003, 0.005, ("rms_norm",))


@pytest.mark.parametrize("lacks", ["", "timed here: torch's own is at least as fast"])
def test_no_swap_is_named_if_it_recovers_nothing(lacks: str, machine: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Races, "lacks", lambda self, ops, dtype: lacks)
    monkeypatch.setattr(sorting, "RULES", (Rule("norm", lambda view: SEVERAL),))
    monkeypatch.setattr(Races, "of", lambda self, call: Promise())
    trace = Trace(0, 10 * MS, [_linear()], 1, 0, None)
    line = fit_timeline(0.01, [trace], trace, FLOORS)
    (found, *_), problems = find_hotspots(account(line, Cpu(machine, FLOORS, 2)), line.wall, Races(0.0, 2))
    assert SEVERAL.problem in problems
    if lacks:
        assert found.high_s == 0 and found.action == f"no gain by kw.rms_norm: one op ({lacks})"
    else:
        assert found.high_s == pytest.approx(0.005) and found.action == SEVERAL.action


@pytest.mark.parametrize(
    ("promise", "says"),
    [
        (
            Promise("", GainRange(0.0, 0.0), may=True),
            "no kernel faster than torch's was measured here",
        ),
        (Promise("", None, may=True), "no tuning record yet: `kernelworks autotune` says whether a kernel is faster"),
        (Promise("", None), "no other verified kernel here"),
    ],
)
def test_if_no_kernel_is_taken_the_reason_is_said(
    promise: Promise, says: str, machine: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Races, "of", lambda self, call: promise)
    trace = Trace(0, 10 * MS, [_linear()], 1, 0, None)
    line = fit_timeline(0.01, [trace], trace, FLOORS)
    found = find_hotspots(account(line, Cpu(machine, FLOORS, 2)), line.wall, Races(0.0, 2))[0][0]
    assert (found.low_s, found.high_s) == (0, 0) and says in found.action
    assert found.bottleneck == "below the roofline, cause unknown"


def test_a_call_without_a_tuning_record_is_benchmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raced = []

    def duel(ours: Callable[[], Any], torchs: Callable[[], Any], *others: Any, **named: Any) -> Duel:
        ours(), torchs()
        raced.append(1)
        return Duel(tuning_records.RaceResult(10.0, 20.0, (2.0, 2.5), 0.01), 6)

    monkeypatch.setattr(autotune_candidates, "duel", duel)
    monkeypatch.setattr(autotune_candidates, "fastest_variant", lambda variants, *how: variants[0][0])
    monkeypatch.setattr(native, "find_extension", lambda: None)
    with no_tuning_records(tmp_path):
        monkeypatch.setattr(environment, "native", lambda: "build")
        assert Races(1.0, torch.get_num_threads()).of(_linear()).gain is None and not raced  # the way in comes first
        monkeypatch.setattr(environment, "native", lambda: "0")
        nothing = Races(0.0, torch.get_num_threads()).of(_linear())
        assert (nothing.kernel, nothing.gain, nothing.may, raced) == ("", None, True, [])
        for _ in range(2):  # the second time it is known
            found = Races(1.0, torch.get_num_threads()).of(_linear())
            assert found.kernel.startswith("kw.linear: ") and found.gain is not None and raced == [1]
            assert (found.gain.low, found.gain.high) == pytest.approx((0.8 * 0.5, 0.6))
        trained = dataclasses.replace(_linear(), recorded=True)
        assert Races(1.0, torch.get_num_threads()).of(trained).kernel.count("+") == 1 and len(raced) == 3


@pytest.mark.parametrize(
    ("rule", "op", "args"),
    [
        ("decomposed_norm", "rms_norm", (torch.zeros(8, 64), torch.ones(64), 1e-6, None)),
        ("decomposed_norm", "layer_norm", (torch.zeros(8, 64), torch.ones(64), torch.ones(64), 1e-6)),
        ("decomposed_gate", "silu_mul", (torch.zeros(8, 64), torch.zeros(8, 64))),
    ],
)
def test_one_op_for_many_is_predicted_to_gain_if_a_tuning_record_says_so(
    rule: str, op: str, args: tuple[Any, ...], tmp_path: Path
) -> None:
    found = next(r for r in RULES if r.name == rule)
    view = View(
        op="mul", module="M", source="m.py:1", shapes=((8, 64),), dtypes=("float32",), calls=3, seconds=1.0, wall=2.0,
        bottleneck="memory", bound=0.1, shares={NORM: 1.0, GATE: 1.0},
    )  # fmt: skip
    advice = found.applies(view)
    assert advice is not None
    said = []
    with no_tuning_records(tmp_path):
        for race in (None, (0.8, None), (1.5, torch.bfloat16), (1.5, None)):
            if race is not None:
                ratio, dtype = race
                given = [a.to(dtype or a.dtype) if isinstance(a, Tensor) else a for a in args]
                add_tuning_record(op, *given, ratio=ratio)
            said.append(_with_gain(view, found, advice, Promise(), Races(0.0, 1)))
    assert [s.high > 0 for s in said] == [False, False, False, True]
    assert NOT_TIMED_REASON in said[0].action
    # Of a layer norm nothing is said if an rms norm would do.
    first = (NOT_TIMED_REASON, TORCH_WON_REASON)[advice.ops[0] == op]
    assert first in said[1].action
    assert first in said[2].action


@pytest.mark.parametrize("halves", [(1.02, 2.0), (0.9, 0.9)])
def test_a_race_that_is_not_won_in_both_halves_predicts_nothing(halves: tuple[float, float], tmp_path: Path) -> None:
    with no_tuning_records(tmp_path):
        args = torch.zeros(8, 64), torch.zeros(64, 64), None
        add_tuning_record("linear", *args, ratio=min(halves))
        op = OPS["linear"]
        request = op.request("forward", args)
        ways, _ = eligible_ways(op, request)
        ((tuning_record,), _) = tuning_records.valid_records(op.name, op.contract, request, ways)
        made = dataclasses.replace(tuning_record, whole=tuning_records.RaceResult(1.0, 1.0, halves, 0.01))
        assert GainRange.of(made) == GainRange(0.0, 0.0)


# ---------------------------------------------------------------- real programs


def numpy_loop() -> Any:
    a = np.ones((500, 500))
    for _ in range(12):
        a = (a @ a) * 1e-3
    return a


def sleeper() -> Tensor:
    time.sleep(0.15)
    return torch.ones(8) + 1


def threaded() -> None:
    def work() -> None:
        a = torch.ones(300, 300)
        for _ in range(20):
            a = (a @ a) * 1e-3

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "numpy": (numpy_loop, (NATIVE,)),
    "sleep": (sleeper, (WAITING,)),
    "threads": (threaded, (OTHERS, WAITING)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_torch_sees_little_of(name: str, machine: Peaks) -> None:
    program, parts = PROGRAMS[name]
    found: Diagnosis = diagnose(program, peaks=machine, budget_s=2.0)  # enough to look between ops on a busy machine
    unseen = sum(found.time_breakdown[part] for part in parts)
    assert unseen > 0.5 * found.wall_s
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)
    said = " ".join((found.sentence, *found.findings, *(r.action for r in found.hotspots)))
    assert "kw.swap" not in said and " 0% of what" not in found.sentence
    assert "was not modelled" in found.sentence or "the rest was not" in found.sentence
    if name == "threads":
        assert any("ops ran on other threads of the program" in line and "matmul" in line for line in found.notes)


def test_ops_of_other_threads_are_named(machine: Peaks) -> None:
    seen = GapBreakdown({}, break_down_gaps([], [], []).short, {"aten::mm": (40, 0.2)})
    from kernelworks.diagnose.sentence import notes

    trace = Trace(0, MS, [], 0, 0, None)
    line = dataclasses.replace(fit_timeline(0.001, [trace], trace, FLOORS), outside=seen)
    assert notes(line) == ("40 ops ran on other threads of the program, 200 ms in all (mm 200 ms): not modelled",)


def test_what_a_diagnosis_did_to_malloc_is_among_its_notes(machine: Peaks) -> None:
    x = torch.zeros(4 << 20)  # outputs of 16 MiB
    quick = diagnose(lambda: x[:1000].relu(), peaks=machine, budget_s=0.5, rough=True)
    assert any("malloc was set to keep" in line for line in quick.notes)
    for _ in range(6):
        torch.relu(x)
    before = minor_faults()
    for _ in range(4):
        torch.relu(x)
    assert minor_faults() - before < 1000
