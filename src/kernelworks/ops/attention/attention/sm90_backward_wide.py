"""The gradients of attention on Hopper for a head_dim of 256: dS to memory in 16 bits, dq of it in one go."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel, box_map
from kernelworks.contract import Request
from kernelworks.ops.attention.attention.contract import shift_of
from kernelworks.ops.attention.attention.sm90_backward import _boxed, _multiprocessors, forward

__all__ = ["backward", "forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")
DTYPES = (torch.bfloat16, torch.float16)
LOG2E = 1.4426950408889634
# As in sm90_wide.cuh and sm90_wide_queries.cuh: head_dim, keys of a tile, queries of a step, bytes of shared memory.
DIM, KEYS, STEP, SHARED, SHARED_QUERIES = 256, 64, 64, 230540, 196608
FAR = 2**29  # what every query sees at least of the keys where there is no causal mask
# Bytes of dS that are kept at a time: key-value heads are shared out so that theirs fit. One head's may be more.
MOST_KEPT_BYTES = 2**30
L2 = 2**25  # tiles of keys run together whose queries and gradients fit this much of it


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    q, k = request.args["q"], request.args["k"]
    if q.dtype not in DTYPES or q.shape[3] != DIM:
        return "takes bfloat16 and float16 with a head_dim of 256"
    if request.args["mask"] is not None:
        return "takes no mask"
    if request.args["window"] is not None:
        return "takes no window: what it keeps of all pairs would be zeros for the most part"
    if request.args.get("softcap") is not None:
        return "takes no softcap"
    if not q.numel or not k.numel or max(q.shape[2], k.shape[2]) >= FAR // 4:
        return "takes sizes from 1 to 2^27"
    if q.shape[0] * q.shape[1] * -(-q.shape[2] // STEP) >= 2**29:
        return "takes fewer than 2^29 tiles of queries"
    if _bytes_of_slopes(q.shape[1] // k.shape[1], q.shape[2], k.shape[2]) > 4 * MOST_KEPT_BYTES:
        return f"keeps 2 bytes a pair of query and key: one key-value head's are over {4 * MOST_KEPT_BYTES >> 30} GiB"
    return None


def _bytes_of_slopes(heads: int, queries: int, keys: int) -> int:
    return 2 * heads * queries * (-(-keys // 8) * 8)


@functools.cache
def _kernels(dtype: torch.dtype) -> tuple[Kernel, Kernel, Kernel]:
    suffix = f"{str(dtype).removeprefix('torch.')}_256"
    return (
        Kernel(SOURCE, f"prepare_{suffix}", threads=256, overlap=True),
        Kernel(SOURCE, f"keys_{suffix}", threads=384, shared=SHARED, overlap=True),
        Kernel(SOURCE, f"queries_{suffix}", threads=384, shared=SHARED_QUERIES, overlap=True),
    )


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor | None, causal: str | None,
    window: int | None, scale: float | None, mask: Tensor | None, needs: list[bool], softcap: float | None = None,
    sinks: Tensor | None = None, out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the op package's other launches: the gradients of q, k, v and sinks, the same bits every time. ``mask``,
    ``window`` and ``softcap`` are None."""
    if lse is None or lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(q, k, v, causal, window, scale, mask, True, None, sinks)
    made = out if out is not None else tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    batch, heads, queries, _ = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grad, q, k, v, output = (_boxed(t) for t in (grad, q, k, v, output))
    lse = lse.contiguous()
    steps, pairs, group = -(-queries // STEP), batch * kv_heads, heads // kv_heads
    factor = DIM**-0.5 if scale is None else float(scale)
    shift = FAR if causal is None else shift_of(causal, queries, keys)
    share = min(pairs, max(1, MOST_KEPT_BYTES // _bytes_of_slopes(group, queries, keys)))
    section = min(share, max(1, L2 // (4 * DIM * queries * group)))
    prepare, of_keys, of_queries = _kernels(q.dtype)
    rows = torch.empty(batch * heads * steps * 2 * STEP, dtype=torch.float32, device=q.device)
    # Rows of whole 16 bytes, for the copy engine.
    slopes = torch.empty(1, share * group, queries, -(-keys // 8) * 8, dtype=q.dtype, device=q.device)[..., :keys]
    taken = torch.empty(1, dtype=torch.int32, device=q.device)
    prepare(
        (batch * heads * steps, 1, 1), grad, output, lse, rows, taken, *grad.stride()[:3], *output.stride()[:3], heads,
        queries,
    )  # fmt: skip
    boxes = [box_map(t, STEP, 64) for t in (q, k, v, grad, slopes)]
    for first in range(0, pairs, share):
        count = min(share, pairs - first)
        numbers = (kv_heads, group, first, count, queries, keys, min(section, count), shift)
        blocks = min(-(-keys // KEYS) * count, _multiprocessors(q.device))
        of_keys((blocks, 1, 1), rows, made[1], made[2], taken, *boxes, *numbers, factor * LOG2E, factor)
        of_queries((-(-steps // 2) * group * count, 1, 1), made[0], taken, boxes[4], boxes[1], *numbers, factor)
    if sinks is None:
        return made[0], made[1], made[2], q.new_empty(0)
    from kernelworks.ops.attention.attention import triton_backward

    return made[0], made[1], made[2], triton_backward.of_sinks(sinks, triton_backward.lse_and_delta(grad, output, lse))
