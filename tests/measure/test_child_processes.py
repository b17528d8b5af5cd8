"""What a program's own processes do is no neighbour's."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kernelworks.measure.clock.child_processes import child_seconds
from kernelworks.measure.clock.noise import cpu_times, program_times, with_noise
from kernelworks.profile.timeline import plain_run

BURN_S = 0.5
# Uses the CPU in a process of its own, and in one that this one starts and waits for.
BURN = f"""
import subprocess, sys, time
if sys.argv[1:]:
    subprocess.run([sys.executable, "-S", "-E", "-c", sys.argv[1]], check=True)
while time.process_time() < {BURN_S}: pass
"""


def burn(wait: bool = True) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", BURN, BURN])
    if wait:
        process.wait()
    return process


def test_cpu_time_of_processes_that_were_waited_for_and_of_those_that_run() -> None:
    before = child_seconds()
    burn()
    assert child_seconds() - before > 2 * BURN_S - 0.05
    process, before = burn(wait=False), child_seconds()
    while process.poll() is None and child_seconds() - before < BURN_S / 2:
        time.sleep(0.01)
    assert process.returncode is None  # it was seen before it ended
    process.wait()
    assert child_seconds() - before > 2 * BURN_S - 0.05 - BURN_S / 2


def test_a_child_without_a_parent_that_waits_is_seen_and_left_to_be_waited_for() -> None:
    process = burn(wait=False)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    before = child_seconds()
    assert before > 0 and process.wait() == 0
    assert abs(child_seconds() - before) < 0.1  # waited for or not, it is counted once


def test_they_are_the_programs_own() -> None:
    own = cpu_times().own_s, program_times().own_s
    found = plain_run(burn)
    assert found.children > 2 * BURN_S - 0.05 > 0.1
    assert program_times().own_s - own[1] > found.children > cpu_times().own_s - own[0]
    before = child_seconds()
    _, noise = with_noise(burn)
    used = child_seconds() - before
    cores = len(os.sched_getaffinity(0))
    # whatever else ran then, what this program's processes used is not in it
    assert noise.share <= max(0.0, 1 - used / (noise.wall_s * cores)) + 0.1
