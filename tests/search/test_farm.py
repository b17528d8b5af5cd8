"""Several workers: they judge beside each other, what a lost one was at is judged anew and once, shares may change."""

from __future__ import annotations

import builtins
import dataclasses
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from crowd import Crowd, Hand
from pretended import PARENT, PROBLEM, Pretended, judgement

from kernelworks.machine import machine
from kernelworks.records import Peaks
from kernelworks.records.judgement import Judgement
from kernelworks.records.search import Search
from kernelworks.search.loop import SHORT
from kernelworks.search.store import Store
from kernelworks.search.workers import cores, crew, farm
from kernelworks.search.workers import worker as jurors
from kernelworks.search.workers.farm import Farm, NoWorkers, OpenedSitting, Task, TaskResult, undecided_judgement

Run = Callable[..., Search]
LONG_S = 60.0  # for what takes milliseconds where nobody else is
NOTHING = OpenedSitting(None, "nothing is judged")


def task(number: int) -> Task:
    return Task(f"id {number}", f"candidate_{number}", f"one #{number}", f"# QUICK {number}", "torch")


def farmed(crowd: Crowd) -> Farm:
    return Farm(
        crowd.hire, crowd.allowed, lambda task, said: undecided_judgement(PROBLEM, task, 1, said), lambda line: None
    )


def all_of(farm: Farm, tasks: list[Task]) -> list[TaskResult]:
    """Gives as much as fits, and takes what is judged, until all are."""
    waiting, done = list(tasks), list[TaskResult]()
    until = time.monotonic() + LONG_S
    while (waiting or farm.pending_ids) and time.monotonic() < until:
        while waiting and farm.free_slots() > 0:
            farm.give(waiting.pop(0))
        done += farm.wait()
    return done


def test_as_many_as_there_are_workers_are_judged_at_once() -> None:
    met = threading.Barrier(3, timeout=LONG_S)

    def find(task: Task) -> Judgement:
        met.wait()  # three of them meet, or none goes on
        return judgement()

    crowd = Crowd(3, NOTHING, find)
    with crowd, farmed(crowd) as workers:
        assert workers.open(lambda: False) is NOTHING
        done = all_of(workers, [task(n) for n in range(9)])
    assert sorted(d.task.id for d in done) == [f"id {n}" for n in range(9)]
    assert crowd.most == 3 and {d.worker for d in done} == {"hand 0", "hand 1", "hand 2"}
    assert all(d.cost_s == 0.5 for d in done)


def test_what_a_lost_worker_was_at_is_judged_anew_and_once() -> None:
    crowd, begun = Crowd(2, NOTHING, lambda task: judgement()), list[str]()

    def loses(task: Task) -> bool:
        begun.append(task.id)
        return task.id in ("id 1", "id 4") and begun.count(task.id) == 1

    crowd.loses = loses
    with crowd, farmed(crowd) as workers:
        workers.open(lambda: False)
        done = all_of(workers, [task(n) for n in range(6)])
    assert sorted(d.task.id for d in done) == [f"id {n}" for n in range(6)] and len(begun) == 8
    assert all(d.judgement.verdict == "right" for d in done)
    assert workers.lost == 2 and len(crowd.hands) == 4


def test_a_task_that_no_worker_outlives_is_given_up_with_a_word() -> None:
    crowd = Crowd(2, NOTHING, lambda task: judgement())
    crowd.loses = lambda task: task.id == "id 1"
    with crowd, farmed(crowd) as workers:
        workers.open(lambda: False)
        done = {d.task.id: d for d in all_of(workers, [task(n) for n in range(4)])}
    assert len(done) == 4 and workers.lost == farm.TRIES
    lost = done["id 1"].judgement
    assert lost.verdict == "undecided" and "3 workers were lost" in lost.reasons[0].said
    assert all(d.judgement.verdict == "right" for id, d in done.items() if id != "id 1")


def test_a_smaller_share_ends_workers_that_have_nothing_to_do_and_no_verdict() -> None:
    go_on = threading.Event()

    def find(task: Task) -> Judgement:
        assert go_on.wait(LONG_S)
        return judgement()

    crowd = Crowd(3, NOTHING, find)
    with crowd, farmed(crowd) as workers:
        workers.open(lambda: False)
        for number in range(3):
            assert workers.free_slots() > 0
            workers.give(task(number))
        crowd.workers = 1  # another search has come
        assert workers.free_slots() <= 0 and not any(hand.ended for hand in crowd.hands)
        go_on.set()
        done = all_of(workers, [task(3), task(4)])
        assert len(done) == 5 and workers.free_slots() == 1
        assert [hand.ended for hand in crowd.hands].count(False) == 1
        crowd.workers = 2  # it has gone
        assert workers.free_slots() == 2 and len(crowd.hands) == 4


