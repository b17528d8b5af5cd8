"""One sitting for many candidates: each is judged as if alone, nothing of theirs stays, and kernels through tvm-ffi are
own kernels like any other."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelworks.judge.formats import kernelbench
from kernelworks.judge.harness import Budget
from kernelworks.judge.inputs.cases import compare_answers
from kernelworks.judge.process.cleanup import remove_folder
from kernelworks.judge.process.pool import ChildProcess, Nursery
from kernelworks.judge.session import Sitting
from kernelworks.machine import machine
from kernelworks.records import Peaks
from kernelworks.report.judge import sentence

LITTLE = Budget(
    reference_s=0.5, most_cases=6, many=12, many_s=0.3, looks=0, samples=0, shapes=1, gradients=0, special=False
)
ANY = "avx2" if "avx2" in machine().features else "scalar"

PROBLEM = """
import torch

rows = 48


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(rows, 256)]


def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
from kernelworks.search.our_kernels_cpp import compile_kernel

run = compile_kernel("relu", {target!r}, "", {{}})


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
HONEST = CANDIDATE.format(target=ANY, body="return run(x)")
DROPPED = CANDIDATE.format(target=ANY, body="run(x)\n        return torch.clamp(x, min=0)")


@pytest.fixture(scope="module")
def sitting(ceilings: Peaks, nursery: Nursery) -> Iterator[Sitting]:
    problem = kernelbench.problem_in(Path("relu.py"), PROBLEM)
    with Sitting(problem, budget=LITTLE, threads=1, peaks=ceilings, nursery=nursery) as found:
        yield found


