"""Where a search is kept: its problem, every candidate with its parents, every verdict. One SQLite file a search.

Whatever is in it was committed whole, so a search that is killed goes on where it was: a candidate that has a verdict
is never judged again, one that was proposed and not judged is judged first. A file beside it (``.lock``) is held by the
one process that searches; others read meanwhile.

| table | a row is |
|---|---|
| ``search`` | the problem, the baseline, threads and machine; what the problem cannot do without |
| ``candidate`` | a text, in the order in which texts came; ``id`` is the hash of its problem and its text |
| ``parent`` | one of the candidates that a candidate was made from |
| ``verdict`` | a judgement: ``round`` 0 while searching, 1 once more at the end, on other inputs |
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from kernelworks.judge.problem import Problem
from kernelworks.machine import environment
from kernelworks.records import from_json, to_json
from kernelworks.records.judgement import Judgement
from kernelworks.records.search import ProposerResult, TriedCandidate
from kernelworks.search.proposer import Draft, StoredCandidate

__all__ = ["History", "Store", "StoreLocked", "identity", "place_of"]

FORMAT = 1  # of the file
MOST_HELD = 4096  # candidates whose record is held in memory
WAIT_S = 60.0  # for a writer in another process

TABLES = """
CREATE TABLE IF NOT EXISTS search (
    one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, hash TEXT NOT NULL, problem TEXT NOT NULL,
    baseline TEXT NOT NULL, threads INTEGER NOT NULL, machine TEXT NOT NULL, work TEXT NOT NULL, date TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS candidate (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, code TEXT NOT NULL, language TEXT NOT NULL,
    proposer TEXT NOT NULL, note TEXT NOT NULL, detail TEXT NOT NULL, date TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parent (
    child TEXT NOT NULL, place INTEGER NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (child, place)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS children ON parent (parent);
CREATE TABLE IF NOT EXISTS verdict (
    candidate TEXT NOT NULL REFERENCES candidate (id), round INTEGER NOT NULL, verdict TEXT NOT NULL, why TEXT NOT NULL,
    ratio REAL, low REAL, high REAL, seconds REAL, won INTEGER NOT NULL, worker TEXT NOT NULL, cost_s REAL NOT NULL,
    date TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (candidate, round));
CREATE INDEX IF NOT EXISTS quickest ON verdict (round, verdict, low);
"""
PARENTS = "(SELECT json_group_array(parent) FROM (SELECT parent FROM parent WHERE child = c.id ORDER BY place))"
CANDIDATE_QUERY = f"""SELECT c.number, c.id, c.code, c.language, c.proposer, {PARENTS}, c.note, c.detail, v.record
    FROM candidate c LEFT JOIN verdict v ON v.candidate = c.id AND v.round = 0"""
SUMMARY_QUERY = f"""SELECT c.number, c.id, c.proposer, {PARENTS}, c.language, c.note, coalesce(v.verdict, ''),
    coalesce(v.why, ''), v.ratio, v.low, v.high, v.seconds, v.cost_s, coalesce(v.won, 0)
    FROM candidate c LEFT JOIN verdict v ON v.candidate = c.id AND v.round = 0"""


class StoreLocked(ValueError):
    """Another process searches with this store."""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def identity(problem: Problem) -> str:
    """A hash of what a problem asks."""
    asked: list[object] = [problem.name, problem.format, sorted(problem.files.items()), problem.entry, problem.device]
    asked.append([(s.name, sorted(s.sizes.items())) for s in problem.shapes])
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def place_of(problem: Problem, over: str, threads: int) -> Path:
    """Where a search is kept when no file is named."""
    whole = hashlib.sha256(f"{identity(problem)} {over} {threads}".encode()).hexdigest()
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in problem.name)[:60]
    return environment.cache_dir("search") / f"{name}-{whole[:12]}.sqlite"


class Store:
    """``Store.open`` for a search, ``Store.read`` for whoever looks at one. Raises ValueError, OSError."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int) -> None:
        self.path, self._db, self._lock = path, connection, lock
        row = connection.execute("SELECT hash, problem, baseline, threads, machine, work FROM search").fetchone()
        self.hash: str = row[0]
        self.problem = from_json(Problem, row[1])
        self.over, self.threads, self.machine = str(row[2]), int(row[3]), str(row[4])
        self.work: dict[str, Any] = json.loads(row[5])
        self.history = History(self)

    # ------------------------------------------------------------ opened and closed

    @classmethod
    def open(cls, path: str | Path, problem: Problem, *, over: str, threads: int, machine: str) -> Store:
        """For a search, anew or where one was left. Raises StoreLocked if another process searches with it,
        ValueError where it holds another search, OSError."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
        try:
            with _spoken(path):
                db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
                if _tables(db) and not _is_store(db):
                    db.close()
                    raise ValueError(f"{path}: not the store of a search")
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")  # a verdict takes seconds, a commit some milliseconds
                with _whole(db):
                    for statement in filter(str.strip, TABLES.split(";")):
                        db.execute(statement)
                    row = (FORMAT, identity(problem), to_json(problem, line=True), over, threads, machine, "{}", _now())
                    db.execute("INSERT OR IGNORE INTO search VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            store = cls(path, db, lock)
        except BaseException:
            os.close(lock)
            raise
        try:
            store._is_of(problem, over, threads, machine)
        except ValueError:
            store.close()
            raise
        return store

    @classmethod
    def read(cls, path: str | Path) -> Store:
        """To look at, while somebody searches too. Raises ValueError if it is none, OSError."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
        with _spoken(path):
            db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=WAIT_S, isolation_level=None)
            if not _is_store(db):
                db.close()
                raise ValueError(f"{path}: not the store of a search")
            return cls(path, db, -1)

    def _is_of(self, problem: Problem, over: str, threads: int, machine: str) -> None:
        wanted = (identity(problem), over, threads, machine)
        for what, has, asked in zip(
            ("problem", "baseline", "threads", "machine"), (self.hash, self.over, self.threads, self.machine), wanted,
            strict=True,
        ):  # fmt: skip
            if has != asked:
                shown = (self.problem.name, problem.name) if what == "problem" else (has, asked)
                raise ValueError(
                    f"{self.path}: it holds a search whose {what} is {shown[0]}, and {shown[1]} was asked for"
                    f"{' (another text of that name)' if shown[0] == shown[1] else ''}; another store is needed"
                )

    def close(self) -> None:
        self._db.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read within is of one moment, whoever writes meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    # ------------------------------------------------------------ written

    def id_of(self, code: str) -> str:
        return hashlib.sha256(f"{self.hash}\0{code}".encode()).hexdigest()[:20]

    def add(self, drafts: Sequence[Draft]) -> list[str]:
        """The ids of those whose text was not there yet; all are added, or none. Raises ValueError for a parent that
        is not there, TypeError where ``detail`` is no JSON."""
        fresh: list[str] = []
        date = _now()
        with _whole(self._db):
            for draft in drafts:
                id = self.id_of(draft.code)
                row = (id, draft.code, draft.language, draft.proposer, draft.note, json.dumps(dict(draft.detail)))
                added = self._db.execute(
                    "INSERT OR IGNORE INTO candidate (id, code, language, proposer, note, detail, date) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*row, date),
                )
                if not added.rowcount:
                    continue
                fresh.append(id)
                for place, parent in enumerate(draft.parents):
                    if self._db.execute("SELECT 1 FROM candidate WHERE id = ?", (parent,)).fetchone() is None:
                        raise ValueError(f"a draft of {draft.proposer} names the parent {parent!r}, which is not there")
                    self._db.execute("INSERT INTO parent VALUES (?, ?, ?)", (id, place, parent))
        return fresh

    def keep(
        self, id: str, judgement: Judgement, *, cost_s: float, worker: str = "", round: int = 0
    ) -> StoredCandidate:
        """A verdict; where there is one already, that stays. Returns the candidate with what it was judged."""
        speed = next((s for s in judgement.speeds if s.over == self.over), None)
        pace = next((p for p in judgement.paces if p.variant == "candidate"), None)
        right = judgement.verdict == "right"
        seen = speed is not None and speed.low > 0  # what is quicker than the clock can see has no place among others
        ratio, low, high = (speed.ratio, speed.low, speed.high) if speed and seen and right else (None, None, None)
        with _whole(self._db):
            row = (
                id, round, judgement.verdict, judgement.reasons[0].said if judgement.reasons else "", ratio, low, high,
                pace.median_s if pace and right else None, self._beats_parents(id, low), worker, cost_s, _now(),
                to_json(judgement, line=True),
            )  # fmt: skip
            self._db.execute(f"INSERT OR IGNORE INTO verdict VALUES ({', '.join('?' * len(row))})", row)
        self.history.forget(id)
        found = self.candidate(id)
        assert found is not None
        return found

    def _beats_parents(self, id: str, low: float | None) -> bool:
        """Whether it is quicker than each parent that is right, and than the baseline where there is none, by more
        than both intervals."""
        if low is None:
            return False
        theirs = self._db.execute(
            "SELECT v.high FROM parent p JOIN verdict v ON v.candidate = p.parent AND v.round = 0 "
            "WHERE p.child = ? AND v.high IS NOT NULL",
            (id,),
        ).fetchall()
        return low > max((high for (high,) in theirs), default=1.0)

    def keep_work(self, work: Mapping[str, Any]) -> None:
        """What the problem cannot do without, for whoever looks at the store later."""
        self.work = dict(work)
        self._db.execute("UPDATE search SET work = ?", (json.dumps(self.work),))

    # ------------------------------------------------------------ read

    def candidate(self, id: str) -> StoredCandidate | None:
        row = self._db.execute(f"{CANDIDATE_QUERY} WHERE c.id = ?", (id,)).fetchone()
        return None if row is None else _seen(row)

    def candidates_from(self, number: int, most: int) -> list[StoredCandidate]:
        """Candidates in the order of judging, from a number on."""
        rows = self._db.execute(f"{CANDIDATE_QUERY} WHERE c.number >= ? ORDER BY c.number LIMIT ?", (number, most))
        return [_seen(row) for row in rows]

    def pending(self, most: int = -1) -> list[StoredCandidate]:
        """Those that nobody has judged, the first that came first."""
        rows = self._db.execute(f"{CANDIDATE_QUERY} WHERE v.candidate IS NULL ORDER BY c.number LIMIT ?", (most,))
        return [_seen(row) for row in rows]

    def count(self) -> int:
        return int(self._db.execute("SELECT max(number) FROM candidate").fetchone()[0] or 0)

    def count_judged(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM verdict WHERE round = 0").fetchone()[0])

    def quickest(self, most: int = 1) -> list[TriedCandidate]:
        """Those that are right and timed, first the one that is surely the quickest: by the lower ends of their
        intervals."""
        rows = self._db.execute(
            f"{SUMMARY_QUERY} WHERE v.verdict = 'right' AND v.ratio IS NOT NULL ORDER BY v.low DESC LIMIT ?", (most,)
        )
        return [_tried(row) for row in rows]

    def summaries(self) -> tuple[TriedCandidate, ...]:
        """All of them, without their texts."""
        return tuple(_tried(row) for row in self._db.execute(f"{SUMMARY_QUERY} ORDER BY c.number"))

    def judgement(self, id: str, round: int = 0) -> Judgement | None:
        row = self._db.execute(
            "SELECT record FROM verdict WHERE candidate = ? AND round = ?", (id, round)
        ).fetchone()  # fmt: skip
        return None if row is None else from_json(Judgement, row[0])

    def low(self, id: str, round: int) -> float | None:
        """The lower end of the ratio over the baseline, of a round's verdict; None where that is not right."""
        row = self._db.execute(
            "SELECT low FROM verdict WHERE candidate = ? AND round = ?", (id, round)
        ).fetchone()  # fmt: skip
        return None if row is None else row[0]

    def has_failed_again(self, id: str) -> bool:
        """Whether it was right while searching, and was not once more."""
        return self._db.execute(
            "SELECT 1 FROM verdict WHERE candidate = ? AND round = 1 AND ratio IS NULL", (id,)
        ).fetchone() is not None  # fmt: skip

    def date(self) -> str:
        """When the search was begun."""
        return str(self._db.execute("SELECT date FROM search").fetchone()[0])

    def cost_s(self) -> float | None:
        """Of judging a candidate: the mean."""
        found = self._db.execute("SELECT avg(cost_s) FROM verdict WHERE round = 0").fetchone()[0]
        return None if found is None else float(found)

    def proposer_results(self) -> dict[str, ProposerResult]:
        """What came of each proposer, by its name."""
        rows = self._db.execute(
            "SELECT c.proposer, count(*), sum(v.verdict = 'right'), sum(v.won), v.ratio, sum(v.cost_s), max(v.low) "
            "FROM candidate c JOIN verdict v ON v.candidate = c.id AND v.round = 0 GROUP BY c.proposer"
        )  # the ratio is of the row that has the largest lower end: so SQLite has it beside its max()
        return {row[0]: ProposerResult(*row[:6]) for row in rows}


class History(Sequence[StoredCandidate]):
    """All candidates of a store, in the order of judging, read when they are asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[int, StoredCandidate] = {}
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return self._store.count()

    @overload
    def __getitem__(self, at: int) -> StoredCandidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[StoredCandidate]: ...
    def __getitem__(self, at: int | slice) -> StoredCandidate | list[StoredCandidate]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        count = len(self)
        number = (at + count if at < 0 else at) + 1  # numbers begin with 1 and have no gaps: nothing is ever removed
        if not 0 < number <= count:
            raise IndexError(f"a search of {count} candidates has no {at}")
        if number not in self._held:
            self._hold(self._store.candidates_from(number, 64))
        return self._held[number]

    def __iter__(self) -> Iterator[StoredCandidate]:
        number, count = 1, len(self)
        while number <= count:
            found = self._held.get(number)
            if found is None:
                self._hold(self._store.candidates_from(number, 512))
                found = self._held[number]
            yield found
            number += 1

    def _hold(self, some: Sequence[StoredCandidate]) -> None:
        if len(self._held) + len(some) > MOST_HELD:
            self._held.clear()
            self._numbers.clear()
        for one in some:
            self._held[one.number] = one
            self._numbers[one.id] = one.number

    def forget(self, id: str) -> None:
        """What has changed is read anew."""
        self._held.pop(self._numbers.pop(id, 0), None)


# ---------------------------------------------------------------- rows and files


def _seen(row: Sequence[Any]) -> StoredCandidate:
    number, id, code, language, proposer, parents, note, detail, record = row
    draft = Draft(code, language, proposer, tuple(json.loads(parents)), note, json.loads(detail))
    return StoredCandidate(id, number, draft, None if record is None else from_json(Judgement, record))


def _tried(row: Sequence[Any]) -> TriedCandidate:
    names = [field.name for field in dataclasses.fields(TriedCandidate)]
    said = dict(zip(names, row, strict=True))
    return TriedCandidate(**{**said, "parents": tuple(json.loads(said["parents"])), "won": bool(said["won"])})


@contextlib.contextmanager
def _whole(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing, whenever the process ends."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextlib.contextmanager
def _spoken(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{path}: not the store of a search ({error})") from error


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _is_store(db: sqlite3.Connection) -> bool:
    if not {"search", "candidate", "parent", "verdict"} <= _tables(db):
        return False
    return bool(db.execute("SELECT count(*) FROM search WHERE format = ?", (FORMAT,)).fetchone()[0])


def _locked(path: Path) -> int:
    """The lock beside a store; the system lets it go when this process ends, however it ends."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreLocked(f"{path}: another process searches with this store") from None
    return lock
