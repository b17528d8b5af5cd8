"""What sort promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Case
from kernelworks.contract.arguments import Dim, Flag
from kernelworks.contract.cases import normal
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.select import Select, SelectionRequest

__all__ = ["CONTRACT", "TEMPLATE", "selection_of"]

BF16, F32 = torch.bfloat16, torch.float32


def selection_of(x: Any, dim: int, descending: bool, stable: bool) -> tuple[SelectionRequest, int]:
    return SelectionRequest(x.shape[dim] if x.shape else 1, descending, True), dim


def _make(x: Tensor, dim: int, count: int, descending: bool, in_order: bool) -> Mapping[str, Any] | None:
    if count != (x.shape[dim] if x.dim() else 1) or not in_order:
        return None
    return {"x": x, "dim": dim, "descending": descending, "stable": descending}


def _equals(descending: bool) -> Case:
    """Many equal elements, which have to stay in order."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
        x = normal(generator, dtype, 3, 1100).round()
        return {"x": x, "dim": -1, "descending": descending, "stable": True}

    return Case(f"few values, {'falling' if descending else 'rising'}, stable", make)


TEMPLATE = Select(
    op_package=__file__,
    formula="values = the elements along dim, rising (or falling); indices = where they stood; NaN is above all "
    "numbers",
    source="torch.sort",
    function=torch.sort,
    result_type=torch.return_types.sort,
    arguments={"x": T("..."), "dim": Dim("x", scalar=True), "descending": Flag(), "stable": Flag()},
    selection_of=selection_of,
    make=_make,
    stable="stable",
    cases=(_equals(True), _equals(False)),
    sizes=(((64, 4096), 4096, F32), ((4096, 64), 64, BF16), ((1, 1_000_000), 1_000_000, F32)),
    device_sizes=(((131_072, 128), 128, BF16), ((16_384, 128), 128, F32), ((16_384, 64), 64, BF16)),
)
CONTRACT = TEMPLATE.contract
