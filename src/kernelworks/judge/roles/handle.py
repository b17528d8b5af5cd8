"""One process that answers, as the supervisor handles it: inputs are laid out for it while it is stopped, the clock
runs from the moment that it goes on to the moment that it says it has answered, and what it answered is read then.

A candidate knows its inputs only once the clock runs: until then it does not. What it takes of the cores while no clock
runs is counted too. On a CPU its answers are never copied: it is stopped as soon as it says where they are, and the
kernel gives the supervisor what lies there. On a device, whose memory nobody else can read, their places are drawn and
told once the call has returned; some elements are read the moment they are said to be there. The places of inputs are
drawn for every call, and half of the time they are those of the call before, with other contents.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks.judge.inputs.cases import Case, Comparison, compare_answers
from kernelworks.judge.process.ipc import Spot
from kernelworks.judge.process.pool import ChildProcess, ProcessEnded
from kernelworks.judge.process.reading import MemoryUnreadable, ReadingRefused, read_tensor
from kernelworks.judge.process.sanitise import lines, sanitize_text, seconds, words
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.layout import BAND, LAYOUTS, POISON, LaidCall, contiguous_strides, drawn_places, span
from kernelworks.judge.roles.shared_answers import shared_answers

__all__ = ["Answer", "VariantProcess", "is_identical"]

HELD_BYTES, HELD_SHARE = 64 << 20, 0.25  # of answers that are asked for again, and how many of them all are
READ_AT_ONCE = 192  # elements of each answer
# When work that goes on after an answer is looked for: a first look, and where that sees some a second one, by when
# threads that only wait for more of the same work (OpenMP's spin for up to a fifth of a second) have given up.
LOOKS_S = ((0.03, 0.02), (0.5, 0.3))  # from the answer or the look before, and for how long
GLANCES = 6  # of a look
READY_S = 0.001  # after which processes of its own are looked for, again and again, until it is ready for a call
LEAST_SLEEP_S = 5e-4  # that a system keeps to
BEGINS_S = 0.05  # by when it has a core, once it may go on
CPU_CLOCK = 2  # of a process, as clock_getcpuclockid makes its number
WORKING_CORES = 0.3  # of a core, from which it is work
# CPU time that a stopped process has not used. A thread is seen to be stopped a little before it is, now and then; what
# lets itself go on for a moment does so in every call.
STOPPED_NS, BRIEFLY_NS = 2_000_000, 50_000
# Of a device that goes on by itself: what a wait for all of it takes after an answer where it has something left to do,
# again and again; and what the supervisor's own little work takes there then, before and after a moment.
LEFT_S, OFTEN, DELAYED_S, MOMENT_S = 2e-3, 4, 5e-4, 0.05
LOOKS_AFTER = 20  # such moments after its process has ended: what others do on the device comes and goes


class DeviceInUse(Exception):
    """Others use the device, so that what a candidate does there cannot be told from what they do."""


@dataclass
class Answer:
    """One hand-over: ``seconds`` a call, and what is wrong with any of its answers."""

    seconds: float
    cpu_s: float = 0.0  # a call, of all its threads: what others use of the cores is not in it
    off_clock_s: float | None = None  # of the cores since the clock's end before it; None: it was asked else
    events_s: float = 0.0  # a call, by the device's own clock as the process reads it; 0 on a CPU
    found: list[Comparison] = field(default_factory=list)
    raised: str = ""  # instead of an answer
    late: str = ""  # it was not there when it was said to be, or changed afterwards
    touched: str = ""  # inputs or what lies round them
    doubled: str = ""  # two answers are one memory, which are two of the reference's
    within: str = ""  # or one lies in another's
    working: str = ""  # goes on after its answer
    overslept_s: float = 0.0  # that it may have gone on after its word, where it is stopped with that
    helpers: int = 0  # processes of its own at work, where it was stopped on its way
    at_own_code: int = 0  # of its threads that are at work then
    at_work: int = 0
    on_its_way: bool = False  # where it was stopped: it had begun, and had no answer

    @property
    def wrong(self) -> str:
        return next((f.wrong for f in self.found if f.wrong), "")


class VariantProcess:
    """A caller, with the memory that it shares with the supervisor."""

    def __init__(
        self, name: str, process: ChildProcess, draw: random.Random, answer_s: float, device: Host,
        turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext, first_s: float = 0.0,
        *, read_only: bool = False,
    ) -> None:  # fmt: skip
        """``read_only``: its inputs lie in memory that nobody but the supervisor writes to."""
        self.name, self.process, self.draw, self.answer_s, self.device = name, process, draw, answer_s, device
        self.first_s = first_s  # that its first call may take, in which some compile
        self.turn = turn  # for as long as the device is used: others' kernels there would count as this one's
        self.memory: Any = None
        self.left = 0  # grows with calls after which the device had something left to do, and falls with others
        self.woken = 0  # with calls before which the process used a core for a moment, though it was stopped
        self.number = 0  # of the next call
        self.at_once = False  # whether the latest is stopped with its word
        self.read_only = read_only
        self.laid: list[LaidCall] = []
        self.laid_bytes = 0  # in which their inputs lie
        self.numbers: dict[int, list[Tensor]] = {}  # call -> its answers, of those that it holds too
        self.held_bytes = 0
        self.ended_ns: int | None = None  # of its cores, where its last clock ended
        self.own_code: list[tuple[int, int]] = []  # which its threads are looked for at where it is stopped on its way

    @property
    def patience_s(self) -> float:
        """What the next call may take."""
        return self.answer_s if self.number else max(self.answer_s, self.first_s)

    def _reserve_memory(self, bytes: int) -> Any:
        if self.memory is None or self.memory.size < bytes:
            if self.memory is not None:
                self.memory.close()
            self.memory = self.device.memory(bytes, read_only=True) if self.read_only else self.device.memory(bytes)
            self.laid = []
            self.process.say({"do": "memory", "size": self.memory.size}, (self.memory.descriptor,))
        return self.memory

    def _lay(self, cases: Sequence[Case], layout: str) -> list[LaidCall]:
        """Places for every tensor: drawn, or for inputs those of the call before, where other values lie then: who
        remembers by address is wrong there. Answers lie behind all inputs, each time elsewhere."""
        sizes = [[(tuple(t.shape), _name(t.dtype)) for t in c.given] for c in cases]
        before = [[(s[1], s[3]) for s in one.inputs] for one in self.laid]
        inputs, bytes = [one.inputs for one in self.laid], self.laid_bytes
        if layout or sizes != before or self.draw.random() >= 0.5:
            how = LAYOUTS[layout] if layout else lambda shape: (contiguous_strides(shape), 0)
            given = [[(shape, *how(shape), dtype) for shape, dtype in one] for one in sizes]
            bytes, inputs = drawn_places(given, self.device.alignment, self.draw)
            bytes = self.laid_bytes = -(-bytes // self.device.alignment) * self.device.alignment
        outs: list[list[Spot]] = [[] for _ in cases]
        if self.device.apart:
            plain = [[(shape, contiguous_strides(shape), 0, dtype) for shape, dtype in c.outputs] for c in cases]
            more, found = drawn_places(plain, self.device.alignment, self.draw)
            outs = [[(bytes + spot[0], *spot[1:]) for spot in one] for one in found]
            bytes += more
        self._reserve_memory(bytes)
        return [LaidCall(*of) for of in zip(inputs, outs, strict=True)]

    def call(
        self, cases: Sequence[Case], how: str = "call", *, look: bool = False, again: int = -1, layout: str = "",
        weights: Sequence[str] = (), keep: bool = False, pause_s: float = 0.0, at_once: bool = False,
    ) -> Answer:  # fmt: skip
        """Hands cases over, one after the other in one go, and takes their answers. Those that are to ``keep`` are
        compared with others later; some that are drawn are kept anyway, and asked for ``again``. With a ``pause_s`` it
        is stopped so long after the clock's start, and let go on. ``at_once``: it is stopped the moment that it says
        that it has answered, which takes others some microseconds to hear. Raises ProcessEnded."""
        self.at_once = at_once
        with self.turn():
            return self._called(cases, how, look, again, layout, weights, keep, pause_s)

    def _prepared(
        self, cases: Sequence[Case], laid: list[LaidCall], how: str, again: int, weights: Sequence[str], keep: bool
    ) -> tuple[list[bool], int]:
        """Has it make the tensors of its arguments, whose contents are not there yet, and stops it. Of each call
        whether its answer is held; and how many processes of its own were at work meanwhile."""
        held = [how == "call" and (keep or self._is_drawn_to_hold(case)) for case in cases]
        said = {
            "do": "prepare", "how": how, "number": self.number if again < 0 else again, "seed": secrets.randbits(32),
            "weights": list(weights), "calls": [
                {
                    "inputs": c.inputs, "spots": one.inputs, "hold": hold,
                    "wanted": [
                        [_path(name), *its, strides]
                        for name, its, strides in zip(c.names, c.outputs, c.strides, strict=True)
                    ],
                }
                for c, one, hold in zip(cases, laid, held, strict=True)
            ],
        }  # fmt: skip
        self.process.go_on()
        helpers = self._helpers_until_ready(said)
        self.process.stop()
        return held, helpers

    def _helpers_until_ready(self, said: dict[str, Any]) -> int:
        """Has it prepare a call. How many processes of its own were seen meanwhile: what those take of the cores is in
        no clock of its own. Raises ProcessEnded."""
        self.process.say(said)
        helpers, until = 0, time.monotonic() + self.answer_s
        while not self.process.has_said(READY_S) and time.monotonic() < until:
            helpers = max(helpers, len(self.process.other_pids()))
        ready = words(self.process.hear(self.answer_s)[0])
        if "trouble" in ready:
            raise ProcessEnded(f"was not ready: {sanitize_text(ready['trouble'])}")
        return helpers

    def _is_drawn_to_hold(self, case: Case) -> bool:
        bytes = case.answer_bytes
        if self.held_bytes + bytes > HELD_BYTES or (self.numbers and self.draw.random() >= HELD_SHARE):
            return False
        self.held_bytes += bytes
        return True

    def _called(
        self, cases: Sequence[Case], how: str, look: bool, again: int, layout: str, weights: Sequence[str], keep: bool,
        pause_s: float,
    ) -> Answer:  # fmt: skip
        laid = self._lay(cases, layout)
        memory = self._reserve_memory(0)
        held, early = self._prepared(cases, laid, how, again, weights, keep)
        # They are not stopped, and may see the inputs before the clock runs.
        helpers = max(early, len(self.process.other_pids()))
        self.laid = [] if layout else laid
        idle = self.cpu_ns()
        self._write(memory, cases, laid, whole=look)
        self.device.flush()
        answer, said = self._timed(cases, laid, idle, pause_s)
        outs = self._answers_at(answer, cases, laid, said) if how != "nothing" and not answer.raised else []
        if look and not answer.working:
            self.process.go_on()
            answer.working, self.ended_ns = self._working(), None
            self.process.stop()
        self._look_beside(answer, helpers)
        if answer.raised:
            return answer
        answer.touched = self._touched(memory, cases, laid, whole=look and not self.device.apart)
        answer.touched = answer.touched or sanitize_text(said.get("touched"), 200)
        if how in ("call", "backward", "graph"):
            answer.found = [compare_answers(c, one) for c, one in zip(cases, outs, strict=True)]
        if how in ("call", "graph") and not self.device.apart:
            answer.doubled, answer.within = shared_answers(cases, said["at"])
        if how == "call":
            self.numbers |= {n: one for n, (one, hold) in enumerate(zip(outs, held, strict=True), self.number) if hold}
            self.number += len(cases)
        elif how == "again":
            pairs = enumerate(zip(outs[0], self.numbers[again], strict=True))
            same = all(number in cases[0].lent or is_identical(*pair) for number, pair in pairs)
            answer.late = answer.late or ("" if same else "an answer is another one after the calls that came after it")
        return answer

    def _look_beside(self, answer: Answer, helpers: int) -> None:
        """What works beside it while it is stopped: processes of its own, its device."""
        if helpers:
            answer.working = f"has {helpers} processes of its own, which are there before its inputs are"
        elif not answer.working and (left := self.process.other_pids()):
            answer.working = f"left {len(left)} processes of its own"
        elif not answer.working:
            answer.working = self._device_works()
        elif self.left > OFTEN:
            self._theirs()

    def _timed(
        self, cases: Sequence[Case], laid: list[LaidCall], idle: int, pause_s: float
    ) -> tuple[Answer, dict[str, Any]]:
        nonce, count = secrets.token_hex(16), len(cases)
        patience_s = self.patience_s * count
        self.process.say({"do": "go", "nonce": nonce})  # found once it goes on
        placed = set[int]() if self.device.apart else self.process.spread()
        stopped = self.process.is_stopped()
        used = self.cpu_ns()
        off_clock = None if self.ended_ns is None else (used - self.ended_ns) / 1e9
        awake = self._awake(stopped, used - idle)
        begin = time.perf_counter_ns()
        self.process.go_on()
        self.process.roam(placed)
        seen = self._stopped_on_its_way(pause_s, used) if pause_s else (0, 0, 0, False)
        overslept_s = self.process.stop_at_its_word(patience_s) if self.at_once else 0.0
        said, _ = self.process.hear(patience_s)
        if self.device.apart and isinstance(said, dict) and said.get("returned") == nonce:
            self.process.say({"outs": [one.outs for one in laid]})
            said, _ = self.process.hear(patience_s)
        end = time.perf_counter_ns()
        if not self.device.apart:
            self.process.begin_stop()
            self.ended_ns = self.cpu_ns()
        at_once = self._read_at_once(cases, laid)
        if placed:
            self.process.roam()  # those too that one of them may have made when it was bound
        if not isinstance(said, dict) or said.get("nonce") != nonce:
            raise ProcessEnded(
                "answered what it was not asked: a message that is not the judge's own came over its socket"
            )
        used = self.cpu_ns() - used
        answer = Answer((end - begin) / 1e9 / count, used / 1e9 / count, raised=sanitize_text(said.get("wrong"), 2000))
        answer.off_clock_s, answer.working, answer.overslept_s = off_clock, awake, overslept_s
        answer.helpers, answer.at_own_code, answer.at_work, answer.on_its_way = seen
        if self.device.apart:
            self._synchronize_device(answer, count, (end - begin) / 1e9, end)
        self.process.stop()
        return answer, said | {"at once": at_once}

    def _read_at_once(self, cases: Sequence[Case], laid: list[LaidCall]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of a device, which goes on by itself: some elements of each answer as they are when it is said to be there,
        the whole answer's memory, and their places in it."""
        found = []
        for case, one in zip(cases, laid, strict=True) if self.device.apart else ():
            for at, spot in zip(case.places, one.outs, strict=True):
                whole = self.memory.tensor(spot).view(-1)
                where = _drawn(at, self.draw).to(whole.device)
                found.append((whole[where], whole, where))
        self.device.finish_supervisor_work()
        return found

    def _answers_at(
        self, answer: Answer, cases: Sequence[Case], laid: list[LaidCall], said: dict[str, Any]
    ) -> list[list[Tensor]]:
        """The answers, flat, as they are in the memory of a process that is stopped. Raises ProcessEnded."""
        if self.device.apart:
            outs = [[self.memory.tensor(spot).reshape(-1).clone() for spot in one.outs] for one in laid]
            for early, whole, where in said["at once"]:
                if not is_identical(early, whole[where]):
                    answer.late = "the answer was not there yet, or changed, after it was said to be there"
            return outs
        try:
            return [
                [
                    read_tensor(self.process.pid, int(address), shape, contiguous_strides(shape) if plain else strides,
                                getattr(torch, dtype))
                    for (address, plain), (shape, dtype), strides in zip(one, c.outputs, c.strides, strict=True)
                ]
                for c, one in zip(cases, said["at"], strict=True)
            ]  # fmt: skip
        except (MemoryUnreadable, ValueError, TypeError, KeyError, OverflowError) as error:
            answer.raised = f"named no answer: {error}" if isinstance(error, MemoryUnreadable) else "named no answer"
        except ReadingRefused as error:
            raise ProcessEnded(f"keeps its answers to itself: {error}") from error
        return []

    def _stopped_on_its_way(self, pause_s: float, used: int) -> tuple[int, int, int, bool]:
        """Processes of its own that are at work then; of its threads that are, those at its own code, and all; if it
        was on its way. The pause begins when it has a core: others may have it."""
        begins_by = time.perf_counter() + BEGINS_S
        while self.cpu_ns() == used and time.perf_counter() < begins_by:
            pass
        until = time.perf_counter() + pause_s
        time.sleep(max(0.0, pause_s - LEAST_SLEEP_S))
        while time.perf_counter() < until:
            pass
        self.process.stop()
        others, on_its_way = len(self.process.other_pids()), self.cpu_ns() > used and not self.process.has_said(0.0)
        at_own_code, at_work = self.process.count_at_work(self.own_code) if self.own_code else (0, 0)
        self.process.go_on()
        return others, at_own_code, at_work, on_its_way

    def _awake(self, stopped: bool, used_ns: int) -> str:
        """Whether it ran between the moment that it was stopped and the one that the clock starts."""
        self.woken = self.woken + 2 if used_ns > BRIEFLY_NS else max(0, self.woken - 1)
        ran = not stopped or used_ns > STOPPED_NS or self.woken > OFTEN
        return "ran while it was stopped: something lets it go on" if ran else ""

    def _write(self, memory: Any, cases: Sequence[Case], laid: list[LaidCall], *, whole: bool) -> None:
        """``whole``: with poison wherever no input is, not on either side of each alone."""
        if self.device.apart or whole:
            memory.bytes.fill_(POISON)  # on a device: nothing says where answers are to lie
        for case, one in zip(cases, laid, strict=True):
            for value, spot in zip(case.there, one.inputs, strict=True):
                begin, end = spot[0], spot[0] + span(spot)
                filled = spot[2] == contiguous_strides(spot[1])  # by the value; between rows of a wider tensor it stays
                memory.bytes[begin - BAND : begin if filled else end] = POISON
                memory.bytes[end : end + BAND] = POISON
                memory.tensor(spot).copy_(value)

    def _touched(self, memory: Any, cases: Sequence[Case], laid: list[LaidCall], *, whole: bool) -> str:
        for case, one in zip(cases, laid, strict=True):
            for number, (value, spot) in enumerate(zip(case.there, one.inputs, strict=True)):
                if not _same_bits(memory.tensor(spot).reshape(-1), value.reshape(-1)):
                    return f"input {number} was written to"
            for spot in (*one.inputs, *one.outs):
                end = spot[0] + span(spot)
                for low, high in ((spot[0] - BAND, spot[0]), (end, end + BAND)):
                    if not bool((memory.bytes[low:high] == POISON).all()):
                        return "memory beside its inputs and answers was written to"
        last = 0
        taken = sorted((spot[0], spot[0] + span(spot)) for one in laid for spot in one.inputs) if whole else []
        for begin, end in [*taken, (memory.size, memory.size)] if whole else []:
            if not bool((memory.bytes[last:begin] == POISON).all()):
                return "memory far from its inputs was written to"
            last = end
        return ""

    def _synchronize_device(self, answer: Answer, count: int, whole_s: float, answered_ns: int) -> None:
        """Waits until the process's device has nothing left to do, on any stream. How long that took since the answer
        was said to be there is what the process says, which a busy machine and the look at the answer do not stretch,
        and no more than the clock (one that lies about it still has its kernels running when it is stopped). Its own
        events are read then; they show no more time than the clock."""
        said = self._heard({"do": "synchronize"}, count)
        took = min((time.perf_counter_ns() - answered_ns) / 1e9, seconds(said.get("took")))
        self.left = self.left + 2 if took > LEFT_S else max(0, self.left - 1)
        if self.left > OFTEN:
            answer.working = f"its device is at work for {took:.3g} s after its answer"
        if "trouble" in said:
            answer.raised = answer.raised or f"raised {sanitize_text(said['trouble'])}"
        device = said.get("device")
        events = sum(map(seconds, device)) if isinstance(device, list) else 0.0
        answer.events_s = events / count
        if events > whole_s and not answer.raised:
            answer.raised = f"has events that say {events:.3g} s of {whole_s:.3g} s by the clock"

    def _device_works(self) -> str:
        """Whether the device does something though the process that could ask it to is stopped. Raises Shared."""
        delay = self.device.delay_s()
        if delay > DELAYED_S:
            time.sleep(MOMENT_S)
            delay = self.device.delay_s()
        if delay <= DELAYED_S:
            return ""
        self._theirs()
        return f"its kernels run while it is stopped: others wait {delay:.2g} s"

    def _theirs(self) -> None:
        """What keeps the device busy ends with this process. Raises Shared."""
        self.process.end()
        for _ in range(LOOKS_AFTER):
            time.sleep(MOMENT_S)
            if (left := self.device.delay_s()) > DELAYED_S:
                raise DeviceInUse(
                    f"other processes use the GPU: a kernel waits {left:.2g} s for its turn; judge without them"
                )

    def _working(self) -> str:
        """Whether it uses the cores once it has answered. A thread that wants one and never gets it, since others use
        them, works too."""
        share = 0.0
        for wait, look in LOOKS_S:
            time.sleep(wait)
            begin, before, waits = time.monotonic_ns(), self.cpu_ns(), True
            for _ in range(GLANCES):
                time.sleep(look / GLANCES)
                waits = waits and self.process.is_running()
            share = (self.cpu_ns() - before) / (time.monotonic_ns() - begin)
            if share < WORKING_CORES and not waits:
                return ""
        return f"goes on working after its answer: {share:.1f} cores"

    def cpu_ns(self) -> int:
        """CPU time of its threads, of those that have ended too: the kernel's clock for another process."""
        try:
            return time.clock_gettime_ns((~self.process.pid << 3) | CPU_CLOCK)
        except OSError as error:
            raise ProcessEnded(self.process.end_reason()) from error

    def _heard(self, asked: Any, times: int = 1) -> dict[str, Any]:
        """What it answers to a question. Raises ProcessEnded."""
        return words(self.process.ask(asked, self.answer_s * times)[0])

    def buffers(self, of: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Elements of its buffers, of each that has a name and places here. Raises ProcessEnded."""
        self.process.go_on()
        self.ended_ns = None
        said = self._heard({"do": "buffers", "of": [[name, at] for name, at, *_ in of]}).get("buffers")
        found = [one if isinstance(one, list) else [] for one in said] if isinstance(said, list) else []
        return found if len(found) == len(of) else []

    def wrong_buffer(self, expected: Sequence[Sequence[Any]]) -> str:
        """Of the buffers that calls change the first that is not what the reference's is then, "" where all are: each
        with its name, places, elements and by how much they may be missed. Raises ProcessEnded."""
        said = self.buffers(expected)
        if len(said) != len(expected):
            return "its buffers cannot be read"
        for its, (name, at, wanted, off) in zip(said, expected, strict=True):
            for place, element, must in zip(at, its, wanted, strict=False):
                if not (isinstance(element, (int, float)) and abs(element - must) <= off):
                    is_now = f"element {place} of its {name} is {element!r:.40} after its first calls"
                    return f"{is_now}, must be {must:.6g} +- {off:.2g}"
            if len(its) != len(wanted):
                return f"its {name} has another size"
        return ""

    def ask(self, what: str, of: str) -> list[str]:
        """A question that is no call, and the lines of its answer by that name. Raises ProcessEnded."""
        self.process.go_on()
        self.ended_ns = None
        return lines(self._heard({"do": what}).get(of))


def _path(name: str) -> str | None:
    """Where an answer stands in what is returned, as a bound names it; None where it has a name of its own."""
    return name.removeprefix("output") if name.startswith("output") else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _drawn(places: Tensor, draw: random.Random) -> Tensor:
    """Some of the places of an answer that the reference is known at."""
    count = places.numel()
    if count <= READ_AT_ONCE:
        return places
    return places[torch.tensor([draw.randrange(count) for _ in range(READ_AT_ONCE)])]


def is_identical(a: Tensor, b: Tensor) -> bool:
    """The same bits, or NaN in both."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Of flat tensors of one dtype: in one pass over their words, where they are made of some."""
    words = all(t.is_contiguous() and not (t.nbytes % 8 or t.storage_offset() * t.element_size() % 8) for t in (a, b))
    if not words:  # a column of a wider tensor is flat too, and its elements lie apart
        return is_identical(a, b)
    return torch.equal(a.view(torch.int64), b.view(torch.int64))
