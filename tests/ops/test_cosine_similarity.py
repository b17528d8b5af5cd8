"""cosine_similarity of shapes that broadcast, and gradients at the limit of a norm: torch's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import kernelworks as kw

SHAPES = (
    ((3, 5), (5,), 1),
    ((4, 1, 6), (1, 3, 6), 1),
    ((2, 3), (4, 2, 3), 0),
    ((5,), (2, 5), -1),
    ((1, 7), (3, 7), -1),
)


@pytest.mark.parametrize("kernel", ["scalar", "torch", None])
@pytest.mark.parametrize(("one", "other", "dim"), SHAPES)
def test_shapes_broadcast(one: tuple[int, ...], other: tuple[int, ...], dim: int, kernel: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator).requires_grad_() for shape in (one, other)]
    exact = [t.detach().double().requires_grad_() for t in given]
    got, want = kw.cosine_similarity(*given, dim, eps=1e-6, kernel=kernel), F.cosine_similarity(*exact, dim, 1e-6)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)
    flow = torch.randn(want.shape, generator=generator)
    found = torch.autograd.grad(got, given, flow)
    for mine, theirs in zip(found, torch.autograd.grad(want, exact, flow.double()), strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="y must have shape"):
        kw.cosine_similarity(torch.ones(3, 5), torch.ones(4, 5), eps=1e-8)


def test_a_norm_below_eps_lets_the_gradient_of_the_norm_through() -> None:
    x, y = torch.tensor([[0.3, 0.4]]), torch.tensor([[1.0, 0.0]])
    (found,) = torch.autograd.grad(kw.cosine_similarity(x.requires_grad_(), y, eps=2.0, kernel="scalar"), x)
    # y / (n1 n2) - x (x.y) / (n1^2 n2 |x|) with n1 = n2 = 2
    want = torch.tensor([[0.25 - 0.3 * 0.3 / (8 * 0.5), -0.4 * 0.3 / (8 * 0.5)]])
    torch.testing.assert_close(found, want)
