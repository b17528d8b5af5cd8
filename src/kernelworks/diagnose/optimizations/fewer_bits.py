"""Reduced precision, if the user allows it: TF32 products, bfloat16 by autocast, int8 weights.

Each changes numbers on purpose, so it is tried only if its word is allowed, and its error against float64 is shown
beside the original's. Parameters stay what they are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.build.digest import has_digest, readable
from kernelworks.diagnose.optimization import EVERYWHERE, PROCESS, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes, one_of
from kernelworks.diagnose.optimizations.derived_values import (
    FORWARDS,
    NO_DIGEST,
    DerivedValue,
    as_shipped,
    needs_torch_operators,
)
from kernelworks.diagnose.optimizations.folded_norms import install_all
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.diagnose.snapshot import map_tensors
from kernelworks.machine.float32_products import Float32Products
from kernelworks.nn.install import InstalledAttributes
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["BF16", "INT8", "OPTIMIZATION", "TF32"]

TF32, BF16, INT8 = "tf32", "bf16", "int8"
SAYS = {
    TF32: ("float32 products in TF32", 'torch.set_float32_matmul_precision("high")'),
    BF16: (
        "products in bfloat16 by autocast",
        'model.forward = torch.autocast("{device}", dtype=torch.bfloat16)(model.forward)\n'
        "model.register_forward_hook(lambda module, given, made: torch.utils._pytree.tree_map(\n"
        "    lambda t: t.float() if torch.is_tensor(t) and t.dtype is torch.bfloat16 else t, made))",
    ),
    INT8: (
        "nn.Linear in int8 with dynamic quantization",
        "model = torch.ao.quantization.quantize_dynamic(model, {{torch.nn.Linear}}, dtype=torch.qint8)",
    ),
}


class _Optimization:
    name = "fewer bits"
    takes = Takes(("process", "everywhere"), {"bits": one_of(TF32, BF16, INT8)}, needs=(("bits",),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        wide = any(p.dtype is torch.float32 for root in scene.roots.models for p in root.parameters())
        if not wide or scene.autocast:
            return
        if scene.roots.fresh:
            raise Impossible(MODULES_MADE_ANEW)
        words = []
        if scene.on_gpu and Float32Products.of_process().is_whole_on_gpu:
            words.append(TF32)
        words.append(BF16)
        if not scene.on_gpu and not scene.training and _linears(scene) and _quantises():
            words.append(INT8)
        for word in words:
            says, code = SAYS[word]
            yield Candidate(
                self.name, PROCESS if word == TF32 else EVERYWHERE, says, code=code.format(device=scene.device),
                changes=word, options=(("bits", word),), group="bits", touches=frozenset({"ops"}),
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return race_promise(scene, self.apply(scene, candidate))

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        word = candidate.option("bits")
        if word == TF32:
            return Change(_tf32)
        if word == BF16:
            roots = [scene.keep((self.name, BF16, id(m)), functools.partial(Cast, m)) for m in scene.roots.models]
            return Change(lambda: install_all(roots))
        if not has_digest():
            raise Impossible(NO_DIGEST)
        linears = [scene.keep((self.name, INT8, id(m)), functools.partial(QuantizedLinear, m)) for m in _linears(scene)]
        return Change(lambda: install_all(linears))


def _tf32() -> Callable[[], None]:
    before = Float32Products.of_process()
    torch.set_float32_matmul_precision("high")
    return before.restore


class Cast:
    """Runs an outermost module under autocast, and returns its bfloat16 outputs in float32."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def install(self) -> Callable[[], None]:
        current = self.module.forward
        tensor = next(iter((*self.module.parameters(), *self.module.buffers())), None)
        kind = tensor.device.type if tensor is not None else "cpu"

        @functools.wraps(current)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype=torch.bfloat16):
                made = current(*args, **kwargs)
            return _widened(made) if isinstance(made, Tensor) else map_tensors(made, _widened)

        entries = InstalledAttributes(self.module)
        entries.set("forward", MethodType(forward, self.module))
        return entries.remove


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


# ---------------------------------------------------------------- int8


def _quantises() -> bool:
    """Whether this torch has int8 products on this CPU."""
    return any(engine not in ("none", "qnnpack") for engine in torch.backends.quantized.supported_engines)


def _linears(scene: Scene) -> list[nn.Module]:
    return [
        part for _, part in scene.parts()
        if type(part) is nn.Linear and as_shipped(part) and part.weight.dtype is torch.float32
    ]  # fmt: skip


class QuantizedLinear:
    """An nn.Linear with int8 products: its weight is quantized once by rows, its input at each call by its range."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.packed: DerivedValue[Any] = DerivedValue(_packed)

    def install(self) -> Callable[[], None]:
        own = self

        @functools.wraps(nn.Linear.forward)
        def forward(self: Any, input: Tensor) -> Tensor:
            if torch.compiler.is_compiling() or type(self) is not nn.Linear:
                return type(self).forward(self, input)  # type: ignore[no-any-return]
            made = own.run_int8(self, input)
            return nn.Linear.forward(self, input) if made is None else made

        entries = InstalledAttributes(self.module)
        entries.set("forward", MethodType(forward, self.module))
        return entries.remove

    def run_int8(self, module: Any, x: Any) -> Tensor | None:
        """The module's output in int8; None if its own product is to be computed."""
        if torch.is_grad_enabled() or needs_torch_operators() or nn.Linear.forward is not FORWARDS[nn.Linear]:
            return None
        held = [t for t in (module.weight, module.bias) if t is not None]
        if not all(isinstance(t, Tensor) and t.dtype is torch.float32 for t in (x, *held)) or not readable((x,)):
            return None
        if not x.numel():
            return None
        if torch.is_autocast_enabled("cpu") or x.shape[-1:] != held[0].shape[1:]:
            return None
        packed = self.packed.cached_value(held, len(held))
        if packed is None:
            if not readable(held):
                return None
            packed = self.packed.of(held, len(held))
        made: Tensor = torch.ops.quantized.linear_dynamic(x, packed, True)
        return made


def _packed(tensors: Sequence[Tensor], number: Any) -> Any:
    """The weight in int8, with the bias if there is one."""
    weight, *bias = tensors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = weight.detach()
        scales = weight.abs().amax(1).clamp_min(1e-12) / 127
        zeros = torch.zeros(len(weight), dtype=torch.int64, device="cpu")
        narrow = torch.quantize_per_channel(weight.contiguous(), scales.double(), zeros, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(narrow, bias[0].detach().clone() if bias else None)


OPTIMIZATION = _Optimization()
