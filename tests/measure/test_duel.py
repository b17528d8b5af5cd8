"""Two variants benchmarked as a caller waits for them: what is clear ends early, and what is not certain is torch's."""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelworks.build import cache
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.tuning_records import RaceResult
from kernelworks.measure.autotune import candidates
from kernelworks.measure.clock import duel as module
from kernelworks.measure.clock.duel import Duel, OverTime, duel, fastest_variant
from kernelworks.measure.clock.noise import CpuTimes
from kernelworks.ops.norm import rms_norm  # noqa: F401  fills OPS


class Clock:
    """Time that passes only where a variant says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module.time, "sleep", self.pass_)
        self.held_up = 0.0  # by others, of the time so far
        self.asleep = 0.0  # of the time so far
        monkeypatch.setattr(module.quiet, "cpu_times", self.cpu_times)

    def pass_(self, seconds: float) -> None:
        self.now += seconds

    def cpu_times(self) -> CpuTimes:
        own = self.now - self.held_up - self.asleep
        return CpuTimes(self.now, own + 2 * self.held_up, own, 2, {1: self.held_up})

    def variant(self, *seconds: float) -> Callable[[], None]:
        """A call that takes each of these times in turn."""
        turn = itertools.cycle(seconds)

        def call() -> None:
            self.calls += 1
            self.pass_(next(turn))

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


PLACES = """
import torch
from kernelworks.measure.clock.duel import _places
lay, places = set(), _places()
for _ in range(20):
    next(places)
    lay.add(torch.empty(1 << 18).data_ptr())
