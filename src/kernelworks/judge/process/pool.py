"""The judge's processes as the supervisor holds them: born (``birth``), asked, stopped, let go on, ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.judge.process.cleanup import remove_folder
from kernelworks.judge.process.integrity import find_code_changes
from kernelworks.judge.process.ipc import hear, pair, say, write_papers
from kernelworks.judge.process.own_code import TRAPS, count_at_work, own_ranges, take_away
from kernelworks.judge.process.sandbox import INSIDE
from kernelworks.machine import environment
from kernelworks.machine.descriptors import is_readable

__all__ = ["ChildProcess", "Nursery", "ProcessEnded", "ProcessTimeout", "module_paths"]

# Long enough for the busiest machine: who waits for these is told at once where the other end is gone.
START_S = 300.0  # torch is loaded in seconds, from a cold disk beside others in a minute
STOP_S = 30.0  # a thread stops once it has a core
# Whether there is a GPU is asked in a way that lets children of the process that asks still use it.
WITHOUT_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
MOST_BUILDS = 4  # of candidates that may be judged once more
EXITING = 4  # of a thread's flags in /proc
NAP_S = 2e-5  # a thread that runs is stopped within some microseconds, one without a core once it has one

_libc = ctypes.CDLL(None)


class ProcessEnded(Exception):
    """A process is gone, or was ended because it did not answer; the text says which."""


class ProcessTimeout(ProcessEnded):
    """It did not answer in time."""


@dataclass
class ChildProcess:
    """A process of the nursery's, as the supervisor holds it."""

    role: str
    control: socket.socket
    status: socket.socket
    folder: Path
    shared: bool = False  # its folder is another's too
    pid: int = 0
    maker: int = 0  # the process that it was forked from
    handle: int = -1
    kept: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    gone: str = ""
    seen: bool = False  # its memory's ranges

    def say(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Raises ProcessEnded."""
        try:
            say(self.control, message, descriptors)
        except OSError as error:
            raise ProcessEnded(self.end_reason()) from error

    def hear(self, seconds: float) -> tuple[Any, list[int]]:
        """What it answers. Raises ProcessEnded if it does not; it is gone then."""
        try:
            said, rights = hear(self.control, seconds)
            if self.role != "caller":
                return said, rights
            for number in rights:  # a candidate has none to hand on: they would stay open while the judge runs
                os.close(number)
            return said, []
        except TimeoutError as error:
            self.end()
            self.gone = f"did not answer within {seconds:.0f} s"
            raise ProcessTimeout(self.gone) from error
        except (EOFError, OSError):
            self.gone = self.end_reason()
        except ValueError as error:
            self.end()
            self.gone = f"answered what is no answer: {error}"
        raise ProcessEnded(self.gone)

    def has_said(self, seconds: float) -> bool:
        """Whether something is there to be heard, after so long at the most."""
        return is_readable(self.control, seconds)

    def ask(self, message: Any, seconds: float, descriptors: tuple[int, ...] = ()) -> tuple[Any, list[int]]:
        self.say(message, descriptors)
        return self.hear(seconds)

    def end_reason(self) -> str:
        """How it ended. One that lives on, and has closed its socket or said nothing in a packet, is ended."""
        if not self.gone and self.is_alive() and not self._is_ending():
            self.gone = "closed the judge's socket, or sent an empty message"
            self.end()
        if not self.gone:
            self.gone = "ended"  # by us, where nobody says how
            with contextlib.suppress(TimeoutError, EOFError, ValueError, OSError):
                said, _ = hear(self.status, STOP_S)
                code = int(said["ended"])
                self.gone = f"crashed with {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return self.gone

    def stop(self) -> None:
        """No thread of it runs any more when this returns. Raises ProcessEnded."""
        self._signal(signal.SIGSTOP)
        until = time.monotonic() + STOP_S
        while not self.is_stopped():
            if time.monotonic() > until:
                self.end()
                raise ProcessEnded("could not be stopped")
            time.sleep(NAP_S)
            self._signal(signal.SIGSTOP)  # something may have let it go on

    def begin_stop(self) -> None:
        """Threads that run stop at once; ``stop`` waits for the others. Raises ProcessEnded."""
        self._signal(signal.SIGSTOP)

    def is_stopped(self) -> bool:
        """A thread that has just ended does not run any more either. Raises ProcessEnded."""
        try:
            for task in os.scandir(f"/proc/{self.pid}/task"):
                if _fields(f"{task.path}/stat")[0] not in (b"T", b"t", b"Z", b"X"):
                    return False
        except (FileNotFoundError, ProcessLookupError) as error:
            if not self.is_alive():
                raise ProcessEnded(self.end_reason()) from error
            return False
        if not self.is_alive():
            raise ProcessEnded(self.end_reason())
        return True

    def is_running(self) -> bool:
        """Whether a thread of it has a core, or waits for one. Raises ProcessEnded."""
        try:
            tasks = list(os.scandir(f"/proc/{self.pid}/task"))
        except OSError as error:
            raise ProcessEnded(self.end_reason()) from error
        for task in tasks:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
                if _fields(f"{task.path}/stat")[0] == b"R":
                    return True
        return False

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def spread(self) -> set[int]:
        """Of a stopped process: its threads, each bound to a core of its own as far as there are some, for when it goes
        on; ``roam`` ends that. None where it has but one thread, or has chosen cores itself.

        Left to the scheduler all may be woken on one core, where one that spins for more of OpenMP's work keeps the
        others from theirs for a time slice, 4 ms. The first is put on the supervisor's core: that one has nothing to do
        until it is answered, and would itself wait as long behind one that spins.
        """
        ours, here, placed = os.sched_getaffinity(0), int(_libc.sched_getcpu()), set[int]()
        order = sorted(ours, key=lambda core: (core != here, core))
        with contextlib.suppress(OSError):
            threads = self._threads()
            if len(threads) > 1 and len(ours) > 1 and all(os.sched_getaffinity(one) == ours for one in threads):
                for at, thread in enumerate(threads):
                    placed.add(thread)
                    os.sched_setaffinity(thread, {order[at % len(order)]})
        return placed

    def roam(self, threads: Collection[int] | None = None) -> None:
        """These threads, or all that there are, may run on every core of ours."""
        ours = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):
            for thread in self._threads() if threads is None else threads:
                with contextlib.suppress(OSError):  # one that has ended
                    os.sched_setaffinity(thread, ours)

    def _threads(self) -> list[int]:
        return sorted(int(task.name) for task in os.scandir(f"/proc/{self.pid}/task"))

    def _signal(self, number: int) -> None:
        """By a handle of the process, not by its number, which may be another's by now."""
        try:
            signal.pidfd_send_signal(self.handle, number)
        except OSError as error:
            raise ProcessEnded(self.end_reason()) from error

    def code_changes(self) -> list[str]:
        """What of the code that it was forked with it has written over; none where the kernel has never said."""
        try:
            found = find_code_changes(self.pid, self.maker, "system calls" in self.kept) if self.maker else []
        except OSError:
            return ["nobody may look into its memory any more"] if self.seen and self.is_alive() else []
        self.seen = True
        return found

    def own_code(self) -> list[tuple[int, int]]:
        """Where code that it has compiled, or brought, lies in its memory; none where the kernel does not say."""
        try:
            return own_ranges(self.pid, self.maker, (self.folder, INSIDE)) if self.maker else []
        except OSError:
            return []

    def count_at_work(self, ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Of a stopped process: threads that are at its own code, and all that are at work; none where the kernel does
        not say."""
        try:
            return count_at_work(self.pid, ranges)
        except OSError:
            return 0, 0

    def take_own_code(self, instead: dict[str, bytes] = TRAPS) -> bool:
        """Of a stopped process: from here on its own code does what stands there ``instead``. Whether there was any,
        and it could be taken away."""
        try:
            own = self.own_code()
            take_away(self.pid, own, instead)
        except OSError:
            return False
        return bool(own)

    def stop_at_its_word(self, seconds: float) -> float:
        """Begins to stop it once something is there to be heard, or after so long: without rest, on a core of the
        supervisor's own. How long it may have gone on after the word: on a busy machine others have that core in
        between. Raises ProcessEnded."""
        there, silent = select.poll(), time.monotonic()
        there.register(self.control, select.POLLIN)
        until = silent + seconds
        while not there.poll(0) and (now := time.monotonic()) < until:
            silent = now
        self._signal(signal.SIGSTOP)
        return time.monotonic() - silent

    def is_alive(self) -> bool:
        return self.handle >= 0 and not is_readable(self.handle)

    def _is_ending(self) -> bool:
        """Whether the kernel is at removing it: its descriptors are closed then a little before it is gone."""
        try:
            tasks = list(os.scandir(f"/proc/{self.pid}/task"))
        except OSError:
            return True
        for task in tasks:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if not int(_fields(f"{task.path}/stat")[6]) & EXITING:
                    return False
        return True

    def other_pids(self) -> list[int]:
        """Processes in its namespace, or its descendants where it has none, beside itself; none once it is gone."""
        if not self.is_alive() or not self._parent():
            return []
        found = [pid for pid in _related(self.pid, apart=self._apart) if pid != self.pid]
        return found if self.is_alive() else []

    @property
    def _apart(self) -> bool:
        """Whether it has a namespace of processes."""
        return "processes" in self.kept

    def _parent(self) -> bool:
        """Whether it may have children: in a namespace of its own each process there descends from one of them."""
        if not self._apart:
            return True
        try:
            return any(Path(task.path, "children").read_bytes() for task in os.scandir(f"/proc/{self.pid}/task"))
        except OSError:  # a kernel that does not list them, or a thread that has just ended
            return True

    def end(self) -> None:
        """Ends it and all that it started (what is in a namespace of its own ends with it); what it has written is
        removed."""
        for pid in () if self._apart else self.other_pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessEnded):
            self._signal(signal.SIGKILL)
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
        self.control.close()
        self.status.close()
        if not self.shared:
            remove_folder(self.folder)


def _fields(stat: str) -> list[bytes]:
    """What its line in /proc says of a thread: its state, its parent and so on."""
    with open(stat, "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _related(pid: int, *, apart: bool) -> Iterator[int]:
    """Processes in its namespace, where it has one, and its descendants: one that shows nobody its namespace is one of
    them all the same."""
    parents, inside = dict[int, int](), set[int]()
    with contextlib.suppress(OSError):
        own = os.readlink(f"/proc/{pid}/ns/pid") if apart else ""
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            number = int(entry.name)
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = _fields(f"/proc/{number}/stat")
                if fields[0] != b"Z":
                    parents[number] = int(fields[1])
            with contextlib.suppress(OSError):
                if apart and os.readlink(f"/proc/{number}/ns/pid") == own:
                    inside.add(number)
    first = pid if apart else parents.get(pid, pid)  # the keeper's each becomes whose own parent ends
    known = {first}
    while further := {child for child, parent in parents.items() if parent in known} - known:
        known |= further
    yield from inside | (known if apart else known - {first})


def module_paths() -> list[str]:
    """Where this process finds modules, for one that finds the same; this package's own place stands for the folder
    that it was started in."""
    package = str(Path(__file__).parents[3])
    found = dict.fromkeys(place or package for place in sys.path)
    return [*found, *(() if package in found else (package,))]


class Nursery:
    """The supervisor's side. ``with Nursery() as nursery: nursery.born("oracle", papers)``. In an ``interpreted`` one
    Triton's kernels run in its interpreter, which is decided when Triton is loaded. ``modules``, none of anybody's, are
    loaded before a process is born: once for all that would load them."""

    def __init__(self, *, interpreted: bool = False, modules: Sequence[str] = ()) -> None:
        self.interpreted, self.modules = interpreted, modules
        self.builds: list[tuple[Any, Path]] = []  # what was built, and the folder that it lies in

    def keep_build(self, built: Any, folder: Path) -> None:
        """For whoever builds the same next; of many the latest are kept."""
        self.builds.append((built, folder))
        while len(self.builds) > MOST_BUILDS:
            remove_folder(self.builds.pop(0)[1])

    def take_build(self, wanted: Any) -> Path | None:
        """The folder that the same was built in; it is the asker's from here on."""
        found = next((one for one in self.builds if one[0] == wanted), None)
        if found is None:
            return None
        self.builds.remove(found)
        return found[1]

    def __enter__(self) -> Nursery:
        self.root = Path(tempfile.mkdtemp(prefix="kernelworks-judge-"))
        self.root.chmod(0o711)  # a process that is another user's finds its folder, and lists nobody's
        self.children: list[ChildProcess] = []
        self._end, theirs = pair()
        # A process shows in /proc what it was started with, whatever is unset later: so secrets are left out here.
        # Without the folder that it is started in on its path: whatever is on that is needed, and seen by all.
        command = [sys.executable, "-P", "-m", "kernelworks.judge.roles.spawn", str(theirs.fileno()), str(self.root)]
        command += self.modules
        known = (
            environment.variables_without_secrets()
            | ({"TRITON_INTERPRET": "1"} if self.interpreted else {})
            | WITHOUT_CUDA
        )
        paths = os.pathsep.join(module_paths())
        try:  # in a session of its own: a key that interrupts the supervisor is not for it
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env={**known, "PYTHONPATH": paths},
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._end.close()
            remove_folder(self.root)
            raise
        finally:
            theirs.close()
        try:
            hear(self._end, START_S)
        except BaseException:
            self._process.kill()  # nothing is left of what does not come up
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.end()
        self._end.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        remove_folder(self.root)

    def folder(self, name: str) -> Path:
        """One for processes to share: what is compiled in one is found by the next."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))

    def spawn(
        self, role: str, papers: dict[str, Any], *, folder: Path | None = None, cpu_s: float = 600.0,
        device: str = "cpu",
    ) -> ChildProcess:  # fmt: skip
        """A process of a role with what it is given at its start; with the folder of another, or one of its own.
        Raises ProcessEnded."""
        shared = folder is not None
        folder = folder or self.folder(role)
        control, its_control = pair()
        status, its_status = pair()
        given = write_papers(papers)
        say(
            self._end,
            {"role": role, "folder": str(folder), "cpu_s": cpu_s, "device": device},
            (its_control.fileno(), its_status.fileno(), given),
        )
        its_control.close()
        its_status.close()
        os.close(given)
        child = ChildProcess(role, control, status, folder, shared)
        self.children.append(child)
        try:
            said, rights = hear(status, START_S)
        except (TimeoutError, EOFError) as error:
            raise ProcessEnded("was not started") from error
        child.pid, child.kept, child.open = int(said["pid"]), list(said["kept"]), list(said["open"])
        child.handle, child.maker = rights[0], self._process.pid
        self.children = [c for c in self.children if c.handle >= 0]
        return child
