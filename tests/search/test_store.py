"""A store holds every candidate and verdict, judges nothing twice, is one process's, and stays quick."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pretended import PROBLEM, judgement

from kernelworks.judge import Budget
from kernelworks.search.proposer import Draft, StoredCandidate
from kernelworks.search.stopping import shorten_budget
from kernelworks.search.store import Store, StoreLocked, identity, place_of

MANY = 100_000


def opened(path: Path, **other: object) -> Store:
    said: dict[str, object] = {"over": "eager", "threads": 1, "machine": "kind"} | other
    return Store.open(path, PROBLEM, **said)  # type: ignore[arg-type]


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sqlite") as store:
        (first,) = store.add([Draft("x = 1", "c++", "one", note="begins", detail={"at": {"TILE": 8}})])
        (second,) = store.add([Draft("x = 1", "c++", "two"), Draft("x = 2", "torch", "two", (first,))])
        assert store.count() == 2 and [s.id for s in store.pending()] == [first, second]
        kept = store.keep(first, judgement(ratio=1.5), cost_s=2.0, worker="w")
        assert (kept.number, kept.ratio(), kept.right) == (1, 1.5, True)
    with opened(tmp_path / "a.sqlite") as store:  # as a search that goes on finds it
        one, two = store.history
        assert one.draft == Draft("x = 1", "c++", "one", (), "begins", {"at": {"TILE": 8}})
        assert one.judgement == judgement(ratio=1.5) and one.seconds == pytest.approx(1e-3 / 1.5)
        assert two.draft.parents == (first,) and two.judgement is None and two.ratio() is None
        assert [s.id for s in store.pending()] == [second] and store.count_judged() == 1
        assert store.problem == PROBLEM


def test_a_verdict_stays_what_it_was(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sqlite") as store:
        (id,) = store.add([Draft("x = 1", "torch", "one")])
        store.keep(id, judgement(ratio=1.5), cost_s=1.0)
        assert store.keep(id, judgement("refused"), cost_s=1.0).right
        store.keep(id, judgement(ratio=1.4), cost_s=1.0, round=1)
        assert store.low(id, 0) == 1.5 * 0.98 and store.low(id, 1) == 1.4 * 0.98 and store.count_judged() == 1


def test_a_child_wins_by_more_than_both_intervals(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sqlite") as store:
        (parent,) = store.add([Draft("p", "torch", "given")])
        children = store.add([Draft(f"c{i}", "torch", "one", (parent,)) for i in range(3)])
        store.keep(parent, judgement(ratio=1.5, half=0.02), cost_s=1.0)
        for id, ratio in zip(children, (1.5, 1.55, 1.6), strict=True):
            store.keep(id, judgement(ratio=ratio, half=0.02), cost_s=1.0)
        assert [t.won for t in store.summaries()] == [True, False, False, True]
        assert store.proposer_results()["one"].won == 1 and store.proposer_results()["one"].best == 1.6
        assert [t.id for t in store.quickest(2)] == [children[2], children[1]]


def test_what_the_clock_could_not_see_has_no_place(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sqlite") as store:
        unseen, seen = store.add([Draft("a", "torch", "one"), Draft("b", "torch", "one")])
        found = judgement(ratio=1.0)
        unknown = dataclasses.replace(found.speeds[0], low=0.0, high=31.0, ambiguous=True)
        assert store.keep(unseen, dataclasses.replace(found, speeds=(unknown,)), cost_s=1.0).right
        store.keep(seen, judgement(ratio=1.01, half=0.02), cost_s=1.0)
        assert [t.id for t in store.quickest(9)] == [seen] and store.low(unseen, 0) is None


def test_the_last_judgement_is_as_short_as_the_budget_leaves() -> None:
    whole = Budget(reference_s=10.0, turns_s=10.0, many_s=5.0)
    assert shorten_budget(whole, 3.0) == whole
    half = shorten_budget(whole, -12.5)
    assert (half.reference_s, half.turns_s, half.many_s) == (5.0, 5.0, 2.5) and half.least_cases == whole.least_cases
    assert shorten_budget(whole, -1e3).reference_s == 0.0


def test_a_parent_that_is_not_there_is_refused_and_nothing_is_added(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sqlite") as store:
        with pytest.raises(ValueError, match="names the parent 'nobody'"):
            store.add([Draft("x = 1", "torch", "one"), Draft("x = 2", "torch", "one", ("nobody",))])
        assert store.count() == 0


@pytest.mark.parametrize("other", [{"over": "compiled"}, {"threads": 2}, {"machine": "another"}])
def test_verdicts_that_do_not_compare_are_kept_apart(other: dict[str, object], tmp_path: Path) -> None:
    opened(tmp_path / "a.sqlite").close()
    with pytest.raises(ValueError, match="another store is needed"):
        opened(tmp_path / "a.sqlite", **other)
    opened(tmp_path / "a.sqlite").close()  # and let go of what it held


def test_a_file_that_is_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("my notes, " * 100, encoding="utf-8")
    with pytest.raises(ValueError, match="not the store of a search"):
        opened(tmp_path / "notes")
    assert (tmp_path / "notes").read_text(encoding="utf-8") == "my notes, " * 100
    sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE mine (a)")
    with pytest.raises(ValueError, match="not the store of a search"):
        opened(tmp_path / "other.db")
    with pytest.raises(FileNotFoundError):
        Store.read(tmp_path / "nowhere")


def test_one_searches_and_others_read(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sqlite") as store:
        store.add([Draft("x = 1", "torch", "one")])
        with pytest.raises(StoreLocked):
            opened(tmp_path / "a.sqlite")
        with Store.read(tmp_path / "a.sqlite") as reader:
            assert [s.draft.code for s in reader.history] == ["x = 1"]
            with pytest.raises(sqlite3.OperationalError):
                reader.add([Draft("x = 2", "torch", "one")])


KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from pretended import PROBLEM, judgement
from kernelworks.search.proposer import Draft
from kernelworks.search.store import Store

store = Store.open({path!r}, PROBLEM, over="eager", threads=1, machine="kind")
for number in range(1000):
    (id,) = store.add([Draft(f"x = {{number}}", "torch", "one")])
    store.keep(id, judgement(), cost_s=1.0)
    print(number, flush=True)
"""


