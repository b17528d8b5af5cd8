"""linear for 16-bit elements on Hopper, in CUDA C++: few rows of x stream the weight, many are multiplied in tiles, as
gradients are."""

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
from kernelworks.contract.memory_layout import as_rows
from kernelworks.templates.product import Gradients, gradients_like

__all__ = ["backward", "forward", "guard", "prepare_backward", "prepare_forward"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
MOST_STREAMED = 16  # rows of x
LEAST_ROWS = 256  # of x whose gradients are made: what a pair of tiles has
DTYPES = (torch.bfloat16, torch.float16)
# As in blocked.cuh: a tile, and shared memory for the stages and for two groups' two panels of the result.
TILE_M, TILE_N, TILE_K, CLUSTER, PANEL = 128, 256, 64, 2, 64
BLOCKED_SHARED = 4 * (TILE_M + TILE_N) * TILE_K * 2 + 4 * PANEL * PANEL * 2
PARTIAL = 4 * CLUSTER * TILE_M * TILE_N  # bytes of a cluster's partial sums
FLAGS = 8 * 2 * CLUSTER  # bytes a cluster: one flag for each group of each block
SPLIT_COST, LEAST_STEPS = 10, 16  # both in steps along K
MOST_PARTS, PART_COST = 4, 5  # of a tile where tiles are few, and what each costs in steps: half of what two do
SUM_COLUMNS, ADDED, SUM_BLOCKS = 256, 32, 6  # as in column_sums.cuh; and blocks a multiprocessor that sum up rows
# What a flag says when partial sums are there. They lie in memory that the allocator hands out uncleared, where no such
# number can be from before: none is used twice, and the kernel wipes what it has seen, for a graph launches it again.
_tokens = itertools.count(secrets.randbits(61) + 1)

Launch = Callable[..., Any]


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    x, weight, backward = request.args["x"], request.args["weight"], request.pass_ == "backward"
    if x.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    n, k = weight.shape
    if not x.numel or not weight.numel or max(x.numel // k, n, k) >= 2**31:
        return "takes sizes from 1 to 2^31"
    if backward and x.numel // k < LEAST_ROWS:
        return "makes gradients of 256 rows and more: of fewer most of a pair of tiles would stand empty"
    read = not backward or request.args["needs"][0]
    if k % 8 or (read and (weight.stride[1] != 1 or weight.stride[0] % 8)):
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
    c = CONFIGS.pick("stream", op_kernel="sm90", M=m, N=n, K=k, dtype=dtype)
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


def _sharers(tiles: int, clusters: int, steps: int) -> int:
    """How many clusters share tiles of which there are fewer, all cut along K: none where it would not pay."""
    least, found = steps, 0
    for parts in range(2, MOST_PARTS + 1):
        taken = min(clusters, parts * tiles)
        took = -(-tiles * steps // taken) + parts * PART_COST
        if took < least:
            least, found = took, taken
    return found


def _blocked(
    m: int, n: int, k: int, dtype: torch.dtype, device: torch.device, name: str = "blocked", share: bool = False
) -> tuple[Kernel, int, int]:  # fmt: skip
    """The kernel for many rows, how many blocks it takes, and how many tiles are cut along K.

    Where none is, no more blocks than needed for as few turns as all would take: what stands idle leaves its power to
    the others. Where tiles are few, clusters may ``share`` all of them.
    """
    tiles, steps = -(-m // (TILE_M * CLUSTER)) * -(-n // TILE_N), -(-k // TILE_K)
    most = _multiprocessors(device) // CLUSTER
    clusters = _sharers(tiles, most, steps) if share and tiles < most else 0
    streamed = tiles if clusters else _streamed(tiles, min(tiles, most), steps)
    clusters = clusters or min(tiles, most)
    if not streamed:
        clusters = -(-tiles // -(-tiles // clusters))
    kernel = _kernel(f"{name}_{_suffix(dtype)}", 384, BLOCKED_SHARED, CLUSTER, overlap=True)
    return kernel, CLUSTER * clusters, streamed


def _launch(output: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """``x`` is what ``as_rows`` gives; everything begins at whole 16 bytes, ``bias`` at whole 4."""
    n, k = weight.shape
    m = x.numel() // k
    x_stride, w_stride = _stride(x), weight.stride(0)
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


def _stride(rows: Tensor) -> int:
    """Elements between rows of what ``as_rows`` gave."""
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


def _aligned(x: Tensor) -> Tensor:
    """Rows of whole 16 bytes at an address of whole 16 bytes; a copy where x's are not, or are all one."""
    rows = as_rows(x)
    stride = _stride(rows)
    fits = stride and stride % 8 == 0 and rows.data_ptr() % 16 == 0
    return rows if fits else rows.clone(memory_format=torch.contiguous_format)


def _lies(x: Tensor) -> bool:
    """Whether ``_aligned`` would give x itself, but for its address."""
    rows = as_rows(x)
    return rows.data_ptr() == x.data_ptr() and _stride(rows) > 0 and _stride(rows) % 8 == 0


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
    if not _lies(x) or x.device.type != "cuda" or not (bias is None or bias.is_contiguous()):
        return None
    return (_prepare_few if m <= MOST_STREAMED else _prepare_many)(x, weight, m, _stride(rows))


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


# ---------------------------------------------------------------- gradients

# Each is run(to, grad, other) for calls of one shape: ``to`` is contiguous, all begin at whole 16 bytes, and ``grad``
# and ``other`` have rows of whole 16 bytes.
GradientLaunch = Callable[[Tensor, Tensor, Tensor], None]


def _product(
    name: str, maps: Callable[..., tuple[Tensor, ...]], m: int, n: int, k: int, like: Tensor
) -> GradientLaunch:
    """A product M x N of sums over K, in tiles."""
    kernel, blocks, streamed = _blocked(m, n, k, like.dtype, like.device, name, share=True)
    scratch, index = _scratch(blocks, streamed), like.get_device()

    def compiled(blocks: int, *arguments: Any) -> None:  # of tensors without data
        kernel((blocks, 1, 1), *arguments)

    launch = kernel.on(index) if index >= 0 else compiled

    def run(to: Tensor, grad: Tensor, other: Tensor) -> None:
        partials = to.new_empty(scratch, dtype=torch.uint8) if scratch else None
        launch(blocks, to, *maps(to, grad, other), m, n, k, streamed, partials, next(_tokens))

    return run


def _grad_x(m: int, n: int, k: int, g_stride: int, w_stride: int, like: Tensor) -> GradientLaunch:
    """grad weight: rows of grad lie along N, over which is summed, and the weight down N."""

    def maps(to: Tensor, grad: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (
            tensor_map(grad, m, n, g_stride, TILE_M, TILE_K),
            tensor_map(weight, n, k, w_stride, TILE_K, PANEL),
            tensor_map(to, m, k, k, PANEL, PANEL),
        )

    return _product("grad_x", maps, m, k, n, like)


def _grad_weight(m: int, n: int, k: int, g_stride: int, x_stride: int, like: Tensor) -> GradientLaunch:
    """grad^T x: both lie down M, over which is summed."""

    def maps(to: Tensor, grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (
            tensor_map(grad, m, n, g_stride, TILE_K, PANEL),
            tensor_map(x, m, k, x_stride, TILE_K, PANEL),
            tensor_map(to, n, k, k, PANEL, PANEL),
        )

    return _product("grad_weight", maps, n, k, m, like)


def _grad_bias(m: int, n: int, g_stride: int, like: Tensor) -> GradientLaunch:
    """Sums over the rows of grad: by shares of the rows first, and those then."""
    summed, added = (_kernel(f"{name}_{_suffix(like.dtype)}", 256, overlap=True) for name in ("sum_rows", "add_shares"))
    across = -(-n // SUM_COLUMNS)
    many = max(1, min(-(-m // 64), -(-SUM_BLOCKS * _multiprocessors(like.device) // across)))

    def run(to: Tensor, grad: Tensor, other: Tensor) -> None:
        shares = to.new_empty((many, n), dtype=torch.float32)
        summed((across, many, 1), shares, grad, g_stride, m, n)
        added((-(-n // ADDED), 1, 1), to, shares, many, n)

    return run


def _runs(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool]) -> tuple[tuple[int, GradientLaunch], ...]:
    """What makes the gradients that are asked for, with their numbers. Of what they read the strides are taken."""
    n, k = weight.shape
    m, g_stride = x.numel() // k, _stride(as_rows(grad))
    makers: tuple[Callable[[], GradientLaunch], ...] = (
        lambda: _grad_x(m, n, k, g_stride, _stride(as_rows(weight)), grad),
        lambda: _grad_weight(m, n, k, g_stride, _stride(as_rows(x)), grad),
        lambda: _grad_bias(m, n, g_stride, grad),
    )
    return tuple((i, make()) for i, (make, needed) in enumerate(zip(makers, needs, strict=True)) if needed)


def backward(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None) -> Gradients:
    made = gradients_like(x, weight, needs) if out is None else out
    grad = _aligned(grad)
    x, weight = (_aligned(t) if needed else t for t, needed in ((x, needs[1]), (weight, needs[0])))
    for i, run in _runs(grad, x, weight, needs):
        to = made[i] if made[i].data_ptr() % 16 == 0 else torch.empty_like(made[i])
        run(to, grad, weight if i == 0 else x)
        if to is not made[i]:
            made[i].copy_(to)
    return made[0], made[1], made[2]


def prepare_backward(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool]) -> Callable[..., Gradients] | None:
    """As ``prepare_forward``."""
    read = (True, needs[1], needs[0])  # of grad, x and weight
    if grad.device.type != "cuda" or not all(_lies(t) for t, r in zip((grad, x, weight), read, strict=True) if r):
        return None
    runs, (_, of_x, of_weight) = _runs(grad, x, weight, needs), read

    def call(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None) -> Gradients:
        at = grad.data_ptr() | (x.data_ptr() if of_x else 0) | (weight.data_ptr() if of_weight else 0)
        if at & 15 or out is not None:
            return backward(grad, x, weight, needs, out)
        made = gradients_like(x, weight, needs)
        for i, run in runs:
            run(made[i], grad, weight if i == 0 else x)
        return made

    return call
