"""Fewer threads, for a program whose ops are too small to be divided.

Waking the other threads and waiting for them costs microseconds a call, and more if cores are shared with other
processes or are hardware threads of one core. The best number is measured on the program itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch

from kernelworks.diagnose.optimization import PROCESS, Candidate, Change, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_whole_number
from kernelworks.diagnose.optimizations.program_trial import in_turns
from kernelworks.diagnose.optimizations.settings import Setting

__all__ = ["OPTIMIZATION"]

THREADS = Setting(torch.get_num_threads, torch.set_num_threads)
SMALL_S = 300e-6  # of the median op: larger ops gain from every thread


class _Optimization:
    name = "threads"
    takes = Takes(("process",), {"number": a_whole_number(1)}, needs=(("number",),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        now = torch.get_num_threads()
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if scene.on_gpu or now < 2 or timeline is None or not timeline.calls:
            return
        if statistics.median(ran.seconds for ran in timeline.entries()) > SMALL_S:
            return
        for number in sorted({1, now // 4, now // 2} - {0, now}):
            yield Candidate(
                self.name, PROCESS, f"{number} of {now} threads: its ops are small",
                code=f"torch.set_num_threads({number})", options=(("number", number),), group="threads",
                cores=True, touches=frozenset({"ops"}),
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(in_turns(scene, self.apply(scene, candidate)).saves, how="the program was run with it")

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        number = int(candidate.option("number"))

        return Change(lambda: THREADS.want(number))


OPTIMIZATION = _Optimization()
