"""Products of one input by several weights (query, key and value; gate and up) as one product.

The input is read once, one call is made instead of three, and a product of few rows keeps more of the machine busy.
The weights are laid in one memory, of which each parameter becomes a view: the same objects with the same values, tied
where they were tied, for no more memory. Which products have one input is told by the flow of data, and asked again at
each call: a call with another input, or one that trains, is as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelworks.diagnose.remedies.folded_norms import below, installed
from kernelworks.diagnose.remedies.remedy import Change, Impossible, Offer, Promise, Scene
from kernelworks.diagnose.remedies.takes import Takes, groups_of
from kernelworks.diagnose.remedies.trial import raced
from kernelworks.models.install import Installed
from kernelworks.observe.trace import Call
from kernelworks.plain import version_of
from kernelworks.work.flow import Flow

__all__ = ["REMEDY", "Merged", "products_of_one_input"]

CODE = """\
# in the module that holds them, once:
weight = torch.cat([{weights}])
# and in its forward:
{names} = F.linear(x, weight).split([{sizes}], dim=-1)"""


class _Remedy:
    name = "merged projections"
    takes = Takes(("module",), {"groups": groups_of(2)}, needs=(("groups",),))

    def offers(self, scene: Scene) -> Iterator[Offer]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or scene.training or scene.roots.fresh or scene.autocast:
            return
        found = products_of_one_input(timeline.calls)
        for root in scene.roots.modules:
            name, parts = type(root).__name__, dict(root.named_modules())
            groups = [[below(name, path) for path in group] for group in found]
            groups = [group for group in groups if mergeable([parts.get(path) for path in group], root)]
            if groups:
                short = [path.rpartition(".")[2] for path in groups[0]]
                weights = ", ".join(f"self.{each}.weight" for each in short)
                sizes = ", ".join(str(parts[path].out_features) for path in groups[0])
                yield Offer(
                    self.name, scene.site(root), f"{', '.join(short)} as one product, in {len(groups)} places",
                    code=CODE.format(weights=weights, names=", ".join(short), sizes=sizes),
                    options=(("groups", groups),), touches=frozenset({"ops"}),
                )  # fmt: skip

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        return raced(scene, self.apply(scene, offer), scene.alone(scene.at(offer.site)).roots)

    def apply(self, scene: Scene, offer: Offer) -> Change:
        root = scene.at(offer.site)
        parts = dict(root.named_modules())
        groups = [[parts.get(path) for path in group] for group in offer.option("groups", ())]
        if not all(mergeable(group, root) for group in groups):
            raise Impossible("a product that is to be merged is another one here")
        again = scene.forecaster is not None  # a search puts it in and takes it out many times
        merged = [Merged([part for part in group if part is not None], again=again) for group in groups]
        return Change(lambda: installed(merged))


def products_of_one_input(calls: Sequence[Call]) -> list[list[str]]:
    """The paths of the modules, in the order of their calls, whose products read one tensor; modules of one parent that
    are called together each time."""
    flow = Flow(calls)
    together: dict[tuple[Any, ...], list[str]] = {}
    seen: dict[str, int] = {}
    for step in flow.steps:
        path = step.call.place.path
        if step.name != "linear" or not path or not step.tensors:
            continue
        seen[path] = seen.get(path, 0) + 1
        x = step.tensors[0]
        key = (path.rpartition(".")[0], x.storage, id(step.maker()), x.shape, seen[path])
        together.setdefault(key, []).append(path)
    groups: dict[tuple[str, ...], int] = {}
    for paths in together.values():
        if len(paths) > 1:
            groups[tuple(paths)] = groups.get(tuple(paths), 0) + 1
    return [list(paths) for paths, count in groups.items() if all(seen[path] == count for path in paths)]


def mergeable(parts: Sequence[Any], root: nn.Module) -> bool:
    """Whether they are torch's own, unwatched, of one dtype and each alone in its memory."""
    if len(set(map(id, parts))) < 2 or any(type(part) is not nn.Linear for part in parts):
        return False
    if len({(p.in_features, p.weight.dtype, p.weight.device, p.bias is None) for p in parts}) > 1:
        return False
    held = {id(t): t for t in (*root.parameters(), *root.buffers())}.values()
    owners: dict[int, int] = {}
    for tensor in held:
        if tensor.layout is torch.strided:
            at = tensor.untyped_storage().data_ptr()
            owners[at] = owners.get(at, 0) + 1
    for part in parts:
        if "forward" in part.__dict__ or part._forward_hooks or part._forward_pre_hooks:
            return False
        for tensor in part._parameters.values():
            if tensor is not None and not _own(tensor, owners):
                return False
    return len({id(p.weight) for p in parts}) == len(parts)


