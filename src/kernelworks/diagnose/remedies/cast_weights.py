"""Weights that autocast casts at every run of a program that trains nothing: cast once.

Under autocast a product or a convolution reads its float32 weight, writes it in the narrow dtype and reads that. torch
keeps the copy until the context ends, and of weights that want no gradient not even so long. The copy kept here is the
very one that autocast would make, so the answers are the same to the last bit; the weights stay as they are, and where
one is written it is cast anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.diagnose.remedies.folded_norms import CALLS, alike, installed
from kernelworks.diagnose.remedies.remedy import EVERYWHERE, Change, Offer, Promise, Scene
from kernelworks.diagnose.remedies.takes import Takes
from kernelworks.diagnose.remedies.trial import raced
from kernelworks.models.install import Installed
from kernelworks.plain import version_of

__all__ = ["REMEDY", "CastOnce"]


class _Remedy:
    name = "weights cast once"
    takes = Takes(("everywhere",))

    def offers(self, scene: Scene) -> Iterator[Offer]:
        if scene.training or scene.roots.fresh or not any(s.autocast for s in scene.roots.samples):
            return
        if not _castable(scene):
            return
        dtype = next(d for s in scene.roots.samples for d in s.autocast.values())
        yield Offer(
            self.name, EVERYWHERE, "weights cast once, not by autocast at each run", code=_code(scene, dtype),
            touches=frozenset({"ops"}),
        )  # fmt: skip

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        size = sum(p.nbytes // 2 for m in _castable(scene) for p in m.parameters(recurse=False))
        return raced(scene, self.apply(scene, offer), cost_bytes=size)

    def apply(self, scene: Scene, offer: Offer) -> Change:
        once = [scene.keep((self.name, id(m)), functools.partial(CastOnce, m)) for m in _castable(scene)]
        return Change(lambda: installed(once))


def _code(scene: Scene, dtype: torch.dtype) -> str:
    """The lines of whoever casts them himself: a comment alone where a weight is another module's too, which would have
    it in the narrow dtype."""
    castable = _castable(scene)
    kinds = ", ".join(sorted({f"torch.nn.{type(part).__name__}" for part in castable}))
    own = {id(p) for part in castable for p in part.parameters(recurse=False)}
    others = (m for _, m in scene.parts() if not any(m is part for part in castable))
    if any(id(p) in own for m in others for p in m.parameters(recurse=False)):
        return f"# {kinds}: .to({dtype}), but for weights that are tied to what autocast leaves as it is"
    return f"for part in model.modules():\n    if type(part) in ({kinds},):\n        part.to({dtype})"


def _castable(scene: Scene) -> list[nn.Module]:
    return [part for _, part in scene.parts() if type(part) in CALLS and _wide(part) and "forward" not in part.__dict__]


def _wide(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.dtype is torch.float32


class CastOnce:
    """A module of torch's whose weight and bias are kept in the dtype of autocast, while installed."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self._seen: Any = None
        self._weight = torch.empty(0)
        self._bias: Tensor | None = None

    def install(self) -> Callable[[], None]:
        plain = type(self.module).forward
        once = self

        @functools.wraps(plain)
        def forward(self: nn.Module, x: Tensor, *more: Any, **named: Any) -> Tensor:
            if more or named or not once._cast(x):
                made: Tensor = plain(self, x, *more, **named)
                return made
            return CALLS[type(self)](self, x, once._weight, once._bias)

        entries = Installed(self.module)
        entries.set("forward", MethodType(forward, self.module))
        return entries.remove

    def _cast(self, x: Tensor) -> bool:
        """Whether this call is one that autocast would cast for, and no gradient of a weight is wanted."""
        kind = x.device.type
        if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling():
            return False
        module = self.module
        held = [t for t in (module.weight, module.bias) if t is not None]
        if torch.is_grad_enabled() and any(t.requires_grad for t in held):
            return False
        dtype = torch.get_autocast_dtype(kind)
        looks = (dtype, *((t.data_ptr(), version_of(t)) for t in held))
        if looks != self._seen:
            with torch.no_grad():
                if alike(self._weight, module.weight, dtype):
                    self._weight.copy_(module.weight)
                    if self._bias is not None:
                        self._bias.copy_(module.bias)
                else:
                    self._weight = module.weight.detach().to(dtype)
                    self._bias = module.bias.detach().to(dtype) if module.bias is not None else None
            self._seen = looks
        return True


REMEDY = _Remedy()
