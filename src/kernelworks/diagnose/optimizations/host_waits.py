"""Advice: lines at which the host waits for the GPU again and again.

``.item()``, ``.tolist()``, ``print`` of a tensor, ``if tensor:`` and ``nonzero`` return only when all queued work of
the GPU is done. Until the host has launched more, the GPU is idle. Only the author of the program knows what a number
is read for.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelworks.diagnose.optimization import PROGRAM, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes

__all__ = ["OPTIMIZATION"]

MANY = 4  # of one line: a program that reads its result once must wait
MOST_LINES = 3
CODE = """\
losses.append(loss.detach())  # in the loop
print(torch.stack(losses).tolist())  # after it, or every so many steps"""


class _Optimization:
    name = "waits"
    takes = Takes(("program",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or not scene.on_gpu:
            return
        lines: dict[str, list[str]] = {}
        for ran in timeline.entries():
            if ran.waits and ran.call.place.source:
                lines.setdefault(ran.call.place.source, []).append(ran.call.name.rpartition("::")[2])
        often = sorted(((s, ops) for s, ops in lines.items() if len(ops) >= MANY), key=lambda item: -len(item[1]))
        for source, ops in often[:MOST_LINES]:
            what = ", ".join(dict.fromkeys(ops))
            advice = (
                f"{source}: the host waits for the GPU {len(ops)} times a run ({what}): read numbers after the loop"
            )
            yield Candidate(self.name, PROGRAM, f"no waits at {source}", code=CODE, advice=advice)

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(None)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        raise Impossible(candidate.advice)


OPTIMIZATION = _Optimization()
