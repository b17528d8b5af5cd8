"""A program that sleeps, and optimizations of it that break the process they are tried in. One of them helps.

``FAULTS`` in the environment names what is planted, in the order in which it is tried: ``where:what``.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator

import torch

from kernelworks.diagnose import optimizations
from kernelworks.diagnose.fix import journal
from kernelworks.diagnose.optimization import PROGRAM, Candidate, Change, Promise, Scene

SLOW_S, FAST_S = 0.06, 0.02
journal.RESTS_S, journal.SILENT_S, journal.SILENT_SHARE = 4.0, 4.0, 0.01  # type: ignore[misc]
sleeping = {"seconds": SLOW_S}
held: list[bytearray] = []
scenes: list[Scene] = []


def hang() -> None:
    while True:
        time.sleep(0.1)


def spin() -> None:
    while True:
        pass


def chatter() -> None:
    while True:
        scenes[-1].say("still at it")
        time.sleep(0.05)


def leave_a_child() -> None:
    """A fork of this process holds all that it has open, and outlives it."""
    if not os.fork():
        time.sleep(600)
    ctypes.string_at(0)


def leak() -> None:
    while True:
        held.append(bytearray(b"x") * (256 << 20))


def interrupt() -> None:
    raise KeyboardInterrupt


def leave() -> None:
    raise SystemExit(0)


def go_deaf() -> None:
    os.closerange(3, 4096)
    hang()


def fail() -> None:
    raise RuntimeError("no way back")


def lose_device() -> None:
    torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")] = 1


WHAT: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0), "abort": os.abort, "exit": lambda: os._exit(0), "hang": hang,
    "spin": spin, "leak": leak, "child": leave_a_child, "chatter": chatter, "interrupt": interrupt, "leave": leave,
    "device": lose_device, "fail": fail, "deaf": go_deaf, "close": lambda: os.close(1),
    "dtype": lambda: torch.set_default_dtype(torch.float64), "folder": lambda: os.chdir("/"),
}  # fmt: skip


class Planted:
    """Breaks the process as it is predicted, put in place, run or taken out; ``fresh`` helps, and breaks one in which
    nothing was searched."""

    def __init__(self, where: str, what: str, saves: float) -> None:
        self.name, self.where, self.act, self.saves = f"{where} {what}", where, WHAT[what], saves

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        yield Candidate(self.name, PROGRAM, "it breaks the process")

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        scenes.append(scene)
        if self.where == "predict":
            self.act()
        return Promise(self.saves)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        def put() -> Callable[[], None]:
            if self.where == "put" or (self.where == "fresh" and not scenes):
                self.act()
            if self.where == "fresh":
                sleeping["seconds"] /= 2
            if self.where == "run":
                breaking.append(self.act)

            def back() -> None:
                if self.where == "out":
                    self.act()
                if self.where == "fresh":
                    sleeping["seconds"] *= 2
                breaking.clear()

            return back

        return Change(put, verified_against="nothing: it breaks")


class Shorter:
    """Sleeps for less."""

    name = "shorter"

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        yield Candidate(self.name, PROGRAM, "sleeps for less")

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(0.6)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        def put() -> Callable[[], None]:
            sleeping["seconds"] *= FAST_S / SLOW_S
            return lambda: sleeping.update(seconds=sleeping["seconds"] * SLOW_S / FAST_S)

        return Change(put, verified_against="itself")


breaking: list[Callable[[], object]] = []
faults = [one.split(":") for one in os.environ["FAULTS"].split()]
optimizations.OPTIMIZATIONS = (  # the first is tried before what helps, the others after it
    *(Planted(where, what, 0.9 if not number else 0.5 - 0.01 * number) for number, (where, what) in enumerate(faults)),
    Shorter(),
)


def run() -> torch.Tensor:
    for act in breaking:
        act()
    time.sleep(sleeping["seconds"])
    return torch.ones(2)
