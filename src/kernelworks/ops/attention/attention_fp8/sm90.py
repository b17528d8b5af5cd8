"""attention_fp8 on Hopper, in CUDA C++: a head_dim of 128, output in 16 bits."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel, box_map
from kernelworks.contract import Request
from kernelworks.ops.attention.attention.contract import shift_of
from kernelworks.ops.attention.attention.sm90 import L2, LOG2E, _multiprocessors
from kernelworks.ops.attention.attention_fp8.torch_kernels import result_like

__all__ = ["forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")
DIM, TILE = 128, 128  # head_dim; queries of a tile, keys of a block
STAGES, PLACES, ONES = 4, 2, 1024  # as in sm90_e4m3.cuh: blocks and tiles on the way, bytes behind a block's values
SHARED_BYTES = PLACES * TILE * DIM + STAGES * (2 * TILE * DIM + ONES)
PAIR = torch.bfloat16  # what the copy engine takes two bytes for
OUTPUTS = ("bfloat16", "float16")


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    q, k, v = (request.args[name] for name in ("q", "k", "v"))
    if q.shape[3] != DIM:
        return f"takes a head_dim of {DIM}"
    if request.args["out_dtype"] not in OUTPUTS:
        return "writes bfloat16 and float16"
    scale = request.args["scale"]
    if scale is not None and not 0 < scale < math.inf:
        return "compares scores before they are scaled: the scale must be positive"
    if not all(q.shape) or not k.shape[2] or max(q.shape[2], k.shape[2], q.shape[0] * q.shape[1]) >= 2**24:
        return "takes sizes from 1 to 2^24"
    if q.shape[0] * k.shape[1] >= 2**16 or q.shape[0] * q.shape[1] * -(-q.shape[2] // TILE) >= 2**30:
        return "takes fewer than 2^16 heads of keys over all batches, and 2^30 tiles of queries"
    if any(_odd(t.shape, t.stride) for t in (q, k, v)):
        return "copies 16 bytes at a time: strides must be multiples of 16 elements, and none 0"
    return None


def _odd(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether tiles of this cannot be fetched. One whose last dimension is not contiguous is copied."""
    return stride[3] == 1 and any(n > 1 and (s % 16 or not s) for n, s in zip(shape[:3], stride[:3], strict=True))


def _aligned(x: Tensor) -> Tensor:
    """At an address of whole 16 bytes, its last dimension contiguous; a copy where x's is not."""
    if x.stride(3) == 1 and not x.data_ptr() & 15 and not x.storage_offset() & 15:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _in_pairs(x: Tensor) -> Tensor:
    """Two bytes as one element: the same bytes."""
    if any(s % 2 for s in x.stride()[:3]):  # of a dimension of 1, which may have any
        x = x.as_strided(x.shape, [s if n > 1 else 0 for n, s in zip(x.shape, x.stride(), strict=True)])
    return x.view(PAIR)


@functools.cache
def _kernels(out_dtype: str, is_causal: bool) -> tuple[Kernel, Kernel]:
    """What turns the values, and the forward."""
    forward = f"forward_{out_dtype}_{int(is_causal)}"
    return (
        Kernel(SOURCE, "turn", threads=256, overlap=True),
        Kernel(SOURCE, forward, threads=384, shared=SHARED_BYTES, overlap=True),
    )


def _strides(descale: Tensor) -> tuple[int, int]:
    """Of a scale as if it had a batch and heads."""
    if not descale.dim():
        return 0, 0
    b, h = (s if n > 1 else 0 for n, s in zip(descale.shape, descale.stride(), strict=True))
    return b, h


def forward(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor, causal: str | None,
    scale: float | None, out_dtype: str, out: Any = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output."""
    output = result_like(q, out_dtype) if out is None else out
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    target = output if not output.data_ptr() & 15 else result_like(q, out_dtype)
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    tiles, group, every = -(-queries // TILE), heads // kv_heads, batch * heads
    blocks = min(_multiprocessors(q.device), tiles * every)
    band = min(max(1, L2 // (2 * keys * dim)) * group, every)
    # Bands end with short tiles and begin with long ones: only where there are several must tiles be drawn.
    draws = causal is not None and band < every and blocks < tiles * every
    # Both of a product's sides lie along what is summed over: keys, a multiple of 16 for the copy engine.
    turned = torch.empty(batch, kv_heads, dim, -(-keys // 16) * 16, dtype=torch.uint8, device=q.device)
    factors = torch.empty(batch * kv_heads, 2, dtype=torch.float32, device=q.device)
    drawn = torch.empty(1, dtype=torch.int32, device=q.device) if draws else None
    turn, attend = _kernels(out_dtype, causal is not None)
    factor = LOG2E * (dim**-0.5 if scale is None else float(scale))
    turn(
        (-(-keys // TILE), batch * kv_heads, 1), turned, v.view(torch.uint8), factors, drawn, q_descale, k_descale,
        v_descale, *v.stride()[:3], kv_heads, keys, turned.shape[3], *_strides(q_descale), *_strides(k_descale),
        *_strides(v_descale), factor,
    )  # fmt: skip
    maps = [box_map(_in_pairs(t), TILE, TILE // 2) for t in (q, k, turned)]
    shift = shift_of(causal, queries, keys)
    attend(
        (blocks, 1, 1), target, factors, drawn, *maps, heads, keys, shift, tiles, every, band, group, queries,
        *target.stride()[:3],
    )  # fmt: skip
    return output if target is output else output.copy_(target)
