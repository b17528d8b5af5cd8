"""The modules that a swap knows by what they compute, and the forwards that replace theirs.

A module is recognised by its forward function, not by its class's name: torch's own (``nn.Linear.forward`` and
subclasses that keep it), one whose bytecode is that of transformers' Llama, which Qwen, Mistral and many others
repeat to the byte, or one that identity testing finds to be the same formula. The replacement reads the module's own
parameters at every call, so tied weights, a later ``.to(dtype)`` and parametrizations keep working, and it is set on
the instance, so hooks keep working too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.models import calls
from kernelworks.models.gates import is_silu
from kernelworks.models.identify import rms_norm_forward
from kernelworks.models.rebind import same_code
from kernelworks.ops.norm.rms_norm import rms_norm as rms_norm_op

__all__ = ["Known", "activations", "known", "reason_left"]


@dataclass(frozen=True)
class Known:
    """What a module is, the ops that serve it now, and the forward that calls them."""

    kind: str
    ops: tuple[str, ...]
    forward: Callable[..., Any]


# ---------------------------------------------------------------- torch's modules


def _shipped(cls: type[nn.Module]) -> Any:
    """The forward that torch ships for a class; where a user put another there before this module was read, an object
    that nothing is identical to."""
    found = cls.__dict__.get("forward")
    code, home = getattr(found, "__code__", None), sys.modules[cls.__module__]
    same = code is not None and code.co_filename == home.__file__ and code.co_qualname == f"{cls.__name__}.forward"
    return found if same else object()


SHIPPED = {
    cls: _shipped(cls)
    for cls in (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.GELU, nn.Softmax, nn.CrossEntropyLoss, nn.SiLU)
}
_LINEAR, _LAYER_NORM, _RMS_NORM, _GELU, _SOFTMAX, _CROSS_ENTROPY, _ = SHIPPED.values()
_torchs = calls.TORCHS

# Each of these first asks whether torch's forward and the function that it calls still are torch's: a user may have put
# another there since. The linear one is called hundreds of times a token, so it looks into the module's dictionary of
# parameters before it takes nn.Module.__getattr__, which costs as much as a small kernel.


def _linear(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _LINEAR or F.linear is not _torchs["linear"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:  # computed from others: a parametrization
        return calls.linear(input, self.weight, self.bias)
    return calls.linear(input, parameters["weight"], parameters["bias"])


def _layer_norm(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _LAYER_NORM or F.layer_norm is not _torchs["layer_norm"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    if type(self).forward is not _RMS_NORM or F.rms_norm is not _torchs["rms_norm"]:
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)


def _gelu(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _GELU or F.gelu is not _torchs["gelu"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    return calls.gelu(input, approximate=self.approximate)


def _softmax(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _SOFTMAX or F.softmax is not _torchs["softmax"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    return calls.softmax(input, self.dim, _stacklevel=5)


def _cross_entropy(self: Any, input: Tensor, target: Tensor) -> Tensor:
    if type(self).forward is not _CROSS_ENTROPY or F.cross_entropy is not _torchs["cross_entropy"]:
        return type(self).forward(self, input, target)  # type: ignore[no-any-return]
    return calls.cross_entropy(
        input,
        target,
        weight=self.weight,
        ignore_index=self.ignore_index,
        reduction=self.reduction,
        label_smoothing=self.label_smoothing,
    )


TORCH_MODULES: tuple[tuple[Any, Known], ...] = (
    (_LINEAR, Known("linear", ("linear",), _linear)),
    (_LAYER_NORM, Known("layer norm", ("layer_norm",), _layer_norm)),
    (_RMS_NORM, Known("rms norm", ("rms_norm",), _rms_norm)),
    (_GELU, Known("gelu", ("gelu",), _gelu)),
    (_SOFTMAX, Known("softmax", ("softmax",), _softmax)),
    (_CROSS_ENTROPY, Known("cross entropy", ("cross_entropy",), _cross_entropy)),
)


def _llama_norm(self: Any, hidden_states: Tensor) -> Tensor:
    weight = self._parameters.get("weight")
    if weight is None:
        weight = self.weight
    if calls.pays_fused(hidden_states) and calls.expressible(hidden_states, weight):
        output: Tensor = rms_norm_op(hidden_states, weight, eps=self.variance_epsilon)
        return output
    return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- transformers' modules


def _gelu_erf(self: Any, input: Tensor) -> Tensor:
    return calls.gelu(input)


def _gelu_tanh(self: Any, input: Tensor) -> Tensor:
    return calls.gelu(input, approximate="tanh")


def _gated_mlp(self: Any, x: Tensor) -> Tensor:
    if not is_silu(self.act_fn):
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    return self.down_proj(calls.silu_mul(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]


def _fused_gated_mlp(self: Any, hidden_states: Tensor) -> Tensor:
    if not is_silu(self.activation_fn):
        return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]
    gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
    return self.down_proj(calls.silu_mul(gate, up))  # type: ignore[no-any-return]


@functools.cache
def _activations() -> dict[Any, Known]:
    """transformers' GELU classes by their forward: two formulas under six names."""
    from transformers import activations as t

    erf, tanh = Known("gelu", ("gelu",), _gelu_erf), Known("gelu", ("gelu",), _gelu_tanh)
    tanh_classes = (t.GELUTanh, t.NewGELUActivation, t.FastGELUActivation, t.AccurateGELUActivation)
    return {t.GELUActivation.forward: erf} | {c.forward: tanh for c in tanh_classes}


