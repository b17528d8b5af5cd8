"""What cumsum promises; what it shares with other scans is in ``templates/scan.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator

from kernelworks.contract import Case
from kernelworks.templates.scan import Scan

__all__ = ["CONTRACT", "TEMPLATE"]


def _large_first(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """A number beside which 1 is nothing in float32, then ones, and the number again with the other sign."""
    x = torch.ones(2, 2001, dtype=dtype)
    x[:, 0] = 2.0**24
    x[:, 1000] = -(2.0**24)
    return {"x": x, "dim": -1}


TEMPLATE = Scan(
    op_package=__file__,
    formula="output[i] = x[0] + ... + x[i], along dim",
    source="Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990",
    function=torch.cumsum,
    aten="cumsum",
    join=torch.add,
    none=0.0,
    cases=(Case("large first", _large_first, dtypes=(torch.float32, torch.bfloat16)),),
)
CONTRACT = TEMPLATE.contract
