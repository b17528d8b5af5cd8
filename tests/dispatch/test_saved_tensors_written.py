"""What is written between a forward and its backward: refused where a gradient depends on it, and there alone."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.nn.swap import swap

OPS: dict[str, tuple[Any, Any, list[tuple[int, ...]]]] = {
    "linear": (kw.linear, F.linear, [(4, 8), (8, 8), (8,)]),
    "layer_norm": (
        lambda x, w, b: kw.layer_norm(x, w, b, eps=1e-5), lambda x, w, b: F.layer_norm(x, (8,), w, b),
        [(4, 8), (8,), (8,)],
    ),
    "rms_norm": (lambda x, w: kw.rms_norm(x, w, eps=1e-5), lambda x, w: F.rms_norm(x, (8,), w, 1e-5), [(4, 8), (8,)]),
    "gelu": (kw.gelu, F.gelu, [(4, 8)]),
    "silu_mul": (kw.silu_mul, lambda a, b: F.silu(a) * b, [(4, 8), (4, 8)]),
}  # fmt: skip
# torch keeps what it made of these if they ask for no gradient themselves: docs/reference/limits.md. Gates: below
KEPT = {("rms_norm", (False, True), 0), ("silu_mul", (False, True), 0)}
GIVEN = [
    (name, asked, written)
    for name, (_, _, shapes) in OPS.items()
    for asked in itertools.product((False, True), repeat=len(shapes))
    for written in range(len(shapes))
    if any(asked) and (name, asked, written) not in KEPT
]


def gradients(
    f: Any, shapes: list[tuple[int, ...]], asked: tuple[bool, ...], written: int, watch: Any, twice: bool = False
) -> Any:
    torch.manual_seed(0)
    leaves = [torch.randn(s).requires_grad_(a) for s, a in zip(shapes, asked, strict=True)]
    given = [t.clone() for t in leaves]
    with watch():
        y = f(*given)
    with torch.no_grad():
        given[written].mul_(2)
    wanted = [t for t in leaves if t.requires_grad]
    try:
        found = torch.autograd.grad(y.square().sum(), wanted, create_graph=twice)
        if twice:
            flows: list[Tensor] = [g.square().sum() for g in found if g.requires_grad]
            found += torch.autograd.grad(sum(flows[1:], flows[0]), wanted, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        return "modified by an inplace operation" if "modified by an inplace operation" in str(error) else error
    return found


@pytest.mark.parametrize("watch", [contextlib.nullcontext, torch.autograd.profiler.profile], ids=["alone", "watched"])
@pytest.mark.parametrize(("name", "asked", "written"), GIVEN)
def test_as_torchs_own_function(name: str, asked: tuple[bool, ...], written: int, watch: Any) -> None:
    ours, torchs, shapes = OPS[name]
    want = gradients(torchs, shapes, asked, written, contextlib.nullcontext)
    with only(KERNELS[-1]):
        got = gradients(ours, shapes, asked, written, watch)
    if isinstance(want, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "asked", "written"), [g for g in GIVEN if g[0] in ("linear", "rms_norm", "silu_mul")])
def test_second_derivatives(name: str, asked: tuple[bool, ...], written: int) -> None:
    ours, torchs, shapes = OPS[name]
    want = gradients(torchs, shapes, asked, written, contextlib.nullcontext, twice=True)
    with only(KERNELS[-1]):
        got = gradients(ours, shapes, asked, written, contextlib.nullcontext, twice=True)
    if not isinstance(want, str):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_a_frozen_layer_and_a_residual_in_place() -> None:
    x, frozen = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)
    with only(KERNELS[-1]):
        h = x.clone()
        h += kw.linear(h, frozen)
        h.sum().backward()
    torch.testing.assert_close(x.grad, 1 + frozen.sum(0).expand(4, 8))


class Gate(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


def test_the_gate_of_a_swapped_product_may_be_overwritten() -> None:
    model, gate, up = Gate(), torch.randn(4, 8), torch.randn(4, 8, requires_grad=True)
    want = F.silu(gate)
    with only(KERNELS[-1]), swap(model, verbose=False):
        y = model(gate, up)
        gate.zero_()
        y.sum().backward()
    torch.testing.assert_close(up.grad, want)


@pytest.mark.parametrize("change", [lambda t: t.t_(), lambda t: t.resize_(2, 4), lambda t: t.set_()])
def test_what_is_not_read_may_change_its_shape(change: Any) -> None:
    x, weight = torch.randn(8, 4), torch.randn(3, 4, requires_grad=True)
    want = torch.autograd.grad(F.linear(x, weight).square().sum(), weight)[0]
    bias, other = torch.randn(3, requires_grad=True), torch.randn(8, 4)
    with only(KERNELS[-1]):
        y = kw.linear(other, weight.detach(), bias)
        change(other)
        (got,) = torch.autograd.grad(y.sum(), bias)
        kept = torch.autograd.grad(kw.linear(x, weight).square().sum(), weight)[0]
    torch.testing.assert_close(got, torch.full((3,), 8.0))
    torch.testing.assert_close(kept, want, rtol=1e-4, atol=1e-4)
