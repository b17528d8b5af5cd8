"""Attention of transformers' models that its ``sdpa`` refuses, since they cap their scores (Gemma 2) or have sinks
(gpt-oss): a swap meets them on ``eager``, a function of their own file, which adds masks where ours takes boolean ones.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.build.digest import fingerprint
from kernelworks.nn.originals import is_from_package

__all__ = ["run_eager_attention", "same_on_eager", "sdpa_ignores", "shows_weights"]

_ADDED = "_kernelworks_added"  # a mask's note of what eager adds for it, so that layers share one


def _eager(module: nn.Module) -> Any:
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def same_on_eager(
    model: nn.Module, attends: Callable[[Any], bool], reference: Callable[..., tuple[Tensor, ...]]
) -> bool:
    """Whether a model caps its scores or has sinks, and what its modules have for ``eager`` means the same as the op.
    ``attends`` tells a forward that looks up its attention function."""
    capped = _caps(model)
    found = [module for module in model.modules() if attends(type(module).forward)]
    sunk = bool(found) and all(_hands_on_sinks(module) for module in found)
    eagers = {_eager(module) for module in found}
    return bool(found and (capped or sunk)) and all(
        is_from_package("transformers", eager) and _means(eager, capped, sunk, reference) for eager in eagers
    )


def sdpa_ignores(model: nn.Module, attends: Callable[[Any], bool]) -> str:
    """What a model on ``sdpa`` says of its attention that this function leaves out and the op does not: "" if nothing.
    transformers before 5.23 runs Gemma 2 so, whose scores are then not capped."""
    found = [module for module in model.modules() if attends(type(module).forward)]
    if _caps(model) and any(_says(module, "softcap") for module in found):
        return "the cap of its scores"
    return "its sinks" if any(map(_hands_on_sinks, found)) else ""


def _caps(model: nn.Module) -> bool:
    cap = getattr(model.config, "attn_logit_softcapping", None)
    return not isinstance(cap, bool) and isinstance(cap, (int, float)) and cap > 0


def _hands_on_sinks(module: nn.Module) -> bool:
    """Whether a module has sinks, and its forward says so to whatever attends, as transformers calls them."""
    return _says(module, "s_aux") and isinstance(getattr(module, "sinks", None), Tensor)


def _says(module: nn.Module, argument: str) -> bool:
    """Whether a module's forward hands on an argument of this name."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    words = code.co_consts if code is not None else ()
    return any(argument in word if isinstance(word, tuple) else word == argument for word in words)


@functools.cache
def _means(eager: Any, capped: bool, sunk: bool, reference: Callable[..., tuple[Tensor, ...]]) -> bool:
    """Whether a function gives what the op does, of drawn numbers: heads that share keys, a mask, a cap that bites."""
    generator = torch.Generator().manual_seed(0)
    drawn: dict[str, Any] = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    q, k, v = (torch.randn(1, heads, n, 8, **drawn) for heads, n in ((4, 3), (2, 5), (2, 5)))
    seen = torch.ones(3, 5, dtype=torch.bool, device="cpu").tril(1)[None, None]
    sinks = torch.randn(4, **drawn) if sunk else None
    module = SimpleNamespace(num_key_value_groups=2, training=False, sinks=sinks)
    more: dict[str, Any] = ({"softcap": 0.6} if capped else {}) | ({"s_aux": sinks} if sunk else {})
    try:
        with torch.no_grad():
            found = eager(module, q, k, v, _added(seen, q.dtype), dropout=0.0, scaling=0.7, **more)[0]
            want = reference(q, k, v, None, None, 0.7, seen, False, more.get("softcap"), sinks)[0].transpose(1, 2)
    except Exception:  # it wants more than ours is given
        return False
    return found.shape == want.shape and bool(torch.allclose(found, want, rtol=1e-4, atol=1e-5))


def shows_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether the caller asks for the weights, which eager alone hands out."""
    return bool(kwargs.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False))


def run_eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float,
    scaling: float | None, is_causal: bool | None, kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What runs without a swap, given the mask that was made for ours."""
    looks_back = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if mask is None and looks_back and query.shape[2] > 1:
        seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = seen.tril()[None, None]
    if mask is not None and mask.dtype is torch.bool:
        mask = _added(mask, query.dtype)
    more = kwargs if is_causal is None else {**kwargs, "is_causal": is_causal}
    result: tuple[Tensor, Tensor | None] = _eager(module)(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, **more
    )
    return result


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is seen, the dtype's least number where not, as transformers makes a mask for eager."""
    if torch.compiler.is_compiling():
        return _adding(mask, dtype)
    if type(mask) is not Tensor:
        return _adding(mask, dtype)
    now, kept = fingerprint(mask), mask.__dict__.get(_ADDED)
    if kept is None or kept[:2] != (dtype, now):
        with torch.inference_mode(False), torch.no_grad():
            kept = dtype, now, _adding(mask, dtype), mask.untyped_storage()
        setattr(mask, _ADDED, kept)
    found: Tensor = kept[2]
    return found


def _adding(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
