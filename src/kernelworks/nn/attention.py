"""Attention of transformers' models: an entry in their registry, and a cache that grows in place.

transformers looks up the attention function by ``config._attn_implementation``. A swap registers one function under
the name ``kernelworks`` (with the masks that it makes for ``sdpa``) and names it in the model's configuration.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.nn import functional
from kernelworks.nn.attention_masks import mask_function, pattern_of
from kernelworks.nn.eager_attention import run_eager_attention, same_on_eager, sdpa_ignores, shows_weights
from kernelworks.nn.originals import TORCH_FUNCTIONS, is_from_package
from kernelworks.ops.attention.attention import OP as ATTENTION

__all__ = [
    "IMPLEMENTATION",
    "INTERNAL",
    "KIND",
    "USES",
    "appends_to_cache",
    "attend_all_keys",
    "configurations",
    "decoding_kernel",
    "extend_cache",
    "growing_view",
    "install_name",
    "register",
    "uses_attention_registry",
    "wrap_growing_cache",
]  # fmt: skip

IMPLEMENTATION = "kernelworks"
USES = (ATTENTION.name,)
KIND = "attention"
INTERNAL = "_attn_implementation_internal"  # transformers' name of where a configuration keeps it

_sdpa_forward: Callable[..., Any]  # transformers' own, set by register(): importing this module imports no transformers

_SCALES = frozenset({type(None), float, int})  # as torch takes one
_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled


# ---------------------------------------------------------------- the registry


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it: query [B, H, Lq, D], key and value [B, Hkv, Lk, D]; returns [B, Lq, H, D].

    Takes what the op can say and hands the rest (dropout, a bias on positions, paged caches, masks that add) to
    transformers' own ``sdpa`` function, with which it agrees on the meaning of every argument; of what caps its scores
    (``softcap``) or has sinks (``s_aux``) to the module's own ``eager``.
    """
    special = kwargs and (kwargs.get("position_bias") is not None or kwargs.get("cache") is not None)
    softcap, sinks = (kwargs.get("softcap"), kwargs.get("s_aux")) if kwargs else (None, None)
    before = _as_before if softcap is None and sinks is None else run_eager_attention
    pattern = None
    if (
        before is run_eager_attention
    ):  # which gives a query that sees no key the mean of all values, and ours 0: padding is its own
        pattern = pattern_of(attention_mask) if attention_mask is not None else None
        padded = attention_mask is not None and pattern is None
        special = special or padded or shows_weights(module, kwargs)
    theirs = F.scaled_dot_product_attention is not TORCH_FUNCTIONS["scaled_dot_product_attention"]
    looks_back = getattr(module, "is_causal", True) if is_causal is None else is_causal
    odd = (
        not (functional.is_zero_probability(dropout) and functional.is_bool(looks_back)) or type(scaling) not in _SCALES
    )
    if odd or special or theirs or not functional.attends(query, key, value, attention_mask, grouped=True):
        return before(module, query, key, value, attention_mask, dropout, scaling, is_causal, kwargs)
    causal, window, given = None, None, attention_mask
    if attention_mask is not None:
        pattern = pattern or pattern_of(attention_mask)
        if pattern is not None:
            attention_mask, causal, window = None, "bottom_right", pattern.window
    elif query.shape[2] > 1 and looks_back:
        causal = "top_left"  # with longer keys (an empty static cache) the last ones are masked, as in sdpa
    args = (query, key, value, causal, window, scaling, attention_mask, False, softcap, sinks)
    try:
        if not functional.prefers_torch(ATTENTION, *args):
            return ATTENTION.call(*args).transpose(1, 2).contiguous(), None
    except functional.CONTRACT_ERRORS:
        pass
    return before(module, query, key, value, given, dropout, scaling, is_causal, kwargs)


