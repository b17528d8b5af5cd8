"""Advice: 16-bit products on a GPU whose sizes are no multiples of 8.

Tensor cores are fed by loads of 16 bytes, eight 16-bit numbers. Matrix rows of another length are not aligned to that,
and such products fall back to kernels that load less at once. A vocabulary of 50257 is the known case. Padding changes
the model, so it is advice and never applied.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes

__all__ = ["OPTIMIZATION"]

ALIGNED, TILE = 8, 64  # what loads need, and the usual target of padding
LARGE = 512  # from which padding adds little
HALVES = (torch.bfloat16, torch.float16)


class _Optimization:
    name = "padded sizes"
    takes = Takes(("module",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if not scene.on_gpu or scene.roots.fresh:
            return
        narrow = scene.autocast.get("cuda") in HALVES
        called = {c.place.path for c in scene.forecaster.timeline.calls} if scene.forecaster is not None else set()
        for path, part in scene.parts():
            if not isinstance(part, nn.Linear) or not (narrow or part.weight.dtype in HALVES):
                continue
            size = part.out_features
            if size % ALIGNED == 0 or size < LARGE or not any(at.endswith(path) for at in called):
                continue
            wanted = -(-size // TILE) * TILE
            advice = f"{path}: {size} is no multiple of {ALIGNED}, which 16-bit products need: pad it to {wanted}"
            yield Candidate(
                self.name, scene.site(part), f"{size} padded to {wanted}",
                code=f"torch.nn.Linear({part.in_features}, {wanted})  # logits[..., :{size}] are the old ones",
                advice=advice,
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(None)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        raise Impossible(candidate.advice)


OPTIMIZATION = _Optimization()
