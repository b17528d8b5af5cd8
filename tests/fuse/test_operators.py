"""A fused function in a compiled program: one operator, no break in the graph, kernels forward and backward."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw
from kernelworks.fuse import functions
from kernelworks.fuse.fused_function import FusedFunction


def chain(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.gelu(x + bias) * scale + residual


def several(x: Tensor, weight: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    shares = F.softmax(x * n, -1)
    return shares * weight, shares.amax(-1), x.detach() * 2


@pytest.fixture(scope="module")
def fused_chain() -> FusedFunction:
    return kw.fuse(chain)


@pytest.fixture(scope="module")
def fused_several() -> FusedFunction:
    return kw.fuse(several)


def tensors(*shapes: tuple[int, ...], grad: bool = False) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(3)
    return tuple(torch.randn(shape, generator=g).requires_grad_(grad) for shape in shapes)


CHAIN = ((6, 70), (70,), (6, 70))


@pytest.mark.parametrize("grad", [False, True])
def test_operators_pass_torchs_check(fused_chain: FusedFunction, fused_several: FusedFunction, grad: bool) -> None:
    kind = "g" if grad else "t"
    calls: list[tuple[Any, ...]] = [
        (list(tensors(*CHAIN, grad=grad)), [], [0.5], f"{kind * 3}f,", fused_chain.number),
        (list(tensors((6, 70), (70,), grad=grad)), [3], [], f"{kind * 2}i,n", fused_several.number),
    ]
    for args in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # opcheck itself uses deprecated parts of torch
            found = torch.library.opcheck(torch.ops.kernelworks.fused.default, args)
        assert set(found.values()) == {"SUCCESS"}, found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_programs_call_the_kernels(fused_chain: FusedFunction, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: fused_chain(*args).sin(), fullgraph=True, backend=backend)
    given, same = tensors(*CHAIN, grad=True), tensors(*CHAIN, grad=True)
    found, wanted = compiled(*given, 0.7), chain(*same, 0.7).sin()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for a, b in zip(*(torch.autograd.grad(y.sum(), t) for y, t in ((found, given), (wanted, same))), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    said = fused_chain.explain()
    assert "verified" in said and "gradients of" in said and "itself" not in said


def test_results_of_any_number_and_named_arguments(fused_several: FusedFunction) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w, n: fused_several(x, w, n=n), fullgraph=True, backend="aot_eager")
    x, w = tensors((6, 70), (70,), grad=True)
    for n in (2, 3, 4):
        found, wanted = compiled(x, w, n), several(x, w, n)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in wanted]
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_what_the_operator_cannot_carry_is_read_by_the_compiler() -> None:
    def nested(pair: tuple[Tensor, Tensor], flag: bool) -> dict[str, Tensor]:
        return {"sum": pair[0] + pair[1] if flag else pair[0]}

    def named(x: Tensor) -> dict[str, Tensor]:
        return {"twice": x + x}

    torch._dynamo.reset()
    fused, other = kw.fuse(nested), kw.fuse(named)
    compiled = torch.compile(
        lambda x, y: (fused((x, y), True)["sum"] * 2, other(x)["twice"]), fullgraph=True, backend="aot_eager"
    )
    x, y = tensors((3, 5), (3, 5))
    torch.testing.assert_close(compiled(x, y), ((x + y) * 2, x + x))


def test_autocast_and_transforms_in_a_compiled_program(fused_chain: FusedFunction) -> None:
    x, b, r = tensors(*CHAIN)

    def under_autocast(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return fused_chain(x, b, r, 0.7)

    def mapped(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return torch.func.vmap(lambda row, rest: fused_chain(row, b, rest, 0.7))(x, r)

    for program in (under_autocast, mapped):
        torch._dynamo.reset()
        compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, b, r), chain(x, b, r, 0.7))
    torch.testing.assert_close(
        torch.func.vmap(
            lambda row, rest: torch.ops.kernelworks.fused([row, b, rest], [], [0.7], "tttf,", fused_chain.number)[0]
        )(x, r),
        chain(x, b, r, 0.7),
    )


def test_a_wrong_kernel_does_not_serve_a_compiled_program(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    wrong = dataclasses.replace(functions.ELEMENT_FUNCTIONS["sub"], cpp="{0} - {1} * 1.001f")
    monkeypatch.setitem(functions.ELEMENT_FUNCTIONS, "sub", wrong)
    torch._dynamo.reset()
    fused = kw.fuse(lambda x, y: x - y)
    compiled = torch.compile(lambda x, y: fused(x, y) * 2, fullgraph=True, backend="aot_eager")
    x, y = tensors((3, 5), (3, 5))
    with pytest.warns(UserWarning, match="misses float64"):
        found = compiled(x, y)
    assert torch.equal(found, (x - y) * 2)
