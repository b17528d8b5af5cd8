"""A process that follows a judge's protocol only as far as a drawn script lets it: at each step it may do what no
candidate should, to the judge's socket, to every descriptor that it has, to memory, and to itself.

It asks for nothing but Python's own library, so that its text is a candidate's too. Its answers are zeros, or nothing:
whoever takes one for right was deceived.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

ANSWER_BYTES = 1 << 16  # more than any answer that it is asked for
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**4000, 0.5, -0.0, 1e308, float("nan"), float("inf"), "",
    "x", "\x1b[2J", "\ud800", "y" * 100_000, "0", [], {}, [[]], [[[]]], [[[1, True]]], {"nonce": 0},
)  # fmt: skip
BYTES = (
    b"", b"\0", b"[", b"{", b"null", b"7", b"\xff\xfe", b'{"nonce": ', b"[" * 100_000, b"[" * (1 << 17),
    b'{"a":' * 20_000, b'"' + b"z" * 131_070 + b'"', b"9" * 5000, b'{"ready": true} {"ready": true}',
)  # fmt: skip
KEYS = ("ready", "trouble", "nonce", "wrong", "at", "returned", "changed", "raised", "buffers", "muted", "working",
        "garbling", "took", "device", "weights", "constants", "elements", "loaded")  # fmt: skip
LIBC = ctypes.CDLL(None, use_errno=True)


def _value(draw: random.Random, depth: int = 0) -> Any:
    """Anything that JSON may say."""
    kind = draw.random()
    if depth > 4 or kind < 0.5:
        return draw.choice(NASTY)
    if kind < 0.75:
        return [_value(draw, depth + 1) for _ in range(draw.choice((0, 1, 1, 2, 3, 300 if depth < 2 else 1)))]
    return {draw.choice((*KEYS, "", "x" * 50)): _value(draw, depth + 1) for _ in range(draw.randrange(4))}


def _changed(draw: random.Random, value: Any) -> Any:
    """The value with one thing in it another."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice([*value])
        how = draw.random()
        if how < 0.2:
            return {k: v for k, v in value.items() if k != key}
        if how < 0.35:
            return value | {draw.choice(KEYS): _value(draw)}
        return value | {key: _changed(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return draw.choice(([*value[:at], _changed(draw, value[at]), *value[at + 1 :]], value[:at], value * 2))
    return _value(draw)


class Hostile:
    """``boldness``: how often it does something at a step."""

    def __init__(self, control: socket.socket, seed: int, boldness: float = 0.4) -> None:
        self.control, self.draw, self.boldness = control, random.Random(seed), boldness
        self.answer = mmap.mmap(-1, ANSWER_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.answer))
        self.memory: mmap.mmap | None = None
        self.seen = self.sent = 0  # when it found the latest call, and when it answered that
        self.acts: tuple[Callable[[Hostile, Any], Any], ...] = ACTS
        self.clock: mmap.mmap | None = None  # where it notes both for whoever looks on

    # ------------------------------------------------------------ as the protocol has it

    def reply(self, said: dict[str, Any]) -> Any:
        do = said.get("do")
        if do == "go":
            count = max(1, len(self.calls))
            at = [[[self.address, True] for _ in call["wanted"]] for call in self.calls]
            return {"nonce": said["nonce"], "wrong": "", "at": at[:count]}
        return {
            "prepare": {"ready": True}, "synchronize": {"took": 0.0, "device": [0.001]}, "garble": {},
            "buffers": {"buffers": [[0.0]] * len(said.get("of", ()))}, "state": {"changed": []},
            "muted": {"muted": [], "working": []},
        }.get(str(do))  # fmt: skip

    def serve(self, *, loaded: bool = False) -> None:
        """Until the other end is gone, or it has ended itself."""
        self.calls: list[Any] = []
        if not loaded:
            made = {"loaded": True, "changed": [], "weights": "none", "constants": 0, "elements": 0}
            self._step(made)
        while True:
            data, rights, _, _ = self.control.recvmsg(1 << 17, 64)
            if not data:
                return
            said = json.loads(data)
            if said.get("do") == "memory":
                self._map(rights)
            if said.get("do") == "prepare":
                self.calls = said["calls"]
            if said.get("do") == "go":
                self.seen = time.monotonic_ns()
            reply = self.reply(said)
            if reply is not None or "outs" in said:
                self._step({"nonce": "", "wrong": "", "at": []} if reply is None else reply)

    def _map(self, rights: list[Any]) -> None:
        for _, _, held in rights:
            found = array.array("i")
            found.frombytes(held[: len(held) // 4 * 4])
            with contextlib.suppress(OSError, ValueError):
                self.memory = mmap.mmap(found[0], 0)

    def _step(self, reply: Any) -> None:
        if self.draw.random() < self.boldness:
            act = self.draw.choice(self.acts)
            with contextlib.suppress(OSError, ValueError, TypeError, OverflowError, RuntimeError):
                reply = act(self, reply)
        if reply is not None:
            with contextlib.suppress(OSError, ValueError, TypeError):
                data = json.dumps(reply).encode()
                self.sent = time.monotonic_ns()
                if self.clock is not None and isinstance(reply, dict) and reply.get("nonce"):
                    self.clock[:16] = struct.pack("QQ", self.seen, self.sent)
                self.control.send(data)


# ---------------------------------------------------------------- what it does, and what is said then: None for nothing


def another_value(self: Hostile, reply: Any) -> Any:
    return _value(self.draw)


def changed_reply(self: Hostile, reply: Any) -> Any:
    return _changed(self.draw, reply)


def other_bytes(self: Hostile, reply: Any) -> Any:
    self.control.send(self.draw.choice(BYTES))
    return reply if self.draw.random() < 0.5 else None


def empty_packet(self: Hostile, reply: Any) -> Any:
    self.control.send(b"")
    return reply


def many_replies(self: Hostile, reply: Any) -> Any:
    for _ in range(self.draw.choice((1, 2, 5, 30))):
        self.control.send(json.dumps(reply).encode(), socket.MSG_DONTWAIT)
    return reply


def replies_ahead(self: Hostile, reply: Any) -> Any:
    """What will be asked next is answered already."""
    for _ in range(self.draw.randrange(1, 6)):
        one = self.draw.choice(({"ready": True}, {"changed": []}, {"muted": ["k"], "working": ["k"]}, {}))
        self.control.send(json.dumps(one).encode(), socket.MSG_DONTWAIT)
    return reply


def fills_its_socket(self: Hostile, reply: Any) -> Any:
    with contextlib.suppress(BlockingIOError):
        while True:
            self.control.send(b'{"ready": true}', socket.MSG_DONTWAIT)
    return reply


def closes(self: Hostile, reply: Any) -> Any:
    self.control.close()
    time.sleep(3600)


def shuts_down(self: Hostile, reply: Any) -> Any:
    self.control.shutdown(self.draw.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))
    return reply


def closes_all(self: Hostile, reply: Any) -> Any:
    os.closerange(self.draw.choice((0, 3)), 256)
    time.sleep(0.01)
    return reply


def replaces_descriptors(self: Hostile, reply: Any) -> Any:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.send(b"{}")
    os.dup2(one.fileno(), self.control.fileno())
    return reply


def writes_everywhere(self: Hostile, reply: Any) -> Any:
    data = self.draw.choice((b"", b"x", json.dumps(reply).encode(), b"\0" * 70_000))
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            os.set_blocking(number, False)
            os.write(number, data)
    return reply


def hands_on_descriptors(self: Hostile, reply: Any) -> Any:
    one, other = socket.socketpair()
    some = [0, one.fileno(), other.fileno(), self.control.fileno()] * self.draw.choice((1, 2, 20))
    socket.send_fds(self.control, [json.dumps(reply).encode()], some)


def ends(self: Hostile, reply: Any) -> Any:
    os._exit(self.draw.choice((0, 1, 7, 255)))


def is_killed(self: Hostile, reply: Any) -> Any:
    kinds = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT, signal.SIGXCPU, signal.SIGRTMAX)
    os.kill(os.getpid(), self.draw.choice(kinds))
    return reply


def stops_itself(self: Hostile, reply: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)
    return reply


def leaves_its_first_thread(self: Hostile, reply: Any) -> Any:
    """The thread that gave the process its number ends, and another goes on."""
    threading.Thread(target=self.serve, kwargs={"loaded": True}, daemon=True).start()
    self.control.send(json.dumps(reply).encode())
    LIBC.syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit, of this thread alone


def many_threads(self: Hostile, reply: Any) -> Any:
    for _ in range(self.draw.choice((3, 60))):
        threading.Thread(target=time.sleep, args=(self.draw.choice((0.0, 0.05, 60)),), daemon=True).start()
    return reply


def lets_itself_go_on(self: Hostile, reply: Any) -> Any:
    class Event(ctypes.Structure):
        _fields_ = [("value", ctypes.c_void_p), ("ints", ctypes.c_int * 2), ("rest", ctypes.c_byte * 48)]

    made, event = ctypes.c_void_p(), Event(None, (signal.SIGCONT, 0))
    LIBC.timer_create(1, ctypes.byref(event), ctypes.byref(made))
    each = self.draw.choice((50_000, 1_000_000))
    LIBC.timer_settime(made, 0, (ctypes.c_long * 4)(0, each, 0, each), None)
    return reply


def forks(self: Hostile, reply: Any) -> Any:
    """A child that holds all that it holds: it goes away, stays, lets its parent go on, or writes to its answer."""
    how = self.draw.choice(("gone", "stays", "continues", "answers", "speaks"))
    if os.fork():
        return reply
    until = time.monotonic() + 5
    while how != "gone" and time.monotonic() < until:
        with contextlib.suppress(OSError):
            if how == "continues":
                os.kill(os.getppid(), signal.SIGCONT)
            elif how == "answers":
                self.answer[:8] = os.urandom(8)
            elif how == "speaks":
                self.control.send(json.dumps(reply).encode(), socket.MSG_DONTWAIT)
        time.sleep(0.0003)
    os._exit(0)


def steals_messages(self: Hostile, reply: Any) -> Any:
    """A thread reads what the judge says next, and another one's turn it was."""
    threading.Thread(target=self.control.recv, args=(1 << 17,), daemon=True).start()
    return reply


def writes_to_its_inputs(self: Hostile, reply: Any) -> Any:
    if self.memory is None:
        return reply
    memory = self.memory

    def write() -> None:
        for _ in range(2000):
            at = random.randrange(len(memory) - 8)
            memory[at : at + 8] = os.urandom(8)
            time.sleep(0.0001)

    threading.Thread(target=write, daemon=True).start()
    return reply


def shortens_memory(self: Hostile, reply: Any) -> Any:
    for number in map(int, os.listdir("/proc/self/fd")):
        for size in (0, 1 << 30):
            with contextlib.suppress(OSError):
                os.ftruncate(number, size)
        with contextlib.suppress(OSError):
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, 15)
    return reply


