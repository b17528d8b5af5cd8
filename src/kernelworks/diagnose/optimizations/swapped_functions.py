"""kernelworks' kernels in place of torch's functions in the program's own functions, outside of modules.

The function put in place has the program's code, with ``F`` and ``torch`` of ours among its globals if it calls what an
op serves (``nn/rebind.py``); helper functions of its module likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.swap import NOTHING, ask_for_the_entry, part_of
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.diagnose.sites.functions import Function
from kernelworks.dispatch.signature import torch_signatures
from kernelworks.measure.autotune import autotune
from kernelworks.nn.rebind import Rebinder, Rebound

__all__ = ["OPTIMIZATION", "called_by"]


class _Optimization:
    name = "swap in functions"
    takes = Takes(("function",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        for root in scene.roots.modules:
            found = self._rebound(scene, root) if isinstance(root, Function) else None
            if found is None or not isinstance(root, Function):
                continue
            ours = [f"kernelworks.{_op_of(name)} in place of {name}" for name in found.calls]
            yield Candidate(
                self.name, scene.site(root), f"{', '.join(_op_of(name) for name in found.calls)} of kernelworks in it",
                code="\n".join(f"# in {root.source_name}(): {line}" for line in ours),
                group=f"swap {root.of} {root.path}", touches=frozenset({"ops"}),
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        program, budget = scene.program, scene.budget
        assert program is not None and budget is not None
        ask_for_the_entry(budget)
        change = self.apply(scene, candidate)
        scene.say("autotuning what the program's functions call")
        with scene.in_place(), change:
            autotune(program.run, progress=scene.say, budget_s=part_of(budget))
        return race_promise(scene, change, scene.scene_of(scene.at(candidate.site)).roots)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        root = scene.at(candidate.site)
        found = self._rebound(scene, root)
        if found is None:
            raise Impossible(NOTHING)
        return Change(lambda: root.bind(found.function))

    def _rebound(self, scene: Scene, root: Function) -> Rebound | None:
        """The function with our ops in it, the same one each time."""
        return scene.keep(("rebound", root.of, root.path), lambda: Rebinder().rebind(root.fn))


def called_by(written: str, space: Mapping[str, Any]) -> str:
    """Our op with the signature of what a program calls by a dotted name, looked up in its namespace; "" if there is
    none."""
    first, *rest = written.split(".")
    found = space.get(first)
    for name in rest:
        found = getattr(found, name, None) if isinstance(found, ModuleType) else None
    ours = (
        each
        for each in torch_signatures().values()
        if each.function is found and found is not None and not each.no_swap_reason
    )
    return next((each.op.name for each in ours), "")


def _op_of(name: str) -> str:
    """Our op for a torch function, by its name."""
    known = torch_signatures().get(name)
    return known.op.name if known is not None else name


OPTIMIZATION = _Optimization()
