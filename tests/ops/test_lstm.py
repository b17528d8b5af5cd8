"""lstm beside torch's own layer: results, gradients, second derivatives, and a sequence in two halves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eligible import KERNELS
from torch import Tensor, nn

import kernelworks as kw


def layer(inputs: int = 5, units: int = 19, bias: bool = True) -> tuple[nn.LSTM, tuple[Any, ...]]:
    torch.manual_seed(0)
    module = nn.LSTM(inputs, units, bias=bias)
    weights = [getattr(module, f"{name}_l0", None) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return module, tuple(None if w is None else w.detach().clone().requires_grad_() for w in weights)


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_torchs_layer(bias: bool) -> None:
    module, weights = layer(bias=bias)
    x, h, c = torch.randn(7, 3, 5), torch.randn(3, 19), torch.randn(3, 19)
    output, (h_n, c_n) = module(x, (h[None], c[None]))
    for kernel in ("scalar", *KERNELS):
        with torch.no_grad():
            made = kw.lstm(x, *weights, h, c, kernel=kernel)
        for ours, theirs in zip(made, (output, h_n[0], c_n[0]), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_gradients_are_torchs() -> None:
    module, weights = layer()
    x, h, c = (torch.randn(*size, requires_grad=True) for size in ((7, 3, 5), (3, 19), (3, 19)))
    output, (h_n, c_n) = module(x, (h[None], c[None]))
    (output.square().sum() + 2 * h_n.sum() + c_n.cos().sum()).backward()
    want = [t.grad for t in (x, h, c, *module.parameters())]
    made = kw.lstm(x, *weights, h, c)
    loss = made[0].square().sum() + 2 * made[1].sum() + made[2].cos().sum()
    torch.testing.assert_close(torch.autograd.grad(loss, (x, h, c, *weights)), tuple(want))


def test_derivatives_of_any_order_and_maps() -> None:
    def run(x: Tensor, h: Tensor) -> Tensor:
        return kw.lstm(x, *weights, h)[0]

    _, weights = layer(2, 3)
    weights = tuple(w.detach().double() for w in weights)
    x, h = torch.randn(4, 2, 2).double().requires_grad_(), torch.randn(2, 3).double().requires_grad_()
    with pytest.raises(TypeError, match="x must have dtype"):
        run(x, h)
    weights = tuple(w.float() for w in weights)
    x, h = x.float().detach().requires_grad_(), h.float().detach().requires_grad_()
    (first,) = torch.autograd.grad(run(x, h).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), h)
    assert second.shape == h.shape and bool(second.abs().sum() > 0)
    batches = torch.randn(3, 4, 2, 2)
    mapped = torch.func.vmap(lambda one: run(one, h.detach()))(batches)
    torch.testing.assert_close(mapped, torch.stack([run(one, h.detach()) for one in batches]))


@pytest.mark.parametrize("kernel", ["scalar", *KERNELS])
def test_two_halves_are_the_whole(kernel: str) -> None:
    _, weights = layer(6, 33)
    x = torch.randn(24, 4, 6)
    with torch.no_grad():
        whole = kw.lstm(x, *weights, kernel=kernel)
        first = kw.lstm(x[:13], *weights, kernel=kernel)
        then = kw.lstm(x[13:], *weights, *first[1:], kernel=kernel)
    assert torch.equal(torch.cat((first[0], then[0])), whole[0])
    assert torch.equal(then[1], whole[1]) and torch.equal(then[2], whole[2])


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_bits_for_any_number_of_threads(kernel: str) -> None:
    _, weights = layer(40, 150)
    x, threads = torch.randn(9, 21, 40), torch.get_num_threads()
    made = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with torch.no_grad():
                made.append(kw.lstm(x, *weights, kernel=kernel))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in made[1:] for a, b in zip(made[0], other, strict=True))