def answers_nowhere(self: Hostile, reply: Any) -> Any:
    """Its answer is where there is no memory, or in one that goes away, or that nobody may read."""
    how = self.draw.randrange(4)
    if how == 0:
        LIBC.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(ANSWER_BYTES))
    elif how == 1:
        LIBC.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(ANSWER_BYTES), 0)
    elif how == 2:
        self.address = self.draw.choice((0, 1, 4096, 2**47 - 4096, 2**63, 2**64 - 8, -1))
    else:
        holed = os.memfd_create("holed")
        os.ftruncate(holed, ANSWER_BYTES)
        hole = mmap.mmap(holed, ANSWER_BYTES)
        os.ftruncate(holed, 0)
        self.holes = hole
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(hole))
    return reply


def answers_with_its_inputs(self: Hostile, reply: Any) -> Any:
    if self.memory is not None:
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + self.draw.choice((0, 64, 4096))
    return reply


def is_late(self: Hostile, reply: Any) -> Any:
    time.sleep(self.draw.choice((0.0, 0.001, 0.02)))
    return reply


def is_silent(self: Hostile, reply: Any) -> Any:
    if self.draw.random() < 0.5:
        return None
    while True:
        pass


def catches_signals(self: Hostile, reply: Any) -> Any:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT, signal.SIGTSTP, signal.SIGXCPU):
        signal.signal(number, lambda *_: None)
    LIBC.prctl(1, 0)  # PR_SET_PDEATHSIG: nobody tells it that its parent is gone
    return reply


def binds_itself(self: Hostile, reply: Any) -> Any:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {self.draw.choice(cores)})
    with contextlib.suppress(OSError):
        os.nice(19)
    return reply


def keeps_others_out(self: Hostile, reply: Any) -> Any:
    """Nobody of its user's may read its memory from here on."""
    LIBC.prctl(4, 0)
    return reply


ACTS: tuple[Callable[[Hostile, Any], Any], ...] = (
    another_value, another_value, changed_reply, changed_reply, changed_reply, other_bytes, other_bytes, empty_packet,
    many_replies, replies_ahead, fills_its_socket, closes, shuts_down, closes_all, replaces_descriptors,
    writes_everywhere, hands_on_descriptors, ends, is_killed, stops_itself, leaves_its_first_thread, many_threads,
    lets_itself_go_on, forks, forks, steals_messages, writes_to_its_inputs, shortens_memory, answers_nowhere,
    answers_nowhere, answers_with_its_inputs, is_late, is_silent, catches_signals, binds_itself, keeps_others_out,
)  # fmt: skip
