"""``torch.nn.MultiheadAttention`` by ops of ours. Torch's function of it is read and compiled anew for that."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.nn.originals import shipped_forward
from kernelworks.nn.rebind import Rebinder

__all__ = ["MultiheadAttention"]


def _multi_head() -> Callable[..., Any]:
    """Torch's forward of its module, whose function calls ours in place of torch's. If either was replaced, or this
    version of torch writes them otherwise, the forward that there is."""
    shipped = shipped_forward(torch.nn.MultiheadAttention)
    rebound = Rebinder().rebind(F.multi_head_attention_forward)
    if rebound is None or not isinstance(shipped, FunctionType):
        return torch.nn.MultiheadAttention.forward
    functional = ModuleType(F.__name__)
    vars(functional).update(vars(F), multi_head_attention_forward=rebound.function)
    return FunctionType(shipped.__code__, shipped.__globals__ | {"F": functional}, "forward", shipped.__defaults__)


_MULTI_HEAD = _multi_head()


class MultiheadAttention(torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` by ``kernelworks.linear`` and ``attention``, or ``softmax`` if the weights are
    asked for (``need_weights``, torch's default: without it they are never stored). In inference torch has the whole
    module in one function of its own, which runs where torch would take it.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        found: tuple[Tensor, Tensor | None] = _MULTI_HEAD(
            self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
        return found
