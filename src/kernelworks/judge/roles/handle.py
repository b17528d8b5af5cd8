"""One process that answers, as the supervisor handles it: inputs are laid out for it while it is stopped, the clock
runs from the moment that it goes on to the moment that it says it has answered, and what it answered is read then.

A candidate knows its inputs only once the clock runs: until then it does not. Of each answer some elements, at places
that are drawn anew, are read the moment it is said to be there: an answer that is not finished, or changes after that,
is not one. The places where inputs and answers lie are drawn for every call, and half of the time they are those of
the call before, with other contents.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import select
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
from kernelworks.judge.process.sanitise import lines, sanitize_text, seconds, words
from kernelworks.judge.roles.device import Host

__all__ = ["LAYOUTS", "Answer", "VariantProcess", "is_identical"]

BAND = 256  # bytes on either side of each tensor
POISON = 0xFF  # of every byte: NaN in every floating dtype, -1 in every integer
READ_AT_ONCE = 192  # elements of each answer
# When work that goes on after an answer is looked for: a first look, and where that sees some a second one, by when
# threads that only wait for more of the same work (OpenMP's spin for up to a fifth of a second) have given up.
LOOKS_S = ((0.03, 0.02), (0.5, 0.3))  # from the answer or the look before, and for how long
GLANCES = 6  # of a look
CPU_CLOCK = 2  # of a process, as clock_getcpuclockid makes its number
WORKING_CORES = 0.3  # of a core, from which it is work
# CPU time that a stopped process has not used. A thread is seen to be stopped a little before it is, now and then; what
# lets itself go on for a moment does so in every call.
STOPPED_NS, BRIEFLY_NS = 2_000_000, 50_000
# Of a device that goes on by itself: what a wait for all of it takes after an answer where it has something left to do,
# again and again; and what the supervisor's own little work takes there then, before and after a moment.
LEFT_S, OFTEN, DELAYED_S, MOMENT_S = 2e-3, 4, 5e-4, 0.05


class DeviceInUse(Exception):
    """Others use the device, so that what a candidate does there cannot be told from what they do."""


@dataclass
class Answer:
    """One hand-over: ``seconds`` a call, and what is wrong with any of its answers."""

    seconds: float
    cpu_s: float = 0.0  # a call, of all its threads: what others use of the cores is not in it
    events_s: float = 0.0  # a call, by the device's own clock as the process reads it; 0 on a CPU
    found: list[Comparison] = field(default_factory=list)
    raised: str = ""  # instead of an answer
    late: str = ""  # it was not there when it was said to be, or changed afterwards
    touched: str = ""  # inputs or what lies round them
    working: str = ""  # goes on after its answer
    # Where it was stopped on its way: whether something was written to the places of its answers already, and how many
    # processes of its own were at work.
    begun: bool = False
    helpers: int = 0

    @property
    def wrong(self) -> str:
        return next((f.wrong for f in self.found if f.wrong), "")


@dataclass
class _Laid:
    """Where one call's tensors lie."""

    inputs: list[Spot]
    outs: list[Spot]


