"""A candidate's own compiled code, seen and taken away from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from pathlib import Path

import pytest
from attacked import candidate, problem_in

from kernelworks.judge import Budget
from kernelworks.judge.formats import read_candidate
from kernelworks.judge.process import pool
from kernelworks.judge.process.ipc import pair
from kernelworks.judge.process.own_code import count_at_work, mapped_files
from kernelworks.judge.process.pool import ChildProcess, Nursery
from kernelworks.judge.session import Sitting
from kernelworks.judge.unannounced_questions import OwnWork, is_decoy
from kernelworks.records import Peaks


@pytest.mark.parametrize(
    ("timed", "watched", "decoy"),
    [
        (OwnWork(180, 200, 4e-3), OwnWork(180, 200, 4e-3), False),
        (OwnWork(2, 200, 1e-3), OwnWork(180, 200, 4e-3), True),
        (OwnWork(0, 200, 1e-3), OwnWork(60, 200, 2e-3), True),
        (OwnWork(90, 200, 4e-3), OwnWork(180, 200, 4e-3), False),  # half: caches, cores and their clocks
        (OwnWork(180, 200, 4e-3), OwnWork(20, 200, 40e-3), False),  # the watch takes nine tenths of it
        (OwnWork(0, 200, 1e-4), OwnWork(3, 200, 1e-3), False),  # too little to be told from chance
        (OwnWork(0, 5, 1e-3), OwnWork(180, 200, 4e-3), False),
        (OwnWork(), OwnWork(180, 200, 4e-3), False), (OwnWork(0, 200, 1e-3), OwnWork(), False),
    ],
)  # fmt: skip
def test_a_decoy_is_told_from_chance(timed: OwnWork, watched: OwnWork, decoy: bool) -> None:
    assert is_decoy(timed, watched) is decoy


def test_a_thread_is_found_where_it_is() -> None:
    child = os.fork()
    if child == 0:
        while True:
            math.sqrt(2.0)
    try:
        time.sleep(0.05)
        os.kill(child, signal.SIGSTOP)
        while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        code = [at for at, rights, path in mapped_files(child) if "x" in rights and "python" in Path(path).name]
        assert count_at_work(child, code) == (1, 1) and count_at_work(child, [(1, 2)]) == (0, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_one_that_closes_itself_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def closed(*_: object) -> list[str]:
        raise PermissionError

    (control, its), (status, tells) = pair(), pair()
    child = ChildProcess("caller", control, status, tmp_path, shared=True, pid=os.getpid(), maker=os.getpid())
    child.handle = os.pidfd_open(os.getpid())
    monkeypatch.setattr(pool, "find_code_changes", closed)
    assert child.code_changes() == []  # where the kernel has never said
    monkeypatch.setattr(pool, "find_code_changes", lambda *_: [])
    assert child.code_changes() == []
    monkeypatch.setattr(pool, "find_code_changes", closed)
    assert child.code_changes() == ["nobody may look into its memory any more"]
    os.close(child.handle)
    for end in (control, its, status, tells):
        end.close()


# A kernel whose work shows beside the work that a call is: half a million exponentials.
KERNEL = '''
import ctypes, subprocess, sys
from pathlib import Path

SOURCE = """
#include <cmath>
extern "C" void gate(const float* a, const float* b, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = b[i] / (1.0f + std::exp(-a[i]));
}
"""
if not Path("own.so").exists():
    Path("own.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "own.cpp", "-o", "own.so"], check=True)
OWN = ctypes.CDLL("./own.so")


def launch(a, b):
    out = torch.empty_like(a)
    OWN.gate(*(ctypes.c_void_p(t.data_ptr()) for t in (a, b, out)), ctypes.c_long(a.numel()))
    return out
'''
HONEST = "return launch(a, b)"
BESIDE = "launch(a[:1].contiguous(), b[:1].contiguous())\nreturn self.right(a, b)"
BUDGET = Budget(reference_s=0.5, most_cases=6, many=12, many_s=0.5, looks=0, shapes=0, gradients=0, sampled_s=300.0)


@pytest.mark.thorough
@pytest.mark.parametrize(("body", "kinds"), [(HONEST, set()), (BESIDE, {"falls back"})], ids=["honest", "beside"])
def test_what_its_own_code_has_of_a_call_is_said(
    body: str, kinds: set[str], ceilings: Peaks, nursery: Nursery, tmp_path: Path
) -> None:
    slow = tuple(dataclasses.replace(b, gbs=b.gbs / 4) for b in ceilings.bandwidth)
    problem = problem_in(tmp_path, "pairs")
    path = tmp_path / "candidate.py"
    path.write_text(candidate("pairs", body, KERNEL), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        sitting = stack.enter_context(
            Sitting(problem, budget=BUDGET, threads=1, nursery=nursery,
                    peaks=dataclasses.replace(ceilings, bandwidth=slow))
        )  # fmt: skip
        found = sitting.judge(read_candidate(path, sitting.problem))
    assert {charge.kind for charge in found.reasons} == kinds, found
    assert "own code" in {charge.kind for charge in found.remarks}
