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


# The first two are called hundreds of times a token, so they look into the module's dictionary of parameters before
# they take nn.Module.__getattr__, which costs as much as a small kernel.


def _linear(self: Any, input: Tensor) -> Tensor:
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:  # computed from others: a parametrization
        return calls.linear(input, self.weight, self.bias)
    return calls.linear(input, parameters["weight"], parameters["bias"])


def _llama_norm(self: Any, hidden_states: Tensor) -> Tensor:
    weight = self._parameters.get("weight")
    if weight is None:
        weight = self.weight
    if calls.pays_fused(hidden_states) and calls.expressible(hidden_states, weight):
        output: Tensor = rms_norm_op(hidden_states, weight, eps=self.variance_epsilon)
        return output
    return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]


def _layer_norm(self: Any, input: Tensor) -> Tensor:
    return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)


def _gelu(self: Any, input: Tensor) -> Tensor:
    return calls.gelu(input, approximate=self.approximate)


def _softmax(self: Any, input: Tensor) -> Tensor:
    return calls.softmax(input, self.dim, _stacklevel=5)


def _cross_entropy(self: Any, input: Tensor, target: Tensor) -> Tensor:
    return calls.cross_entropy(
        input,
        target,
        weight=self.weight,
        ignore_index=self.ignore_index,
        reduction=self.reduction,
        label_smoothing=self.label_smoothing,
    )


TORCH_MODULES: tuple[tuple[type[nn.Module], Known], ...] = (
    (nn.Linear, Known("linear", ("linear",), _linear)),
    (nn.LayerNorm, Known("layer norm", ("layer_norm",), _layer_norm)),
    (nn.RMSNorm, Known("rms norm", ("rms_norm",), _rms_norm)),
    (nn.GELU, Known("gelu", ("gelu",), _gelu)),
    (nn.Softmax, Known("softmax", ("softmax",), _softmax)),
    (nn.CrossEntropyLoss, Known("cross entropy", ("cross_entropy",), _cross_entropy)),
)


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
    for cls, entry in TORCH_MODULES:
        if forward is cls.forward:
            return entry
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
    for cls, reason in _NOT_OURS:
        if isinstance(module, cls):
            return reason
    activation = getattr(module, "act_fn", None)
    if activation is not None and hasattr(module, "gate_proj"):
        return f"its gate is {type(activation).__name__}, and the fused op is for SiLU"
    return "its forward calls nothing that kernelworks has an op for"