def _as_before(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float,
    scaling: float | None, is_causal: bool | None, kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What runs without a swap."""
    result: tuple[Tensor, None] = _sdpa_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
    )
    return result


def decoding_kernel(query: Tensor, key: Tensor, value: Tensor) -> Callable[..., Any] | None:
    """What attends from single queries to every key on tensors like these, as ``f(q, k, v, causal, window, scale, mask,
    with_lse, softcap, sinks)``; None if the op does not take them. It serves any number of keys."""
    if not functional.attends(query, key, value, None, grouped=True):
        return None
    args = (query, key, value, None, None, None, None, False, None, None)
    plan: Callable[..., Any] = ATTENTION.make_plan("forward", args).run
    return attend_all_keys if ATTENTION.choice(args, None).native else plan


def attend_all_keys(
    query: Tensor, key: Tensor, value: Tensor, causal: None, window: None, scale: float | None, mask: None, lse: bool,
    softcap: None, sinks: None,
) -> Tensor:  # fmt: skip
    """As transformers calls torch for one query: any heads that share keys are torch's to pair up."""
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=grouped)


def register() -> None:
    """Adds the name to transformers' registries of attention and mask functions. Changes no model."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    global _sdpa_forward
    _sdpa_forward = sdpa_attention_forward
    AttentionInterface.register(IMPLEMENTATION, attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, mask_function)
    _constant()


def _constant() -> None:
    """Has torch's compiler take our name for the constant that it is: torch 2.11 and 2.12 take a string of a class of
    its own for an object that they know nothing of, and fail at the first comparison."""
    with contextlib.suppress(ImportError, AttributeError):  # another torch, which may know
        from torch._dynamo.utils import common_constant_types
        from torch._dynamo.variables.builder import VariableBuilder

        if _Name not in common_constant_types:
            kept: Any = VariableBuilder._type_dispatch_impl  # made of those types
            kept.cache_clear()
            common_constant_types.add(_Name)


class _Name(str):
    """Our name in a configuration. A copy of the configuration, or a file of it, says what stood there before: it may
    be read where nobody has registered ours."""

    before: str

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return self.before

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self.before,)


def install_name(config: Any) -> Callable[[], None]:
    """Names our attention in a configuration; returns what takes the name back, if it stands there still."""
    register()
    space = object.__getattribute__(config, "__dict__")
    ours = _Name(IMPLEMENTATION)
    ours.before = space[INTERNAL]
    space[INTERNAL] = ours

    def back() -> None:
        if space[INTERNAL] == IMPLEMENTATION:  # else somebody has asked for another since, and that stays
            space[INTERNAL] = ours.before

    return back


def configurations(model: nn.Module) -> list[tuple[Any, str]]:
    """The configurations of a model's parts that transformers made, each with the reason why its attention cannot be
    replaced, or ""."""
    if "transformers" not in sys.modules:
        return []
    from transformers import PreTrainedModel

    found: dict[int, tuple[Any, str]] = {}
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        config = module.config
        current = getattr(config, INTERNAL, None)
        reason = ""
        if isinstance(current, _Name):
            reason = "it shares its configuration with another model, which is swapped"
        elif current not in ("sdpa", IMPLEMENTATION) and not (current == "eager" and _same_on_eager(module)):
            reason = f"its attention implementation is {current!r}, and only 'sdpa' means what the op means"
        elif current != "eager" and not _sdpa_is_theirs():
            reason = "transformers' 'sdpa' or torch's function behind it was replaced by somebody else"
        elif current == "sdpa" and (ignored := sdpa_ignores(module, uses_attention_registry)):
            reason = f"transformers' 'sdpa' ignores {ignored}; with attn_implementation='eager' it can be replaced"
        elif not (getattr(module, "_supports_attention_backend", False) and module._can_set_attn_implementation()):
            reason = f"{type(module).__name__} does not take attention functions from transformers' registry"
        if id(config) not in found or reason:
            found[id(config)] = (config, reason)
    return list(found.values())


def _same_on_eager(model: nn.Module) -> bool:
    return same_on_eager(model, uses_attention_registry, ATTENTION.contract.reference)


def _sdpa_is_theirs() -> bool:
    """Whether ``sdpa`` in transformers' registry is transformers' own, and calls torch's own."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return is_from_package("transformers", ALL_ATTENTION_FUNCTIONS["sdpa"]) and (
        F.scaled_dot_product_attention is TORCH_FUNCTIONS["scaled_dot_product_attention"]
    )


