"""Workers that make lines ready, all at once, and then measure them one by one, while the others stand still.

Whoever has lines to measure starts a crew with a function that lives in a worker (it ends in ``serve``), shares the
lines out by their numbers (``made_ready``), and asks for them one after the other (``lines``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from program_variant import halted_s

__all__ = ["PATIENCE_S", "Line", "Worker", "lines", "made_ready", "serve", "started"]

PATIENCE_S = (
    60.0  # for what one number holds; a worker that takes longer is ended, and its lines are said to have failed
)
Line = dict[str, Any]


def serve(
    pipe: Connection,
    prepare: Callable[[int], None],
    measured: Callable[..., Iterator[Line]],
    named: Callable[[int], Line],
) -> None:
    """A worker's whole life: told ("prepare", number) or ("measure", number, ...), it answers with lines, then None.
    ``named`` is a line's name, for what fails as a whole."""
    pipe.send(None)
    while (told := pipe.recv()) is not None:
        what, number, *rest = told
        try:
            if what == "prepare":
                with contextlib.suppress(Exception):  # it says so when it is measured
                    prepare(number)
            else:
                for line in measured(number, *rest):
                    pipe.send(line)
        except Exception as error:
            pipe.send({**named(number), "failed": f"{type(error).__name__}: {error}"[:500]})
        pipe.send(None)


@dataclass
class Worker:
    process: Any
    pipe: Connection
    has: set[int] = field(default_factory=set)  # the numbers that it made ready
    busy: bool = True  # until it says that it stands
    gone: bool = False

    def tell(self, *what: Any) -> None:
        self.busy = True
        self.pipe.send(what)

    def lines(self, patience_s: float) -> Iterator[Line]:
        """What it answers. Ends it where that takes too long; raises EOFError where it has ended."""
        until = time.monotonic() + patience_s
        while self.pipe.poll(max(0.0, until - time.monotonic())):
            if (line := self.pipe.recv()) is None:
                self.busy = False
                return
            yield line
        self.end()
        raise EOFError(f"took more than {patience_s:.0f} s")

    def end(self) -> None:
        self.gone = True
        self.process.kill()


def started(count: int, work: Callable[[Connection], None]) -> list[Worker]:
    context = multiprocessing.get_context("spawn")
    found = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        found.append(Worker(process, ours))
    return found


def made_ready(workers: Sequence[Worker], wanted: Sequence[int], within_s: float) -> None:
    """Shares the numbers out as workers get free. What is not begun ``within_s`` is compiled when it is measured, and
    who has not ended then gets half as long again. For as long as this process was halted no clock runs."""
    waiting, begin = deque(wanted), time.monotonic() - halted_s()

    def spent() -> float:
        return time.monotonic() - halted_s() - begin

    while any(w.busy for w in workers if not w.gone):
        busy = [w for w in workers if w.busy and not w.gone]
        if not (ready := wait([w.pipe for w in busy], timeout=min(1.0, max(0.0, 1.5 * within_s - spent())))):
            if spent() >= 1.5 * within_s:  # what hangs in a compiler holds up nobody else
                for worker in busy:
                    worker.end()
            continue
        for worker in (w for w in busy if w.pipe in ready):
            try:
                worker.pipe.recv()
            except EOFError:
                worker.end()
                continue
            worker.busy = False
            if waiting and spent() < within_s:
                number = waiting.popleft()
                worker.has.add(number)
                worker.tell("prepare", number)


def lines(workers: Sequence[Worker], number: int, *more: Any) -> Iterator[Line]:
    """What a number holds, measured by whoever has it ready. Raises EOFError or OSError if that worker ends, and
    LookupError if none is left."""
    able = [w for w in workers if not w.gone]
    if not able:
        raise LookupError("no worker is left")
    worker = next((w for w in able if number in w.has), able[0])
    try:
        worker.tell("measure", number, *more)
        yield from worker.lines(PATIENCE_S)
    except (EOFError, OSError):
        worker.end()
        raise
