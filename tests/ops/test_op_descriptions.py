"""What an op's package says of it for all tools agrees with what its cases show."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace

import pytest
import torch
from machines import gpu_record
from machines import record as cpu_record
from op_kernels import ALL_OPS, label
from torch import Tensor
from torch_calls import example

import kernelworks as kw
from kernelworks.contract import Request, TensorSpec
from kernelworks.contract.complex_numbers import is_inexact, wide_dtype
from kernelworks.contract.limits import Ends, size_along
from kernelworks.diagnose.forecast.swapped_kernel import rebuild_call
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import by_operator, torch_signatures
from kernelworks.measure.roofline.forecast import limit
from kernelworks.nn.expected_kernels import _request
from kernelworks.nn.functional import _stand_in
from kernelworks.nn.originals import TORCH_FUNCTIONS
from kernelworks.nn.torch_modules import TORCH_MODULES
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.recording import record
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.templates.pairwise import Pairwise
from kernelworks.templates.pairwise_metric import MetricPairwise

OF_ANY_VALUE = (torch.bool, torch.uint8, torch.int8)  # truth values and bytes
OF_PRODUCTS = 24.0  # flop a byte: what is read and written once and not multiplied as matrices stays far below


@functools.cache  # a bench's tensors are large
def requests(op: Op) -> list[Request]:
    """What the op's benches ask for, in bfloat16."""
    return [_request(op, case, torch.bfloat16, "cpu") for case in op.contract.bench_cases]


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_arithmetic_that_outgrows_the_bytes_is_of_products(op: Op) -> None:
    """Or of pairs of points: differences are no matter for matrix units. Nor are the chains of a small matrix that is
    factored where it lies."""
    most = max(c.flop / max(1.0, c.bytes) for c in map(op.contract.cost, requests(op)))
    of_pairs = isinstance(op.template, (Pairwise, MetricPairwise))
    if op.contract.family == "linalg":
        assert op.contract.arithmetic == "float32"
        return
    assert (most > OF_PRODUCTS) is (op.contract.arithmetic == "products" or of_pairs), most
    assert not (of_pairs and op.contract.arithmetic == "products")


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_indices_have_a_limit(op: Op) -> None:
    """So that whoever makes up arguments makes ones that may be."""
    for request in requests(op):
        for name, value in request.args.items():
            if isinstance(value, TensorSpec) and not is_inexact(value.dtype) and value.dtype not in OF_ANY_VALUE:
                limit = op.contract.limits[name]
                size = size_along(limit, request.args)
                assert size > 0
                drawn = limit.fill(torch.empty(value.shape, dtype=value.dtype), size)
                if isinstance(limit, Ends):
                    ends = [0, *drawn.tolist()]
                    assert ends == sorted(ends) and ends[-1] == size
                    assert not limit.from_zero or ends[1] == 0
                elif drawn.numel():
                    assert drawn.min() >= 0 and drawn.max() < size


@pytest.mark.parametrize("known", [cpu_record(), gpu_record()], ids=["cpu", "gpu"])
def test_products_are_bounded_by_the_units_of_their_dtype(known: Peaks | GpuPeaks) -> None:
    """A loss from hidden states is nearly all products of matrices."""
    op, device = OPS["linear_cross_entropy"], "cuda" if isinstance(known, GpuPeaks) else "cpu"
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


SWAPPED = [name for name, torch_signature in torch_signatures().items() if not torch_signature.no_swap_reason]


@pytest.mark.parametrize("name", SWAPPED)
def test_a_torch_signature_alone_is_enough_for_a_swap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no function of its own in ``nn/functional.py`` is asked and answered like what has."""
    torch_signature = torch_signatures()[name]
    op, function = torch_signature.op, _stand_in(torch_signature)
    given = example(torch_signature)
    op.entry.ensure_native()
    op.forget()  # a call like one before goes past Python
    reached, call = [], op.call
    monkeypatch.setattr(op, "call", lambda *args: reached.append(name) or call(*args))
    with torch.no_grad():
        torch.testing.assert_close(function(**given), TORCH_FUNCTIONS[name](**given))
        assert reached == [name]
        wide = {n: v.to(wide_dtype(v.dtype)) if isinstance(v, Tensor) else v for n, v in given.items()}
        try:
            want = TORCH_FUNCTIONS[name](**wide)
        except RuntimeError as error:  # grouped_mm has no float64
            with pytest.raises(type(error), match=re.escape(str(error).splitlines()[0])):
                function(**wide)
        else:
            torch.testing.assert_close(function(**wide), want, rtol=0, atol=0)
        assert reached == [name]
    with pytest.raises(TypeError):
        function(**given, colour=1)
    torch._dynamo.reset()  # the code of each is the same
    compiled = torch.compile(lambda **named: function(**named), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**given), TORCH_FUNCTIONS[name](**given))


@pytest.mark.parametrize("name", SWAPPED)
def test_each_swapped_function_is_found_by_its_operator(name: str) -> None:
    torch_signature = torch_signatures()[name]
    assert by_operator(f"aten::{torch_signature.operator}") is torch_signature
    given = example(torch_signature)
    with torch.no_grad():
        seen = record(lambda: TORCH_FUNCTIONS[name](**given), survey=Survey()).calls
    found = [c for c in seen if by_operator(c.name) is torch_signature]
    assert [rebuild_call(c, lambda operand: torch.empty(operand.shape)) is not None for c in found] in ([True], [])
    assert found or not hasattr(torch.ops.aten, torch_signature.operator)  # torch makes it of other operators


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_function_of_two_operators_is_found_by_either(dims: int) -> None:
    """A maximum of windows with and without indices: the call is made again as it was asked."""
    torch_signature, x = torch_signatures()[f"max_pool{dims}d"], torch.randn(1, 2, *(4,) * dims)
    for indices in (False, True):
        pool = TORCH_FUNCTIONS[torch_signature.name]
        (seen,) = record(lambda i=indices, f=pool: f(x, 2, return_indices=i), survey=Survey()).calls
        assert by_operator(seen.name) is torch_signature
        again = rebuild_call(seen, lambda operand: torch.ones(operand.shape))
        assert again is not None and isinstance(again(), tuple) == indices


def test_modules_of_torch_that_call_one_function_are_swapped_by_it() -> None:
    known_by = {forward.__qualname__: name for forward, _, name, _ in TORCH_MODULES}
    assert known_by["ReLU.forward"] == "relu" and known_by["Softmax2d.forward"] == "softmax"
    x = torch.randn(2, 3, 4, 5)
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax2d(), torch.nn.ReLU(inplace=True)).eval()
    want = model(x)
    swapped = kw.swap(model)
    assert [r.ops for r in swapped.replaced] == [("relu",), ("softmax",)]
    assert [left.reason for left in swapped.left] == ["it writes into its input"]
    torch.testing.assert_close(model(x), want)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), want)
    with pytest.raises(ValueError, match="Softmax2d"):
        model[1](x[0, 0])
    swapped.undo()
    assert not any("forward" in vars(module) for module in model)
