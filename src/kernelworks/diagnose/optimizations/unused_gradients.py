"""Advice: a program that keeps what a backward would need, and runs none.

With gradients on, every op that a parameter reaches records a node and keeps its inputs: microseconds a call, and the
memory of all activations at once. Whether anything outside the program asks for gradients of what it returns, only its
author knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelworks.diagnose.optimization import PROGRAM, Change, Impossible, Offer, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes

__all__ = ["REMEDY"]

ADVICE = "gradients are on and no backward runs: turn them off, if nothing outside asks for one of what it returns"


class _Remedy:
    name = "unused gradients"
    takes = Takes(("program",))

    def offers(self, scene: Scene) -> Iterator[Offer]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or scene.optimizers or scene.roots.passing:
            return
        if not any(sample.training for sample in scene.roots.samples) or any(c.backward for c in timeline.calls):
            return
        yield Offer(self.name, PROGRAM, "no gradients", code="with torch.inference_mode():\n    ...", advice=ADVICE)

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        return Promise(None)

    def apply(self, scene: Scene, offer: Offer) -> Change:
        raise Impossible(ADVICE)


REMEDY = _Remedy()
