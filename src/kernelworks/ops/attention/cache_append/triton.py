"""cache_append on the GPU: a program copies a part of one token's key or value into its slot."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel

MOST = 1024  # numbers of a program


@triton.jit
def _append(
    rows, cache, slots, r_t, r_h, r_d, c_n, c_p, c_h, c_d, s_t, H, D, P, N, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token * s_t).to(tl.int64)
    if (slot < 0) | (slot >= N * P):
        return
    place = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h, d = place // D, place % D
    x = tl.load(rows + token * r_t + h * r_h + d * r_d, mask=h < H, other=0.0)
    tl.store(cache + slot // P * c_n + slot % P * c_p + h * c_h + d * c_d, x, mask=h < H)


APPEND = Kernel(_append)


def forward(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, out: Any = None
) -> None:
    for rows, cache in ((key, key_cache), (value, value_cache)):
        tokens, heads, dim = rows.shape
        if not (tokens and heads and dim and cache.numel()):
            continue
        block = min(MOST, triton.next_power_of_2(heads * dim))
        APPEND.at(BLOCK=block, num_warps=4)(
            (tokens, -(-heads * dim // block), 1), rows, cache, slot_mapping, *rows.stride(), *cache.stride(),
            slot_mapping.stride(0), heads, dim, cache.shape[1], cache.shape[0],
        )  # fmt: skip
