"""The gradients of attention on Hopper, in CUDA C++: five products a step, dq summed in memory."""

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
from kernelworks.ops.attention.attention.contract import shift_of

__all__ = ["backward", "forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
DTYPES = (torch.bfloat16, torch.float16)
LOG2E = 1.4426950408889634
# As in sm90_gradients.cuh: keys of a tile, queries of a step, columns of a box; by head_dim bytes of shared memory.
KEYS, STEP, PANEL = 128, 64, 64
SHARED_BYTES = {64: 182504, 128: 231652}
FAR = 2**29  # what every query sees at least of the keys where there is no causal mask, or no window


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    q, k = request.args["q"], request.args["k"]
    if q.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    if q.shape[3] not in SHARED_BYTES:
        return "takes a head_dim of 64 or 128"
    if request.args["mask"] is not None:
        return "takes no mask"
    if request.args.get("softcap") is not None:
        return "takes no softcap"
    if not q.numel or not k.numel or max(q.shape[2], k.shape[2]) >= FAR // 4:
        return "takes sizes from 1 to 2^27"
    if q.shape[0] * q.shape[1] * -(-q.shape[2] // STEP) >= 2**29:
        return "takes fewer than 2^29 tiles of queries"
    return None


@functools.cache
def _kernels(dtype: torch.dtype, dim: int, window: bool) -> tuple[Kernel, Kernel, Kernel]:
    suffix = f"{str(dtype).removeprefix('torch.')}_{dim}"
    return (
        Kernel(SOURCE, f"prepare_{suffix}", threads=256, overlap=True),
        Kernel(SOURCE, f"gradients_{suffix}{'_window' * window}", threads=384, shared=SHARED_BYTES[dim], overlap=True),
        Kernel(SOURCE, f"finish_{suffix}", threads=256, overlap=True),
    )


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


def _boxed(x: Tensor) -> Tensor:
    """``x``, or a copy of it that the copy engine can read."""
    whole = 16 // x.element_size()
    usable = all(n == 1 or (s > 0 and s % whole == 0) for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
    usable = usable and x.stride(3) == 1 and x.data_ptr() % 16 == 0
    return x if usable else x.clone(memory_format=torch.contiguous_format)


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None, mask: Tensor | None,
    with_lse: bool, softcap: float | None = None, sinks: Tensor | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """The Triton kernel's: what these gradients follow where the kernel is asked for by name."""
    from kernelworks.ops.attention.attention import triton  # imports Triton

    return triton.forward(q, k, v, causal, window, scale, mask, with_lse, softcap, sinks, out)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor | None, causal: str | None,
    window: int | None, scale: float | None, mask: Tensor | None, needs: list[bool], softcap: float | None = None,
    sinks: Tensor | None = None, out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the op package's other launches: the gradients of q, k, v and sinks. ``mask`` and ``softcap`` are None."""
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        from kernelworks.ops.attention.attention import triton  # whose sums are made in one place and order

        return triton.backward(grad, q, k, v, output, lse, causal, window, scale, mask, needs, softcap, sinks, out)
    if lse is None or lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(q, k, v, causal, window, scale, mask, True, None, sinks)
    made = out if out is not None else tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grad, q, k, v, output = (_boxed(t) for t in (grad, q, k, v, output))
    lse = lse.contiguous()
    tiles, every, pairs = -(-queries // STEP), batch * heads, batch * kv_heads
    factor = 1.0 / math.sqrt(dim) if scale is None else float(scale)
    shift = FAR if causal is None else shift_of(causal, queries, keys)
    seen = FAR if window is None or window >= queries + shift else window  # a window that hides nothing is none
    prepare, gradients, finish = _kernels(q.dtype, dim, seen < FAR)
    rows = torch.empty(every * tiles * 2 * STEP, dtype=torch.float32, device=q.device)
    sums = torch.empty(every * tiles * STEP * dim, dtype=torch.float32, device=q.device)
    taken = torch.empty(1, dtype=torch.int32, device=q.device)
    prepare(
        (every * tiles, 1, 1), grad, output, lse, rows, sums, taken, *grad.stride()[:3], *output.stride()[:3], heads,
        queries,
    )  # fmt: skip
    boxes = [box_map(t, n, PANEL) for t, n in ((q, STEP), (k, KEYS), (v, KEYS), (grad, STEP))]
    boxes += [box_map(t, KEYS // 2, PANEL) for t in made[1:3]]
    blocks = min(-(-keys // KEYS) * pairs, _multiprocessors(q.device))
    gradients(
        (blocks, 1, 1), rows, sums, taken, *boxes, kv_heads, heads // kv_heads, pairs, queries, keys,
        _section(causal, pairs), shift, seen, factor * LOG2E, factor,
    )  # fmt: skip
    finish((every * tiles, 1, 1), made[0], sums, queries, factor)
    if sinks is None:
        return made[0], made[1], made[2], q.new_empty(0)
    from kernelworks.ops.attention.attention import triton_backward

    return made[0], made[1], made[2], triton_backward.of_sinks(sinks, triton_backward.lse_and_delta(grad, output, lse))


def _section(causal: str | None, pairs: int) -> int:
    """How many key-value heads are worked on at a time."""
    picked: int = CONFIGS.pick("gradients", op_kernel="sm90_backward", causal=int(causal is not None))["HEADS"]
    return min(pairs, picked)
