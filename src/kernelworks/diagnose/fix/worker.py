"""The process in which a program is diagnosed and optimizations are tried on it: ``python -m`` with the numbers of a
socket and of the file that keeps the program's standard input.

It builds the program, puts what was kept so far in place, and goes on with the search. What it notes goes to its
supervisor, line by line. Whatever a trial does to this process, the supervisor has what came before it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from kernelworks.diagnose import DiagnosisInterrupt, Fixing, run_diagnosis
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.channel import Channel, started_worker
from kernelworks.diagnose.fix.compile_forms import Compilers, CompilersBeside
from kernelworks.diagnose.fix.journal import Journal, as_state, most_silent_s
from kernelworks.diagnose.fix.result import so_far
from kernelworks.measure.clock.work_beside import WorkBeside, installed_work
from kernelworks.profile.program import from_target
from kernelworks.profile.program_errors import raised_by_program
from kernelworks.records import Diagnosis, GpuPeaks, Peaks
from kernelworks.records.json_text import build_record
from kernelworks.report.terminal import Notice

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["SPOILT", "main"]

SPOILT = 75  # the exit code of a worker that says that it is not what it was


class WorkersJournal(Journal):
    """Sends all of it."""

    isolated = True

    def __init__(self, channel: Channel, compilers: Compilers) -> None:
        self._channel, self._first, self.compilers = channel, True, compilers

    def note_diagnosis(self, diagnosis: Diagnosis) -> None:
        self._channel.send("observed", diagnosis=diagnosis)

    def note_trial(self, search: Search, one: Try) -> None:
        if self._first:
            self.note_outcome(search)
        self._channel.send("begin", state=as_state(search, one), silence=most_silent_s(search, one)._asdict())

    def note_limit(self, seconds: float, cause: str = "") -> None:
        self._channel.send("within", seconds=seconds, cause=cause)

    def note_outcome(self, search: Search) -> None:
        self._first = False
        self._channel.send("end", state=as_state(search), fix=so_far(search))

    def give_up(self, why: str) -> NoReturn:
        self._channel.send("spoilt", why=why)
        os._exit(SPOILT)


def main() -> None:
    channel, request = started_worker()
    if request is None:
        return  # its supervisor has ended
    try:
        channel.send("done", diagnosis=_diagnosed(request, channel))
    except BaseException as raised:
        error = raised
        if isinstance(raised, DiagnosisInterrupt) and raised.__context__ is not None:
            error = raised.__context__  # the program's own: the user's key does not reach this process
        channel.send("raised", text=raised_by_program(error), **_as_sent(error))
    channel.close()
    sys.stdout.flush()


def _diagnosed(request: dict[str, Any], channel: Channel) -> Diagnosis:
    again = request["resumed"] is not None  # the first process has shown what the program prints
    if again:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    program = from_target(request["target"], request["args"], module=request["module"], silent=again)
    compilers = CompilersBeside(channel, request["compilers"])
    fixing = Fixing(
        request["fix_s"], tuple(request["allow"]), plan=request["plan"], journal=WorkersJournal(channel, compilers),
        resumed=request["resumed"], began=request["search_began"],
    )  # fmt: skip

    def say(text: str) -> None:
        channel.send("say", text=text, notice=isinstance(text, Notice))

    with installed_work(WorkBeside(compilers.halt, compilers.go_on)) if compilers.number else contextlib.nullcontext():
        return run_diagnosis(
            program, fixing, _peaks(request["peaks"]), request["budget_s"], say, tuple(request["counters"]),
            rough=request["rough"],
        )  # fmt: skip


def _peaks(sent: dict[str, Any] | None) -> Peaks | GpuPeaks | None:
    if sent is None:
        return None
    return build_record(GpuPeaks, sent["record"]) if sent["gpu"] else build_record(Peaks, sent["record"])


def _as_sent(error: BaseException) -> dict[str, str]:
    pickled = ""
    if isinstance(error, Exception):  # an interrupt would be taken for the user's
        with contextlib.suppress(Exception):
            made = base64.b64encode(pickle.dumps(error)).decode()
            pickle.loads(base64.b64decode(made))  # an error whose class takes other arguments fails here
            pickled = made
    lines = str(error).strip().splitlines()
    return {"pickled": pickled, "named": type(error).__name__, "line": lines[0] if lines else ""}


if __name__ == "__main__":
    main()
