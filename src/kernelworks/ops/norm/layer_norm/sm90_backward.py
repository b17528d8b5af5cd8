"""The gradients of layer_norm on Hopper, in CUDA C++: rows in a ring in shared memory, shares of sums in registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel
from kernelworks.contract import Request
from kernelworks.contract.memory_layout import as_rows

__all__ = ["backward", "guard", "prepare_backward"]

SOURCE = Path(__file__).with_suffix(".cu")
# As in the source: threads of a block, warps that turn rows, elements in 16 bytes, pieces of 16 bytes a thread, rows on
# their way, bytes before the weight and of a row's measures, columns of a strip and threads of the second kernel.
THREADS, WARPS, EACH, PIECES, MOST_STAGES, WEIGHT, MEASURES = 640, 16, 8, (3, 4), 8, 2176, 32
COLUMNS, SUM_THREADS = 32, 256
SHARED_BYTES = 227 * 1024
DTYPES = (torch.bfloat16, torch.float16)
SHORTEST = 4104  # elements of a row: up to 4096, two of Triton's programs a multiprocessor hold theirs in registers
LONGEST = WARPS * 32 * EACH * max(PIECES)  # what a block holds of a row
LONGEST_SUM = 64  # rows that a group adds up in float32: what the bound of the gradients leaves room for


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    x = request.args["x"]
    n = x.shape[-1]
    if x.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    if not SHORTEST <= n <= LONGEST or n % EACH:
        return f"takes rows of {SHORTEST} to {LONGEST} elements, in whole 16 bytes"
    return None if 0 < x.numel < 2**31 * n else "takes 1 to 2^31 rows"


@functools.cache
def _shape(n: int) -> tuple[int, int, int, int]:
    """For rows of n: pieces a thread, warps a row, rows on their way, bytes of shared memory. Most columns under way
    win, then most threads."""

    def columns(pieces: int) -> int:
        return WARPS // _warps(n, pieces) * n

    pieces = max((p for p in PIECES if _warps(n, p) <= WARPS), key=columns)
    warps = _warps(n, pieces)
    before, turn = WEIGHT + -(-2 * n // 128) * 128, WARPS // warps * (2 * 2 * n + MEASURES)
    stages = min(MOST_STAGES, (SHARED_BYTES - before) // turn)
    return pieces, warps, stages, before + stages * turn


def _warps(n: int, pieces: int) -> int:
    """Of a row of n."""
    return -(-n // (32 * EACH * pieces))


@functools.cache
def _kernels(dtype: torch.dtype, n: int) -> tuple[Kernel, Kernel, int, int]:
    """The kernels for rows of n, the warps of a row, and how many rows are on their way."""
    pieces, warps, stages, shared = _shape(n)
    name = str(dtype).removeprefix("torch.")
    gradients = Kernel(SOURCE, f"gradients_{name}_{pieces}", threads=THREADS, shared=shared, overlap=True)
    return gradients, Kernel(SOURCE, f"column_sums_{name}", threads=SUM_THREADS, overlap=True), warps, stages


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


def _stride(rows: Tensor) -> int:
    """Between rows, of what ``as_rows`` gave."""
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


def _aligned(x: Tensor) -> Tensor:
    """Rows of whole 16 bytes at an address of whole 16 bytes; a copy where x's are not."""
    rows = as_rows(x)
    return rows.clone(memory_format=torch.contiguous_format) if _stride(rows) % EACH or rows.data_ptr() % 16 else rows


def _blocks(m: int, warps: int, device: torch.device) -> int:
    """One a multiprocessor, and more only where sums would grow too long."""
    processors, groups = _multiprocessors(device), WARPS // warps
    blocks = min(processors, m)
    if m > LONGEST_SUM * groups * blocks:
        blocks = -(-m // (LONGEST_SUM * groups * processors)) * processors
    return blocks


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As the op package's other launches: the gradients of x, weight and bias, the last two empty where not wanted."""
    n = x.shape[-1]
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out[0]
    grad_weight = x.new_empty(n if weight is not None and needs[1] else 0)
    grad_bias = x.new_empty(n if bias is not None and needs[2] else 0)
    to_weight, to_bias = (g if g.numel() else None for g in (grad_weight, grad_bias))
    wanted = to_weight is not None or to_bias is not None
    rows, grads = _aligned(x), _aligned(grad)
    m = rows.numel() // n
    gradients, sums, warps, stages = _kernels(x.dtype, n)
    blocks = _blocks(m, warps, x.device)
    if weight is not None and (not weight.is_contiguous() or weight.data_ptr() % 16):
        weight = weight.clone(memory_format=torch.contiguous_format)
    partial = torch.empty((2, blocks, n), dtype=torch.float32, device=x.device) if wanted else None
    target = grad_x if grad_x.data_ptr() % 16 == 0 else torch.empty_like(grad_x)
    gradients(
        (blocks, 1, 1), grads, rows, weight, target, partial, _stride(grads), _stride(rows), m, n, warps, stages,
        float(eps),
    )  # fmt: skip
    if partial is not None:
        sums((-(-n // COLUMNS), 2, 1), partial, to_weight, to_bias, blocks, n)
    if target is not grad_x:
        grad_x.copy_(target)
    return grad_x, grad_weight, grad_bias


def prepare_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool]
) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """What serves calls that look like this one, with nothing to work out again; None where rows are copied."""
    if x.device.type != "cuda" or not all(t is None or t.is_contiguous() for t in (grad, x, weight)):
        return None
    n, device, dtype = x.shape[-1], x.device, x.dtype
    m = x.numel() // n
    gradients, sums, warps, stages = _kernels(dtype, n)
    blocks, strips, sizes = _blocks(m, warps, device), -(-n // COLUMNS), (n, n, m, n, warps, stages, float(eps))
    of_weight, of_bias = weight is not None and needs[1], bias is not None and needs[2]
    start, empty, empty_like = gradients.on(x.get_device()), torch.empty, torch.empty_like

    def call(
        grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, needs: list[bool],
        out: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        grad_x = empty_like(x) if out is None else out[0]
        left, right, by, to = (0 if t is None else t.data_ptr() for t in (grad, x, weight, grad_x))
        if (left | right | by | to) & 15:
            return backward(grad, x, weight, bias, eps, needs, (grad_x,))
        grad_weight = empty(n if of_weight else 0, dtype=dtype, device=device)
        grad_bias = empty(n if of_bias else 0, dtype=dtype, device=device)
        if not (of_weight or of_bias):
            start(blocks, left, right, by, to, 0, *sizes)
            return grad_x, grad_weight, grad_bias
        partial = empty((2, blocks, n), dtype=torch.float32, device=device)
        start(blocks, left, right, by, to, partial.data_ptr(), *sizes)
        sums((strips, 2, 1), partial, grad_weight if of_weight else None, grad_bias if of_bias else None, blocks, n)
        return grad_x, grad_weight, grad_bias

    return call
