"""What an op's room says of it for all tools agrees with what its cases show."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernelworks.bench.forecast import limit
from kernelworks.contract import Request, TensorSpec
from kernelworks.models.outlook import _request
from kernelworks.op import OPS, Op
from kernelworks.records import Ceilings, GpuCeilings
from machines import gpu_record, record
from rows import ALL_OPS, label

OF_PRODUCTS = 24.0  # flop a byte: what is read and written once and not multiplied as matrices stays far below


def requests(op: Op) -> list[Request]:
    """What the op's benches ask for, in bfloat16."""
    return [_request(op, case, torch.bfloat16, "cpu") for case in op.contract.bench_cases]


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_arithmetic_that_outgrows_the_bytes_is_of_products(op: Op) -> None:
    most = max(c.flop / max(1.0, c.bytes) for c in map(op.contract.cost, requests(op)))
    assert (most > OF_PRODUCTS) is (op.contract.arithmetic == "products"), most


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_indices_have_a_limit(op: Op) -> None:
    """So that whoever makes up arguments makes ones that may be."""
    for request in requests(op):
        for name, value in request.args.items():
            if isinstance(value, TensorSpec) and not value.dtype.is_floating_point and value.dtype is not torch.bool:
                other, dim = op.contract.limits[name]
                assert request.args[other].shape[dim] > 0


@pytest.mark.parametrize("known", [record(), gpu_record()], ids=["cpu", "gpu"])
def test_products_are_bounded_by_the_units_of_their_dtype(known: Ceilings | GpuCeilings) -> None:
    """A loss from hidden states is nearly all products of matrices."""
    op, device = OPS["linear_cross_entropy"], "cuda" if isinstance(known, GpuCeilings) else "cpu"
    bounds = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = (TensorSpec((n, 1024), dtype, (1024, 1), device) for n in (1024, 32000))
        target = TensorSpec((1024,), torch.int64, (1,), device)
        request = replace(op.request("forward", (x, weight, target, None, -100)), threads=1)
        bounds[dtype] = limit(op, request, known, math.inf)
    flop = op.contract.cost(request).flop
    rate = {"cpu": 400e9, "cuda": 800e12}[device]  # of products in bfloat16
    assert bounds[torch.float32].seconds > 1.9 * bounds[torch.bfloat16].seconds
    assert bounds[torch.bfloat16].terms["compute"] == pytest.approx(flop / rate, rel=0.05)
