"""The gradients of block_sparse_attention on Hopper, in CUDA C++: five products a step, dq summed in memory."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.configs import configs
from kernelworks.build.cuda import Kernel, box_map
from kernelworks.contract import Request
from kernelworks.ops.attention.attention.sm90_backward import (
    DTYPES,
    FAR,
    KEYS,
    LOG2E,
    PANEL,
    STEP,
    _boxed,
    _multiprocessors,
)

__all__ = ["backward", "forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
SHARED_BYTES = {64: 182616, 128: 231768}  # bytes, by head_dim: Pairs<D>::BYTES of sm90_backward_lists.cuh


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    query, key = request.args["query"], request.args["key"]
    if query.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    if query.shape[3] not in SHARED_BYTES:
        return "takes a head_dim of 64 or 128"
    batch, heads, queries, _ = query.shape
    if not query.numel or not key.numel or max(queries, key.shape[2]) >= 2**21 or heads >= 2**16 or batch >= 2**15:
        return "takes sizes from 1 on, up to 2^21 tokens, 2^16 heads and a batch of 2^15"
    if batch * heads * -(-queries // STEP) >= 2**29:
        return "takes fewer than 2^29 tiles of queries"
    return None


@functools.cache
def _kernels(dtype: torch.dtype, dim: int) -> tuple[Kernel, Kernel, Kernel]:
    suffix = f"{str(dtype).removeprefix('torch.')}_{dim}"
    return (
        Kernel(SOURCE, f"prepare_{suffix}", threads=256, overlap=True),
        Kernel(SOURCE, f"gradients_{suffix}", threads=384, shared=SHARED_BYTES[dim], overlap=True),
        Kernel(SOURCE, f"finish_{suffix}", threads=256, overlap=True),
    )


def forward(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, is_causal: bool, scale: float | None,
    enable_gqa: bool, with_lse: bool, out: Any = None,
) -> Any:  # fmt: skip
    """The Triton kernel's: what these gradients follow where the kernel is asked for by name."""
    from kernelworks.ops.attention.block_sparse_attention import triton  # imports Triton

    return triton.forward(query, key, value, block_mask, is_causal, scale, enable_gqa, with_lse, out)


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor | None, block_mask: Tensor,
    is_causal: bool, scale: float | None, enable_gqa: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the op package's other launches: the gradients of query, key and value."""
    from kernelworks.ops.attention.block_sparse_attention import triton  # imports Triton
    from kernelworks.ops.attention.block_sparse_attention.triton_lists import lists_of

    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return triton.backward(  # whose sums are made in one place and order
            grad, query, key, value, output, lse, block_mask, is_causal, scale, enable_gqa, needs, out
        )
    if lse is None or lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(query, key, value, block_mask, is_causal, scale, enable_gqa, True)
    made = out if out is not None else tuple(t.new_empty(t.shape) for t in (query, key, value))
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    g, q, k, v, o = (_boxed(t) for t in (grad, query, key, value, output))
    tiles, every, pairs = -(-queries // STEP), batch * heads, batch * kv_heads
    factor = dim**-0.5 if scale is None else float(scale)
    prepare, gradients, finish = _kernels(q.dtype, dim)
    rows = torch.empty(every * tiles * 2 * STEP, dtype=torch.float32, device=q.device)
    sums = torch.empty(every * tiles * STEP * dim, dtype=torch.float32, device=q.device)
    lists = lists_of(block_mask, is_causal, of_keys=True)  # ahead of `prepare`, which the gradients wait for
    prepare(
        (every * tiles, 1, 1), g, o, lse.contiguous(), rows, sums, lists.drawn, *g.stride()[:3], *o.stride()[:3], heads,
        queries,
    )  # fmt: skip
    boxes = [box_map(t, n, PANEL) for t, n in ((q, STEP), (k, KEYS), (v, KEYS), (g, STEP))]
    boxes += [box_map(t, KEYS // 2, PANEL) for t in made[1:3]]
    blocks = min(-(-keys // KEYS) * pairs, _multiprocessors(q.device))
    section = min(pairs, CONFIGS.pick("gradients", op_kernel="sm90_backward", causal=int(is_causal))["HEADS"])
    gradients(
        (blocks, 1, 1), rows, sums, lists.drawn, lists.lists, lists.counts, lists.order, *boxes, lists.of_batch,
        lists.of_head, kv_heads, heads // kv_heads, pairs, queries, keys, section, 0 if is_causal else FAR,
        factor * LOG2E, factor,
    )  # fmt: skip
    finish((every * tiles, 1, 1), made[0], sums, queries, factor)
    return made[0], made[1], made[2]
