"""A whole decoder layer of transformers' Llama family in one forward: the same ops, without a module call for each.

Decoding one token calls some 400 small modules, and their bookkeeping is time in which no weight is read. The forward
here does what the layer's own does, in the same order, with the residual addition fused into the norm that follows.
It runs only while nothing could tell the difference: no gradients, no compiler, no hook on any part, every part and
its forward still the one that was there when the model was swapped. Otherwise the layer's own forward runs.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn

from kernelworks.models import attention, calls
from kernelworks.models.gates import is_silu
from kernelworks.models.rebind import same_code
from kernelworks.ops.linear.linear import linear as linear_op
from kernelworks.ops.norm.rms_norm import rms_norm as rms_norm_op

__all__ = ["Parts", "decoder_layer", "parts_of"]

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)

_LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


@dataclass
class Parts:
    """The parts of one layer as they were found, and where to look whether they still are."""

    links: tuple[tuple[Mapping[str, Any], str, nn.Module, Any], ...]  # parent's modules, name, part, its forward
    hooks: tuple[Mapping[Any, Any], ...]
    slots: tuple[tuple[Mapping[str, Any], str], ...]  # weight and bias of each linear, then the norms' weights
    epsilons: tuple[float, ...]
    attention: Any

    def weights(self, hidden_states: Tensor) -> list[Any] | None:
        """The parameters in the order of ``slots``, or None where the layer's own forward must run."""
        dtype = hidden_states.dtype
        if not calls.expressible(hidden_states) or any(self.hooks) or any(_GLOBAL_HOOKS):
            return None
        for modules, name, part, forward in self.links:
            if modules.get(name) is not part or part.__dict__.get("forward") is not forward:
                return None
        weights = [parameters.get(name) for parameters, name in self.slots]
        for weight in weights:
            if weight is not None and weight.dtype is not dtype:
                return None
        return weights


def decoder_layer(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> Tensor:
    """The forward that a swap gives to layers that ``parts_of`` recognises."""
    parts: Parts = self._kernelworks_parts
    weights = None
    if not (_is_compiling() or _grad_enabled() or kwargs or position_embeddings is None):
        weights = parts.weights(hidden_states)
    module = parts.attention
    if weights is None or module.config._attn_implementation != attention.IMPLEMENTATION:
        output: Tensor = type(self).forward(
            self, hidden_states, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache, position_embeddings=position_embeddings, **kwargs,
        )  # fmt: skip
        return output
    linear, rms_norm = linear_op, rms_norm_op
    q_weight, q_bias, k_weight, k_bias, v_weight, v_bias, o_weight, o_bias = weights[:8]
    gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias = weights[8:14]
    eps = parts.epsilons

    x = rms_norm(hidden_states, weights[14], eps=eps[0])
    shape = hidden_states.shape[:-1]
    heads = (*shape, -1, module.head_dim)
    q, k = linear(x, q_weight, q_bias).view(heads), linear(x, k_weight, k_bias).view(heads)
    value = linear(x, v_weight, v_bias).view(heads).transpose(1, 2)
    if len(eps) == 4:
        q, k = rms_norm(q, weights[16], eps=eps[2]), rms_norm(k, weights[17], eps=eps[3])
    cos, sin = position_embeddings  # type: ignore[misc]
    query, key = calls.rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin, otherwise=_rotate)
    if past_key_values is not None:
        key, value = attention.growing(past_key_values).update(key, value, module.layer_idx)
    attended, _ = attention.attention_forward(module, query, key, value, attention_mask, scaling=module.scaling)
    attended = linear(attended.reshape(*shape, -1), o_weight, o_bias)

    x, residual = rms_norm(attended, weights[15], eps=eps[1], residual=hidden_states)
    x = calls.silu_mul(linear(x, gate_weight, gate_bias), linear(x, up_weight, up_bias))
    return residual + linear(x, down_weight, down_bias)  # type: ignore[no-any-return]


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> Any:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


# ---------------------------------------------------------------- recognising


@functools.cache
def _known() -> tuple[Any, tuple[Any, ...], Any, Any]:
    """The forwards of the layer, of attention (with and without norms of heads), of the MLP and of the norm."""
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral.modeling_mistral import MistralAttention
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    attentions = (llama.LlamaAttention, Qwen2Attention, Qwen3Attention, MistralAttention)
    layer = inspect.unwrap(llama.LlamaDecoderLayer.forward)
    return layer, tuple(a.forward for a in attentions), llama.LlamaMLP.forward, llama.LlamaRMSNorm.forward


def parts_of(layer: nn.Module) -> Parts | None:
    """The parts of a decoder layer that a swap has been through, or None where it is not one that is known."""
    if "transformers" not in sys.modules or not {"self_attn", "mlp", *_NORMS} <= layer._modules.keys():
        return None
    known_layer, known_attentions, known_mlp, known_norm = _known()
    module, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    if not same_code(inspect.unwrap(type(layer).forward), known_layer) or "forward" in layer.__dict__:
        return None
    if not any(same_code(type(module).forward, a) for a in known_attentions):
        return None
    rotary = type(module).forward.__globals__.get("apply_rotary_pos_emb")
    if rotary is None or attention.known_function(rotary) is None or not same_code(type(mlp).forward, known_mlp):
        return None
    norms = [*_NORMS, *(_HEAD_NORMS if {"q_norm", "k_norm"} <= module._modules.keys() else ())]
    parts: dict[str, Any] = {
        path: layer.get_submodule(path) for path in ("self_attn", "mlp", "mlp.act_fn", *_LINEARS, *norms)
    }
    if any(not same_code(type(parts[path]).forward, known_norm) for path in norms) or not is_silu(parts["mlp.act_fn"]):
        return None
    if any(type(parts[path]).forward is not nn.Linear.forward for path in _LINEARS):
        return None
    wanted = [(path, name) for path in _LINEARS for name in ("weight", "bias")] + [(path, "weight") for path in norms]
    if any(name not in parts[path]._parameters for path, name in wanted):
        return None
    return Parts(
        links=tuple(
            (layer.get_submodule(path.rpartition(".")[0])._modules, path.rpartition(".")[2], part,
             part.__dict__.get("forward"))
            for path, part in parts.items()
        ),
        hooks=tuple(getattr(part, hooks) for part in parts.values() for hooks in _HOOKS),
        slots=tuple((parts[path]._parameters, name) for path, name in wanted),
        epsilons=tuple(parts[path].variance_epsilon for path in norms),
        attention=module,
    )  # fmt: skip