assert len(lay) > 3, lay
"""


@pytest.mark.usefixtures("quick_processes")
def test_long_calls_are_benchmarked_with_their_results_in_many_places() -> None:
    """In a process of its own: where results lie depends on what was freed before."""
    done = subprocess.run([sys.executable, "-c", PLACES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_over_before_a_place_matters_is_benchmarked_where_it_is(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, "_places")
    assert duel(clock.variant(2e-6), clock.variant(3e-6)).ours


@pytest.mark.parametrize(
    ("ours", "torchs", "taken"),
    [
        (1e-4, 2e-4, True),
        (1e-4, 1.04e-4, True),
        (1e-4, 1.02e-4, False),  # quicker, and not by the margin
        (1e-4, 1e-4, False),
        (2e-4, 1e-4, False),
        (3e-6, 1e-5, True),
        (2e-3, 0.2, True),
        (1.9, 2.0, True),
    ],
)
def test_ours_is_taken_if_it_wins_by_the_margin(clock: Clock, ours: float, torchs: float, taken: bool) -> None:
    found = duel(clock.variant(ours), clock.variant(torchs))
    assert found.ours is taken
    assert found.result.ours_us == pytest.approx(1e6 * ours, rel=1e-3)
    assert found.result.halves == pytest.approx((torchs / ours,) * 2, rel=1e-3)


@pytest.mark.parametrize("one", [1e-6, 1e-5, 1e-3, 0.01])
def test_what_is_clear_takes_less_than_a_third_of_a_second(clock: Clock, one: float) -> None:
    duel(clock.variant(one), clock.variant(2 * one))
    assert clock.now < 0.5
    near = clock.now
    duel(clock.variant(one), clock.variant(1.02 * one))
    assert clock.now - near < 0.6


def test_a_long_call_is_run_a_few_times_only(clock: Clock) -> None:
    duel(clock.variant(2.0), clock.variant(2.1))
    assert clock.calls <= 6


def test_noise_is_measured_again_and_then_torch_runs(clock: Clock) -> None:
    found = duel(clock.variant(1e-2, 1e-2, 2e-2, 5e-3, 3e-2), clock.variant(1e-2, 2e-2, 1e-2))
    assert found.result.is_noisy
    assert found.runs == 1 + module.MAX_RERUNS
    assert not found.ours


def test_halves_that_disagree_are_noise() -> None:
    assert RaceResult(1.0, 1.5, (2.7, 1.09), module._spread([2.7, 2.7, 1.09, 1.09], 1.09)).is_noisy


def test_a_win_of_many_times_is_certain_though_it_varies() -> None:
    ratios = [16.1, 12.0, 14.0, 20.0, 12.8, 18.0]
    assert Duel(RaceResult(1.0, 15.0, (14.0, 18.0), module._spread(ratios, 18.0)), 6).ours


def test_variants_take_turns_and_the_order_turns_round(clock: Clock) -> None:
    seen: list[str] = []

    def variant(name: str) -> Callable[[], None]:
        def call() -> None:
            seen.append(name)
            clock.pass_(0.03)

        return call

    duel(variant("ours"), variant("torch"))
    rounds = seen[-8:]
    assert [rounds[i : i + 2] for i in range(0, 8, 2)] in (
        [["torch", "ours"], ["ours", "torch"]] * 2, [["ours", "torch"], ["torch", "ours"]] * 2
    )  # fmt: skip


def test_a_wait_is_part_of_every_sample(clock: Clock) -> None:
    """A call that only queues its work is not done when it returns."""
    queued = [0.0]

    def wait() -> None:
        clock.pass_(queued[0])
        queued[0] = 0.0

    def variant(seconds: float) -> Callable[[], None]:
        def call() -> None:
            clock.pass_(1e-6)
            queued[0] += seconds

        return call

    found = duel(variant(5e-5), variant(1e-4), wait)
    assert statistics.fmean(found.result.halves) == pytest.approx(2, rel=0.05)


def test_the_quickest_of_several(clock: Clock) -> None:
    assert fastest_variant([("a", clock.variant(3e-4)), ("b", clock.variant(1e-4)), ("c", clock.variant(2e-4))]) == "b"
    assert fastest_variant([("only", clock.variant(1e-4))]) == "only"


def test_a_stalled_sample_makes_the_next_ones_short(clock: Clock) -> None:
    """With a neighbour on one of two cores a call of microseconds takes milliseconds, again and again."""
    calm = iter([1e-5] * 64)
    stalled = lambda: clock.pass_(next(calm, 8e-3))  # noqa: E731
    duel(stalled, stalled)
    assert clock.now < 30


def test_a_round_in_which_others_held_the_core_is_left_out(clock: Clock) -> None:
    turn = itertools.count()

    def ours() -> None:
        clock.pass_(1e-4)
        if next(turn) % 60 == 0:
            clock.held_up += 12e-3
            clock.pass_(12e-3)

    found = duel(ours, clock.variant(1.5e-4))
    assert found.ours
    assert found.result.ours_us == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("alike", [True, False])
def test_where_no_quiet_is_to_be_had_threads_are_not_believed(clock: Clock, alike: bool) -> None:
    def ours() -> None:
        clock.held_up += 2e-3
        clock.pass_(5e-3)

    found = duel(ours, clock.variant(1e-2), alike=alike)
    assert found.result.is_noisy is not alike
    assert found.ours is alike
    assert clock.now < 5


# ---------------------------------------------------------------- variants that are held up in every round alike


def stalling(clock: Clock, one: float, stall: float, every: int) -> Callable[[], None]:
    """A variant whose threads wait for a core in most calls of every round, and no record says so."""
    turn = itertools.count()

    def call() -> None:
        clock.pass_(one if next(turn) % every == 0 else one + stall)

    return call


@pytest.mark.parametrize("every", [2, 5, 15])
@pytest.mark.parametrize(("ours", "torchs"), [(1e-4, 1e-4), (1e-4, 1.02e-4), (1.2e-4, 1e-4), (1e-4, 1.3e-4)])
def test_a_neighbour_that_stalls_every_round_alike_is_not_believed(
    clock: Clock, every: int, ours: float, torchs: float
) -> None:
    """Medians say 80 times as quick in every round; some calls say what torch can do."""
    found = duel(clock.variant(ours), stalling(clock, torchs, 8e-3, every))
    assert found.result.torch_us > 30 * found.result.ours_us
    assert not found.ours
    assert found.result.is_noisy
    found = duel(stalling(clock, ours, 8e-3, every), clock.variant(torchs))
    assert not found.ours


def test_what_is_as_slow_in_every_call_is_believed(clock: Clock) -> None:
    """Torch's 16-bit products on a CPU without such instructions take over a hundred times as long."""
    found = duel(clock.variant(1e-4), clock.variant(1.7e-2, 1.72e-2, 1.71e-2))
    assert found.ours
    assert found.result.ratio == pytest.approx(171, rel=0.02)


def test_the_quickest_calls_and_the_medians_must_both_say_that_ours_wins(clock: Clock) -> None:
    """Pages that the system takes back in between, from one variant more often than from the other."""
    found = duel(clock.variant(1e-3), stalling(clock, 1.01e-3, 1e-4, 2))
    assert not found.result.is_noisy
    assert found.result.ratio == pytest.approx(1.01)
    assert not found.ours
    assert duel(clock.variant(1e-3), stalling(clock, 1.05e-3, 1e-4, 2)).ours


