"""attention for 16-bit elements and few queries on Hopper, in CUDA C++: up to 16 rows to a key-value head.

Keys and values cross memory once; where there are fewer key-value heads than would fill the GPU, their keys are shared
out over blocks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel
from kernelworks.contract import Request
from kernelworks.contract.memory_layout import new_output
from kernelworks.ops.attention.attention.contract import shift_of

__all__ = ["forward", "guard", "prepare_forward"]

SOURCE = Path(__file__).with_suffix(".cu")
DTYPES = (torch.bfloat16, torch.float16)
LOG2E = 1.4426950408889634
ROWS, KEYS, JOINERS = 16, 16, 8  # of a tile, of a step, warps that join shares: as in sm90_decode.cuh
# Bytes of keys and values from which every multiprocessor is wanted. Fewer are shared out over half of them, in
# clusters that join their shares by themselves, since a second kernel takes 2 us. On every multiprocessor clusters of
# more than two do not all find a place at once.
LONG, CLUSTERED, PAIRED = 2**27, 8, 2
FAR = 2**29  # where a query stands that sees all keys
WARPS = {64: 8, 128: 8, 256: 4}  # of a block, by head_dim
STAGES = {64: 6, 128: 3, 256: 3}  # of a warp's ring


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    q, k, v = (request.args[name] for name in ("q", "k", "v"))
    if q.dtype not in DTYPES or q.shape[3] not in STAGES:
        return "takes bfloat16 and float16 with a head_dim of 64, 128 or 256"
    if request.args["mask"] is not None:
        return "takes no mask"
    if not all(q.shape) or not k.shape[2] or max(k.shape[2], q.shape[0] * k.shape[1]) >= 2**24:
        return "takes sizes from 1 to 2^24"
    if q.shape[1] * q.shape[2] > ROWS * k.shape[1]:
        return f"takes at most {ROWS} queries to a head of keys"
    if any(_odd(t.shape, t.stride) for t in (k, v)):
        return "copies 16 bytes at a time: strides of k and v must be multiples of 8 elements"
    return None


def _odd(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether chunks of 16 bytes do not lie so. One whose last dimension is not contiguous is copied."""
    return stride[3] == 1 and any(n > 1 and s % 8 for n, s in zip(shape[:3], stride[:3], strict=True))


class KeySplit(NamedTuple):
    """How keys are shared out: what becomes of a block's sums, shares of a head, warps of a block."""

    how: str
    shares: int
    warps: int


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


