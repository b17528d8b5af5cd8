"""A search with the judge's own processes, killed in its midst: it goes on, and has lost and judged twice nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pretended import PARENT, TEXT

from kernelworks.judge.harness import Budget
from kernelworks.records import Peaks, to_json
from kernelworks.search import search
from kernelworks.search.store import Store

LITTLE = Budget(
    reference_s=0.5, most_cases=8, many=10, many_s=0.3, looks=0, shapes=0, gradients=0, all_reasons=False
)  # fmt: skip
UNTIL_S = 300.0  # a busy machine takes some of it, a quiet one 10

CODE = """
import sys
from pathlib import Path
from kernelworks.judge.harness import Budget
from kernelworks.records import Peaks, from_json
from kernelworks.search import search

folder = Path(sys.argv[1])
search(
    folder / "twice.py", parents=[folder / "mine.py"], proposers=["parameters"], store=folder / "s.sqlite", threads=1,
    judging=({little!r},) * 2, peaks=from_json(Peaks, (folder / "peaks.json").read_text()),
)
"""


@pytest.mark.thorough  # a search in processes of its own, killed and taken up again
def test_a_killed_search_goes_on(tmp_path: Path, ceilings: Peaks) -> None:
    (tmp_path / "twice.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "mine.py").write_text(PARENT, encoding="utf-8")
    (tmp_path / "peaks.json").write_text(to_json(ceilings), encoding="utf-8")
    store = tmp_path / "s.sqlite"
    with subprocess.Popen([sys.executable, "-c", CODE.format(little=LITTLE), str(tmp_path)]) as process:
        until = time.monotonic() + UNTIL_S
        while _judged(store) < 2 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    with Store.read(store) as kept:
        before = kept.summaries()
        records = [kept.judgement(t.id) for t in before if t.verdict]
    assert len(records) >= 2 and records[0] is not None and records[0].verdict == "right"
    found = search(
        tmp_path / "twice.py", parents=[tmp_path / "mine.py"], proposers=["parameters"], store=store, threads=1,
        most=len(records) + 1, judging=(LITTLE, LITTLE), peaks=ceilings,
    )  # fmt: skip
    judged = [t for t in before if t.verdict]
    assert found.judged == len(records) + 1 and found.judged_now == 1
    assert [t for t in found.candidates if t.verdict][: len(judged)] == judged
    with Store.read(store) as kept:
        assert [kept.judgement(t.id) for t in judged] == records
    assert len({t.id for t in found.candidates}) == len(found.candidates)
    assert found.best is not None and found.best.again is not None and found.best.again.verdict == "right"
    _, left = psutil.wait_procs(children, timeout=max(1.0, until - time.monotonic()))
    assert children and not left  # nothing of the killed one's goes on


def _judged(store: Path) -> int:
    if store.exists():
        with contextlib.suppress(ValueError, OSError), Store.read(store) as kept:
            return kept.count_judged()
    return 0
