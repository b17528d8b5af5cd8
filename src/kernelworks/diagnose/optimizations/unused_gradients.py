"""Advice: a program that keeps what a backward would need, and runs no backward.

With gradients on, every op that a parameter reaches records a node and keeps its inputs. That costs microseconds a
call, and the memory of all activations at once. Only the author knows whether anything outside the program needs
gradients of what it returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelworks.diagnose.optimization import PROGRAM, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes

__all__ = ["OPTIMIZATION"]

ADVICE = "gradients are on and no backward runs: turn them off, unless something outside needs gradients of its outputs"


class _Optimization:
    name = "unused gradients"
    takes = Takes(("program",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or scene.optimizers or scene.roots.passing:
            return
        if not any(sample.training for sample in scene.roots.samples) or any(c.backward for c in timeline.calls):
            return
        yield Candidate(self.name, PROGRAM, "no gradients", code="with torch.inference_mode():\n    ...", advice=ADVICE)

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(None)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        raise Impossible(ADVICE)


OPTIMIZATION = _Optimization()
