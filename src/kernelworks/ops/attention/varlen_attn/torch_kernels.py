"""varlen_attn as torch has it: its own function on a GPU, elsewhere its attention of one sequence after the other."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.ops.attention.varlen_attn.contract import TEMPLATE, Window, check_values
from kernelworks.templates.attention.reference import heads_first, tokens_first
from kernelworks.templates.attention.torch_kernels import composite as dense_in_torch

__all__ = ["composite", "native"]


@functools.cache
def _torchs() -> tuple[Any, frozenset[str]] | None:
    """The module of torch's function, and the names of its arguments; None where the installed torch has none with
    windows."""
    try:
        module = importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        return None
    names = frozenset(inspect.signature(module.varlen_attn).parameters)
    return (module, names) if {"window_size", "scale", "return_aux"} <= names else None


def _torchs_takes(query: Tensor, key: Tensor) -> bool:
    """Whether torch's function serves these: it has kernels for a GPU alone."""
    if not query.is_cuda or query.dtype == torch.float32 or query.shape[2] % 8 or not (query.numel() and key.numel()):
        return False
    found = _torchs()
    return found is not None and (query.shape[1] == key.shape[1] or "enable_gqa" in found[1])


def _by_torchs(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    scale: float | None, window_size: Window, enable_gqa: bool, with_lse: bool,
) -> Any:  # fmt: skip
    found = _torchs()
    assert found is not None
    torchs, names = found
    more: dict[str, Any] = {"enable_gqa": enable_gqa} if "enable_gqa" in names else {}
    if with_lse:
        more["return_aux"] = torchs.AuxRequest(lse=True)
    result = torchs.varlen_attn(
        query, key, value, cu_seq_q.int(), cu_seq_k.int(), max_q, max_k, scale=scale,
        window_size=tuple(window_size), **more,
    )  # fmt: skip
    if not with_lse:
        return result
    return result[0], result[1].masked_fill(result[1] == torch.inf, -torch.inf)  # of a query that sees no key


def native(*args: Any) -> Any:
    """What a user of torch has: its function where it has kernels, else a loop over the sequences."""
    query, key, _, cu_seq_q, cu_seq_k, *_ = args
    if _torchs_takes(query, key):
        return _by_torchs(*args)
    contents = tensor_kind(cu_seq_q) == tensor_kind(cu_seq_k) == MEMORY
    if contents and query.device.type == "cpu":
        check_values(query, key, *args[3:7])  # tokens of no sequence would be left out
    return TEMPLATE.native(*args) if contents else composite(*args)


def _seen(query: Tensor, key: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, window_size: Window) -> Tensor:
    """[1, 1, T, Tk], without a look at any value: True where a query sees a key."""
    q, k = (torch.arange(t.shape[0], device=t.device, dtype=cu_seq_q.dtype) for t in (query, key))
    of_q = torch.searchsorted(cu_seq_q[1:], q, right=True)
    of_k = torch.searchsorted(cu_seq_k[1:].to(cu_seq_q.dtype), k, right=True)
    ahead = k - (q + (cu_seq_k[1:][of_q] - cu_seq_q[1:][of_q])).unsqueeze(1)
    seen = of_q.unsqueeze(1) == of_k
    left, right = window_size
    if left >= 0:
        seen = seen & (ahead >= -left)
    if right >= 0:
        seen = seen & (ahead <= right)
    return seen[None, None]


def composite(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    scale: float | None = None, window_size: Window = (-1, -1), enable_gqa: bool = False, with_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention of all tokens with a mask of sequences: what a transform can look into. It forms all scores."""
    mask = _seen(query, key, cu_seq_q, cu_seq_k, window_size)
    q, k, v = (heads_first(t) for t in (query, key, value))
    result = dense_in_torch(q, k, v, None, None, scale, mask, with_lse)
    return (tokens_first(result[0]), result[1].squeeze(0)) if with_lse else tokens_first(result)
