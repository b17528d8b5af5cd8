"""What a function is traced to: its numbers, its views, and what is refused with its name and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelworks.fuse import FuseError
from kernelworks.fuse.analysis import bounds_of
from kernelworks.fuse.launch import numbers_of
from kernelworks.fuse.lowering import LoweredGraph
from kernelworks.fuse.making import trace_settled
from kernelworks.fuse.trace import trace_forward


def lower(function: Callable[..., Any], *args: Any) -> tuple[LoweredGraph, frozenset[int]]:
    leaves, tree = pytree.tree_flatten((args, {}))
    _, lowered, static = trace_settled(
        lambda given, fixed: trace_forward(function, given, tree, fixed), leaves, frozenset()
    )
    return lowered, static


X, B = torch.randn(5, 7), torch.randn(7)


def test_numbers_stay_open() -> None:
    lowered, static = lower(lambda x, a, n: x * (1 - a) + n / 2, X, 0.25, 3)
    assert not static
    assert numbers_of(lowered, (X, 0.5, 7)) == (0.5, 3.5)


def test_whole_numbers_may_have_any_sign() -> None:
    for n in (-3, 0, 1, 2**40):
        lowered, static = lower(lambda x, n: x * n + abs(n), X, n)
        assert not static
        assert numbers_of(lowered, (X, -7)) == (-7, 7)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x * 2 if a > 0.1 else x,
        lambda x, a: x**a,
        lambda x, a: F.layer_norm(x, (7,), eps=a),
    ],
)
def test_a_number_that_decides_stands_for_its_value(function: Callable[..., Any]) -> None:
    _, static = lower(function, X, 2.0)
    assert static == {1}


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: x @ x.t(), "aten.mm"),
        (lambda x: x.cumsum(-1), "aten.cumsum"),
        (lambda x: x.sort(-1).values, "aten.sort"),
        (lambda x: torch.sin(x), "aten.sin"),
        (lambda x: x.double() * 2, "float64"),
        (lambda x: x.amax(0), "largest"),
        (lambda x: (x * 2).t() + 1, "view"),
        (lambda x: x.mul_(2), "writes into an argument"),
        (lambda x: torch.cat([x, x]), "aten.cat"),
        (lambda x: x * float(torch.tensor(2.0) > 0), "reads a value"),
        (lambda x: x * 2 if x.sum() > 0 else x, "reads a value"),
    ],
)
def test_what_cannot_be_fused_is_named_with_its_line(function: Callable[..., Any], operator: str) -> None:
    with pytest.raises(FuseError, match=operator) as caught:
        lower(function, X.clone())
    assert f"{__file__}:" in str(caught.value), "the line of the user's function"


def test_a_tensor_that_the_function_holds_is_refused() -> None:
    with pytest.raises(FuseError):
        lower(lambda x: x + B, X)


def test_operators_have_the_function_in_float64() -> None:
    """Each rule beside torch, without a kernel."""

    def every(x: Tensor, y: Tensor, b: Tensor) -> list[Tensor]:
        half = x.abs() + 0.5
        return [
            x + y, x - 2 * y, x * b, x / half, x.abs(), x.clamp(-0.5, 0.25), torch.maximum(x, y), torch.minimum(x, b),
            x.exp(), half.log(), half.log2(), half.sqrt(), half.rsqrt(), x.expm1(), half.log1p(), x.erf(), x.tanh(),
            x.sigmoid(), x.square(), x**3, half**-0.5, half.reciprocal(), x.floor(), x.ceil(), x.trunc(), x.round(),
            x.sign(), torch.where(x > y, x, b), x.masked_fill(y <= 0, 3.0), torch.lerp(x, y, 0.3),
            torch.addcmul(x, y, b, value=0.5), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x),
            F.elu(x, 0.7), F.selu(x), F.celu(x, 0.5), F.softplus(x, 2.0), F.hardswish(x), F.hardtanh(x), F.relu6(x),
            F.leaky_relu(x, 0.2), F.logsigmoid(x), F.softsign(x), F.tanhshrink(x), F.hardshrink(x), F.softshrink(x),
            F.threshold(x, 0.1, 0.2), F.hardsigmoid(x), (x > 0).float(), x.softmax(-1), x.log_softmax(-1),
            F.layer_norm(x, (7,), b, b), F.rms_norm(x, (7,), b, 1e-5), x - x.mean(-1, keepdim=True),
            x / x.std(-1, keepdim=True), x - x.amax(-1, True), x - x.amin(-1, True), x.var(-1, keepdim=True) * x,
        ]  # fmt: skip

    y = torch.randn(5, 7)
    lowered, _ = lower(every, X, y, B)
    inputs = [view.of((X, y, B)[view.place]) for view in lowered.arguments]
    wanted = every(X.double(), y.double(), B.double())
    found = bounds_of(lowered.expression, inputs, numbers_of(lowered, (X, y, B)), [])
    for k, (exact, (value, bound)) in enumerate(zip(wanted, found, strict=True)):
        assert bool(((value - exact).abs() <= 1e-12 + 1e-12 * exact.abs()).all()), k
        assert bool((bound <= 1e-4 * (1 + exact.abs())).all()), k


def test_a_cast_rounds_and_a_widening_does_not() -> None:
    lowered, _ = lower(lambda x, y: (x.to(torch.bfloat16) * y.to(torch.bfloat16)).float() + 1, X, X)
    ops = [node.op for node in lowered.expression.nodes]
    assert ops.count("bfloat16") == 2  # of both arguments; the product is not rounded
    half = X.to(torch.bfloat16)
    lowered, _ = lower(lambda x, y: (x + y).float() * 2, half, half)
    assert "bfloat16" not in [node.op for node in lowered.expression.nodes]


def test_views_of_arguments_are_taken_at_each_call() -> None:
    def gated(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return F.silu(left) * right

    x = torch.randn(3, 8)
    lowered, _ = lower(gated, x)
    assert [tuple(view.of(x).shape) for view in lowered.arguments] == [(3, 4), (3, 4)]
    assert torch.equal(lowered.arguments[1].of(x), x[:, 4:])
