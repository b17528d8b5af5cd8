"""What cumprod promises; what it shares with other scans is in ``templates/scan.py``."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from kernelworks.contract.cases import draw
from kernelworks.templates.scan import Scan

__all__ = ["CONTRACT", "TEMPLATE"]


def _draw(kind: str, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Values whose products stay within the dtype along lines of any length, where VALUES' do not."""
    x = draw(kind, generator, dtype, *shape).float()
    n = max(max(shape, default=1), 1)
    if kind == "normal":  # about e^3 at most at the end of a line
        x = x.sign() * (x.abs() - 0.8).mul(3.0 / n**0.5).exp()
    if kind == "large_mean":  # 100, 1/100, 100, ...
        odd = torch.arange(x.numel()).reshape(x.shape) % 2 == 1
        x = torch.where(odd, 1 / x, x)
    return x.to(dtype)


TEMPLATE = Scan(
    op_package=__file__,
    formula="output[i] = x[0] ... x[i], along dim",
    source="Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990",
    function=torch.cumprod,
    aten="cumprod",
    join=torch.mul,
    none=1.0,
    reads_x=True,
    draw=_draw,
)
CONTRACT = TEMPLATE.contract
