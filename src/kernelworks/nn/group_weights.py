"""Weights of 4 bits as checkpoints of AWQ and GPTQ hold them, as bytes of ``UINT4_128``: no number changes."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract import describe
from kernelworks.contract.packed_groups import packed_groups

__all__ = ["bytes_of_awq", "bytes_of_gptq"]

GROUP = 128
GPTQ_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)  # which number lies in each four bits of an int32, the lowest first
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AWQ's


def _unpacked(packed: Tensor, order: tuple[int, ...]) -> Tensor:
    """[..., n] of int32 as [..., 8 n] numbers of 4 bits."""
    places = torch.tensor([4 * order.index(i) for i in range(8)], dtype=torch.int32, device=packed.device)
    return ((packed[..., None] >> places) & 15).flatten(-2).to(torch.uint8)


def _need(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {str(dtype).removeprefix('torch.')}{list(shape)}, got {describe(tensor)}")


def _bytes(codes: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """``codes`` [K, N], ``zeros`` and ``scales`` [K / 128, N] as [N, bytes of K]."""
    blocks = codes.T.contiguous().unflatten(-1, (len(scales), GROUP))
    return packed_groups(blocks, scales.T.float(), zeros.T.float()).flatten(-2).contiguous()


def _sizes(scales: Tensor) -> tuple[int, int]:
    if scales.dtype != torch.float16 or scales.dim() != 2 or scales.shape[1] % 8:
        raise ValueError(f"scales must be float16[K / 128, N] with N a multiple of 8, got {describe(scales)}")
    return scales.shape[0] * GROUP, scales.shape[1]


def bytes_of_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
    """[N, bytes of K] of ``qweight`` int32 [K, N / 8], ``qzeros`` int32 [K / 128, N / 8], ``scales`` [K / 128, N]."""
    k, n = _sizes(scales)
    _need("qweight", qweight, torch.int32, (k, n // 8))
    _need("qzeros", qzeros, torch.int32, (k // GROUP, n // 8))
    return _bytes(_unpacked(qweight, AWQ_ORDER), _unpacked(qzeros, AWQ_ORDER), scales)


def bytes_of_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None, *, zeros_less_one: bool = True
) -> Tensor:  # fmt: skip
    """[N, bytes of K] of ``qweight`` int32 [K / 8, N], ``qzeros`` int32 [K / 128, N / 8], ``scales`` [K / 128, N].

    ``zeros_less_one``: zero points are stored less 1, as the format ``gptq`` has them, but not ``gptq_v2``.
    """
    k, n = _sizes(scales)
    _need("qweight", qweight, torch.int32, (k // 8, n))
    _need("qzeros", qzeros, torch.int32, (k // GROUP, n // 8))
    if g_idx is not None and not torch.equal(g_idx.cpu().long(), torch.arange(k) // GROUP):
        raise ValueError("g_idx must count groups of 128 columns in order; another order is not packed")
    codes = _unpacked(qweight.T.contiguous(), GPTQ_ORDER).T
    return _bytes(codes, _unpacked(qzeros, GPTQ_ORDER).float() + zeros_less_one, scales)
