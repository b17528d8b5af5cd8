"""block_sparse_attention for 16-bit elements on Hopper, in CUDA C++: the forward for head_dim 64, 128 and 256.

``triton_lists`` makes the lists; ``triton.py`` does the rest: other head_dims, float32, the backward.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.configs import configs
from kernelworks.build.cuda import Kernel, box_map
from kernelworks.contract import Request
from kernelworks.contract.memory_layout import new_output
from kernelworks.ops.attention.attention.sm90 import COLUMNS, DIMS, DTYPES, L2, LOG2E, ROWS, _aligned, _odd

__all__ = ["forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
BLOCK = 128  # queries of a tile
MOST_KEYS = 2**21  # a tile's number holds 15 bits of its last block's


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    q, k, v = (request.args[name] for name in ("query", "key", "value"))
    if q.dtype not in DTYPES or q.shape[3] not in DIMS:
        return "takes bfloat16 and float16 with a head_dim of 64, 128 or 256"
    scale = request.args["scale"]
    if scale is not None and not 0 < scale < math.inf:
        return "compares scores before they are scaled: the scale must be positive"
    if not all(q.shape) or not k.shape[2] or k.shape[2] > MOST_KEYS or q.shape[2] >= 2**24:
        return "takes sizes from 1 on, up to 2^21 keys and 2^24 queries"
    if q.shape[0] * q.shape[1] * -(-q.shape[2] // BLOCK) >= 2**30:
        return "takes fewer than 2^30 tiles of queries"
    if any(_odd(t.shape, t.stride) for t in (q, k, v)):
        return "copies 16 bytes at a time: strides must be multiples of 8 elements, and none 0"
    return None


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _kernel(dim: int, dtype: torch.dtype, is_causal: bool) -> tuple[Kernel, int, int]:
    """The kernel, how many keys its blocks have, and how many queries are copied together."""
    c = CONFIGS.pick("forward", op_kernel="sm90", D=dim)
    numbers = (dim, c["BN"], c["STAGES"], c["PLACES"], int(is_causal))
    name = "_".join(("forward", str(dtype).removeprefix("torch."), *map(str, numbers)))
    shared = 2 * dim * (c["PLACES"] * BLOCK + 2 * c["STAGES"] * c["BN"])
    together = ROWS if c["PLACES"] == 1 else BLOCK
    return Kernel(SOURCE, name, threads=384, shared=shared, overlap=True), c["BN"], together


def forward(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, is_causal: bool, scale: float | None,
    enable_gqa: bool, with_lse: bool, out: Any = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output, and lse where it is asked for."""
    from kernelworks.ops.attention.block_sparse_attention.triton_lists import lists_of  # imports Triton

    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = new_output(query)
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device) if with_lse else None
    q, k, v = _aligned(query), _aligned(key), _aligned(value)
    target = output if not output.data_ptr() & 15 else new_output(q)
    batch, heads, queries, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    kernel, in_block, together = _kernel(dim, q.dtype, is_causal)
    tiles, every = -(-queries // BLOCK), batch * heads
    lists = lists_of(block_mask, is_causal)
    band = min(max(1, L2 // (4 * keys * dim)) * group, every)
    blocks = min(_multiprocessors(q.device), tiles * every)
    maps = (
        box_map(q, together, COLUMNS), box_map(k, in_block, COLUMNS), box_map(v, in_block, COLUMNS),
        box_map(target, ROWS, COLUMNS),
    )  # fmt: skip
    factor = LOG2E * (dim**-0.5 if scale is None else float(scale))
    kernel(
        (blocks, 1, 1), target, lse, lists.drawn, lists.lists, lists.order, *maps, lists.of_batch, lists.of_head,
        -(-keys // BLOCK), heads, keys, tiles, every, band, group, queries, factor, *target.stride()[:3],
    )  # fmt: skip
    if target is not output:
        output.copy_(target)
    return (output, lse) if with_lse else output
