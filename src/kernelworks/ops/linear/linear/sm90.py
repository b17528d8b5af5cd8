"""linear for 16-bit elements on Hopper, in CUDA C++: few rows of x stream the weight, many are multiplied in tiles."""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.configs import configs
from kernelworks.build.cuda import Kernel, tensor_map
from kernelworks.contract import Request
from kernelworks.ops.layout import as_rows

__all__ = ["forward", "guard", "prepare_forward"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
MOST_STREAMED = 16  # rows of x
DTYPES = (torch.bfloat16, torch.float16)
# As in blocked.cuh: a tile, and shared memory for the stages and for two groups' two panels of the result.
TILE_M, TILE_N, TILE_K, CLUSTER, PANEL = 128, 256, 64, 2, 64
BLOCKED_SHARED = 4 * (TILE_M + TILE_N) * TILE_K * 2 + 4 * PANEL * PANEL * 2
PARTIAL = 4 * CLUSTER * TILE_M * TILE_N  # bytes of a cluster's partial sums
FLAGS = 8 * 2 * CLUSTER  # bytes a cluster: one flag for each group of each block
SPLIT_COST, LEAST_STEPS = 10, 16  # both in steps along K
# What a flag says when partial sums are there. They lie in memory that the allocator hands out uncleared, where no such
# number can be from before: none is used twice, and the kernel wipes what it has seen, for a graph launches it again.
_tokens = itertools.count(secrets.randbits(61) + 1)

Launch = Callable[..., Any]


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    x, weight = request.args["x"], request.args["weight"]
    if x.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    n, k = weight.shape
    if not x.numel or not weight.numel or max(x.numel // k, n, k) >= 2**31:
        return "takes sizes from 1 to 2^31"
    if k % 8 or weight.stride[1] != 1 or weight.stride[0] % 8:
        return "loads 16 bytes at a time: rows of the weight must be of whole 16 bytes, K on end"
    if x.numel // k > MOST_STREAMED and n % 8:
        return "stores 16 bytes at a time: N must be a multiple of 8 for more than 16 rows"
    return None


@functools.cache
def _kernel(name: str, threads: int, shared: int = 0, cluster: int = 1, overlap: bool = False) -> Kernel:
    return Kernel(SOURCE, name, threads=threads, shared=shared, cluster=cluster, overlap=overlap)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


def _suffix(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _stream(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Kernel, int]:
    """The kernel for few rows, and how many blocks it takes."""
    c = CONFIGS.pick("stream", row="sm90", M=m, N=n, K=k, dtype=dtype)
    step = c["R"] if c["ROWS"] <= 4 else 8 * c["R"]  # rows of the weight that a block takes
    name = f"stream_{_suffix(dtype)}_{c['ROWS']}_{c['WARPS']}_{c['R']}_{c['U']}"
    return _kernel(name, 32 * c["WARPS"]), -(-n // step)


def _streamed(tiles: int, clusters: int, steps: int) -> int:
    """How many of the last tiles are cut along K, so that all clusters end together: none where it would not pay."""
    rest = tiles % clusters
    if not rest or tiles <= clusters or steps < LEAST_STEPS:
        return 0
    rest += clusters if 2 * rest < clusters else 0
    shared_out, whole = rest * steps // clusters + SPLIT_COST, -(-rest // clusters) * steps
    return rest if shared_out < whole and rest * steps < 2**31 else 0


def _blocked(m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> tuple[Kernel, int, int]:
    """The kernel for many rows, how many blocks it takes, and how many tiles are cut along K.

    Where none is, no more blocks than needed for as few turns as all would take: what stands idle leaves its power to
    the others.
    """
    tiles = -(-m // (TILE_M * CLUSTER)) * -(-n // TILE_N)
    clusters = min(tiles, _multiprocessors(device) // CLUSTER)
    streamed = _streamed(tiles, clusters, -(-k // TILE_K))
    if not streamed:
        clusters = -(-tiles // -(-tiles // clusters))
    kernel = _kernel(f"blocked_{_suffix(dtype)}", 384, BLOCKED_SHARED, CLUSTER, overlap=True)
    return kernel, CLUSTER * clusters, streamed


def _launch(output: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """``x`` is what ``as_rows`` gives; everything begins at whole 16 bytes, ``bias`` at whole 4."""
    n, k = weight.shape
    m = x.numel() // k
    x_stride, w_stride = x.stride(0) if x.dim() == 2 else k, weight.stride(0)
    if m <= MOST_STREAMED:
        kernel, blocks = _stream(m, n, k, x.dtype)
        kernel((blocks, 1, 1), output, x, weight, bias, x_stride, w_stride, m, n, k)
        return
    kernel, blocks, streamed = _blocked(m, n, k, x.dtype, x.device)
    scratch = _scratch(blocks, streamed)
    partials = x.new_empty(scratch, dtype=torch.uint8) if scratch else None
    maps = _maps(x, weight, output, m, x_stride, w_stride)
    kernel((blocks, 1, 1), output, bias, *maps, m, n, k, streamed, partials, next(_tokens))


def _scratch(blocks: int, streamed: int) -> int:
    """Bytes for the partial sums of every cluster, and flags behind them."""
    return blocks // CLUSTER * (PARTIAL + FLAGS) if streamed else 0


def _maps(x: Tensor, weight: Tensor, output: Tensor, m: int, x_stride: int, w_stride: int) -> tuple[Tensor, ...]:
    n, k = weight.shape
    return (
        tensor_map(x, m, k, x_stride, TILE_M, TILE_K),
        tensor_map(weight, n, k, w_stride, TILE_N // CLUSTER, TILE_K),
        tensor_map(output, m, n, n, PANEL, PANEL),
    )


def _aligned(x: Tensor) -> Tensor:
    """Rows of whole 16 bytes at an address of whole 16 bytes; a copy where x's are not."""
    rows = as_rows(x)
    stride = rows.stride(0) if rows.dim() == 2 else rows.shape[-1]
    return rows.clone(memory_format=torch.contiguous_format) if stride % 8 or rows.data_ptr() % 16 else rows


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    output = x.new_empty((*x.shape[:-1], weight.shape[0])) if out is None else out
    rows, weight = _aligned(x), _aligned(weight)
    target = output if output.data_ptr() % 16 == 0 else torch.empty_like(output)
    if bias is not None and (not bias.is_contiguous() or bias.data_ptr() % 4):
        bias = bias.clone(memory_format=torch.contiguous_format)
    _launch(target, rows, weight, bias)
    return output if target is output else output.copy_(target)


def prepare_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Launch | None:
    """What serves calls that look like this one, with nothing to work out again; None where operands are copied."""
    rows, k = as_rows(x), weight.shape[1]
    m = x.numel() // k
    copied = rows.data_ptr() != x.data_ptr() or (rows.dim() == 2 and rows.stride(0) % 8)
    if copied or x.device.type != "cuda" or not (bias is None or bias.is_contiguous()):
        return None
    x_stride = rows.stride(0) if rows.dim() == 2 else k
    return (_prepare_few if m <= MOST_STREAMED else _prepare_many)(x, weight, m, x_stride)


def _prepare_few(x: Tensor, weight: Tensor, m: int, x_stride: int) -> Launch:
    n, k = weight.shape
    kernel, blocks = _stream(m, n, k, x.dtype)
    launch, shape, empty, dtype, device = kernel.on(x.get_device()), (*x.shape[:-1], n), torch.empty, x.dtype, x.device
    sizes = (x_stride, weight.stride(0), m, n, k)

    def call(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
        output = empty(shape, dtype=dtype, device=device) if out is None else out
        to, left, right = output.data_ptr(), x.data_ptr(), weight.data_ptr()
        if (left | right) & 15:
            return forward(x, weight, bias, output)
        launch(blocks, to, left, right, 0 if bias is None else bias.data_ptr(), *sizes)
        return output

    return call


def _prepare_many(x: Tensor, weight: Tensor, m: int, x_stride: int) -> Launch:
    n, k = weight.shape
    kernel, blocks, streamed = _blocked(m, n, k, x.dtype, x.device)
    launch, shape, empty, dtype, device = kernel.on(x.get_device()), (*x.shape[:-1], n), torch.empty, x.dtype, x.device
    scratch, w_stride, sizes = _scratch(blocks, streamed), weight.stride(0), (m, n, k, streamed)

    def call(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
        output = empty(shape, dtype=dtype, device=device) if out is None else out
        to, added = output.data_ptr(), 0 if bias is None else bias.data_ptr()
        if (to | x.data_ptr() | weight.data_ptr()) & 15 or added & 3:
            return forward(x, weight, bias, output)
        partials = empty(scratch, dtype=torch.uint8, device=device) if scratch else None
        maps = _maps(x, weight, output, m, x_stride, w_stride)
        launch(blocks, to, added, *maps, *sizes, 0 if partials is None else partials.data_ptr(), next(_tokens))
        return output

    return call
