"""Workers that are Ray's, or processes of the search's own, with the judge's own processes: one is killed in the midst
of it, and nothing is lost.

Not in `make test`: it takes half a minute each, and Ray, which `pip install .[farm]` brings.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from pretended import PARENT, TEXT

from kernelworks.judge.harness import Budget
from kernelworks.records import Peaks
from kernelworks.search import search
from kernelworks.search.store import Store
from kernelworks.search.workers import cores, crew

LITTLE = Budget(
    reference_s=0.5, most_cases=8, many=10, many_s=0.3, looks=0, shapes=0, gradients=0, all_reasons=False
)  # fmt: skip
LONG_S = 300.0  # a busy machine takes some of it
WORKERS = 2
SITS = 5  # processes of a judge that waits: where all are born, the reference's and the baseline's, each with a keeper


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    there = ["processes", *(["ray"] if importlib.util.find_spec("ray") is not None else [])]
    wanted = metafunc.config.getoption("--all") and len(cores.cores()) >= WORKERS
    if "farm" in metafunc.fixturenames:
        metafunc.parametrize("farm", there if wanted else [])


def _judging(farm: str) -> list[psutil.Process]:
    """Workers that are at a judgement: Ray puts what a process does into its title, one of the search's own has a
    process of the judge's that has one for a candidate."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            said = " ".join(child.cmdline())
            if farm == "ray" and child.name().startswith("ray::") and "judge" in said:
                found.append(child)
            if farm == "processes" and "search.juror" in said and len(child.children(recursive=True)) > SITS:
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_a_worker_that_is_killed_loses_no_verdict(
    farm: str, tmp_path: Path, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    if farm == "processes":
        monkeypatch.setattr(crew, "_ray", lambda: None)
    (tmp_path / "twice.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "mine.py").write_text(PARENT, encoding="utf-8")
    store, killed, left = tmp_path / "s.sqlite", list[int](), list[psutil.Process]()
    over = threading.Event()

    def kill() -> None:
        """One, once both are known to judge: a verdict is there, and more are to come."""
        while not over.is_set() and not killed:
            at_work = _judging(farm)
            if len(at_work) == WORKERS:
                left.extend(psutil.Process().children(recursive=True))
                os.kill(at_work[0].pid, signal.SIGKILL)
                killed.append(at_work[0].pid)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = search(
            tmp_path / "twice.py", parents=[tmp_path / "mine.py"], proposers=["parameters"], store=store, threads=1,
            most=8, workers=WORKERS, judging=(LITTLE, LITTLE), peaks=ceilings, budget_s=LONG_S,
        )  # fmt: skip
    finally:
        over.set()
        killer.join()
    assert killed and found.lost == 1 and found.stopped == "count"
    assert found.judged == 8 and all(one.verdict == "right" for one in found.candidates if one.verdict)
    assert sum(bool(one.verdict) for one in found.candidates) == 8
    assert found.cost_s is not None and found.each_s is not None
    assert found.best is not None and found.best.again is not None and found.best.again.verdict == "right"
    with Store.read(store) as kept:
        workers = {row[0] for row in kept._db.execute("SELECT worker FROM verdict WHERE round = 0")}
    assert workers and all("/" in worker for worker in workers)  # none was judged in this process
    _, alive = psutil.wait_procs(left, timeout=LONG_S)
    assert not alive  # neither Ray's or ours, nor the judge's of the worker that was killed
    assert not list(Path(tempfile.gettempdir()).glob(f"kw-crew-{os.getpid()}-*"))
