"""The channels_last memory format for the weights of convolutions, and so for all that convolutions compute.

Convolutions of images whose channels lie side by side read whole vectors of them, and need no packing before and after.
With a weight in this format a convolution's output has it too, whatever its input; what follows keeps the layout.
Values are the same. A program that takes a ``view`` of an image in the other order raises, and is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.derived_values import own_memory
from kernelworks.diagnose.optimizations.order_of_steps import OrderOfSteps
from kernelworks.diagnose.optimizations.settings import held_elsewhere
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.diagnose.snapshot import as_made
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["OPTIMIZATION", "relaid"]

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class _Optimization:
    name = "channels_last"
    takes = Takes(("everywhere",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if not _weights(scene.roots.modules):
            return
        if scene.roots.fresh:
            raise Impossible(MODULES_MADE_ANEW)
        yield Candidate(
            self.name, EVERYWHERE, "convolutions in channels_last memory format",
            code=_code(scene.roots.modules), touches=frozenset({"ops", "layout"}), again=True,
        )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return race_promise(scene, self.apply(scene, candidate))

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        weights = _weights(scene.roots.modules)
        laid: dict[int, Tensor] = {}
        return Change(lambda: relaid(weights, scene.optimizers, laid))


def _code(modules: Iterable[nn.Module]) -> str:
    """The lines that lay them out so without kernelworks. ``model.to`` refuses a tensor of another rank than that of
    its memory format."""
    held = (t for module in modules for t in (*module.parameters(), *module.buffers()))
    ranks = {t.dim() for t in held} & FORMATS.keys()
    if len(ranks) == 1:
        return f"model.to(memory_format={FORMATS[ranks.pop()]})"
    lines = ["for part in model.modules():"]
    for rank, kinds in ((4, "Conv2d, torch.nn.ConvTranspose2d"), (5, "Conv3d, torch.nn.ConvTranspose3d")):
        lines += [f"    if isinstance(part, (torch.nn.{kinds})):", f"        part.to(memory_format={FORMATS[rank]})"]
    return "\n".join(lines)


def _weights(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The weights of convolutions for which the layouts differ, each once. A tensor whose memory others hold too is
    left out: whoever made it relies on its place."""
    found: dict[int, nn.Parameter] = {}
    owners: dict[int, int] = {}
    for module in modules:
        for tensor in {id(t): t for t in (*module.parameters(), *module.buffers())}.values():
            if id(tensor) not in found and tensor.layout is torch.strided:
                at = tensor.untyped_storage().data_ptr()
                owners[at] = owners.get(at, 0) + 1
        for part in module.modules():
            weight = part._parameters.get("weight") if isinstance(part, CONVOLUTIONS) else None
            if weight is not None and _first(weight):
                found[id(weight)] = weight
    return [w for w in found.values() if owners[w.untyped_storage().data_ptr()] == 1 and not held_elsewhere(w)]


def _first(weight: Tensor) -> bool:
    """Whether its channels come first, and that is another order."""
    return (
        type(weight) is nn.Parameter
        and weight.dim() in FORMATS
        and weight.is_contiguous()
        and not weight.is_contiguous(memory_format=FORMATS[weight.dim()])
    )


def relaid(
    weights: Iterable[nn.Parameter], optimizers: Iterable[Optimizer], laid: dict[int, Tensor]
) -> Callable[[], None]:
    """Lays weights, their gradients and what optimizers keep of them out anew, all of them the objects that they were;
    returns what lays them back into the very memory where they were, with the values that they have by then. What
    somebody else has come to hold meanwhile (a view, an alias) stays where both of them see it.

    ``laid`` keeps the memory of each weight, which is the same each time: graphs are captured of where it lies.
    """
    weights = tuple(weights)
    steps = OrderOfSteps(weights)
    steps.optimizers.update(optimizers)
    over = steps.install()

    def beside(weight: nn.Parameter) -> Iterator[Tensor]:
        yield weight
        if weight.grad is not None:
            yield weight.grad
        for optimizer in steps.optimizers:
            yield from (value for value in optimizer.state.get(weight, {}).values() if isinstance(value, Tensor))

    before = [
        (tensor, tensor.data) for weight in weights for tensor in beside(weight)
        if tensor.shape == weight.shape and tensor.is_contiguous() and not held_elsewhere(tensor)
    ]  # fmt: skip
    for tensor, data in before:
        with as_made(tensor):
            if id(tensor) in laid:
                tensor.data = laid[id(tensor)].copy_(data)
            else:
                tensor.data = data.contiguous(memory_format=FORMATS[data.dim()])
    laid |= {id(weight): weight.data for weight in weights}

    def of_us(tensor: Tensor) -> int:
        """How many that we know of lie in its memory."""
        return 2 if id(tensor) in laid and tensor.data_ptr() == laid[id(tensor)].data_ptr() else 1

    def back() -> None:
        over()
        for tensor, data in before:
            if not held_elsewhere(tensor, knows=of_us(tensor)):
                with as_made(tensor):
                    own_memory(tensor, data)
        for weight, tensor in ((w, t) for w in weights for t in beside(w)):  # of those that were made meanwhile
            other = tensor.shape == weight.shape and not tensor.is_contiguous()
            if other and not held_elsewhere(tensor, knows=of_us(tensor)):
                with as_made(tensor):
                    tensor.data = tensor.data.contiguous()

    return back


OPTIMIZATION = _Optimization()