def _own(tensor: Tensor, owners: dict[int, int]) -> bool:
    storage = tensor.untyped_storage()
    whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
    return whole and not tensor.is_inference() and owners.get(storage.data_ptr()) == 1 and type(tensor) is nn.Parameter


class Merged:
    """Some nn.Linear of one input. While installed, the first of them that is called computes what all give, and the
    others take theirs where they are given the very same tensor."""

    def __init__(self, parts: Sequence[nn.Module], *, again: bool) -> None:
        """``again``: each memory is kept while the other is in use, so that both lie where they did each time."""
        self.parts: list[Any] = list(parts)
        self.again = again
        self._weight = torch.empty(0)
        self._bias: Tensor | None = None
        self._input: Tensor | None = None
        self._version = 0
        self._made: dict[int, Tensor] = {}

    def install(self) -> Callable[[], None]:
        """Puts it in place; returns what takes it out."""
        weights = [part.weight for part in self.parts]
        biases = [part.bias for part in self.parts if part.bias is not None]
        before = [(p, p.data) for p in (*weights, *biases)] if self.again else []
        self._weight = _laid_together(weights, self._weight)
        if biases:
            self._bias = _laid_together(biases, self._bias)
        placed = []
        for number, part in enumerate(self.parts):
            entries = Installed(part)
            entries.set("forward", MethodType(_forward(self, number), part))
            placed.append(entries)

        def back() -> None:
            for entries in reversed(placed):
                entries.remove()
            self._let_go()
            for parameter, data in before:
                if parameter.data_ptr() != data.data_ptr():
                    parameter.data = data.copy_(parameter.data)
            if not self.again:
                for parameter in (*weights, *biases):
                    parameter.data = parameter.data.clone()
                self._weight, self._bias = torch.empty(0), None

        return back

    def of(self, number: int, x: Tensor) -> Tensor:
        """What one of them gives."""
        version = version_of(x)
        if x is self._input and version == self._version and number in self._made:
            made = self._made.pop(number)
            if not self._made:
                self._let_go()
            return made
        whole: Tensor = F.linear(x, self._weight, self._bias)
        parts = whole.split([part.out_features for part in self.parts], dim=-1)
        self._made = {at: each for at, each in enumerate(parts) if at != number}
        self._input, self._version = x, version
        own: Tensor = parts[number]
        return own

    def _let_go(self) -> None:
        self._input, self._made = None, {}

    def holds(self) -> bool:
        """Whether the parameters are still those that were laid together."""
        at = self._weight.data_ptr()
        for part in self.parts:
            if part.weight.data_ptr() != at:
                return False
            at += part.weight.nbytes
        return True


def _forward(merged: Merged, number: int) -> Callable[..., Tensor]:
    @functools.wraps(nn.Linear.forward)
    def forward(self: Any, input: Tensor) -> Tensor:
        trained = torch.is_grad_enabled() and (self.weight.requires_grad or input.requires_grad)
        if trained or torch.compiler.is_compiling() or torch.is_autocast_enabled(input.device.type):
            return F.linear(input, self.weight, self.bias)
        return merged.of(number, input) if merged.holds() else F.linear(input, self.weight, self.bias)

    return forward


def _laid_together(parameters: Sequence[Tensor], room: Tensor | None) -> Tensor:
    """One memory of all their rows, of which each becomes a view: ``room``, where there is some."""
    with torch.no_grad():
        values = [p.data for p in parameters]
        whole = torch.cat(values, out=room) if room is not None and room.numel() else torch.cat(values)
    at = 0
    for parameter in parameters:
        parameter.data = whole[at : at + len(parameter)]
        at += len(parameter)
    return whole


REMEDY = _Remedy()