def test_a_variant_that_sleeps_is_not_believed(clock: Clock) -> None:
    """As slow in every call, but nothing of ours ran: the machine under this machine had other work."""

    def torchs() -> None:
        clock.pass_(8e-3)
        clock.asleep += 7.9e-3

    found = duel(clock.variant(1e-4), torchs)
    assert found.result.is_noisy
    assert not found.ours
    queued = duel(clock.variant(1e-4), torchs, lambda: None)  # a wait for a device may sleep
    assert queued.ours


def test_while_work_is_not_shared_nothing_is_measured(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was held up goes on on one thread for a while, which is not what it can do."""
    monkeypatch.setattr(module.sharing, "is_held_up", lambda: clock.now < 0.3)
    found = duel(lambda: clock.pass_(3e-4 if clock.now < 0.3 else 1e-4), clock.variant(2e-4), alike=False)
    assert found.ours
    assert found.result.ratio == pytest.approx(2)


def test_the_time_for_a_race_is_kept_in_races_too(clock: Clock) -> None:
    with pytest.raises(OverTime):
        duel(clock.variant(3.0), clock.variant(3.0), until=module.clock() + 5.0)
    assert clock.now < 10
    begin = module.clock()
    with pytest.raises(OverTime):
        fastest_variant([(str(i), clock.variant(3.0)) for i in range(9)], until=begin + 5)
    assert module.clock() < begin + 12
    found = duel(clock.variant(1e-2, 3e-2), clock.variant(1e-2, 3e-2, 4e-2), until=module.clock() + 0.5)
    assert found.runs == 1  # it is not run again


def test_a_build_takes_none_of_the_time_for_a_race(clock: Clock) -> None:
    built: list[int] = []
    begin = module.clock()

    def ours() -> None:
        if not built:
            built.append(1)
            with cache.building(), cache.building():
                clock.pass_(30.0)
        clock.pass_(1e-3)

    assert fastest_variant([("a", clock.variant(2e-3)), ("b", ours)], until=module.clock() + 1) == "b"
    built.clear()
    assert duel(ours, clock.variant(2e-3), until=module.clock() + 1).ours
    assert clock.now > begin + 60 and module.clock() < begin + 2


@pytest.mark.parametrize(("ours_s", "ours"), [(0.3, True), (30.0, False)])
def test_a_race_that_is_cut_off_says_what_is_certain(clock: Clock, ours_s: float, ours: bool) -> None:
    found = duel(clock.variant(ours_s), clock.variant(3.0), lambda: None, until=module.clock() + 1.5 * (ours_s + 3.0))
    assert found.ours is ours and not found.result.is_noisy and found.rounds < module.OF_ENDLESS_CALLS
    with pytest.raises(OverTime):  # threads that wait for cores may have held it up in every call so far
        duel(clock.variant(ours_s), clock.variant(3.0), alike=False, until=module.clock() + 1.5 * (ours_s + 3.0))
    with pytest.raises(OverTime):
        duel(clock.variant(1.0), clock.variant(3.0), lambda: None, until=module.clock() + 6.0)
    with pytest.raises(OverTime):  # nor where the rounds disagree
        duel(clock.variant(0.3), clock.variant(3.0, 0.4), lambda: None, until=module.clock() + 3.9)


def test_what_is_far_ahead_is_benchmarked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not given up between both races: an autotuned program takes ours if it is ten times as fast."""
    given: list[float] = []
    ratio = 9.0

    def said(mine: Any, torchs: Any, *rest: Any, until: float, **named: Any) -> Duel:
        given.append(until)
        return Duel(RaceResult(1.0, ratio, (ratio, ratio), 0.0), rounds=1)

    monkeypatch.setattr(candidates, "duel", said)
    args = (torch.ones(2, 8, requires_grad=True), torch.ones(8), 1e-6, None)
    candidates.race_training(OPS["rms_norm"], args, ["reference+reference"], 1e9)
    ratio = 2.0
    candidates.race_training(OPS["rms_norm"], args, ["reference+reference"], 1e9)
    assert given == [1e9, math.inf, 1e9, 1e9]


def test_what_is_made_with_the_forward_is_not_benchmarked_as_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarked: list[str] = []

    def said(mine: Any, torchs: Any, *rest: Any, **named: Any) -> Duel:
        benchmarked.append("")
        return Duel(RaceResult(1.0, 2.0, (2.0, 2.0), 0.0), rounds=1, runs=1)

    monkeypatch.setattr(candidates, "duel", said)
    args = (torch.ones(2, 8, requires_grad=True), torch.ones(8), 1e-6, None)
    one = candidates.race_training(OPS["rms_norm"], args, ["reference"])
    assert len(benchmarked) == 1 and one.backward is one.whole
    two = candidates.race_training(OPS["rms_norm"], args, ["reference+reference"])
    assert len(benchmarked) == 3 and two.backward is not two.whole, two.lost
