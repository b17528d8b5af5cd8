"""attention for 16-bit elements on Hopper, in CUDA C++: the forward for head_dim 64, 128 and 256, also with a window or
sinks.

``triton.py`` does the rest: masks, softcaps, other head_dims, float32, few queries, and the backward.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.configs import configs
from kernelworks.build.cuda import Kernel, box_map
from kernelworks.contract import Request
from kernelworks.contract.memory_layout import new_output
from kernelworks.ops.attention.attention.contract import shift_of

__all__ = ["forward", "guard", "prepare_forward"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
DTYPES = (torch.bfloat16, torch.float16)
DIMS = (64, 128, 256)
WHOLE, CAUSAL, WINDOW = range(3)  # which keys a query sees, as in sm90_order.cuh
LOG2E = 1.4426950408889634
ROWS, COLUMNS = 64, 64  # of queries that a group of threads takes; of a tensor that a bulk copy takes
FEW = 16  # queries times heads of a group: up to here the keys are split instead
# Heads are taken together whose keys and values fit this much of L2: 16 heads of 4096 at head_dim 128. Without that,
# 4x16x4096 causal ran at 569 TFLOP/s and 1x16x16384 at 616 where 581 and 617 are reached.
L2 = 2**25
# head_dim 64: TFLOP/s of tiles of 2, 3 and 4 groups, 4x16x4096 whole on an H200: 465, 505 and 495, less what the last
# round and the last tile of a head leave idle. Four have blocks of 64 keys.
RATES = {2: 479, 3: 537, 4: 510}
# Queries under causal up to which four groups are quicker than three: 348 TFLOP/s against 331 at 2048, at 4096 alike.
SHORT = 3072
LONG = 32  # times 128 keys: from here on it makes no difference how many there are
# Keys a block, and what its kernel may multiply of those that fill up the last block, of what blocks of 128 come to: so
# much quicker it is by key (tuning.toml has the figures).
BROAD, MORE = 176, 1.013


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    q, k, v = (request.args[name] for name in ("q", "k", "v"))
    if q.dtype not in DTYPES or q.shape[3] not in DIMS:
        return "takes bfloat16 and float16 with a head_dim of 64, 128 or 256"
    if request.args["mask"] is not None:
        return "takes no mask"
    scale = request.args["scale"]
    if scale is not None and not 0 < scale < math.inf:
        return "compares scores before they are scaled: the scale must be positive"
    if not all(q.shape) or not k.shape[2] or max(q.shape[2], k.shape[2], q.shape[0] * q.shape[1]) >= 2**24:
        return "takes sizes from 1 to 2^24"
    if q.shape[1] * q.shape[2] <= FEW * k.shape[1]:
        return f"takes more than {FEW} queries to a head of keys"
    if any(_odd(t.shape, t.stride) for t in (q, k, v)):
        return "copies 16 bytes at a time: strides must be multiples of 8 elements, and none 0"
    return None


def _odd(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the copy engine cannot fetch tiles of this. One whose last dimension is not contiguous is copied."""
    return stride[3] == 1 and any(n > 1 and (s % 8 or not s) for n, s in zip(shape[:3], stride[:3], strict=True))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