def test_workers_that_do_not_open_are_an_error_and_no_verdict() -> None:
    def fails() -> OpenedSitting:
        raise TimeoutError("no cores were free")

    class Shut(Crowd):
        def hire(self) -> Hand:
            self.hands.append(Hand(len(self.hands), fails, self.find))
            return self.hands[-1]

    crowd = Shut(2, NOTHING, lambda task: judgement())
    with crowd, farmed(crowd) as workers, pytest.raises(NoWorkers, match="TimeoutError: no cores were free"):
        workers.open(lambda: False)


def test_a_search_whose_share_is_nothing_waits_until_it_ends() -> None:
    crowd, asked = Crowd(0, NOTHING, lambda task: judgement()), list[bool]()

    def ended() -> bool:
        asked.append(True)
        return len(asked) > 2

    with crowd, farmed(crowd) as workers:
        assert workers.open(ended) is None
    assert not crowd.hands


# ---------------------------------------------------------------- a whole search


@pytest.fixture
def crowded(
    searched: Run, pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch, ceilings: Peaks
) -> tuple[Run, list[Crowd]]:
    """A search whose workers are threads."""
    made: list[Crowd] = []
    work: Any = pretended(PROBLEM, progress=print, peaks=ceilings).work

    def find(task: Task) -> Judgement:
        assert not task.coming  # another one may be given it
        time.sleep(0.005)  # so that the others are free too
        return pretended(PROBLEM, progress=print, peaks=ceilings).judge_text(task.name, task.code, task.language)

    def instead(workers: int, papers: Any) -> Crowd:
        if not made:
            made.append(Crowd(workers, OpenedSitting(work), find))
        return made[0]

    monkeypatch.setattr(crew, "check_workers", lambda *_: None)
    monkeypatch.setattr(crew, "Crew", instead)
    return searched, made


def test_a_search_with_workers_finds_what_one_finds(
    crowded: tuple[Run, list[Crowd]], pretended: type[Pretended], tmp_path: Path
) -> None:
    run, made = crowded
    (tmp_path / "mine.py").write_text(PARENT, encoding="utf-8")
    found = run(parents=[tmp_path / "mine.py"], proposers=["parameters"], workers=3)
    assert found.stopped == "nothing left" and found.outcome == "better" and found.workers == 3
    assert found.judged == found.judged_now == 20 == len(found.candidates)
    assert found.best is not None and "TILE = 32" in found.best.code and "UNROLL = 4" in found.best.code
    assert found.candidates[0].proposer == "given" and all(one.parents for one in found.candidates[1:])
    assert found.each_s is not None and found.cost_s == 0.5 and found.lost == 0
    assert len(set(pretended.judged)) == 20 and all(hand.ended for hand in made[0].hands)
    with Store.read(found.store) as store:
        workers = {row[0] for row in store._db.execute("SELECT worker FROM verdict WHERE round = 0")}
    assert workers <= {"hand 0", "hand 1", "hand 2"} and len(workers) > 1


