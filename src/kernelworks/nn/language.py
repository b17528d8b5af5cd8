"""The loss of transformers' causal language models from the hidden states, so that the logits are never stored.

A ``*ForCausalLM`` computes the logits of every position, keeps them, and hands them to its loss, which widens them to
float32: for 16384 tokens of 128256 classes in bfloat16 that is 4 GB, and twice that again two or three times over. Its
training step needs none of them. The forward here calls the fused op on what the head would have been given.

As Liger's users know it: with labels in training, ``logits`` of the output is None. In evaluation, or without labels,
the model's own forward runs and returns the logits. The same holds if the loss is more than transformers' own
of a plain linear head (hooks or an adapter on the head, another loss, ``logits_to_keep``), or if the dispatcher has
no kernel for it but torch's, as on CPUs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import Tensor, nn

from kernelworks.contract import FLOATS, TensorSpec
from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.hooks import is_watching
from kernelworks.dispatch.plans import generation
from kernelworks.nn.compiled_loss import loss_with_gradients
from kernelworks.nn.originals import FORWARDS, TORCH_FUNCTIONS, forward_of, is_from_package, unwrap_decorators
from kernelworks.nn.rebind import same_code
from kernelworks.ops.reduction.linear_cross_entropy import OP, linear_cross_entropy

__all__ = ["USES", "FusedLossSite", "fused_loss_site", "is_known_causal_lm", "loss_of", "with_fused_loss"]

USES = (OP.name,)
LOSS = "ForCausalLM"  # This is transformers' name of the loss.
MANY = 4096  # So many rows stand for a training step that a compiler traces.

_GLOBAL_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)


def is_known_causal_lm(model: nn.Module) -> bool:
    """Whether a model's forward is, to the byte, that of transformers' Llama for causal language modelling, with a
    linear head and transformers' loss."""
    if "transformers" not in sys.modules or "forward" in model.__dict__:
        return False
    head = dict(model.named_children()).get("lm_head")  # of a script, too, whose modules are in no dictionary
    if head is None or forward_of(head) is not FORWARDS[nn.Linear] or getattr(model, "loss_type", None) != LOSS:
        return False
    same = same_code(unwrap_decorators(forward_of(model), "transformers"), _forwards())
    loss = getattr(model, "loss_function", None)
    return same and loss is _loss() and is_from_package("transformers", loss)


@functools.cache
def _forwards() -> Any:
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return unwrap_decorators(LlamaForCausalLM.forward, "transformers")


@functools.cache
def _loss() -> Any:
    from transformers.loss.loss_utils import ForCausalLMLoss

    return ForCausalLMLoss


@functools.cache
def with_fused_loss() -> Callable[..., Any]:
    """The forward that a swap gives to models that are ``is_known_causal_lm``."""
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils import can_return_tuple

    def fused(self: Any, labels: Tensor, inputs: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        outputs = self.model(**inputs, **kwargs)
        loss = loss_of(outputs.last_hidden_state, self.lm_head, labels, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=None,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def forward(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        inputs = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
            "past_key_values": past_key_values, "inputs_embeds": inputs_embeds, "use_cache": use_cache,
        }  # fmt: skip
        whole = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if labels is not None and self.training and whole and _plain_head(self, labels.numel()):
            return fused(self, labels, inputs, kwargs)
        return type(self).forward(self, **inputs, labels=labels, logits_to_keep=logits_to_keep, **kwargs)

    forward = can_return_tuple(forward)
    return forward


@dataclass
class FusedLossSite:
    """What a swap found in a model, and for which calls the op has a kernel of its own."""

    loss: Any
    forward: Any  # of the head
    of_class: Any  # the model's forward
    taken: dict[tuple[torch.dtype, str, int, int], bool] = field(default_factory=dict)

    def serves(self, weight: Tensor, rows: int) -> bool:
        """Whether a kernel of ours would take a training step of so many rows. torch's stores the logits."""
        compiling = torch.compiler.is_compiling()
        key = (_product_dtype(weight), weight.device.type, MANY if compiling else rows, generation())
        found = self.taken.get(key)
        if found is None:
            if compiling:  # what the compiler traces must be known before
                return False
            found = self.taken[key] = is_watching() or _taken(weight.shape, *key[:3])
        return found


def fused_loss_site(model: Any) -> FusedLossSite:
    """What a swap keeps of a model that is ``is_known_causal_lm``."""
    found = FusedLossSite(model.loss_function, model.lm_head.__dict__.get("forward"), type(model).forward)
    weight = model.lm_head.weight
    for dtype in FLOATS:
        key = (dtype, weight.device.type, MANY)
        found.taken[*key, generation()] = _taken(weight.shape, *key)
    return found


def _taken(shape: torch.Size, dtype: torch.dtype, device: str, rows: int) -> bool:
    if device == "meta":
        return False
    classes, size = shape
    x = TensorSpec((rows, size), dtype, (size, 1), device)
    weight = TensorSpec((classes, size), dtype, (size, 1), device)
    args = (x, weight, TensorSpec((rows,), torch.int64, (1,), device), None, -100)
    return choose(OP, OP.request("training", args, ("x", "weight"))).kernel.source is not None


def _product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which the head multiplies: autocast's, or its own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def _plain_head(model: Any, rows: int) -> bool:
    """Whether the head still is a linear layer that nothing watches, the loss the one that was there, and the op has a
    kernel for them."""
    head, found = model._modules.get("lm_head"), model._kernelworks_loss
    if type(head).forward is not FORWARDS[nn.Linear] or head.__dict__.get("forward") is not found.forward:
        return False
    if type(model).forward is not found.of_class or F.linear is not TORCH_FUNCTIONS["linear"]:
        return False
    if model.loss_function is not found.loss or any(_GLOBAL_HOOKS):
        return False
    if head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks:
        return False
    weight = head._parameters.get("weight")
    if weight is None or not PLAIN_TYPES.issuperset((type(weight),)) or weight.dtype not in FLOATS:
        return False
    return weight.shape[0] == model.config.vocab_size and bool(found.serves(weight, rows))


def loss_of(
    hidden_states: Tensor,
    head: nn.Linear,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """transformers' ``ForCausalLMLoss`` of ``head(hidden_states)``, without them.

    The mean over the labels that count, or their sum over ``num_items_in_batch``. Under autocast the product is taken
    in autocast's dtype, as the head would take it.
    """
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(hidden_states.device)
    dtype = _product_dtype(head.weight)
    x = hidden_states.reshape(-1, hidden_states.shape[-1]).to(dtype)
    weight, own = head.weight.to(dtype), head._parameters["bias"]
    bias = None if own is None else own.to(dtype)
    if torch.compiler.is_compiling() and torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        loss = loss_with_gradients(x, weight, target, bias, ignore_index)
    else:
        loss = linear_cross_entropy(x, weight, target, bias, ignore_index=ignore_index)
    if num_items_in_batch is None:
        return loss
    counted = (target != ignore_index).sum()
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return torch.where(counted > 0, loss, 0.0) * (counted / num_items_in_batch)
