"""Processes that do anything at every step of the protocol, by scripts that are drawn from seeds: nothing ends the
judge or keeps it, nothing is taken for right, and no time is shorter than the one from a call to its answer."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import mmap
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import hostile
import pytest
import torch
from hostile import ACTS, Hostile
from imitated import Imitated

from kernelworks.judge import Budget
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.inputs.cases import Case
from kernelworks.judge.process.ipc import hear, pair, say
from kernelworks.judge.process.pool import ChildProcess, Nursery, ProcessEnded
from kernelworks.judge.process.sanitise import parse_load_answer
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import VariantProcess
from kernelworks.judge.session import Sitting
from kernelworks.records import Peaks

ANSWER_S = 0.5  # of which none that is right comes late: there is none
NEVER_S = 120.0  # a hang, on the busiest machine
SEEDS, MANY_SEEDS = 12, 1000
TEXTS, MANY_TEXTS = 2, 60
CALLS = 6
SUBREAPER = 36  # of prctl


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--all")
    for name, few, many in (("script", SEEDS, MANY_SEEDS), ("text", TEXTS, MANY_TEXTS)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(many if every else few))


def _in_hostile(its: socket.socket, script: int, clock: mmap.mmap, acts: tuple[str, ...]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in (int(name) for name in os.listdir("/proc/self/fd")):
        if number > 2 and number != its.fileno():
            with contextlib.suppress(OSError):
                os.close(number)
    one = Hostile(its, script, boldness=1.0 if acts else 0.4)
    one.clock = clock
    one.acts = tuple(act for act in ACTS if not acts or act.__name__ in acts)
    one.serve()


def _keep(its: socket.socket, tells: socket.socket, script: int, clock: mmap.mmap, acts: tuple[str, ...]) -> None:
    """Between the test and the process, as a nursery has it."""
    os.setsid()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            tells.close()
            _in_hostile(its, script, clock, acts)
        finally:
            os._exit(0)
    its.close()
    say(tells, {"pid": child}, (os.pidfd_open(child),))
    _, how = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        say(tells, {"ended": os.waitstatus_to_exitcode(how)})


@contextlib.contextmanager
def born(script: int, folder: Path, acts: tuple[str, ...] = ()) -> Iterator[tuple[ChildProcess, mmap.mmap]]:
    """A process of a script, in a fork of this one, and the page where it notes when it saw a call and answered it."""
    (control, its), (status, tells), clock = pair(), pair(), mmap.mmap(-1, mmap.PAGESIZE)
    keeper = os.fork()
    if keeper == 0:
        try:
            control.close()
            status.close()
            _keep(its, tells, script, clock, acts)
        finally:
            os._exit(0)
    its.close()
    tells.close()
    child = ChildProcess("caller", control, status, folder, shared=True)
    said, rights = hear(status, NEVER_S)
    child.pid, child.handle = int(said["pid"]), rights[0]
    try:
        yield child, clock
    finally:
        child.end()
        os.waitpid(keeper, 0)  # which waits for the process: it is gone


def case_of(seed: int) -> Case:
    """One whose right answer is far from zeros."""
    value = torch.randn(40, generator=torch.Generator().manual_seed(seed))
    right, least = (2 * value + 5).double(), torch.full((40,), 1e-6, dtype=torch.float64)
    return Case(
        draw="given", memory=None, inputs=[{"tensor": 0}], given=[value], outputs=[((40,), "float32")],
        names=["output"], reference=[right], bound=[least], places=[torch.arange(40)], own=0.0, why=(), unknown=(),
        finite=True, there=[value], strides=[(1,)],
    )  # type: ignore[arg-type] # fmt: skip


def _asked(variant: VariantProcess, clock: mmap.mmap, draw: random.Random) -> None:
    """One call of any kind. Raises ProcessEnded."""
    how = draw.choice(("call", "call", "call", "nothing", "again" if variant.numbers else "call"))
    cases = [case_of(draw.randrange(1000)) for _ in range(1 if how == "again" else draw.choice((1, 1, 3)))]
    again = draw.choice([*variant.numbers]) if how == "again" else -1
    clock[:16] = bytes(16)
    pause_s = draw.choice((0.0, 0.0, 0.001))
    answer = variant.call(cases, how, again=again, pause_s=pause_s, keep=draw.random() < 0.3)
    flaw = answer.wrong or answer.raised or answer.late or answer.touched or answer.working
    assert flaw or how != "call", answer
    seen, sent = struct.unpack("QQ", clock[:16])
    if seen < sent and not (answer.raised or answer.working):
        assert answer.seconds * len(cases) >= (sent - seen) / 1e9, answer


def _tried(script: int, folder: Path, acts: tuple[str, ...] = ()) -> str:
    """All that a judge asks, of one; how that ended."""
    draw = random.Random(script)
    device = Imitated() if draw.random() < 0.2 else Host()
    with born(script, folder, acts) as (child, clock):
        variant = VariantProcess("candidate", child, draw, ANSWER_S, device)
        try:
            parse_load_answer(child.hear(ANSWER_S)[0])
            for _ in range(CALLS):
                _asked(variant, clock, draw)
            variant.wrong_buffer([["running", [0], [1.0], 0.1]])
            for asked, what in (("state", "changed"), ("garble", "garbling"), ("muted", "muted")):
                variant.ask(asked, what)
            child.code_changes()
        except ProcessEnded as error:
            return str(error)
    return ""


def test_no_script_deceives_the_judge_or_keeps_it(script: int, tmp_path: Path) -> None:
    begin, before = time.monotonic(), len(os.listdir("/proc/self/fd"))
    _tried(script, tmp_path)
    assert time.monotonic() - begin < NEVER_S
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("act", ["closes", "empty_packet"])
def test_a_process_that_lives_on_without_its_socket_is_ended_at_once(act: str, tmp_path: Path) -> None:
    with born(0, tmp_path, (act,)) as (child, _):
        with pytest.raises(ProcessEnded, match="closed the judge's socket, or sent an empty message"):
            child.hear(NEVER_S)
        assert not child.is_alive()


# ---------------------------------------------------------------- before the judge, behind all its walls

PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x + 5


def get_inputs():
    return [torch.randn(8, 40)]


def get_init_inputs():
    return []
"""
BUDGET = Budget(
    reference_s=0.5,
    most_cases=6,
    many=12,
    many_s=0.3,
    looks=0,
    samples=0,
    shapes=0,
    gradients=0,
    answer_s=10.0,
    build_s=60.0,
)
HONEST = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + x + 5\n"
# As it is loaded it takes over; where its script ends it, the judge's own words go on.
TAKES_OVER = """
import sys
import torch

frame = sys._getframe()
while "control" not in frame.f_locals:
    frame = frame.f_back
try:
    Hostile(frame.f_locals["control"], {text}).serve()
except OSError:
    pass


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
"""


@pytest.fixture(scope="module")
def sitting(ceilings: Peaks, nursery: Nursery) -> Iterator[Sitting]:
    problem = kernelbench.problem_in(Path("line.py"), PROBLEM)
    with Sitting(problem, budget=BUDGET, threads=1, peaks=ceilings, nursery=nursery) as found:
        yield found


def test_no_text_deceives_the_judge_or_keeps_it(text: int, sitting: Sitting) -> None:
    begin = time.monotonic()
    source = inspect.getsource(hostile) + TAKES_OVER.format(text=text)
    found = sitting.judge(kernelbench.candidate_in(Path("hostile.py"), source))
    assert found.verdict == "refused", found
    assert time.monotonic() - begin < NEVER_S


def test_an_honest_one_is_right_after_them(sitting: Sitting) -> None:
    found = sitting.judge(kernelbench.candidate_in(Path("honest.py"), HONEST))
    assert found.verdict == "right", found.reasons