def uses_attention_registry(forward: Any) -> bool:
    """Whether a forward takes its attention function from transformers' registry."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


# ---------------------------------------------------------------- the cache


@dataclass
class Storage:
    """Memory for more tokens than a cache layer holds. ``filled`` tokens are somebody's; what follows is free."""

    keys: Tensor
    values: Tensor
    filled: int
    both: Tensor | None = None  # [2, B, H, capacity, D], what keys and values are parts of
    memory: tuple[Any, ...] = ()  # what keys and values lie in
    own: tuple[int, ...] = ()  # how many tensors lie in each, those above alone

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of a cache, or a file of it, is as transformers made it: it starts anew

    def takes(self, layer: Any, after: int) -> bool:
        """Whether a layer's keys and values are ours as we left them, and ``after`` tokens fit."""
        return (
            after <= self.keys.shape[2]
            and _same(layer.keys, self.keys, self.filled)
            and _same(layer.values, self.values, self.filled)
            and (torch.is_inference_mode_enabled() or not self.keys.is_inference())
        )

    def is_shared(self, layer: Any) -> bool:
        """Whether anything but ours and a layer's own keys and values lies in the memory: what somebody keeps of the
        cache as it was at some token, say. Where there is nothing, the layer's are to be filled again."""
        layer.keys = layer.values = None
        for memory, own in zip(self.memory, self.own, strict=True):
            if _uses(memory._cdata) != own:
                self.fill(layer, self.filled)
                return True
        return False

    def fill(self, layer: Any, tokens: int) -> None:
        self.filled = tokens
        layer.keys, layer.values = self.keys.narrow(2, 0, tokens), self.values.narrow(2, 0, tokens)


_uses: Callable[[int], int] = torch._C._storage_Use_Count


def _same(found: Tensor, whole: Tensor, filled: int) -> bool:
    """Whether a tensor [B, H, L, D] is the first ``filled`` tokens of ours."""
    return (
        found.data_ptr() == whole.data_ptr()
        and found.shape == (*whole.shape[:2], filled, whole.shape[3])
        and found.stride() == whole.stride()
        and found.dtype is whole.dtype
        and not found.is_neg()
    )


def appends_to_cache(forward: Any) -> bool:
    """Whether a forward appends to a cache that it receives as ``past_key_values``."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return code is not None and "past_key_values" in code.co_varnames and "update" in code.co_names


def wrap_growing_cache(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same forward, with a plain cache made to grow in place."""

    @functools.wraps(forward)
    def with_growing_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        past = kwargs.get("past_key_values")
        if past is not None:
            kwargs["past_key_values"] = growing_view(past)
        return forward(self, *args, **kwargs)

    return with_growing_cache


def growing_view(past: Any) -> Any:
    """A view of a plain ``DynamicCache`` that appends in place; anything else as it is.

    transformers' own cache copies all keys and values at every token. The view shares the cache's state, so what the
    caller holds sees every token. It keeps spare memory behind each layer's tensors and writes only where no view of
    the same storage has written, so caches that were copied, cropped or reordered stay independent.
    """
    if past is None or _is_compiling() or _grad_enabled():
        return past
    if type(past) is not _dynamic_cache() or past.offloading:
        return past
    view: Any = object.__new__(_growing_type())
    view.__dict__ = past.__dict__
    return view