def _bytes(dim: int, warps: int, how: str) -> int:
    """Of shared memory, as sm90_decode.cuh lays it out."""
    rings, sums = warps * 4 * STAGES[dim] * KEYS * dim, warps * ROWS * (dim + 10) * 4
    return max(rings, sums) + ((ROWS * dim // 2 + CLUSTERED) * 8 + CLUSTERED * ROWS * 8 if how == "cluster" else 0)


@functools.cache
def _kernel(dtype: torch.dtype, dim: int, cut: KeySplit) -> Kernel:
    name = f"{cut.how}_{str(dtype).removeprefix('torch.')}_{dim}_{cut.warps}"
    cluster = cut.shares if cut.how == "cluster" else 1
    shared = _bytes(dim, cut.warps, cut.how)
    return Kernel(SOURCE, name, threads=32 * cut.warps, shared=shared, cluster=cluster, overlap=True)


@functools.cache
def _join(dtype: torch.dtype, dim: int) -> Kernel:
    name = f"join_{str(dtype).removeprefix('torch.')}_{dim}"
    return Kernel(SOURCE, name, threads=32 * JOINERS, overlap=True)


def _cut(dim: int, pairs: int, keys: int, multiprocessors: int) -> KeySplit:
    """The cut for so many key-value heads, of which so many keys are seen."""
    warps = WARPS[dim]
    shares, long = multiprocessors // pairs, 4 * pairs * keys * dim >= LONG
    shares = min(shares if long else max(shares // 2, min(shares, PAIRED)), -(-keys // (KEYS * warps)))
    if shares < 2:
        return KeySplit("whole", 1, warps)
    if shares <= (PAIRED if long else CLUSTERED):
        return KeySplit("cluster", 1 << shares.bit_length() - 1, warps)
    return KeySplit("apart", shares, warps)


class _Plan:
    """What follows from shapes: kernels, grids and the numbers behind the tensors."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
        cut: KeySplit | None = None,
    ) -> None:  # fmt: skip
        batch, heads, queries, dim = q.shape
        kv_heads, keys = k.shape[1], k.shape[2]
        shift = FAR if causal is None else shift_of(causal, queries, keys)
        seen = 2 * FAR if window is None else window
        last = max(0, min(keys, queries + shift))
        first = min(max(0, shift - seen + 1), last) // KEYS * KEYS
        self.rows, pairs = batch * heads * queries, batch * kv_heads
        cut = cut or _cut(dim, pairs, last - first, _multiprocessors(q.device))
        length = -(-max(last - first, 1) // (cut.shares * KEYS)) * KEYS
        self.blocks = pairs * cut.shares
        self.share = _kernel(q.dtype, dim, cut)
        self.join = _join(q.dtype, dim) if cut.how == "apart" else None
        self.size = self.rows * cut.shares * (dim + 2) if self.join else 0
        factor = LOG2E * (1 / math.sqrt(dim) if scale is None else float(scale))
        self.strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
        self.numbers = (
            heads, heads // kv_heads, queries, keys, first, last, length, cut.shares, shift, seen, -(-256 // queries),
            factor,
        )  # fmt: skip

    def partial(self, device: torch.device) -> Tensor | None:
        return torch.empty(self.size, dtype=torch.float32, device=device) if self.size else None


def _chunked(x: Tensor, bytes_: int) -> Tensor:
    """At an address of whole chunks, its last dimension contiguous; a copy where x's is not."""
    return x if x.stride(3) == 1 and not x.data_ptr() % bytes_ else x.clone(memory_format=torch.contiguous_format)


def _even(x: Tensor) -> bool:
    """Whether pairs of its numbers lie at whole addresses."""
    return x.stride(3) == 1 and not any(s & 1 for s in x.stride()[:3]) and not x.data_ptr() & 3


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, out: Any = None, cut: KeySplit | None = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output, and lse where it is asked for. ``mask`` is None."""
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = new_output(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if with_lse else None
    q = q if _even(q) else q.clone(memory_format=torch.contiguous_format)
    k, v = _chunked(k, 16), _chunked(v, 16)
    target = output if _even(output) else new_output(q)
    plan = _Plan(q, k, v, causal, window, scale, cut)
    partial = plan.partial(q.device)
    arguments = (target, lse, partial, q, k, v, *plan.strides, *target.stride()[:3], *plan.numbers)
    plan.share((plan.blocks, 1, 1), *arguments)
    if plan.join is not None:
        plan.join((plan.rows, 1, 1), *arguments)
    if target is not output:
        output.copy_(target)
    return (output, lse) if with_lse else output


def prepare_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool,
) -> Callable[..., Any] | None:  # fmt: skip
    """What serves calls like this one without working anything out again; None where something must be copied."""
    if q.device.type != "cuda" or not _even(q) or any(_chunked(t, 16) is not t for t in (k, v)):
        return None
    plan = _Plan(q, k, v, causal, window, scale)
    share, blocks, rows, device = plan.share.on(q.get_device()), plan.blocks, plan.rows, q.device
    join = plan.join.on(q.get_device()) if plan.join is not None else None
    strides, numbers = (*plan.strides, *new_output(q).stride()[:3]), plan.numbers
    size, lse_shape, empty, float32 = plan.size, q.shape[:3], torch.empty, torch.float32

    def call(
        q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
        mask: Tensor | None, with_lse: bool, out: Any = None,
    ) -> Any:  # fmt: skip
        if out is not None or (k.data_ptr() | v.data_ptr()) & 15 or q.data_ptr() & 3:
            return forward(q, k, v, causal, window, scale, mask, with_lse, out)
        output = new_output(q)
        lse = empty(lse_shape, dtype=float32, device=device) if with_lse else None
        partial = empty(size, dtype=float32, device=device) if size else None
        arguments = (
            output.data_ptr(), 0 if lse is None else lse.data_ptr(), 0 if partial is None else partial.data_ptr(),
            q.data_ptr(), k.data_ptr(), v.data_ptr(), *strides, *numbers,
        )  # fmt: skip
        share(blocks, *arguments)
        if join is not None:
            join(rows, *arguments)
        return (output, lse) if with_lse else output

    return call
