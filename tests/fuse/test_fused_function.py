"""Kernels of functions: results, gradients, layouts, numbers, and that a wrong one does not serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw
from kernelworks.fuse import FuseError, functions
from kernelworks.fuse.fused_function import FusedFunction


def chain(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.gelu(x + bias) * scale + residual


def scores(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    shares = F.softmax(x, -1)
    return shares * weight, shares.amax(-1)


def near(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def gradients(function: Any, args: Sequence[Any]) -> list[Tensor]:
    given = [a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    found = function(*given)
    outputs = found if isinstance(found, tuple) else (found,)
    g = torch.Generator().manual_seed(1)
    grads = [torch.randn(o.shape, generator=g) for o in outputs]
    return list(torch.autograd.grad(outputs, [a for a in given if isinstance(a, Tensor)], grads))


@pytest.fixture(scope="module")
def fused_chain() -> FusedFunction:
    return kw.fuse(chain)


@pytest.fixture(scope="module")
def fused_scores() -> FusedFunction:
    return kw.fuse(scores)


LAYOUTS = {
    "rows": (lambda: torch.randn(6, 70), lambda: torch.randn(70)),
    "another size": (lambda: torch.randn(3, 5, 33), lambda: torch.randn(33)),
    "transposed": (lambda: torch.randn(70, 6).t(), lambda: torch.randn(70)),
    "every second": (lambda: torch.randn(6, 140)[:, ::2], lambda: torch.randn(140)[::2]),
    "expanded": (lambda: torch.randn(1, 70).expand(6, 70), lambda: torch.randn(1).expand(70)),
    "channels_last": (
        lambda: torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last),
        lambda: torch.randn(1, 5, 1, 1),
    ),
    "a value for each row": (lambda: torch.randn(6, 70), lambda: torch.randn(6, 1)),
    "one row": (lambda: torch.randn(70), lambda: torch.randn(1)),
    "a scalar": (lambda: torch.randn(()), lambda: torch.randn(())),
    "past the caches": (lambda: torch.randn(2049, 1031), lambda: torch.randn(1031)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_and_gradients(fused_chain: FusedFunction, layout: str) -> None:
    make_x, make_bias = LAYOUTS[layout]
    args = (make_x(), make_bias(), make_x(), 0.7)
    found, wanted = fused_chain(*args), chain(*args)
    near([found], [wanted])
    assert found.stride() == wanted.stride() or not wanted.is_contiguous()
    near(gradients(fused_chain, args)[:1], gradients(chain, args)[:1])
    for a, b in zip(gradients(fused_chain, args), gradients(chain, args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    assert "unfused" not in fused_chain.explain() and "itself" not in fused_chain.explain()


def test_numbers_take_the_same_kernel(fused_chain: FusedFunction) -> None:
    args = (torch.randn(6, 70), torch.randn(70), torch.randn(6, 70))
    fused_chain(*args, 0.7)
    before = len(fused_chain._plans)
    for scale in (0.1, -3.5, 1e-30, float("inf")):
        torch.testing.assert_close(fused_chain(*args, scale), chain(*args, scale), equal_nan=True)
    assert len(fused_chain._plans) == before


def test_rows_are_reduced_and_read_again(fused_scores: FusedFunction) -> None:
    for shape in ((4, 70), (3, 2, 1031), (1, 1), (7, 3)):
        args = (torch.randn(shape), torch.randn(shape[-1]))
        near(fused_scores(*args), scores(*args))
        for a, b in zip(gradients(fused_scores, args), gradients(scores, args), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    args = (torch.randn(70, 4).t(), torch.randn(70))
    near(fused_scores(*args), scores(*args))


def test_gradients_of_gradients_are_torchs(fused_scores: FusedFunction) -> None:
    x, w = torch.randn(4, 7, dtype=torch.float32, requires_grad=True), torch.randn(7)

    def curvature(function: Any) -> Tensor:
        (grad,) = torch.autograd.grad(function(x, w)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    torch.testing.assert_close(curvature(fused_scores), curvature(scores), rtol=1e-4, atol=1e-5)


def test_transforms_and_compilers_take_the_function(fused_chain: FusedFunction) -> None:
    x, b, r = torch.randn(6, 70), torch.randn(70), torch.randn(6, 70)
    whole = torch.func.vmap(lambda row, rest: fused_chain(row, b, rest, 0.7))(x, r)
    torch.testing.assert_close(whole, chain(x, b, r, 0.7))
    _, change = torch.func.jvp(lambda t: fused_chain(t, b, r, 0.7), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(change, torch.func.jvp(lambda t: chain(t, b, r, 0.7), (x,), (torch.ones_like(x),))[1])
    compiled = torch.compile(lambda *args: fused_chain(*args) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, b, r, 0.7), chain(x, b, r, 0.7) * 2)


def test_what_cannot_be_fused_raises_and_nothing_runs(fused_chain: FusedFunction) -> None:
    with pytest.raises(FuseError, match=r"aten\.sin"):
        kw.fuse(lambda x: x.sin())(torch.randn(3))
    with pytest.raises(TypeError, match="takes a function"):
        kw.fuse(3)  # type: ignore[arg-type]
    empty = torch.randn(0, 70)
    assert fused_chain(empty, torch.randn(70), empty, 0.7).shape == (0, 70)


def test_what_is_detached_has_no_gradient() -> None:
    def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y.detach(), x.detach() + 1

    fused = kw.fuse(parts)
    x, y = (torch.randn(3, 5, requires_grad=True) for _ in range(2))
    found, wanted = fused(x, y), parts(x, y)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in wanted]
    near(found, wanted)
    grads = [torch.autograd.grad(t[0].sum(), (x, y), allow_unused=True) for t in (found, wanted)]
    assert torch.equal(grads[0][0], grads[1][0])  # type: ignore[arg-type]
    assert grads[0][1] is grads[1][1] is None
    assert not any(t.requires_grad for t in fused(x.detach(), y))


def test_a_wrong_kernel_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs, and a warning says what the kernel missed."""
    wrong = dataclasses.replace(functions.ELEMENT_FUNCTIONS["sub"], cpp="{0} - {1} * 1.0001f")
    monkeypatch.setitem(functions.ELEMENT_FUNCTIONS, "sub", wrong)
    fused = kw.fuse(lambda x, y: x - y)
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    with pytest.warns(UserWarning, match="misses float64"):
        found = fused(x, y)
    assert torch.equal(found, x - y)
    assert "unfused" in fused.explain()
