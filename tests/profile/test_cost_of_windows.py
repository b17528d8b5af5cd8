"""Flop of convolutions and pools against a count of their taps one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost.calls import work
from kernelworks.profile.cost.windows import taps
from kernelworks.profile.recording import record
from kernelworks.profile.trace import Call

SIDE = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))


def by_hand(windows: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    pairs = itertools.product(range(windows), range(kernel))
    return sum(0 <= w * stride - padding + t * dilation < size for w, t in pairs)


@given(st.integers(0, 12), SIDE)
@settings(max_examples=200, deadline=None)
def test_taps(windows: int, side: tuple[int, int, int, int, int]) -> None:
    size, kernel, stride, padding, dilation = side
    assert taps(windows, size, kernel, stride, padding, dilation) == by_hand(windows, *side)


def _calls(run: Callable[[], Any], name: str) -> list[Call]:
    found = record(run, survey=Survey()).calls
    return [call for each in found for call in each.everything if call.name == f"aten::{name}"]


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    pick = lambda low, high: [draw(st.integers(low, high)) for _ in range(rank)]  # noqa: E731
    groups, stride, dilation = draw(st.sampled_from([1, 2])), pick(1, 3), pick(1, 2)
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    return {
        "size": pick(4, 7), "kernel": pick(1, 3), "stride": stride, "padding": pick(0, 2), "dilation": dilation,
        "groups": groups, "batch": draw(st.integers(1, 2)), "inner": 2 * draw(st.integers(1, 2)),
        "outer": 2 * draw(st.integers(1, 2)), "transposed": draw(st.booleans()), "output_padding": extra,
    }  # fmt: skip


@given(convolutions(), st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=40, deadline=None)
def test_convolution_forward_and_backward(case: dict[str, Any], wanted: tuple[bool, bool]) -> None:
    c = case
    x = torch.randn(c["batch"], c["inner"], *c["size"], requires_grad=wanted[0])
    channels = (c["inner"], c["outer"] // c["groups"]) if c["transposed"] else (c["outer"], c["inner"] // c["groups"])
    weight = torch.randn(*channels, *c["kernel"], requires_grad=wanted[1])
    bias = torch.randn(c["outer"]).requires_grad_()
    rank, kwargs = len(c["size"]), {k: c[k] for k in ("stride", "padding", "dilation", "groups")}
    if c["transposed"]:
        kwargs["output_padding"] = c["output_padding"]
    function = getattr(F, f"conv_transpose{rank}d" if c["transposed"] else f"conv{rank}d")
    try:
        out = function(x, weight, bias, **kwargs)
    except RuntimeError:
        return  # the kernel does not fit
    inner, outer = list(x.shape[2:]), list(out.shape[2:])
    windows, line = (inner, outer) if c["transposed"] else (outer, inner)
    sides = zip(windows, line, c["kernel"], c["stride"], c["padding"], c["dilation"], strict=True)
    flop = 2 * c["batch"] * math.prod(channels) * math.prod(by_hand(*side) for side in sides)

    forward = work(_calls(lambda: function(x, weight, bias, **kwargs), "convolution")[0])
    backward = work(_calls(lambda: function(x, weight, bias, **kwargs).sum().backward(), "convolution_backward")[0])
    assert forward is not None and backward is not None
    assert forward.flop == flop
    assert forward.written == 4 * out.numel()
    assert backward.flop == flop * sum(wanted) + out.numel()
    assert backward.written == 4 * (x.numel() * wanted[0] + weight.numel() * wanted[1] + bias.numel())


POOLS = [
    (rank, kind, ceil, dilation, padding)
    for rank in (1, 2, 3)
    for kind in ("max", "avg")
    for ceil in (False, True)
    for dilation in ((1, 2) if kind == "max" else (1,))
    for padding in (0, 1)
]


@pytest.mark.parametrize(("rank", "kind", "ceil", "dilation", "padding"), POOLS)
def test_pool(rank: int, kind: str, ceil: bool, dilation: int, padding: int) -> None:
    kernel, stride, x = 3, 2, torch.randn(2, 3, *[8, 9, 10][:rank])
    more = {"dilation": dilation} if kind == "max" else {}
    run = lambda: getattr(F, f"{kind}_pool{rank}d")(x, kernel, stride, padding, ceil_mode=ceil, **more)  # noqa: E731
    out, its = run(), work(record(run, survey=Survey()).calls[-1])
    sides = zip(out.shape[2:], x.shape[2:], strict=True)
    flop = 6 * math.prod(by_hand(w, n, kernel, stride, padding, dilation) for w, n in sides)
    assert its is not None and (its.flop, its.read, its.written) == (flop, 4 * x.numel(), 4 * out.numel())


@pytest.mark.parametrize("size", [1, 3, 5, 7])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_pool(kind: str, size: int) -> None:
    x = torch.randn(2, 3, 8, 9)
    run = lambda: getattr(F, f"adaptive_{kind}_pool2d")(x, size)  # noqa: E731
    out, its = run(), work(record(run, survey=Survey()).calls[-1])
    under = lambda n: sum(math.ceil((w + 1) * n / size) - math.floor(w * n / size) for w in range(size))  # noqa: E731
    assert its is not None and its.flop == 6 * under(8) * under(9)
    indices = 8 * out.numel() * (kind == "max")
    assert its.written in (4 * out.numel(), 4 * out.numel() + indices)
