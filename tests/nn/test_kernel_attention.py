"""Attention and other smoothers by one contract, beside their definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw
from kernelworks.nn.kernel_attention import SMOOTHERS

GENERATOR = torch.Generator().manual_seed(4)
KINDS = [name for name in SMOOTHERS if name != "softmax"]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def weights(q: Tensor, k: Tensor, smoother: str, scale: Tensor | float) -> Tensor:
    """The kernel of every query and key, by the textbook."""
    apart = q[..., :, None, :] - k[..., None, :, :]
    square = apart.square().sum(-1)
    z = torch.where(square == 0, 0.0, torch.where(square == 0, 1.0, square).sqrt()) / scale
    three, five = 3**0.5 * z, 5**0.5 * z
    return {
        "softmax": lambda: torch.exp(q @ k.mT / scale**2),
        "rbf": lambda: torch.exp(-square / (2 * scale**2)),
        "laplacian": lambda: torch.exp(-apart.abs().sum(-1) / scale),
        "matern12": lambda: torch.exp(-z),
        "matern32": lambda: (1 + three) * torch.exp(-three),
        "matern52": lambda: (1 + five + five**2 / 3) * torch.exp(-five),
    }[smoother]()


def by_definition(q: Tensor, k: Tensor, v: Tensor, smoother: str, scale: Tensor | float) -> Tensor:
    each = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(each, 1) for t in (k, v))
    w = weights(q, k, smoother, scale)
    return w @ v / w.sum(-1, keepdim=True)


@pytest.mark.parametrize("smoother", SMOOTHERS)
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_means_and_gradients_are_the_definitions(smoother: str, heads: tuple[int, int]) -> None:
    q, k, v = drawn(2, heads[0], 7, 4), drawn(2, heads[1], 9, 4), drawn(2, heads[1], 9, 4)
    given = [t.requires_grad_() for t in (q, k, v, torch.tensor(1.3))]
    exact = [t.detach().double().requires_grad_() for t in given]
    ours = kw.kernel_attention(*given[:3], smoother=smoother, length_scale=given[3])
    want = by_definition(*exact[:3], smoother, exact[3])
    assert torch.allclose(ours.double(), want, rtol=1e-4, atol=1e-5)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape)
    for found, right in zip(
        torch.autograd.grad(ours, given, flow), torch.autograd.grad(want, exact, flow.double()), strict=True
    ):
        assert torch.allclose(found.double(), right, rtol=1e-3, atol=1e-4)


def test_softmax_is_torchs_attention_and_that_of_keys_of_one_length_is_gaussian() -> None:
    q, k, v = drawn(1, 2, 5, 8), F.normalize(drawn(1, 2, 6, 8), dim=-1) * 3, drawn(1, 2, 6, 8)
    ours = kw.kernel_attention(q, k, v)
    assert torch.allclose(ours, F.scaled_dot_product_attention(q, k, v), rtol=1e-5, atol=1e-5)
    assert torch.allclose(kw.kernel_attention(q, k, v, smoother="rbf"), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoother", KINDS)
def test_a_query_far_from_every_key_gives_zero(smoother: str) -> None:
    q, k, v = drawn(1, 1, 3, 2), drawn(1, 1, 4, 2), drawn(1, 1, 4, 5)
    q[0, 0, 1] += 1e4
    q.requires_grad_()
    ours = kw.kernel_attention(q, k, v, smoother=smoother, length_scale=1)
    assert torch.equal(ours[0, 0, 1], torch.zeros(5)) and bool((ours[0, 0, 0] != 0).all())
    (slope,) = torch.autograd.grad(ours.sum(), q)
    assert torch.equal(slope[0, 0, 1], torch.zeros(2)) and bool(slope.isfinite().all())


@pytest.mark.parametrize("smoother", KINDS)
def test_a_constant_is_its_own_mean(smoother: str) -> None:
    """However far from the origin the points lie: 1e4 from it and 1e-3 apart."""
    q, k = (1e4 + 1e-3 * torch.randint(0, 4, (1, 1, n, 3), generator=GENERATOR) for n in (6, 70))
    ours = kw.kernel_attention(q, k, torch.full((1, 1, 70, 2), 3.0), smoother=smoother, length_scale=2e-3)
    assert torch.allclose(ours, torch.full((1, 1, 6, 2), 3.0), rtol=1e-6)
    for dtype in (torch.bfloat16, torch.float16):
        ones = torch.ones(1, 1, 9, 2, dtype=dtype)
        same = kw.kernel_attention(drawn(1, 1, 4, 2).to(dtype), drawn(1, 1, 9, 2).to(dtype), ones, smoother=smoother)
        assert same.dtype == dtype and torch.equal(same, torch.ones(1, 1, 4, 2, dtype=dtype))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"smoother": "cosine"}, "smoother must be one of"), ({"length_scale": 0}, "length_scale must be positive"),
        ({"length_scale": torch.ones(2)}, "length_scale must have one"), ({"k": drawn(1, 2, 4, 3)}, "k and v must"),
        ({"q": drawn(1, 3, 5, 2)}, "q's heads must"), ({"q": drawn(3, 2)}, "q must have 4 dimensions"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(changed: dict[str, Any], told: str) -> None:
    given = {"q": drawn(1, 4, 5, 2), "k": drawn(1, 2, 4, 2), "v": drawn(1, 2, 4, 2)} | changed
    with pytest.raises(ValueError, match=told):
        kw.kernel_attention(**given)


def test_nothing_is_answered_by_nothing() -> None:
    assert kw.kernel_attention(drawn(0, 2, 3, 2), drawn(0, 1, 3, 2), drawn(0, 1, 3, 4), smoother="rbf").shape == (
        0,
        2,
        3,
        4,
    )
    none = kw.kernel_attention(drawn(1, 1, 3, 2), drawn(1, 1, 0, 2), drawn(1, 1, 0, 4), smoother="rbf")
    assert torch.equal(none, torch.zeros(1, 1, 3, 4))