@functools.cache
def _llama() -> tuple[Any, Any]:
    from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

    return LlamaRMSNorm.forward, LlamaMLP.forward


def _phi3_mlp() -> Any:
    from transformers.models.phi3.modeling_phi3 import Phi3MLP

    return Phi3MLP.forward


def _from_transformers(module: nn.Module, forward: Any) -> Known | None:
    if forward in _activations():
        return _activations()[forward]
    norm, mlp = _llama()
    if same_code(forward, norm):
        return Known("rms norm", ("rms_norm",), _llama_norm)
    if same_code(forward, mlp) and is_silu(module.act_fn):
        return Known("gated MLP", ("silu_mul",), _gated_mlp)
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    if "gate_up_proj" in names and same_code(forward, _phi3_mlp()) and is_silu(module.activation_fn):
        return Known("gated MLP", ("silu_mul",), _fused_gated_mlp)
    return None


# ---------------------------------------------------------------- recognising


def known(module: nn.Module) -> Known | None:
    """What ``module`` is, or None where its forward is none of those above."""
    forward = type(module).forward
    for shipped, entry in TORCH_MODULES:
        if forward is shipped:
            patched = any(getattr(F, op) is not _torchs[op] for op in entry.ops)
            return None if patched else entry
    theirs = _from_transformers(module, forward) if "transformers" in sys.modules else None
    if theirs is not None:
        return theirs
    written_out = rms_norm_forward(module)
    return Known("rms norm", ("rms_norm",), written_out) if written_out is not None else None


def activations(module: nn.Module) -> dict[str, nn.Module]:
    """The SiLU modules that a module holds directly, by name: what a fused gate may take over."""
    return {name: child for name, child in module.named_children() if is_silu(child)}


_NOT_OURS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.Embedding, "torch already reads the rows at the rate of memory"),
    (nn.Dropout, "no arithmetic in inference, random numbers in training"),
    (nn.Identity, "does nothing"),
    (nn.SiLU, "stands alone: kernelworks has silu fused with the product that follows, not silu"),
)


def reason_left(module: nn.Module) -> str:
    """Why a module without a known forward stays as it is."""
    for shipped, entry in TORCH_MODULES:
        if type(module).forward is shipped:
            return f"torch.nn.functional.{entry.ops[0]} was replaced, by somebody else"
    for cls, reason in _NOT_OURS:
        if isinstance(module, cls):
            return reason
    activation = getattr(module, "act_fn", None)
    if activation is not None and hasattr(module, "gate_proj"):
        return f"its gate is {type(activation).__name__}, and the fused op is for SiLU"
    return "its forward calls nothing that kernelworks has an op for"
