"""Our rows in place of torch's functions in functions of the program's own, outside of modules.

A function is put in place whose code is the program's, and in whose globals ``F`` and ``torch`` are ours where it calls
what an op serves (``nn/rebind.py``), helper functions of its module with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from kernelworks.diagnose.optimization import Change, Impossible, Offer, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.swap import NOTHING, part_of
from kernelworks.diagnose.optimizations.trial import raced
from kernelworks.diagnose.sites.functions import Function
from kernelworks.dispatch.signature import spelled
from kernelworks.measure.autotune import settle
from kernelworks.nn.rebind import Rebinder, Rebound

__all__ = ["REMEDY", "called_by"]


class _Remedy:
    name = "swap in functions"
    takes = Takes(("function",))

    def offers(self, scene: Scene) -> Iterator[Offer]:
        for root in scene.roots.modules:
            found = self._rebound(scene, root) if isinstance(root, Function) else None
            if found is None or not isinstance(root, Function):
                continue
            ours = [f"kernelworks.{_op_of(name)} in place of {name}" for name in found.calls]
            yield Offer(
                self.name, scene.site(root), f"{', '.join(_op_of(name) for name in found.calls)} of ours in it",
                code="\n".join(f"# in {root.written}(): {line}" for line in ours),
                group=f"swap {root.of} {root.path}", touches=frozenset({"ops"}),
            )  # fmt: skip

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        program, budget = scene.program, scene.budget
        assert program is not None and budget is not None
        change = self.apply(scene, offer)
        scene.say("settling what the program's functions call")
        with budget.apart(), scene.in_place(), change:
            settle(program.run, progress=scene.say, budget_s=part_of(budget))
        return raced(scene, change, scene.alone(scene.at(offer.site)).roots)

    def apply(self, scene: Scene, offer: Offer) -> Change:
        root = scene.at(offer.site)
        found = self._rebound(scene, root)
        if found is None:
            raise Impossible(NOTHING)
        return Change(lambda: root.bind(found.function))

    def _rebound(self, scene: Scene, root: Function) -> Rebound | None:
        """The function with our ops in it, the same one each time."""
        return scene.keep(("rebound", root.of, root.path), lambda: Rebinder().rebind(root.fn))


def called_by(written: str, space: Mapping[str, Any]) -> str:
    """The op of ours that takes the arguments of what a program calls by a dotted name, among the names that it has;
    "" where there is none."""
    first, *rest = written.split(".")
    found = space.get(first)
    for name in rest:
        found = getattr(found, name, None) if isinstance(found, ModuleType) else None
    ours = (each for each in spelled().values() if each.function is found and found is not None and not each.left)
    return next((each.op.name for each in ours), "")


def _op_of(name: str) -> str:
    """The op of ours that serves a function of torch's, by its name."""
    known = spelled().get(name)
    return known.op.name if known is not None else name


REMEDY = _Remedy()