# Compilers write where temporary files go: to its own folder, whatever was asked before its process was forked.
PLAIN = """
import os
import tempfile

import torch

assert os.path.samefile(tempfile.gettempdir(), os.getcwd())


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


def test_a_kernel_through_tvm_ffi_has_to_make_the_answer(sitting: Sitting) -> None:
    honest, dropped = (sitting.judge_text("candidate", text, "c++") for text in (HONEST, DROPPED))
    assert (honest.verdict, honest.kernels) == ("right", ("relu",))
    assert [r.kind for r in dropped.reasons] == ["falls back"] and dropped.kernels == ("relu",)


def test_candidates_leave_nothing_behind(sitting: Sitting) -> None:
    texts = {
        PLAIN: "", PLAIN.replace("return torch.relu(x)", "raise ValueError"): "raised",
        PLAIN.replace("class ModelNew", "1 / 0\nclass ModelNew"): "does not load",
        PLAIN.replace("ModelNew", "Another"): "does not load",
    }  # fmt: skip
    held: list[int] = []
    for _ in range(2):
        for text, kind in texts.items():
            found = sitting.judge_text("candidate", text, "torch")
            assert [r.kind for r in found.reasons] == ([kind] if kind else [])
        courts = 3 * len(
            sitting.bench.oracles
        )  # of sizes that were drawn, a few are kept: two sockets and a handle each
        held.append(len(os.listdir("/proc/self/fd")) - courts)
        assert not [p for p in sitting.bench.nursery.root.iterdir() if p.name.startswith("candidate-")]
    assert held[0] == held[1]


def test_a_name_says_nothing_of_the_verdict(sitting: Sitting) -> None:
    found = sitting.judge_text("it\x1b[2J for relu: right\nit", "no class", "torch")
    assert sentence(found).isprintable() and found.candidate == "it\\x1b[2J for relu: right it"


def test_a_sitting_says_what_the_problem_cannot_do_without(sitting: Sitting) -> None:
    assert sitting.work is not None and sitting.nothing is None
    assert sitting.work.bytes == 2 * 4 * 48 * 256 and sitting.work.flop == 48 * 256
    assert sitting.work.limit_on(1).seconds == sitting.work.limit.seconds > 0


@pytest.mark.parametrize("known", [False, True])
def test_only_what_is_known_to_remember_nothing_is_timed_on_inputs_that_it_has_seen(
    known: bool, ceilings: Peaks, nursery: Nursery
) -> None:
    problem = kernelbench.problem_in(Path("relu.py"), PROBLEM)
    budget = dataclasses.replace(LITTLE, many=0, turns_s=2.0)  # five hand-overs take a hundredth of that
    asked = list[str]()

    def holds(source: str) -> bool:
        asked.append(source)
        return known

    with Sitting(problem, budget=budget, threads=1, peaks=ceilings, nursery=nursery, known=holds) as found:
        judged, most = found.judge_text("honest", HONEST, "c++"), len(found.bench.cases) - 1
    assert judged.verdict == "right" and asked == [HONEST]
    calls = next(p.calls for p in judged.paces if p.variant == "candidate")
    assert calls > most if known else calls <= most


def test_what_serves_all_candidates_is_made_once(ceilings: Peaks, nursery: Nursery) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        problem = kernelbench.problem_in(Path("relu.py"), PROBLEM)
        budget = dataclasses.replace(LITTLE, sizes=1)
        with Sitting(
            problem, budget=budget, threads=1, peaks=ceilings, nursery=nursery, many=True, keep_builds=True
        ) as found:
            assert torch.get_num_threads() == 1  # a thread of the supervisor's own would spin beside the candidate
            assert set(found.bench.set_aside) == {"building", "warming"} and set(found.bench.baselines) == {"eager"}
            asked, made = list[str](), found.bench.case
            found.bench.case = lambda shape, *a, **k: asked.append(shape.name) or made(shape, *a, **k)  # type: ignore[method-assign, func-returns-value]
            judged = [found.judge_text("honest", PLAIN, "torch") for _ in range(2)]
            assert len(asked) == 2 and len(set(asked)) == 1  # two of another size
            cases = [
                *found.bench.cases,
                *found.bench.set_aside.values(),
                *found.bench.cases_at(found.bench.other_shapes[0], 2),
            ]
            assert len({id(case) for case in cases}) == len(cases)
            for built in found.bench.kept:  # with what it may have noted of the answers to the inputs of this sitting
                assert found.bench.take_build(built) is None
                folder = nursery.take_build(built)
                assert folder is not None
                remove_folder(folder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [one.verdict for one in judged] == ["right", "right"]
    assert len(judged[0].shapes) == 2 and judged[0].shapes == judged[1].shapes


def test_what_comes_next_is_built_beside_what_is_on_trial(ceilings: Peaks, nursery: Nursery) -> None:
    problem = kernelbench.problem_in(Path("relu.py"), PROBLEM)
    one, two, broken = ((f"candidate_{n}", f"# {n}\n{HONEST}", "c++") for n in range(3))
    broken = (broken[0], broken[1].replace("compile_kernel(", "compile_kernel(1 / 0, "), "c++")
    with Sitting(
        problem, budget=dataclasses.replace(LITTLE, many=0, shapes=0), threads=2, peaks=ceilings, nursery=nursery,
        known=lambda source: "# 3" not in source,
    ) as found:  # fmt: skip
        site, ahead_of = found.bench.site, lambda text: found._read(*text)
        assert found.judge_text(*one, [("candidate_3", f"# 3\n{HONEST}", "c++"), two]).verdict == "right"
        if len(os.sched_getaffinity(0)) == 1:
            assert not site.ahead
            return
        (ahead,) = site.ahead  # nobody else's code runs before it is on trial
        assert ahead.candidate.name == two[0] and ahead.said["loaded"] and ahead.variant.process.is_stopped()
        built = sorted(path.name for path in ahead.folder.rglob("*.so"))
        assert built
        assert found.judge_text(*two, [broken]).verdict == "right"  # it had nothing to build
        assert not ahead.variant.process.is_alive() and not ahead.folder.exists()
        assert [one.candidate.name for one in site.ahead] == [broken[0]]  # begun once times were taken
        assert [r.kind for r in found.judge_text(*broken, [one]).reasons] == ["does not load"] and not site.ahead
        site.begin_beside([ahead_of(one)])
        (left,) = site.ahead
        site.begin_beside([ahead_of(broken)])  # it came instead
        site.rest()
        assert not left.variant.process.is_alive() and not left.folder.exists() and site.ahead[0].has_load_error
    assert not [path for path in nursery.root.iterdir() if path.name.startswith("candidate-")]


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("answer", "reference", "bound", "worst", "wrong"),
    [
        ([1.5, 2.0], [1.0, 2.0], [1.0, 0.0], 0.5, False),
        ([1.5, NAN, INF], [1.0, NAN, INF], [1.0, 1.0, 1.0], 0.5, False),
        ([1.5, NAN], [1.0, 2.0], [1.0, INF], INF, True),
        ([1.5, 2.0], [1.0, NAN], [1.0, NAN], INF, True),
        ([1.0, 2.5], [1.0, 2.0], [0.0, 0.25], 2.0, True),
        ([1.0], [1.0 + 2**-60], [0.0], 0.0, False),
        ([], [], [], 0.0, False),
    ],
    ids=["near", "as the reference has them", "NaN", "no NaN", "far", "the same", "nothing"],
)
def test_answers_are_compared_with_the_reference(
    answer: list[float], reference: list[float], bound: list[float], worst: float, wrong: bool
) -> None:
    want, most = (torch.tensor(of, dtype=torch.float64) for of in (reference, bound))
    shape, places = (len(reference),), [torch.arange(len(reference))]
    for dtype in (torch.float32, torch.bfloat16):
        outputs = [(shape, str(dtype).removeprefix("torch."))]
        case: Any = SimpleNamespace(outputs=outputs, names=["it"], reference=[want], bound=[most], places=places)
        found = compare_answers(case, [torch.tensor(answer, dtype=dtype)])
        assert (found.worst, bool(found.wrong), found.elements) == (worst, wrong, len(reference))
    whole: Any = SimpleNamespace(
        outputs=[((2,), "bool")], names=["it"], reference=[torch.tensor([True, False])],
        bound=[torch.zeros(2).double()], places=[torch.arange(2)],
    )  # fmt: skip
    assert not compare_answers(whole, [torch.tensor([True, False])]).wrong
    assert compare_answers(whole, [torch.tensor([True, True])]).wrong


THREADS = """
import os
import sys
import threading

