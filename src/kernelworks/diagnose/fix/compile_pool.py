"""The compilers that work beside a fix's measurements, each in a process of its own, as its supervisor has them.

While anything is timed all of them stand still. One that ends, hangs, or takes too much memory costs its own form
alone: the search compiles that by itself. None is left behind: they end with the fix, and with their supervisor.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kernelworks.diagnose.fix.builds_beside import BuildsBeside
from kernelworks.diagnose.fix.compile_forms import FORM_ASKED, FORM_FAILED, FORM_READY
from kernelworks.machine import environment
from kernelworks.machine.child_process import tree_now
from kernelworks.machine.descriptors import is_readable
from kernelworks.machine.memory import available_bytes
from kernelworks.machine.process_tree import ProcessTree
from kernelworks.machine.usable_cores import usable_cores
from kernelworks.profile.standard_input import kept_input
from kernelworks.records.fix import SearchStep
from kernelworks.records.json_text import json_messages, to_json

__all__ = ["CompilePool", "compilers_at_once"]

MODULE = "kernelworks.diagnose.fix.compile_worker"
MARK = "KERNELWORKS_COMPILES_FOR"  # of the environment of all that they start
LEAST_CORES, CORES_EACH, MOST = 4, 4, 6  # with fewer cores they would take what the search's own compiler needs
MEMORY_SHARE = 0.5  # of what is free, for all of them
LEAST_BYTES = 1 << 30  # with less left the last one is ended
LETS_GO_S = 0.3  # after so long they go on: what is shorter is not worth halting them again
STANDING_S = 60.0  # for which they stand while nothing is heard of the search: it may wait for what one of them holds
STANDING_RUNS = 6  # of the program, beside
WAITS_SHARE = 0.15  # of that, if all that while its processes do nothing
REST_S = 60.0  # in which none of its processes ran, and it was not halted: it hangs
LOOK_S = 5.0  # between two looks at that
LEAVES_S = 10.0  # for one that was killed
WORDS = 200
SEARCH_OVER = "the search was over"
NO_ROOM, NO_CACHE = "there is no memory for another copy of the program", "inductor's caches are off"


def compilers_at_once() -> int:
    """How many may work beside a search here."""
    cores = usable_cores()
    return min(MOST, int(cores // CORES_EACH)) if cores >= LEAST_CORES else 0


@dataclass
class _Form:
    """One form, and the process that compiles it."""

    key: str
    says: str
    batch: int = 0
    state: str = FORM_ASKED
    loads_s: float = 0.0
    cold_s: float = 0.0
    why: str = ""
    mark: str = ""
    process: subprocess.Popen[bytes] | None = None
    ours: socket.socket | None = None
    errors: IO[bytes] | None = None
    heard: bytes = b""
    cpu_s: float = -1.0
    ran_at: float = 0.0
    looked_at: float = 0.0

    def as_message(self) -> dict[str, Any]:
        return {"kind": "form", "key": self.key, "state": self.state, "loads_s": self.loads_s, "cold_s": self.cold_s}


@dataclass
class CompilePool:
    """``program`` is what a worker needs to build it. ``tell`` sends a message to the worker that searches."""

    program: Mapping[str, Any]
    number: int
    clock: Callable[[], float]  # seconds since the search began
    forms: dict[str, _Form] = field(default_factory=dict)
    steps: list[SearchStep] = field(default_factory=list)
    tell: Callable[[dict[str, Any]], None] = lambda message: None
    backward: bool = False
    most: int = 0  # how many memory allows
    standing_s: float = STANDING_S
    _none: str = ""  # why there is none
    _stands: bool = True
    _goes_at: float | None = None
    _halted_at: float = 0.0  # when they were, or something was heard since

    def __post_init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self.builds = BuildsBeside((MARK, f"{self._mark} builds."), self._step)
        self._tree = ProcessTree(
            f"{MARK}={self._mark}", lambda: [form.process.pid for form in self.running if form.process]
        )

    @property
    def running(self) -> list[_Form]:
        return [form for form in self.forms.values() if form.process is not None]

    @property
    def is_at_work(self) -> bool:
        """Whether something is compiled or built by now that the search may need."""
        return self.builds.is_running or (bool(self.running) and not self._stands)

    @property
    def waiting(self) -> list[_Form]:
        """Those of the last batch first, in their order."""
        left = [form for form in self.forms.values() if form.process is None and form.state == FORM_ASKED]
        return sorted(left, key=lambda form: -form.batch)

    # ------------------------------------------------------------ what a worker says

    def hears(self, message: Mapping[str, Any]) -> None:
        """Takes what a worker asks for. Any message says that it is alive."""
        self._halted_at = time.monotonic()
        act = {"compilers": self._begin, "compile": self._compile, "halt": self._halt, "go on": self._go_on}
        if message["kind"] in act:
            act[message["kind"]](message)

    def _begin(self, message: Mapping[str, Any]) -> None:
        self.backward, self.standing_s = message["backward"], STANDING_S + STANDING_RUNS * message["wall_s"]
        room = MEMORY_SHARE * available_bytes() / max(1, message["bytes_each"])
        if message["gpu_bytes_each"]:
            room = min(room, MEMORY_SHARE * message["gpu_bytes_free"] / message["gpu_bytes_each"])
        self.most = min(self.number, int(room)) if message["keeps"] else 0
        self._none = NO_CACHE if not message["keeps"] else NO_ROOM
        if self.most < 1:
            self._step(f"no compiler works beside: {self._none}")

    def _compile(self, message: Mapping[str, Any]) -> None:
        form = self.forms.setdefault(message["key"], _Form(message["key"], message["says"], message["batch"]))
        if self.most < 1 and form.state == FORM_ASKED:
            form.state, form.why = FORM_FAILED, self._none
        if form.state != FORM_ASKED:
            self.tell(form.as_message())

    def _halt(self, message: Mapping[str, Any]) -> None:
        worked = not self._stands and bool(self.running)
        if worked or (not self._stands and self.builds.is_running):
            self._tree.halt()
        self._goes_at, self._stands = None, True
        self.tell({"kind": "halted", "worked": worked})

    def _go_on(self, message: Mapping[str, Any] | None = None) -> None:
        if self._stands and self._goes_at is None:
            self._goes_at = time.monotonic() + LETS_GO_S

    def worker_ended(self) -> None:
        """The next one says when it measures."""
        self.tell = lambda message: None
        self._go_on()

    # ------------------------------------------------------------ what goes on by itself

    def look(self, rested_s: float = 0.0) -> None:
        """What has become of them; called again and again. ``rested_s``: for which the search has done nothing."""
        now = time.monotonic()
        if self._goes_at is not None and now >= self._goes_at:
            self._goes_at, self._stands = None, False
            if self.running or self.builds.is_running:
                self._tree.go_on()
            for form in self.running:
                form.ran_at = now
        for form in self.running:
            self._look_at(form, now)
        self.builds.look()
        waits = now - self._halted_at > self.standing_s or rested_s > WAITS_SHARE * self.standing_s
        if self._stands and self.running and waits:
            for form in self.running:
                self._ended(form, "it was ended: the search may have waited for it")
        if self.running and available_bytes() < LEAST_BYTES:
            self._ended(self.running[-1], "it was ended: memory was short")
        while not self._stands and self.waiting and len(self.running) < self.most:
            self._start(self.waiting[0])

    def _look_at(self, form: _Form, now: float) -> None:
        assert form.process is not None and form.ours is not None
        code = form.process.poll()
        while is_readable(form.ours):
            try:
                received = form.ours.recv(1 << 16)
            except ConnectionResetError:
                break
            if not received:
                break
            form.heard += received
        if code is not None or form.heard.endswith(b"\n"):
            self._ended(form, _last_words(form, code))
        elif not self._stands and now - form.looked_at > LOOK_S:
            form.looked_at, used = now, tree_now(form.process.pid).cpu_s
            if used != form.cpu_s:
                form.cpu_s, form.ran_at = used, now
            elif now - form.ran_at > REST_S:
                self._ended(form, "it hung")

    def build(self) -> None:
        """Begins what the search would have to build, before it is heard of: it works until something is timed."""
        if self.number:
            self._halted_at, self._stands = time.monotonic(), False
            self.builds.start()

    def _start(self, form: _Form) -> None:
        ours, theirs = socket.socketpair()
        package = str(Path(__file__).resolve().parents[3])
        form.mark = f"{self._mark} {len([other for other in self.forms.values() if other.mark])}."
        paths = os.pathsep.join(filter(None, (environment.variables().get("PYTHONPATH", ""), package)))
        threads = str(max(1, int(usable_cores() // max(1, self.most))))
        try:
            form.errors = tempfile.TemporaryFile()  # noqa: SIM115  (`_ended` closes it)
        except OSError:  # no disk is left: nobody will know why it ended
            form.errors = open(os.devnull, "w+b")  # noqa: SIM115
        with theirs:
            form.process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), str(kept_input())],
                pass_fds=(theirs.fileno(), kept_input()), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=form.errors, process_group=0,  # in our session: what is halted ends when we are gone
                env={"TORCHINDUCTOR_COMPILE_THREADS": threads}
                | environment.variables() | {"PYTHONPATH": paths, MARK: form.mark},
            )  # fmt: skip
        form.ours, form.ran_at, form.looked_at = ours, time.monotonic(), time.monotonic()
        self._step(f"compiling: {form.says}")
        request = {**self.program, "key": form.key, "backward": self.backward}
        with contextlib.suppress(OSError):  # it has ended: so the next look says
            ours.sendall((to_json(request, line=True) + "\n").encode())

    def _ended(self, form: _Form, why: str) -> None:
        """It has, or is ended now: with its form, or without."""
        assert form.process is not None and form.ours is not None and form.errors is not None
        pid = form.process.pid
        ProcessTree(f"{MARK}={form.mark}", lambda: [pid]).end()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
            form.process.wait(LEAVES_S)
        form.ours.close()
        said = next(json_messages(line.decode(errors="replace") for line in form.heard.split(b"\n") if line), None)
        if said is not None and said["kind"] == "compiled":
            form.state, form.loads_s, form.cold_s = FORM_READY, said["loads_s"], said["cold_s"]
            self._step(f"compiled in {form.cold_s:.0f} s: {form.says}")
        else:
            form.state, form.why = FORM_FAILED, said["why"] if said is not None else why
            self._step(f"not compiled, as {form.why}: {form.says}")
        form.errors.close()
        form.process = form.ours = form.errors = None
        self.tell(form.as_message())

    def _step(self, what: str) -> None:
        self.steps.append(SearchStep(round(self.clock(), 2), what, beside=True))

    def close(self) -> None:
        """Ends all of them, and what they have left behind. A second call does nothing."""
        for form in self.running:
            self._ended(form, SEARCH_OVER)
        self.builds.end()
        if self.forms:
            self._tree.end()

    @property
    def number_at_once(self) -> int:
        """How many worked at once, at the most."""
        return min(self.most, sum(bool(form.mark) for form in self.forms.values()))

    def note(self) -> str:
        """How many worked beside, and what came of them, for a reader; "" if none did."""
        began = [form for form in self.forms.values() if form.mark]
        if not self.number_at_once:
            return ""
        ready = sum(form.state == FORM_READY for form in began)
        lost = sorted({form.why for form in began} - {"", SEARCH_OVER})
        why = f" ({'; '.join(lost[:2])})" if lost else ""
        return (
            f"{self.number_at_once} compilers worked beside, halted while anything was timed: "
            f"{ready} of {len(began)} forms compiled{why}"
        )


def _last_words(form: _Form, code: int | None) -> str:
    """Why a process ended without a word."""
    assert form.errors is not None
    form.errors.seek(0)
    lines: Sequence[bytes] = form.errors.read()[-4096:].strip().splitlines()
    said = lines[-1].decode(errors="replace")[:WORDS] if lines else ""
    how = f"its process ended with {code}" if code is not None else "it said nothing"
    return f"{how}{f': {said}' if said else ''}"
