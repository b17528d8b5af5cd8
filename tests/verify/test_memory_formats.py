"""Memory formats: channels_last is tried, results lie as compilers were told, ``out`` may lie as a result."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw
from kernelworks.build.kernels import python_kernel
from kernelworks.contract import Case
from kernelworks.contract.memory_layout import is_channels_last_1d, with_unit_stride
from kernelworks.dispatch.op import OPS
from kernelworks.verify.guarded_buffers import LAYOUTS, arena
from kernelworks.verify.parity import parities

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
SHAPES = {4: (2, 3, 4, 5), 5: (2, 3, 4, 5, 6)}
LAST = torch.channels_last
POINTWISE = {"relu": F.relu, "gelu": F.gelu, "hardswish": F.hardswish, "sigmoid": torch.sigmoid}


@pytest.mark.parametrize("dims", FORMATS)
def test_guarded_tensors_lie_in_torchs_formats(dims: int) -> None:
    values = torch.randn(SHAPES[dims])
    with arena(at_end=True) as memory:
        placed = memory.place(values, "channels_last")
        assert placed.is_contiguous(memory_format=FORMATS[dims]) and torch.equal(placed, values)
        like = memory.new_poisoned(tuple(values.shape), values.dtype, placed)
        assert like.stride() == placed.stride() and bool(like.isnan().all())
        del placed, like


def _tried(shape: tuple[int, ...]) -> set[str]:
    op = OPS["relu"]
    case = Case("drawn", lambda g, d: {"x": torch.randn(shape, generator=g).to(d)}, layouts=True, gradients=False)
    found = list(parities(op, "reference", case, torch.float32))
    assert not [p.message for p in found if p.message]
    return {p.case.partition("(")[2].rstrip(")") or "contiguous" for p in found}


def test_formats_are_tried_where_torch_has_them() -> None:
    assert _tried((2, 3, 4, 5)) == set(LAYOUTS)
    assert _tried((3, 4, 5)) == set(LAYOUTS) - {"channels_last"}


def test_a_kernel_that_changes_the_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["conv2d"]

    def contiguous(*args: Any, out: Any = None) -> Tensor:
        made = F.conv2d(args[0], args[1], args[2], *args[3:]).contiguous()
        return made if out is None else out.copy_(made)

    monkeypatch.setattr(
        op, "kernels", (dataclasses.replace(python_kernel("faulty", contiguous), source=Path(__file__)), *op.kernels)
    )
    case = next(c for c in op.contract.cases if c.layouts)
    found = {p.case: p.message for p in parities(op, "faulty", case, torch.float32) if p.pass_ == "forward"}
    wrong = [name for name, message in found.items() if message]
    assert wrong == [f"{case.name} (channels_last)"] and "is promised with" in found[wrong[0]]


@pytest.mark.parametrize("dims", FORMATS)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_ops_keep_the_format_as_torchs_do(name: str, dims: int) -> None:
    x = torch.randn(SHAPES[dims]).to(memory_format=FORMATS[dims])
    want = POINTWISE[name](x)
    for kernel in [k.name for k in OPS[name].kernels if k.source is None or k.target == "scalar"]:
        got = getattr(kw, name)(x, kernel=kernel)
        assert got.stride() == want.stride(), kernel
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kernel", ["scalar", "torch", None])
def test_out_may_lie_as_the_result(kernel: str | None) -> None:
    x, weight = torch.randn(2, 3, 6, 7).to(memory_format=LAST), torch.randn(4, 3, 3, 3)
    want = F.conv2d(x, weight)
    assert want.is_contiguous(memory_format=LAST)
    for out in (torch.empty_like(want), torch.empty(want.shape)):
        assert kw.conv2d(x, weight, out=out, kernel=kernel) is out
        torch.testing.assert_close(out, want)
    other = torch.empty(4, 2, 4, 5).transpose(0, 1)
    with pytest.raises(ValueError, match=r"contiguous or have the result's strides \[80, 1, 20, 4\]"):
        kw.conv2d(x, weight, out=other, kernel=kernel)
    with pytest.raises(ValueError, match="out must be contiguous, got"):  # of a contiguous picture the result is, too
        kw.conv2d(x.contiguous(), weight, out=torch.empty_like(want), kernel=kernel)
    spread = torch.empty(2, 4, 4, 10)[..., ::2]
    with pytest.raises(ValueError, match="out must be contiguous"):
        kw.relu(torch.empty_like(spread).copy_(want), out=spread)


def test_convolutions_lie_as_torchs_do() -> None:
    x, weight = torch.randn(2, 4, 6, 7), torch.randn(8, 4, 3, 3)
    for picture in (x, x.to(memory_format=LAST)):
        for filters in (weight, weight.to(memory_format=LAST)):
            want = F.conv2d(picture, filters)
            assert kw.conv2d(picture, filters, kernel="scalar").stride() == want.stride()
            told = OPS["conv2d"].forward_shapes((picture, filters, None, 1, 0, 1, 1))
            assert told.stride() == want.stride()
        want = F.avg_pool2d(picture, 2)
        assert kw.avg_pool2d(picture, 2, kernel="scalar").stride() == want.stride()


def test_lines_with_channels_side_by_side() -> None:
    x = torch.randn(2, 5, 3)
    last = x.mT
    assert not is_channels_last_1d(x) and is_channels_last_1d(last) and is_channels_last_1d(torch.randn(2, 5, 1))
    assert with_unit_stride(x, 2) is x and with_unit_stride(last, 1) is last
    for t in (x, last, x[:, ::2], x.expand(2, 5, 3)[..., :1]):
        for dim in (1, 2):
            made = with_unit_stride(t, dim)
            assert torch.equal(made, t) and (made.stride(dim) == 1 or made.shape[dim] == 1)
