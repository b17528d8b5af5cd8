"""What calls of our ops take by themselves, in the minute of a forecast: measured by ``isolated_on_cpu`` and
``isolated_on_gpu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.op import Op
from kernelworks.profile.cost.operands import name_of
from kernelworks.profile.cost.shapes import Signature, bucket_sizes, signature
from kernelworks.profile.timeline import Cost
from kernelworks.profile.trace import Call

__all__ = ["OURS", "IsolatedCosts", "Kind", "kind_of", "kind_of_args", "shapes_of", "takes_torchs"]

OURS = "kernelworks::"
Kind = tuple[str, Signature, tuple[str, ...]]  # a call's full name, its shapes, its strings ("top_left")


@dataclass
class IsolatedCosts:
    """Costs by call signature. Of those in ``torchs`` torch's own kernel is taken: a call of one costs what torch's
    costs in the original, if that is known."""

    costs: dict[Kind, Cost] = field(default_factory=dict)
    torchs: set[Kind] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._near: dict[Any, list[Cost]] = {}
        for (name, shapes, words), cost in self.costs.items():
            for said in dict.fromkeys((words, None)):
                self._near.setdefault((name, bucket_sizes(shapes), said), []).append(cost)

    def takes_torchs(self, call: Call) -> bool:
        return kind_of(call) in self.torchs

    def of(self, call: Call) -> Cost | None:
        """The cost of the same op whose shapes are the call's, or nearly, with the same strings or any; None if
        there is none."""
        kind = kind_of(call)
        if kind in self.costs:
            return self.costs[kind]
        name, shapes, words = kind
        near = self._near.get((name, bucket_sizes(shapes), words)) or self._near.get(
            (name, bucket_sizes(shapes), None), []
        )
        return sorted(near, key=lambda c: c.host + sum(c.kernels))[len(near) // 2] if near else None


def kind_of(call: Call) -> Kind:
    return call.name, signature(call), tuple(value for name, value in call.place.words if name != "op_kernel")


def kind_of_args(name: str, args: Sequence[Any]) -> Kind:
    """As ``kind_of`` has it, from the arguments themselves, without the kernel."""
    return name, shapes_of(args), tuple(a for a in args if isinstance(a, str))


def takes_torchs(op: Op, pass_: str, given: Sequence[Any], kernel: str | None) -> bool:
    """Whether a forward call on these arguments would take torch's own kernel."""
    return pass_ == "forward" and choose(op, op.request(pass_, tuple(given)), kernel).kernel.source is None


def shapes_of(args: Sequence[Any]) -> Signature:
    """As ``signature`` has them: of a list of tensors the first three."""
    lists = [a[:3] if isinstance(a, (list, tuple)) else [a] for a in args]
    return tuple((tuple(t.shape), name_of(t.dtype)) for items in lists for t in items if isinstance(t, Tensor))
