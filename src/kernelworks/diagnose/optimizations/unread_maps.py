"""Attention maps that nobody reads are not computed: ``need_weights=False`` in ``nn.MultiheadAttention``.

torch's default computes and averages them, in which case no fused attention can be used. A run of the program says
whether anything reads them. If something reads them later after all, it finds None in their place, as it does in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_list
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.slow_paths.look import watched_run
from kernelworks.diagnose.slow_paths.unread_maps import NEED_WEIGHTS, Maps

__all__ = ["OPTIMIZATION", "without_maps"]

PARTS = "parts"


class _Optimization:
    name = "unread maps"
    takes = Takes(("module",), {PARTS: a_list("paths of modules", lambda value: isinstance(value, str))}, ((PARTS,),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        program = scene.program
        if program is None or not any(isinstance(part, nn.MultiheadAttention) for _, part in scene.parts()):
            return
        maps = Maps()
        watched_run(program.run, [maps])
        unread = {id(module) for module in maps.unread.modules()}
        for root in scene.roots.modules:
            paths = [path for path, part in root.named_modules() if id(part) in unread and _is_plain(part)]
            if paths and not isinstance(root, Function):
                places = "1 place" if len(paths) == 1 else f"{len(paths)} places"
                yield Candidate(
                    self.name, scene.site(root), f"attention maps that nobody reads are not computed, in {places}",
                    code="attention(query, key, value, need_weights=False)", options=((PARTS, paths),),
                    touches=frozenset({"ops"}),
                )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return race_promise(scene, self.apply(scene, candidate), scene.scene_of(scene.at(candidate.site)).roots)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        root: nn.Module = scene.at(candidate.site)
        parts = dict(root.named_modules())
        found = [parts.get(path) for path in candidate.option(PARTS)]
        if not all(isinstance(part, nn.MultiheadAttention) for part in found):
            raise Impossible("there is no nn.MultiheadAttention at that place")
        return Change(lambda: without_maps([part for part in found if part is not None]))


def _is_plain(part: nn.Module) -> bool:
    return type(part).forward is nn.MultiheadAttention.forward and "forward" not in part.__dict__


def without_maps(parts: list[nn.Module]) -> Callable[[], None]:
    """Has each called without ``need_weights``; returns what undoes that."""
    for part in parts:
        part.__dict__["forward"] = _called_without(part)

    def back() -> None:
        for part in parts:
            part.__dict__.pop("forward", None)

    return back


def _called_without(part: nn.Module) -> Callable[..., Any]:
    forward = type(part).forward  # by now: a swap may have replaced the class

    def called(*args: Any, **kwargs: Any) -> Any:
        if len(args) < NEED_WEIGHTS:
            kwargs["need_weights"] = False
        return forward(part, *args, **kwargs)

    return called


OPTIMIZATION = _Optimization()
