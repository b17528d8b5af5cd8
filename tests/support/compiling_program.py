"""A program that sleeps, and compilers of it that sleep too, unless what they make lies in a folder by then.

``KEPT`` is that folder, and its file ``log`` says who compiled what. ``BESIDE`` names what a process that compiles
beside the search does instead; the search's own never does.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernelworks.diagnose import optimizations
from kernelworks.diagnose.fix.compile_pool import MARK
from kernelworks.diagnose.optimization import PROGRAM, Candidate, Change, Promise, Scene
from kernelworks.measure.clock.work_beside import untimed_section

SLOW_S, COMPILES_S = 0.08, 0.5
SAVES = {"first": 0.3, "second": 0.5, "third": 0.4}
KEPT, IS_BESIDE = Path(os.environ["KEPT"]), MARK in os.environ
sleeping = {"seconds": SLOW_S}


def log(what: str, name: str) -> None:
    with (KEPT / "log").open("a") as file:
        file.write(f"{'beside' if IS_BESIDE else 'search'} {what} {name}\n")


def compile_once(name: str) -> None:
    if (KEPT / name).exists():
        log("loads", name)
        return
    log("begins", name)
    if IS_BESIDE:
        act = os.environ.get("BESIDE", "")
        if act == "segfault":
            ctypes.string_at(0)
        if act == "hang":
            time.sleep(600)
        if act == "disk":
            raise OSError(28, "No space left on device")
    time.sleep(COMPILES_S)
    torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] += 1
    (KEPT / name).write_text("made")
    log("compiled", name)


class Compiler:
    name = "torch.compile"

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        for name in SAVES:
            yield Candidate(self.name, PROGRAM, name, options=(("mode", name),), group="one")

    def expected_s(self, scene: Scene, candidate: Candidate) -> float:
        return scene.compiled.loads_s if scene.compiled is not None else COMPILES_S

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        with untimed_section():
            compile_once(candidate.says)
        return Promise(SAVES[candidate.says], COMPILES_S)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        def put() -> Callable[[], None]:
            if IS_BESIDE:
                compile_once(candidate.says)
            sleeping["seconds"] = SLOW_S * (1 - SAVES[candidate.says])
            return lambda: sleeping.update(seconds=SLOW_S)

        return Change(put, verified_against="itself")


import torch._dynamo.utils  # noqa: E402

optimizations.OPTIMIZATIONS = (Compiler(),)


def run() -> torch.Tensor:
    time.sleep(sleeping["seconds"])
    return torch.ones(2)
