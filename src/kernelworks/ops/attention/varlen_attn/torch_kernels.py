"""varlen_attn as torch has it: its own function on a GPU, elsewhere its attention of one sequence after the other."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import in_float64, into
from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.ops.attention.attention.torch_kernels import composite as attention_in_torch
from kernelworks.ops.attention.attention.torch_kernels import native as attention_of_torch
from kernelworks.ops.attention.varlen_attn.contract import (
    CONTRACT,
    Window,
    by_sequence,
    check_values,
    heads_first,
    reference,
    sees,
    tokens_first,
)

__all__ = ["by_reference", "by_torch", "composite", "native", "torch_backward"]


# ---------------------------------------------------------------- torch's own function


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


# ---------------------------------------------------------------- attention, sequence by sequence


def _words(window_size: Window, queries: int, keys: int, device: torch.device) -> tuple[Any, Any, Any]:
    """A window in the words of attention: causal, window, and a mask for what they do not say."""
    left, right = window_size
    if right == 0:
        return "bottom_right", None if left < 0 else left + 1, None
    return None, None, None if left < 0 and right < 0 else sees(queries, keys, window_size, device)


def _sequence_by_sequence(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, scale: float | None,
    window_size: Window, with_lse: bool,
) -> Any:  # fmt: skip
    outputs = [query[:0]]
    lses = [query.new_empty(query.shape[1], 0, dtype=torch.float32)]
    for queries, keys in by_sequence(cu_seq_q, cu_seq_k):
        q, k, v = heads_first(query[queries]), heads_first(key[keys]), heads_first(value[keys])
        if not q.shape[2]:
            continue
        if not k.shape[2]:
            outputs.append(torch.zeros_like(query[queries]))
            lses.append(lses[0].new_full((query.shape[1], q.shape[2]), -torch.inf))
            continue
        words = _words(window_size, q.shape[2], k.shape[2], query.device)
        result = attention_of_torch(q, k, v, words[0], words[1], scale, words[2], with_lse, None, None)
        outputs.append(tokens_first(result[0] if with_lse else result))
        lses += [result[1][0]] if with_lse else []
    return (torch.cat(outputs), torch.cat(lses, 1)) if with_lse else torch.cat(outputs)


def native(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    scale: float | None, window_size: Window, enable_gqa: bool, with_lse: bool,
) -> Any:  # fmt: skip
    """What a user of torch has: its function where it has kernels, else a loop."""
    if _torchs_takes(query, key):
        return _by_torchs(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, with_lse
        )  # fmt: skip
    if tensor_kind(cu_seq_q) != MEMORY or tensor_kind(cu_seq_k) != MEMORY:
        return composite(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, with_lse
        )  # fmt: skip
    return _sequence_by_sequence(query, key, value, cu_seq_q, cu_seq_k, scale, window_size, with_lse)


# ---------------------------------------------------------------- all sequences at once


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
    result = attention_in_torch(q, k, v, None, None, scale, mask, with_lse)
    return (tokens_first(result[0]), result[1].squeeze(0)) if with_lse else tokens_first(result)


# ---------------------------------------------------------------- the kernels


def _check(query: Tensor, key: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int) -> None:
    if query.device.type == "cpu":
        check_values(query, key, cu_seq_q, cu_seq_k, max_q, max_k)


def by_torch(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    *rest: Any, out: Any = None,
) -> Any:  # fmt: skip
    _check(query, key, cu_seq_q, cu_seq_k, max_q, max_k)
    return into(native(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *rest), out)


def by_reference(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    *rest: Any, out: Any = None,
) -> Any:  # fmt: skip
    _check(query, key, cu_seq_q, cu_seq_k, max_q, max_k)
    exact = in_float64(reference, CONTRACT.results_in_order)
    return exact(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *rest, out=out)


def torch_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, cu_seq_q: Tensor,
    cu_seq_k: Tensor, max_q: int, max_k: int, scale: float | None, window_size: Window, enable_gqa: bool,
    needs: list[bool], out: Any = None, exact: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    _check(query, key, cu_seq_q, cu_seq_k, max_q, max_k)
    options = (cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, False)
    with torch.enable_grad():
        q, k, v = ((t.detach().double() if exact else t.detach()).requires_grad_() for t in (query, key, value))
        result = reference(q, k, v, *options)[0] if exact else native(q, k, v, *options)
        found = torch.autograd.grad(result, (q, k, v), grad.to(result.dtype), allow_unused=True, materialize_grads=True)
    gradients = tuple(f.to(t.dtype).contiguous() for f, t in zip(found, (query, key, value), strict=True))
    return gradients if out is None else tuple(into(gradients, tuple(out)))