def extend_cache(
    past: Any, keys: Tensor, values: Tensor, layer_idx: int, pair: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A layer's keys and values with new ones behind them, as ``past.update`` gives; in place in a plain cache.

    ``pair`` is what keys and values lie side by side in, [2, ...], where they do and will be overwritten.
    """
    if type(past) is _dynamic_cache() and not _grad_enabled() and not past.offloading:
        layers = past.layers
        if layer_idx < len(layers) and _plain_layer(layers[layer_idx]):
            return append(layers[layer_idx], keys, values, pair)
    if pair is not None:  # another kind of cache may keep what it is given
        keys, values = keys.clone(), values.clone()
    updated: tuple[Tensor, Tensor] = past.update(keys, values, layer_idx)
    return updated


def _plain_layer(layer: Any) -> bool:
    return type(layer) is _dynamic_layer() and bool(layer.is_initialized) and layer.keys.dim() == 4


@functools.cache
def _dynamic_cache() -> Any:
    from transformers.cache_utils import DynamicCache

    return DynamicCache


@functools.cache
def _dynamic_layer() -> Any:
    from transformers.cache_utils import DynamicLayer

    return DynamicLayer


@functools.cache
def _growing_type() -> type:
    from transformers.cache_utils import DynamicCache

    class GrowingCache(DynamicCache):
        """A DynamicCache whose plain layers append in place."""

        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            layers = self.layers
            if layer_idx < len(layers) and _plain_layer(layers[layer_idx]):
                return append(layers[layer_idx], key_states, value_states)
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    return GrowingCache


def append(layer: Any, keys: Tensor, values: Tensor, pair: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Adds tokens to one layer: what ``torch.cat`` would give, without copying what is there already.

    ``torch.cat`` leaves what the layer held before to whoever keeps it: then, as it does, all is copied.
    """
    if not (_follows(keys, layer.keys) and _follows(values, layer.values)) or keys.shape[2] != values.shape[2]:
        result: tuple[Tensor, Tensor] = type(layer).update(layer, keys, values)
        return result
    before: int = layer.keys.shape[2]
    after = before + keys.shape[2]
    storage: Storage | None = layer.__dict__.get("_kernelworks_storage")
    if storage is None or not storage.takes(layer, after) or storage.is_shared(layer):
        storage = layer._kernelworks_storage = _with_capacity(layer.keys, layer.values, after + max(64, after // 4))
    added = keys.shape[2]
    if pair is not None and storage.both is not None:
        storage.both.narrow(3, before, added).copy_(pair)
    else:
        storage.keys.narrow(2, before, added).copy_(keys)
        storage.values.narrow(2, before, added).copy_(values)
    storage.fill(layer, after)
    return layer.keys, layer.values


def _follows(added: Tensor, held: Tensor) -> bool:
    """Whether tokens are like those that they come behind, [B, H, L, D]."""
    return (
        added.dim() == held.dim() == 4
        and added.shape[:2] == held.shape[:2]
        and added.shape[3] == held.shape[3]
        and added.dtype is held.dtype
        and added.get_device() == held.get_device()
    )


def _with_capacity(keys: Tensor, values: Tensor, capacity: int) -> Storage:
    """The tokens of [B, H, L, D] twice at the start of tensors that hold ``capacity`` tokens, side by side if alike."""
    batch, heads, length, size = keys.shape
    both = keys.new_empty((2, batch, heads, capacity, size)) if keys.shape == values.shape else None
    if both is not None:
        storage = Storage(both[0], both[1], length, both)
    else:
        wide = values.new_empty((*values.shape[:2], capacity, values.shape[3]))
        storage = Storage(keys.new_empty((batch, heads, capacity, size)), wide, length)
    storage.keys.narrow(2, 0, length).copy_(keys)
    storage.values.narrow(2, 0, length).copy_(values)
    lie_in = (storage.keys,) if both is not None else (storage.keys, storage.values)
    storage.memory = tuple(tensor.untyped_storage() for tensor in lie_in)
    storage.own = tuple(_uses(memory._cdata) for memory in storage.memory)
    return storage