def test_a_search_that_loses_workers_loses_no_verdict(
    crowded: tuple[Run, list[Crowd]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, _ = crowded
    (tmp_path / "mine.py").write_text(PARENT, encoding="utf-8")
    begun: list[str] = []

    def loses(task: Task) -> bool:
        begun.append(task.id)
        return len(begun) % 3 == 0 and begun.count(task.id) == 1

    hire = Crowd.hire

    def hiring(crowd: Crowd) -> Hand:
        crowd.loses = loses
        return hire(crowd)

    monkeypatch.setattr(Crowd, "hire", hiring)
    found = run(parents=[tmp_path / "mine.py"], proposers=["parameters"], workers=2)
    assert found.judged == 20 == len(found.candidates) and found.lost >= 3
    assert all(one.verdict == "right" for one in found.candidates) and found.outcome == "better"


def test_a_count_is_kept_to_whoever_judges(crowded: tuple[Run, list[Crowd]], tmp_path: Path) -> None:
    run, _ = crowded
    (tmp_path / "mine.py").write_text(PARENT, encoding="utf-8")
    found = run(parents=[tmp_path / "mine.py"], proposers=["parameters"], workers=4, most=9)
    assert (found.stopped, found.judged) == ("count", 9)


# ---------------------------------------------------------------- what it needs


def test_a_cluster_of_rays_needs_ray(searched: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refused(name: str, *rest: Any, **more: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refused)
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    with pytest.raises(ValueError, match=r"pip install 'kernelworks\[farm\]'"):
        searched(workers=2)
    assert not (tmp_path / "s.sqlite").exists()
    with pytest.raises(ValueError, match="workers takes a whole number above 0, got 0"):
        searched(workers=0)
    monkeypatch.delenv("RAY_ADDRESS")
    assert crew._ray() is None  # then workers are processes of this host


def test_each_worker_has_cores_of_its_own_or_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_ray", lambda: None)
    monkeypatch.setattr(cores, "cores", lambda: [0, 1, 2, 3])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    crew.check_workers(4, 1)
    crew.check_workers(2, 2)
    with pytest.raises(ValueError, match=r"workers takes at most 2 here \(2 cores each, one a thread, of 4 cores\)"):
        crew.check_workers(3, 2)


# Speaks as a worker's process does, of nothing: it takes what it is given for a verdict, and ends over "the end".
SPEAKS = """
import os, pickle, sys
from multiprocessing.connection import Connection

end = Connection(int(sys.argv[1]))
while True:
    asked = pickle.loads(end.recv_bytes())
    if asked == "the end":
        os._exit(3)
    said = (False, "ValueError: it is not for this") if asked == "not this" else (True, (asked, os.getpid()))
    end.send_bytes(pickle.dumps(said))
"""


def test_a_process_is_a_worker_until_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "speaks.py"
    file.write_text(SPEAKS, encoding="utf-8")
    monkeypatch.setattr(crew, "COMMAND", (sys.executable, str(file)))
    given: list[Any] = ["papers", "a task", "not this", "the end"]
    hand = crew.LocalWorker(given[0], 1)
    opened: Any = hand.opened.result(LONG_S)
    assert opened[0] == "papers" and opened[1] != os.getpid()
    assert hand.judge(given[1]).result(LONG_S) == ("a task", opened[1])
    with pytest.raises(ChildProcessError, match="ValueError: it is not for this"):
        hand.judge(given[2]).result(LONG_S)
    with pytest.raises(ChildProcessError, match="ended with code 3"):
        hand.judge(given[3]).result(LONG_S)
    hand.end()
    idle = crew.LocalWorker(given[0], 2)
    number = idle.opened.result(LONG_S)[1]  # type: ignore[index]
    idle.end()
    assert not Path("/proc", str(number)).exists()


# ---------------------------------------------------------------- a worker, without Ray round it


@pytest.fixture
def juror(
    pretended: type[Pretended], ceilings: Peaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[jurors.Juror]:
    """A worker in this process, whose sitting takes no time but while it may."""

    class Timed(pretended):  # type: ignore[misc, valid-type]
        def __init__(self, problem: Any, **settings: Any) -> None:
            super().__init__(problem, **{**settings, "progress": print})
            self.alone = settings["alone"]

        def judge_text(self, name: str, source: str, language: str) -> Judgement:
            with self.alone():
                found: Judgement = super().judge_text(name, source, language)
                return found

    monkeypatch.setattr(jurors, "Sitting", Timed)
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    threads = torch.get_num_threads()
    yield jurors.Juror(jurors.Papers(PROBLEM, "eager", SHORT, 1, ceilings, machine().kind, folder=str(tmp_path)))
    torch.set_num_threads(threads)
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_worker_has_a_core_and_waits_for_its_turn_at_the_clock_for_nothing(juror: jurors.Juror) -> None:
    with ThreadPoolExecutor(1) as pool:  # a thread's processors are its own
        assert pool.submit(juror.open).result().work is not None
        (core,) = pool.submit(os.sched_getaffinity, 0).result()
        assert core in cores.cores()
        others = [number for number in cores.cores() if number != core]
        with pytest.raises(TimeoutError):
            cores.claim_resources("cores", [core], 1, 0.0)
        with cores.clock():
            begin = time.monotonic()
            verdict = pool.submit(juror.judge, task(3))
            time.sleep(0.3)
            assert not verdict.done()
        judgement, cost_s = verdict.result(LONG_S)
        assert judgement.verdict == "right" and 0 < cost_s <= time.monotonic() - begin - juror.waited_s
        assert juror.waited_s > 0.1
        pool.submit(juror.leave).result()
    assert cores.claim_resources("cores", [core, *others], 1, 0.0).numbers == (core,)


def test_a_worker_on_another_kind_of_machine_is_none(juror: jurors.Juror) -> None:
    juror.papers = dataclasses.replace(juror.papers, machine="another")
    with pytest.raises(ValueError, match="the search on another: times do not compare"):
        juror.open()
