"""Known-wrong versions of linear. The proof must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().T


def _variant(product: Callable[[Tensor, Tensor], Tensor] = _product, **changed: Any) -> Callable[..., Tensor]:
    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = product(x, weight)
        if bias is not None and changed.get("bias", True):
            y = y + bias.double() * changed.get("times", 1.0)
        after: Callable[[Tensor], Tensor] = changed.get("after", lambda v: v)
        return after(y).to(x.dtype)

    return run


def _short_k(x: Tensor, weight: Tensor) -> Tensor:
    k = x.shape[-1]
    kept = k // 16 * 16 if k > 16 else k
    return _product(x[..., :kept], weight[:, :kept])


def _block_twice(x: Tensor, weight: Tensor) -> Tensor:
    k = x.shape[-1]
    return _product(x, weight) + (_product(x[..., 384:385], weight[:, 384:385]) if k > 384 else 0.0)


def _last_block(x: Tensor, weight: Tensor) -> Tensor:
    first = max(x.shape[-1] - 1, 0) // 384 * 384
    return _product(x[..., first:], weight[:, first:])


def _bfloat16_sums(x: Tensor, weight: Tensor) -> Tensor:
    total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.bfloat16)
    for k in range(x.shape[-1]):
        total = (total.float() + x[..., k, None].float() * weight[:, k].float()).bfloat16()
    return total.double()


def _rounded_products(x: Tensor, weight: Tensor) -> Tensor:
    return (x[..., None, :].bfloat16() * weight.bfloat16()).double().sum(-1)


def _stale_column(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[-1] % 16:
        y[..., -1] = 0.0
    return y


def _shifted_rows(y: Tensor) -> Tensor:
    return y.roll(1, 0) if y.dim() > 1 else y


MUTANTS = (
    Mutant("missing bias", _variant(bias=False), "the bias is not added"),
    Mutant("bias twice", _variant(times=2.0), "the bias is added by two blocks of K"),
    Mutant("short K", _variant(_short_k), "the tail of K that fills no vector is left out"),
    Mutant("only the last block", _variant(_last_block), "a block of K overwrites the ones before it"),
    Mutant("overlapping blocks", _variant(_block_twice), "blocks of K overlap by one"),
    Mutant("bfloat16 accumulation", _variant(_bfloat16_sums), "the sum is kept in bfloat16"),
    Mutant("bfloat16 products", _variant(_rounded_products), "products are rounded to bfloat16 before they are added"),
    Mutant("stale column", _variant(after=_stale_column), "the last column of a partial tile is never written"),
    Mutant("shifted rows", _variant(after=_shifted_rows), "rows are written one too low"),
    Mutant("zeros", _variant(after=torch.zeros_like), "nothing is written"),
)