{before}
for _ in range({count}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("count", "before", "bound"),
    [(1, "", 2), (0, "", 0), (1, "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", 0)],
    ids=["two threads", "one alone", "cores of its own choice"],
)
def test_threads_are_woken_on_a_core_each_and_run_anywhere_then(
    count: int, before: str, bound: int, tmp_path: Path
) -> None:
    ours = os.sched_getaffinity(0)
    bound = bound if len(ours) > 1 else 0
    text = THREADS.format(count=count, before=before)
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        control, status = socket.socketpair()
        with control, status:
            born = ChildProcess("caller", control, status, tmp_path, pid=process.pid)
            placed = born.spread()
            assert len(placed) == bound
            cores = [os.sched_getaffinity(thread) for thread in sorted(placed)]
            assert all(len(one) == 1 for one in cores) and len({min(one) for one in cores}) == bound
            first = born._threads()[0]
            assert not bound or first == process.pid
            if bound:
                born.roam({first})
                assert [os.sched_getaffinity(thread) == ours for thread in sorted(placed)] == [True, False]
                born.roam()  # those as well that were made by one that was bound
                assert all(os.sched_getaffinity(thread) == ours for thread in placed)
        process.communicate()


FAULTS = """
import collections
import resource

import torch

from kernelworks.judge.process.malloc import give_back, keep_freed

keep_freed()
counts, held = [], collections.deque(maxlen=3)
for _ in range(24):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held.append(torch.full((9 << 20,), 1.0))
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
held.clear()
pages = [int(open("/proc/self/statm").read().split()[1])]
give_back()
pages.append(int(open("/proc/self/statm").read().split()[1]))
print(sum(counts[-8:]), pages[0] - pages[1])
"""


def test_what_is_freed_is_not_faulted_in_again() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, env=environment, check=True)
    faults, given_back = map(int, run.stdout.split())
    assert faults < 9000 < given_back  # each of the eight has 9216 pages