def _groups(dim: int, sight: int, queries: int, heads: int, blocks: int) -> int:
    """How many groups of 64 queries a tile has: what takes the fewest rounds of rows, by the rate of each.

    Under causal tiles differ, so that none waits for the end of a round; the longest takes twice the mean. With a
    window a tile passes over as many keys more as it has rows: few are better.
    """

    def cost(groups: int) -> float:
        rows = ROWS * groups
        tiles = -(-queries // rows) * heads
        rounds = max(tiles / blocks, 2) if sight == CAUSAL else -(-tiles // blocks)
        return rounds * rows / RATES[groups]

    if dim > 64 or sight == WINDOW:
        return 2
    return min((2, 4 if queries <= SHORT else 3) if sight == CAUSAL else RATES, key=cost)


@functools.cache
def _kernel(
    dim: int, dtype: torch.dtype, sight: int, groups: int, keys: int, broad: bool
) -> tuple[Kernel, int, int, int]:
    """The kernel, how many queries and keys its tiles and blocks have, and how many queries are copied together."""
    c = CONFIGS.pick("forward", op_kernel="sm90", D=dim, sight=sight, groups=groups, keys=keys, broad=broad)
    numbers = (dim, c["BN"], groups, c["STAGES"], c["PLACES"], sight)
    name = "_".join(("forward", str(dtype).removeprefix("torch."), *map(str, numbers)))
    queries = ROWS * groups
    shared = 2 * dim * (c["PLACES"] * queries + 2 * c["STAGES"] * c["BN"])
    together = ROWS if c["PLACES"] == 1 else queries
    return Kernel(SOURCE, name, threads=128 * (groups + 1), shared=shared), queries, c["BN"], together


def _lengths(keys: int) -> tuple[int, bool]:
    """What a cut depends on: blocks of 128 keys, up to LONG, and whether those of BROAD waste little."""
    blocks = -(-keys // 128)
    return min(blocks, LONG), -(-keys // BROAD) * BROAD <= MORE * blocks * 128


class _Plan:
    """What follows from shapes: kernel, grid, boxes of the maps and the numbers behind them."""

    def __init__(self, q: Tensor, k: Tensor, causal: str | None, window: int | None, scale: float | None) -> None:
        batch, heads, queries, dim = q.shape
        kv_heads, keys = k.shape[1], k.shape[2]
        shift = shift_of(causal, queries, keys)
        # A window that hides nothing is none.
        sight = WHOLE if causal is None else CAUSAL if window is None or window >= queries + shift else WINDOW
        seen = window if window is not None and sight == WINDOW else keys
        blocks = _multiprocessors(q.device)
        groups = _groups(dim, sight, queries, batch * heads, blocks)
        self.kernel, self.rows, self.keys, self.box = _kernel(dim, q.dtype, sight, groups, *_lengths(keys))
        tiles, group = -(-queries // self.rows), heads // kv_heads
        band = min(max(1, L2 // (4 * min(keys, seen) * dim)) * group, batch * heads)
        # Bands end with short tiles and begin with long ones: only where there are several must tiles be drawn.
        self.draws = sight != WHOLE and band < batch * heads and blocks < tiles * batch * heads
        self.blocks = min(blocks, tiles * batch * heads)
        factor = LOG2E * (dim**-0.5 if scale is None else float(scale))
        self.numbers = (heads, keys, shift, seen, tiles, batch * heads, band, group, queries, factor)

    def maps(self, q: Tensor, k: Tensor, v: Tensor, output: Tensor) -> tuple[Tensor, ...]:
        return (
            box_map(q, self.box, COLUMNS), box_map(k, self.keys, COLUMNS), box_map(v, self.keys, COLUMNS),
            box_map(output, ROWS, COLUMNS),
        )  # fmt: skip

    def counter(self, device: torch.device) -> Tensor | None:
        return torch.zeros(1, dtype=torch.int32, device=device) if self.draws else None


def _aligned(x: Tensor) -> Tensor:
    """At an address of whole 16 bytes, its last dimension contiguous; a copy where x's is not."""
    return x if x.stride(3) == 1 and not x.data_ptr() & 15 else x.clone(memory_format=torch.contiguous_format)


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, softcap: float | None = None, sinks: Tensor | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output, and lse where it is asked for. ``mask`` and ``softcap`` are
    None."""
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = new_output(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if with_lse else None
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    target = output if not output.data_ptr() & 15 else new_output(q)
    plan = _Plan(q, k, causal, window, scale)
    plan.kernel(
        (plan.blocks, 1, 1), target, lse, plan.counter(q.device), None if sinks is None else sinks.contiguous(),
        *plan.maps(q, k, v, target), *plan.numbers, *target.stride()[:3],
    )  # fmt: skip
    if target is not output:
        output.copy_(target)
    return (output, lse) if with_lse else output


def prepare_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, softcap: float | None = None, sinks: Tensor | None = None,
) -> Callable[..., Any] | None:  # fmt: skip
    """What serves calls like this one without working anything out again; None where something must be copied."""
    if q.device.type != "cuda" or any(_aligned(t) is not t for t in (q, k, v)):
        return None
    if sinks is not None and not sinks.is_contiguous():
        return None
    plan = _Plan(q, k, causal, window, scale)
    launch, blocks, numbers, device = plan.kernel.on(q.get_device()), plan.blocks, plan.numbers, q.device
    lse_shape, empty = q.shape[:3], torch.empty

    def call(
        q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
        mask: Tensor | None, with_lse: bool, softcap: float | None = None, sinks: Tensor | None = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        if out is not None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15:
            return forward(q, k, v, causal, window, scale, mask, with_lse, softcap, sinks, out)
        output = new_output(q)
        lse = empty(lse_shape, dtype=torch.float32, device=device) if with_lse else None
        drawn = plan.counter(device)
        launch(
            blocks, output.data_ptr(), 0 if lse is None else lse.data_ptr(), 0 if drawn is None else drawn.data_ptr(),
            0 if sinks is None else sinks.data_ptr(), *plan.maps(q, k, v, output), *numbers, *output.stride()[:3],
        )  # fmt: skip
        return (output, lse) if with_lse else output

    return call