class VariantProcess:
    """A caller, with the memory that it shares with the supervisor."""

    def __init__(
        self, name: str, process: ChildProcess, draw: random.Random, answer_s: float, device: Host,
        turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:  # fmt: skip
        self.name, self.process, self.draw, self.answer_s, self.device = name, process, draw, answer_s, device
        self.turn = turn  # for as long as the device is used: others' kernels there would count as this one's
        self.memory: Any = None
        self.left = 0  # grows with calls after which the device had something left to do, and falls with others
        self.woken = 0  # with calls before which the process used a core for a moment, though it was stopped
        self.number = 0  # of the next call
        self.laid: list[_Laid] = []
        self.numbers: dict[int, list[Tensor]] = {}  # call -> its answers, of the last few those that were to be kept

    def _reserve_memory(self, bytes: int) -> Any:
        if self.memory is None or self.memory.size < bytes:
            if self.memory is not None:
                self.memory.close()
            self.memory = self.device.memory(bytes)
            self.laid = []
            self.process.say({"do": "memory", "size": self.memory.size}, (self.memory.descriptor,))
        return self.memory

    def _lay(self, cases: Sequence[Case], layout: str) -> list[_Laid]:
        """Places for every tensor: drawn, or those of the call before."""
        sizes = [[(tuple(t.shape), _name(t.dtype)) for t in c.given] + list(c.outputs) for c in cases]
        before = [[(s[1], s[3]) for s in (*one.inputs, *one.outs)] for one in self.laid]
        if not layout and sizes == before and self.draw.random() < 0.5:
            return self.laid
        wanted = []
        for i, (case, one) in enumerate(zip(cases, sizes, strict=True)):
            for k, (shape, dtype) in enumerate(one):
                strides, off = LAYOUTS[layout](shape) if layout and k < len(case.given) else (_strides(shape), 0)
                wanted.append((i, k, (off * getattr(torch, dtype).itemsize, shape, strides, dtype)))
        step = self.device.alignment
        band = -(-2 * BAND // step) * step
        rounded = {w: -(-(w[2][0] + _span(w[2])) // step) * step + band for w in wanted}
        total = sum(rounded.values())
        memory = self._reserve_memory(2 * total + (1 << 16))
        spare = (memory.size - total - step) // step
        cuts = sorted(self.draw.randrange(spare) for _ in wanted)
        self.draw.shuffle(wanted)
        at, spots = 0, dict[tuple[int, int], Spot]()
        for cut, gap_before, want in zip(cuts, [0, *cuts], wanted, strict=False):
            at += (cut - gap_before) * step
            spots[want[0], want[1]] = (at + band // 2 + want[2][0], *want[2][1:])
            at += rounded[want]
        laid = []
        for i, case in enumerate(cases):
            count = len(case.given)
            each = [spots[i, k] for k in range(len(sizes[i]))]
            laid.append(_Laid(each[:count], each[count:]))
        return laid

    def call(
        self, cases: Sequence[Case], how: str = "call", *, look: bool = False, again: int = -1, layout: str = "",
        weights: Sequence[str] = (), keep: bool = False, pause_s: float = 0.0,
    ) -> Answer:  # fmt: skip
        """Hands cases over, one after the other in one go, and takes their answers; those that are to be asked for
        again, or compared with others, are to ``keep``. With a ``pause_s`` it is stopped so long after the clock's
        start, and let go on once its answers' places were looked at. Raises ProcessEnded."""
        with self.turn():
            return self._called(cases, how, look, again, layout, weights, keep, pause_s)

    def _called(
        self, cases: Sequence[Case], how: str, look: bool, again: int, layout: str, weights: Sequence[str], keep: bool,
        pause_s: float,
    ) -> Answer:  # fmt: skip
        laid = self._lay(cases, layout)
        memory = self._reserve_memory(0)
        said = {
            "do": "prepare", "how": how, "number": self.number if again < 0 else again, "seed": secrets.randbits(32),
            "weights": list(weights), "calls": [
                {"inputs": c.inputs, "spots": one.inputs, "outs": one.outs} for c, one in zip(cases, laid, strict=True)
            ],
        }  # fmt: skip
        self.process.go_on()
        ready = self._heard(said)
        if "trouble" in ready:
            raise ProcessEnded(f"was not ready: {sanitize_text(ready['trouble'])}")
        self.process.stop()
        helpers = self.process.other_pids()  # they are not stopped, and may see the inputs before the clock runs
        self.laid = [] if layout else laid
        outs = [[memory.tensor(spot).view(-1) for spot in one.outs] for one in laid]
        reads = [
            [_drawn(at, self.draw).to(o.device) for o, at in zip(one, c.places, strict=True)]
            for one, c in zip(outs, cases, strict=True)
        ]
        idle = self.cpu_ns()
        self._write(memory, cases, laid)
        self.device.flush()
        answer, at_once = self._timed(outs, reads, len(cases), idle, look=look, pause_s=pause_s)
        self.process.stop()
        if helpers:
            answer.working = f"has {len(helpers)} processes of its own, which are there before its inputs are"
        elif not answer.working and (left := self.process.other_pids()):
            answer.working = f"left {len(left)} processes of its own"
        elif not answer.working:
            answer.working = self._device_works()
        elif self.left > OFTEN:
            self._theirs()
        if answer.raised:
            return answer
        if keep or self.device.apart:  # else nothing can write to them any more
            outs = [[o.clone() for o in one] for one in outs]
        answer.late = _changed(at_once, outs, reads)
        answer.touched = self._touched(memory, cases, laid)
        if how in ("call", "backward"):
            answer.found = [compare_answers(c, one) for c, one in zip(cases, outs, strict=True)]
        if how == "call":
            if keep:
                self.numbers |= dict(enumerate(outs, self.number))
            self.number += len(cases)
            self.numbers = {n: kept for n, kept in self.numbers.items() if n >= self.number - 8}
        elif how == "again":
            same = all(is_identical(a, b) for a, b in zip(outs[0], self.numbers[again], strict=True))
            answer.late = answer.late or ("" if same else "an answer is another one after the calls that came after it")
        return answer

    def _timed(
        self, outs: list[list[Tensor]], reads: list[list[Tensor]], count: int, idle: int, *, look: bool, pause_s: float
    ) -> tuple[Answer, list[list[Tensor]]]:
        nonce = secrets.token_hex(16)
        self.process.say({"do": "go", "nonce": nonce})  # found once it goes on
        placed = set[int]() if self.device.apart else self.process.spread()
        stopped = self.process.is_stopped()
        used = self.cpu_ns()
        awake = self._awake(stopped, used - idle)
        begin = time.perf_counter_ns()
        self.process.go_on()
        self.process.roam(placed)
        begun, others = self._begun(outs, pause_s) if pause_s else (False, 0)
        said, _ = self.process.hear(self.answer_s * count)
        end = time.perf_counter_ns()
        at_once = [[o[at] for o, at in zip(one, its, strict=True)] for one, its in zip(outs, reads, strict=True)]
        self.device.finish_supervisor_work()
        if placed:
            self.process.roam()  # those too that one of them may have made when it was bound
        if not isinstance(said, dict) or said.get("nonce") != nonce:
            raise ProcessEnded(
                "answered what it was not asked: a message that is not the judge's own came over its socket"
            )
        used = self.cpu_ns() - used
        answer = Answer((end - begin) / 1e9 / count, used / 1e9 / count, raised=sanitize_text(said.get("wrong"), 2000))
        answer.begun, answer.helpers = begun, others
        if self.device.apart:
            self._synchronize_device(answer, count, (end - begin) / 1e9)
        if look or awake:
            answer.working = awake or self._working()
        return answer, at_once

    def _begun(self, outs: list[list[Tensor]], pause_s: float) -> tuple[bool, int]:
        """Stops it on its way, and says whether anything is written to the places of its answers, which it has not said
        to be there, and how many processes of its own there are."""
        time.sleep(pause_s)
        self.process.stop()
        others = len(self.process.other_pids())
        written = any(bool((o.view(torch.uint8) != POISON).any()) for one in outs for o in one if o.numel())
        begun = written and not select.select([self.process.control], [], [], 0)[0]
        self.process.go_on()
        return begun, others

    def _awake(self, stopped: bool, used_ns: int) -> str:
        """Whether it ran between the moment that it was stopped and the one that the clock starts."""
        self.woken = self.woken + 2 if used_ns > BRIEFLY_NS else max(0, self.woken - 1)
        ran = not stopped or used_ns > STOPPED_NS or self.woken > OFTEN
        return "ran while it was stopped: something lets it go on" if ran else ""

    def _write(self, memory: Any, cases: Sequence[Case], laid: list[_Laid]) -> None:
        for case, one in zip(cases, laid, strict=True):
            for spot in one.outs:
                memory.bytes[spot[0] - BAND : spot[0] + _span(spot) + BAND] = POISON
            for value, spot in zip(case.there, one.inputs, strict=True):
                begin, end = spot[0], spot[0] + _span(spot)
                filled = spot[2] == _strides(spot[1])  # by the value; between the rows of a wider tensor poison stays
                memory.bytes[begin - BAND : begin if filled else end] = POISON
                memory.bytes[end : end + BAND] = POISON
                memory.tensor(spot).copy_(value)

    def _touched(self, memory: Any, cases: Sequence[Case], laid: list[_Laid]) -> str:
        for case, one in zip(cases, laid, strict=True):
            for number, (value, spot) in enumerate(zip(case.there, one.inputs, strict=True)):
                if not _same_bits(memory.tensor(spot).reshape(-1), value.reshape(-1)):
                    return f"input {number} was written to"
            for spot in (*one.inputs, *one.outs):
                end = spot[0] + _span(spot)
                for low, high in ((spot[0] - BAND, spot[0]), (end, end + BAND)):
                    if not bool((memory.bytes[low:high] == POISON).all()):
                        return "memory beside its inputs and answers was written to"
        return ""

    def _synchronize_device(self, answer: Answer, count: int, whole_s: float) -> None:
        """Waits until the process's device has nothing left to do, on any stream: after an answer that takes as long as
        a message, by the process's clock too, which a busy machine does not stretch (one that lies about it still has
        its kernels running when it is stopped). Its own events are read then; they show no more time than the clock."""
        begin = time.perf_counter_ns()
        said = self._heard({"do": "synchronize"}, count)
        took = min((time.perf_counter_ns() - begin) / 1e9, seconds(said.get("took")))
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

    def ask(self, what: str, of: str) -> list[str]:
        """A question that is no call, and the lines of its answer by that name. Raises ProcessEnded."""
        self.process.go_on()
        return lines(self._heard({"do": what}).get(of))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _span(spot: Spot) -> int:
    """Bytes from the first element to behind the last."""
    _, shape, strides, dtype = spot
    steps = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    return int(steps * getattr(torch, dtype).itemsize)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _wide_rows(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """As a slice of a wider tensor has them."""
    return (_strides((*shape[:-1], shape[-1] + 5)) if len(shape) > 1 else _strides(shape)), 0


def _columns_first(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """As a transposed tensor has them."""
    if len(shape) < 2:
        return _strides(shape), 0
    swapped = _strides((*shape[:-2], shape[-1], shape[-2]))
    return (*swapped[:-2], swapped[-1], swapped[-2]), 0


def _off_by_one(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Contiguous, from the second element of a storage on: no vector of it is aligned."""
    return _strides(shape), 1


# What else a caller may hand over -> strides, and elements before the first.
LAYOUTS = {"rows of a wider tensor": _wide_rows, "columns first": _columns_first, "an odd address": _off_by_one}


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


def _changed(at_once: list[list[Tensor]], whole: list[list[Tensor]], reads: list[list[Tensor]]) -> str:
    for early, late, at in zip(at_once, whole, reads, strict=True):
        for a, b, where in zip(early, late, at, strict=True):
            if not is_identical(a, b[where]):
                return "the answer was not there yet, or changed, after it was said to be there"
    return ""
