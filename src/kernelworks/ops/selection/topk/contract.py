"""What topk promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.arguments import Dim, Flag
from kernelworks.contract.count_argument import Count
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.select import Select, SelectionRequest

__all__ = ["CONTRACT", "TEMPLATE", "selection_of"]

BF16, F32 = torch.bfloat16, torch.float32


def selection_of(x: Any, k: int, dim: int, largest: bool, sorted: bool) -> tuple[SelectionRequest, int]:
    return SelectionRequest(k if len(x.shape) else 1, largest, sorted), dim  # torch gives a scalar back for k = 0, too


def _make(x: Tensor, dim: int, count: int, descending: bool, in_order: bool) -> Mapping[str, Any]:
    return {"x": x, "k": count, "dim": dim, "largest": descending, "sorted": in_order}


TEMPLATE = Select(
    op_package=__file__,
    formula="values = the k largest (or smallest) elements along dim, falling (or rising); indices = where they stood; "
    "NaN is above all numbers",
    source="torch.topk",
    function=torch.topk,
    result_type=torch.return_types.topk,
    arguments={
        "x": T("..."), "k": Count("x", "dim"), "dim": Dim("x", scalar=True), "largest": Flag(), "sorted": Flag(),
    },
    selection_of=selection_of,
    make=_make,
    order="sorted",
    # A router's experts, a sampler's vocabulary, a few of many rows, a few of a long line.
    sizes=(
        ((4096, 128), 8, F32), ((4096, 128), 8, BF16), ((1, 32_000), 50, F32), ((16, 32_000), 50, BF16),
        ((256, 1000), 10, F32), ((1, 1_000_000), 64, F32),
    ),
    device_sizes=(
        ((131_072, 128), 8, BF16),
        ((16_384, 128), 8, F32), ((16_384, 128), 8, BF16), ((16, 128_000), 50, BF16), ((4096, 1000), 10, F32),
        ((1, 4_000_000), 64, F32),
    ),
)  # fmt: skip
CONTRACT = TEMPLATE.contract
