"""Launches of ``tile/epilogue.cuh``: the tiled product on Hopper, with something done to its sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel, tensor_map
from kernelworks.contract import Request
from kernelworks.ops.linear.linear.sm90 import (
    BLOCKED_SHARED,
    CLUSTER,
    DTYPES,
    PANEL,
    TILE_K,
    TILE_M,
    TILE_N,
    _aligned,
    _blocked,
    _scratch,
    _suffix,
    _tokens,
)

__all__ = ["decline_reason", "kernel_of", "multiply", "rows_of"]


def decline_reason(request: Request, weights: Sequence[str] = ("weight",)) -> str | None:
    """Why these kernels do not take a request, or None."""
    x = request.args["x"]
    if x.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    n, k = request.args[weights[0]].shape
    if not x.numel or not n or not k or max(x.numel // k, 2 * n, k) >= 2**31:
        return "takes sizes from 1 to 2^31"
    if k % 8 or n % 8 or not all(_lies(request.args[name].stride) for name in weights):
        return "copies 16 bytes at a time: rows of a weight and of the result must be of whole 16 bytes, K on end"
    return None


def _lies(stride: tuple[int, ...]) -> bool:
    return stride[1] == 1 and stride[0] % 8 == 0


def kernel_of(source: Path, name: str, dtype: torch.dtype) -> Kernel:
    """The kernel of an epilogue, in the type of its operands."""
    return Kernel(source, f"{name}_{_suffix(dtype)}", threads=384, shared=BLOCKED_SHARED, cluster=CLUSTER, overlap=True)


def rows_of(x: Tensor) -> Tensor:
    """x as the kernels take it: rows of whole 16 bytes; a copy where it does not lie so."""
    return _aligned(x)


def multiply(
    kernel: Kernel, output: Tensor, x: Tensor, weight: Tensor, *, up: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, scales: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Fills ``output``, which is contiguous. Copies of operands that do not lie as the kernel takes them."""
    n, k = weight.shape
    rows, weight = _aligned(x), _aligned(weight)
    m = output.numel() // n
    x_stride = rows.stride(0) if rows.dim() == 2 else k
    target = output if output.data_ptr() % 16 == 0 else torch.empty_like(output)
    if bias is not None and (not bias.is_contiguous() or bias.data_ptr() % 4):
        bias = bias.clone(memory_format=torch.contiguous_format)
    _, blocks, streamed = _blocked(m, n if up is None else 2 * n, k, x.dtype, x.device)  # cut as linear's
    size = _scratch(blocks, streamed)
    partials = x.new_empty(size, dtype=torch.uint8) if size else None
    lines = TILE_N // CLUSTER if up is None else PANEL
    of_out = tensor_map(target, m, n, n, PANEL, PANEL)
    of_weight = tensor_map(weight, n, k, weight.stride(0), lines, TILE_K)
    of_up, of_residual = of_weight, of_out
    if up is not None:
        up = _aligned(up)
        of_up = tensor_map(up, n, k, up.stride(0), lines, TILE_K)
    if residual is not None:
        residual = _aligned(residual)
        of_residual = tensor_map(residual, m, n, residual.stride(0) if residual.dim() == 2 else n, PANEL, PANEL)
    maps = (tensor_map(rows, m, k, x_stride, TILE_M, TILE_K), of_weight, of_up, of_out, of_residual)
    kernel((blocks, 1, 1), target, bias, scales, *maps, m, n, k, streamed, partials, next(_tokens))
    return output if target is output else output.copy_(target)
