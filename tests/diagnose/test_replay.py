"""The replay of host and device: what waits for what, and that everything adds to the wall clock."""

from __future__ import annotations

import math
import random

import pytest

from kernelworks.profile import replay
from kernelworks.profile.replay import ALLOCATION, LAUNCH, PYTHON, SYNC, Job, Pace, Step

US = 1e-6
PACE = Pace(latency=5 * US, gap=1 * US)


def _launch(host: float, device: float, stream: int = 0) -> list[Step]:
    return [Step(PYTHON, host * US), Step(LAUNCH, 2 * US, None, (Job("k", device * US, stream, None),))]


def _wait(own: float = 3.0) -> Step:
    return Step(SYNC, own * US, waits=True)


def _adds_up(program: list[Step], played: replay.ReplayResult) -> None:
    busy = sum(replay.busy_seconds(played))
    idle = sum(gap.seconds for gap in replay.gaps(program, played))
    assert math.isclose(busy + idle, played.wall, rel_tol=1e-9)
    device, host = replay.critical(program, played)
    assert math.isclose(sum(device) + sum(host.values()), played.wall, rel_tol=1e-9)


def test_a_host_that_is_slower_than_the_device_sets_the_time() -> None:
    program = [s for _ in range(10) for s in _launch(8, 2)] + [_wait()]
    played = replay.play(program, PACE)
    # 8 us of Python and 2 us a launch, ten times; the last kernel starts 5 us after its launch began; 3 us to wake up
    assert played.wall == pytest.approx((10 * 8 + 9 * 2 + 5 + 2 + 3) * US)
    device, host = replay.critical(program, played)
    assert sum(device) == pytest.approx(2 * US)  # the last kernel alone
    assert host[PYTHON] == pytest.approx(80 * US)
    _adds_up(program, played)


def test_a_device_that_is_slower_than_the_host_sets_the_time() -> None:
    program = [s for _ in range(10) for s in _launch(8, 100)] + [_wait()]
    played = replay.play(program, PACE)
    assert played.wall == pytest.approx((8 + 5 + 10 * 100 + 9 * 1 + 3) * US)
    device, host = replay.critical(program, played)
    assert sum(device) == pytest.approx(1000 * US) and host[LAUNCH] == pytest.approx((5 + 9) * US)
    assert replay.play(program, PACE, host=0.0).wall == pytest.approx(1009 * US)
    _adds_up(program, played)


def test_waits_in_a_loop_cost_what_the_host_could_have_done_meanwhile() -> None:
    program = [s for _ in range(10) for s in (*_launch(8, 50), _wait())]
    with_waits, without = replay.play(program, PACE), replay.play(program, PACE, waits=False)
    assert with_waits.wall == pytest.approx(10 * (8 + 5 + 50 + 3) * US)
    assert without.wall == pytest.approx((8 + 5 + 500 + 9 + 3) * US)
    kinds = {gap.kind for gap in replay.gaps(program, with_waits)}
    assert kinds == {PYTHON, LAUNCH, SYNC}
    _adds_up(program, with_waits)


def test_allocation_shows_as_a_gap_only_while_the_device_is_idle() -> None:
    first = [Step(ALLOCATION, 100 * US), *_launch(1, 10)]
    behind = [*_launch(1, 500), Step(ALLOCATION, 100 * US), *_launch(1, 10)]
    for program, seconds in ((first, 100.0), (behind, 0.0)):
        program = [*program, _wait()]
        found = replay.gaps(program, replay.play(program, PACE))
        assert sum(g.seconds for g in found if g.kind == ALLOCATION) == pytest.approx(seconds * US)


def test_two_streams_overlap_and_busy_time_is_counted_once() -> None:
    program = [*_launch(1, 100, stream=0), *_launch(1, 100, stream=7), _wait()]
    played = replay.play(program, PACE)
    assert sum(replay.busy_seconds(played)) < 110 * US
    _adds_up(program, played)


def test_a_full_queue_holds_the_host() -> None:
    program = [s for _ in range(replay.DEPTH + 100) for s in _launch(0, 10)] + [_wait()]
    played = replay.play(program, PACE)
    assert max(end for _, end in played.host[:-1]) > 100 * 10 * US
    _adds_up(program, played)


def _copy(device: float, own: float = 3.0) -> Step:
    """To or from memory that is not pinned: it launches, and waits for what it launched."""
    return Step(SYNC, own * US, None, (Job("copy", device * US, 0, None),), waits=True)


def test_a_copy_that_the_host_waits_for_is_on_the_path_once() -> None:
    program = [Step(PYTHON, 8 * US), _copy(20), *_launch(4, 2), _wait()]  # the device is idle when it is launched
    played = replay.play(program, PACE)
    assert played.wall == pytest.approx((8 + 5 + 20 + 3 + 4 + 5 + 2 + 3) * US)
    device, host = replay.critical(program, played)
    assert device == pytest.approx([20 * US, 2 * US]) and host[SYNC] == pytest.approx(6 * US)
    _adds_up(program, played)


def test_whatever_waits_for_whatever_the_path_ends_and_adds_up() -> None:
    draw = random.Random(0)
    for _ in range(100):
        program = [Step(PYTHON, 2 * US)]
        for _ in range(draw.randrange(1, 60)):
            made = draw.choice(("launch", "copy", "wait", "allocation"))
            host, device = draw.choice((0.0, 1.0, 30.0)), draw.choice((0.0, 1.0, 50.0))
            program += {
                "launch": _launch(host, device, stream=draw.randrange(3)), "copy": [_copy(device, host)],
                "wait": [_wait(host)], "allocation": [Step(ALLOCATION, host * US, waits=device > 1)],
            }[made]  # fmt: skip
        _adds_up(program, replay.play(program, PACE))


def test_fitting_scales_the_host_of_a_host_bound_program_and_leaves_the_device() -> None:
    program = [s for _ in range(50) for s in _launch(20, 2)] + [_wait()]
    profiled = replay.play(program, PACE).wall
    host, device = replay.fit_scales(program, PACE, 0.6 * profiled)
    assert device == 1.0 and 0.5 < host < 0.65
    assert replay.play(program, PACE, host=host).wall == pytest.approx(0.6 * profiled, rel=1e-3)


def test_fitting_scales_the_device_where_the_program_waits_for_it() -> None:
    program = [s for _ in range(50) for s in _launch(2, 100)] + [_wait()]
    wall = 0.9 * replay.play(program, PACE).wall
    host, device = replay.fit_scales(program, PACE, wall)
    assert device == pytest.approx(0.9, rel=0.02)
    assert replay.play(program, PACE, host=host, device=device).wall == pytest.approx(wall, rel=0.02)


def test_a_program_that_launches_nothing() -> None:
    program = [Step(PYTHON, 10 * US)]
    played = replay.play(program, PACE)
    assert played.wall == pytest.approx(10 * US)
    _adds_up(program, played)
