"""Chains that nobody wrote: drawn operators on drawn tensors, held against float64 within the derived bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

import kernelworks as kw
from kernelworks.fuse import FuseError
from kernelworks.fuse.making import trace_settled
from kernelworks.fuse.reference import Reference
from kernelworks.fuse.trace import trace_forward
from kernelworks.fuse.verification import _bounds, _compared

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu, "abs": torch.abs,
    "neg": torch.neg, "exp": torch.exp, "log1p": lambda x: torch.log1p(x.abs()), "sqrt": lambda x: x.abs().sqrt(),
    "square": torch.square, "round": torch.round, "erf": torch.erf, "half": lambda x: x.to(torch.float16),
    "bfloat16": lambda x: x.to(torch.bfloat16), "float": lambda x: x.float(), "scaled": lambda x: x * 0.3 + 1,
    "clamp": lambda x: x.clamp(-2, 3), "isnan": lambda x: torch.where(x.isnan(), 0.5, x), "softplus": F.softplus,
    "reciprocal": lambda x: 1 / (x.abs() + 0.5), "power": lambda x: x**3, "mask": lambda x: x * (x > 0.1),
}  # fmt: skip
CASTS = {"half", "bfloat16", "float"}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "div": lambda a, b: a / (b.abs() + 0.25), "where": lambda a, b: torch.where(a > b, a, b * 0.5),
}  # fmt: skip
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1, keepdim=True), "mean": lambda x: x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax(-1, keepdim=True), "softmax": lambda x: F.softmax(x, -1),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
}  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "bool": torch.bool}
SHAPES: dict[str, tuple[int, ...]] = {
    "whole": (3, 5, 19), "column": (3, 5, 1), "row": (19,), "outer": (3, 1, 1), "single": (1,), "scalar": (),
}  # fmt: skip
LAYOUTS = ("dense", "strided", "transposed")
CONTENTS = ("normal", "wide", "special")

operands = st.tuples(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(LAYOUTS),
    st.sampled_from(CONTENTS),
)
steps = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY)), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY)), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("row"), st.sampled_from(sorted(ROWS)), st.integers(0, 9), st.just(0)),
)


def made(operand: tuple[str, str, str, str], g: torch.Generator) -> Tensor:
    shape, dtype, layout, contents = SHAPES[operand[0]], DTYPES[operand[1]], operand[2], operand[3]
    x = torch.randn(shape, generator=g)
    if contents == "wide":
        x = x * torch.exp(4 * torch.randn(shape, generator=g))
    if contents == "special":
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 6e4])
        which = torch.randint(0, 28, shape, generator=g)
        x = torch.where(which < 7, special[which.clamp(max=6)], x)
    x = x > 0 if dtype is torch.bool else x.to(dtype)
    if layout == "strided" and shape:
        return x.repeat_interleave(2, -1)[..., ::2]
    return x.transpose(0, -1).contiguous().transpose(0, -1) if layout == "transposed" and shape else x


def function_of(program: list[tuple[str, str, int, int]]) -> Callable[..., Tensor]:
    def drawn(*tensors: Tensor) -> Tensor:
        values = list(tensors)
        for kind, name, i, j in program:
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            a, b = (v * 1.0 if v.dtype is torch.bool else v for v in (a, b))
            values.append({"unary": UNARY, "row": ROWS}[kind][name](a) if kind != "binary" else BINARY[name](a, b))
        whole = values[0] + values[-1]  # of the first operand's shape, so that there is one space
        return whole * 1.0

    return drawn


def check(operands: list[Any], program: list[Any]) -> bool:
    """Whether it was fused. What a kernel gives is within its bound, and its definition is torch's in float64."""
    g = torch.Generator().manual_seed(7)
    args = [made(("whole", *operands[0][1:]), g), *(made(o, g) for o in operands[1:])]
    function = function_of(program)
    wanted, fused = function(*args), kw.fuse(function)
    try:
        found = fused(*args)
    except FuseError:
        return False
    assert found.dtype is wanted.dtype and found.shape == wanted.shape
    assert "unfused" not in fused.explain(), fused.explain()
    leaves, tree = pytree.tree_flatten((tuple(args), {}))
    traced, lowered, _ = trace_settled(lambda v, s: trace_forward(function, v, tree, s), leaves, frozenset())
    reference = Reference(traced.graph)
    (exact,), (bound,) = reference(leaves), _bounds(lowered, leaves)
    assert exact is not None and bound is not None
    _, fault = _compared(found, exact, bound)
    assert not fault, fault
    if not CASTS & {name for _, name, _, _ in program}:  # which would round float64 where the graph rounds nothing
        wide = function(*(a.double() if a.is_floating_point() else a for a in args))
        sure = bound.isfinite() & wide.isfinite()
        torch.testing.assert_close(exact.expand(wide.shape)[sure], wide[sure], rtol=1e-9, atol=1e-12)
    return True


def test_drawn_chains_keep_their_bound(request: pytest.FixtureRequest) -> None:
    fused = list[bool]()

    @settings(
        max_examples=120 if request.config.getoption("--all") else 5, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(operands, min_size=2, max_size=3), st.lists(steps, min_size=2, max_size=6))
    def drawn(operands: list[Any], program: list[Any]) -> None:
        fused.append(check(operands, program))

    drawn()
    assert sum(fused) >= len(fused) / 2, "most of what is drawn can be fused"


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), ()])
def test_chains_of_few_elements(shape: tuple[int, ...]) -> None:
    def function(x: Tensor, b: Tensor) -> Tensor:
        return F.gelu(x + b) * 2

    x, b = torch.randn(shape), torch.randn(shape[-1:])
    torch.testing.assert_close(kw.fuse(function)(x, b), function(x, b))