def test_a_kill_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sqlite")
    code = KILLED.format(tests=str(Path(__file__).parent), path=path)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(20)]
        process.kill()
        said += process.stdout.readlines()
    kept = len([line for line in said if line.endswith("\n")])
    with opened(tmp_path / "a.sqlite") as store:
        assert kept <= store.count_judged() <= kept + 1
        assert store.count() - store.count_judged() in (0, 1)
        assert len(store.pending()) == store.count() - store.count_judged()


def test_a_hundred_thousand_candidates_stay_quick(tmp_path: Path) -> None:
    """What a turn of the loop asks takes no longer in a large store; the seconds are generous, for a busy machine."""
    with opened(tmp_path / "a.sqlite") as store:
        ids = store.add([Draft(f"x = {i}", "torch", f"p{i % 3}") for i in range(MANY)])
        record = judgement()
        rows = [
            (id, 0, "right", "", 1 + i / MANY, 1 + i / MANY, 2.0, 1e-3, i % 2, "w", 1.0, "", json.dumps({}))
            for i, id in enumerate(ids[:-1])
        ]
        store._db.execute("BEGIN")
        store._db.executemany(f"INSERT INTO verdict VALUES ({', '.join('?' * 13)})", rows)
        store._db.execute("COMMIT")
        begin = time.process_time()
        assert [s.id for s in store.pending(1)] == [ids[-1]]
        assert store.keep(ids[-1], record, cost_s=1.0).number == MANY
        assert store.quickest(1)[0].id == ids[-2] and store.count_judged() == MANY
        assert store.add([Draft("x = 5", "torch", "again")]) == []
        assert store.proposer_results()["p0"].candidates > MANY // 4
        assert isinstance(store.history[-1], StoredCandidate) and len(store.history) == MANY
        assert time.process_time() - begin < 5
        begin = time.process_time()
        assert len(store.summaries()) == MANY
        assert time.process_time() - begin < 20


def test_a_store_has_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environ, "KERNELWORKS_CACHE", str(tmp_path))
    places = {place_of(PROBLEM, over, threads) for over in ("eager", "ours") for threads in (1, 2)}
    assert len(places) == 4 and all(p.parent == tmp_path / "search" for p in places)
    assert identity(PROBLEM) == identity(PROBLEM)
