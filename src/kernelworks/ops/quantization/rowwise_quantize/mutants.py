"""Known-wrong versions of rowwise_quantize. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.quantization.rowwise_quantize.contract import MOST, quantize_rows

__all__ = ["MUTANTS"]

CodesAndScale = tuple[Tensor, Tensor]


def _scaled(change: Callable[[Tensor, float], Tensor], *, back: bool = False) -> Callable[..., CodesAndScale]:
    """Codes by another scale, which is returned too, or the right one in its place."""

    def run(x: Tensor, dtype: str) -> CodesAndScale:
        right = quantize_rows(x, dtype)
        if not x.numel():
            return right
        scale = change(x.float(), MOST[dtype])
        quotient = torch.where(scale == 0.0, 0.0, x.float() / scale).clamp(-MOST[dtype], MOST[dtype]).nan_to_num(0.0)
        codes = quotient.round() if dtype == "int8" else quotient
        made = codes.to(torch.int8) if dtype == "int8" else codes.to(torch.float8_e4m3fn).view(torch.int8)
        return made, right[1] if back else scale.squeeze(-1)

    return run


def _rounded(change: Callable[[Tensor], Tensor]) -> Callable[..., CodesAndScale]:
    """Quotients rounded in another way: of int8 codes, and of float8's mantissas."""

    def run(x: Tensor, dtype: str) -> CodesAndScale:
        codes, scale = quantize_rows(x, dtype)
        spread = scale.unsqueeze(-1)
        quotient = torch.where(spread == 0.0, 0.0, x.float() / spread).clamp(-MOST[dtype], MOST[dtype])
        plain = quotient.isfinite()
        q = quotient.nan_to_num(0.0)
        if dtype == "int8":
            return torch.where(plain, change(q).clamp(-127, 127).to(torch.int8), codes), scale
        step = 2.0 ** (torch.frexp(q.abs().clamp(min=2.0**-6))[1].float() - 4.0)
        wrong = (change(q / step) * step).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.int8)
        return torch.where(plain, wrong, codes), scale

    return run


def _after(change: Callable[[Tensor, Tensor], CodesAndScale]) -> Callable[..., CodesAndScale]:
    return lambda x, dtype: change(*quantize_rows(x, dtype))


def _stale(codes: Tensor, scale: Tensor) -> CodesAndScale:
    codes = codes.clone()
    codes[..., -1:] = 0
    return codes, scale


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(-1, keepdim=True)


MUTANTS = (
    Mutant("largest, not its magnitude", _scaled(lambda x, most: x.amax(-1, keepdim=True).abs() / most), "signs stay"),
    Mutant("one scale for all", _scaled(lambda x, most: (x.abs().amax() / most).expand(*x.shape[:-1], 1)), "no rows"),
    Mutant("last element left out", _scaled(lambda x, m: _largest(x[..., : max(x.shape[-1] - 1, 1)]) / m), "a tail"),
    Mutant("a code more", _scaled(lambda x, most: _largest(x) / (most + 1)), "128 and 449 for 127 and 448"),
    Mutant("scale by a reciprocal", _scaled(lambda x, most: _largest(x) * torch.tensor(1 / most)), "two roundings"),
    Mutant("scale in bfloat16", _scaled(lambda x, most: (_largest(x) / most).bfloat16().float()), "it is rounded"),
    Mutant("truncated", _rounded(torch.trunc), "codes are cut off"),
    Mutant("halves away from zero", _rounded(lambda q: (q.abs() + 0.5).floor() * q.sign()), "not to the even one"),
    Mutant("halves up", _rounded(lambda q: (q + 0.5).floor()), "not to the even one"),
    Mutant("NaN's row is 0", _after(lambda codes, scale: (codes, scale.nan_to_num(0.0))), "NaN and inf get lost"),
    Mutant("scale of 1 for zeros", _after(lambda c, s: (c, torch.where(s == 0.0, 1.0, s))), "other scales of zeros"),
    Mutant("shifted rows", _after(lambda c, s: (c.roll(1, 0) if c.dim() > 1 else c, s)), "rows are one too low"),
    Mutant("neighbour's scale", _after(lambda c, s: (c, s.roll(1, -1) if s.dim() else s)), "scales are one aside"),
    Mutant("stale end", _after(_stale), "the last code is never written"),
    Mutant("zeros", _after(lambda c, s: (torch.zeros_like(c), torch.zeros_like(s))), "nothing is written"),
)
