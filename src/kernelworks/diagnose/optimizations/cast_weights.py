"""Casts once the weights that autocast would cast at every run, for inference.

Under autocast a product or a convolution reads its float32 weight, writes it in the narrow dtype and reads that. torch
keeps the copy until the context ends, and copies of weights without gradients not even so long. The copy kept here is
the one that autocast would make, so outputs are the same to the last bit. The weights stay as they are; if one changes,
it is cast anew (``derived_values``). On a GPU no such copy can be kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.build.digest import has_digest, readable
from kernelworks.contract.tensors import is_plain
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.derived_values import (
    FORWARDS,
    NARROW,
    NO_DIGEST,
    SAME_VALUES,
    DerivedValue,
    any_requires_grad,
    as_shipped,
    needs_torch_operators,
)
from kernelworks.diagnose.optimizations.folded_norms import CALLS, install_all
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.nn.install import InstalledAttributes
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["OPTIMIZATION", "CastOnce"]


class _Optimization:
    name = "weights cast once"
    takes = Takes(("everywhere",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if scene.training or scene.on_gpu or not any(s.autocast for s in scene.roots.samples):
            return
        if not _castable(scene):
            return
        if scene.roots.fresh:
            raise Impossible(MODULES_MADE_ANEW)
        dtype = next(d for s in scene.roots.samples for d in s.autocast.values())
        yield Candidate(
            self.name, EVERYWHERE, "weights cast once, not by autocast at each run", code=_code(scene, dtype),
            touches=frozenset({"ops"}),
        )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        size = sum(p.nbytes // 2 for m in _castable(scene) for p in m.parameters(recurse=False))
        return race_promise(scene, self.apply(scene, candidate), cost_bytes=size)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        if not has_digest():
            raise Impossible(NO_DIGEST)
        once = [scene.keep((self.name, id(m)), functools.partial(CastOnce, m)) for m in _castable(scene)]
        return Change(lambda: install_all(once))


def _code(scene: Scene, dtype: torch.dtype) -> str:
    """The lines that cast them without kernelworks; only a comment if another module shares a weight, because it would
    get the narrow dtype too."""
    castable = _castable(scene)
    kinds = ", ".join(sorted({f"torch.nn.{type(part).__name__}" for part in castable}))
    own = {id(p) for part in castable for p in part.parameters(recurse=False)}
    others = (m for _, m in scene.parts() if not any(m is part for part in castable))
    if any(id(p) in own for m in others for p in m.parameters(recurse=False)):
        return f"# {kinds}: .to({dtype}), but for weights that are tied to what autocast leaves as it is"
    return f"for part in model.modules():\n    if type(part) in ({kinds},):\n        part.to({dtype})"


def _castable(scene: Scene) -> list[nn.Module]:
    return [part for _, part in scene.parts() if as_shipped(part) and type(part) in CALLS and _wide(part)]


def _wide(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.dtype is torch.float32 and weight.device.type == "cpu"


class CastOnce:
    """Keeps the weight and bias of one torch module in autocast's dtype, while installed."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.cast: DerivedValue[list[Tensor]] = DerivedValue(_cast)

    def install(self) -> Callable[[], None]:
        once, cls = self, type(self.module)

        @functools.wraps(cls.forward)
        def forward(self: Any, *args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or named or len(args) != 1 or type(self) is not cls:
                return type(self).forward(self, *args, **named)
            made = once.run_cast(self, args[0])
            return cls.forward(self, *args) if made is None else made

        setattr(forward, SAME_VALUES, True)
        entries = InstalledAttributes(self.module)
        entries.set("forward", MethodType(forward, self.module))
        return entries.remove

    def run_cast(self, module: Any, x: Any) -> Tensor | None:
        """The module's output with weights that were cast before; None if autocast would not cast them, or if one needs
        a gradient."""
        if not torch.is_autocast_enabled("cpu") or type(module).forward is not FORWARDS[type(module)]:
            return None
        held = [t for t in (module.weight, module.bias) if t is not None]
        if (
            not all(isinstance(t, Tensor) for t in (x, *held))
            or not is_plain(x)
            or any_requires_grad(held)
            or needs_torch_operators()
        ):
            return None
        if x.device.type != "cpu" or x.dtype not in NARROW:
            return None  # autocast leaves float64 as it is
        if isinstance(module, nn.modules.conv._ConvTransposeNd) and module.padding_mode != "zeros":
            return None  # which it refuses
        dtype = torch.get_autocast_dtype("cpu")
        found = self.cast.cached_value(held, dtype)
        if found is None:
            if not readable(held) or any(t.dtype is not torch.float32 for t in held):
                return None
            found = self.cast.of(held, dtype)
        weight, *bias = found
        return CALLS[type(module)](module, x, weight, bias[0] if bias else None)


def _cast(tensors: Sequence[Tensor], dtype: Any) -> list[Tensor]:
    return [t.detach().to(dtype) for t in tensors]


OPTIMIZATION = _Optimization()
