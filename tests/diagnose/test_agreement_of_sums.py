"""Answers that are sums, or rounding alone: what another order of summation may do, and narrower arithmetic may not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.diagnose.sites.modules import Sample, find_roots
from kernelworks.diagnose.verify.agreement import FLOAT64, compare
from kernelworks.diagnose.verify.precision import PerturbedRounding


class Rounded(nn.Module):
    """What it returns is rounding alone: of a norm the mean, which is its bias, or a number less its own mean."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.norm = kind, nn.Linear(16, 64), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.kind == "a norm's mean":
            return self.norm(y).mean(-1)
        y = y.amax(-1, keepdim=True)
        return F.gelu(y - y.mean(-1, keepdim=True))


@pytest.mark.parametrize("kind", ["a norm's mean", "less its own mean"])
def test_an_answer_that_is_rounding_alone_is_verified_if_no_module_inside_is_seen(kind: str) -> None:
    """As when all of it is compiled into one."""
    torch.manual_seed(0)
    net, x = Rounded(kind).eval(), torch.randn(32, 16)
    parameters = {name: p.clone() for name, p in net.state_dict().items()}
    with torch.no_grad():
        samples = find_roots(lambda: net(x)).samples

        @contextlib.contextmanager
        def whole(module: nn.Module, by: float = 1.0) -> Iterator[None]:
            """Its forward by functions alone, in another order of summation."""

            def forward(x: Tensor) -> Tensor:
                y = (x.flip(-1) @ net.linear.weight.flip(-1).T + net.linear.bias) * by
                if kind == "a norm's mean":
                    return F.layer_norm(y, (64,), net.norm.weight, net.norm.bias * by).sum(-1) / 64
                y = y.amax(-1, keepdim=True)
                return F.gelu(y - y.mean(-1, keepdim=True))

            module.forward = forward  # type: ignore[method-assign]
            yield
            del module.forward

        found = compare(samples, changed=whole)
        assert found.agrees and found.against, found
        assert ("other values" in found.note) == (kind == "a norm's mean") and "rounding" in found.note
        if kind == "a norm's mean":
            assert not compare(samples, changed=lambda module: whole(module, 1.01)).agrees
    assert all(torch.equal(p, parameters[name]) for name, p in net.state_dict().items())


def narrowed(x: Tensor, bits: int) -> Tensor:
    """float32 with so many bits of the mantissa less, rounded to nearest."""
    mask = (1 << bits) - 1
    return ((x.view(torch.int32) + (1 << (bits - 1))) & ~mask).view(torch.float32)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize(
    ("bits", "agrees"), [(13, False), (16, False), (0, True)], ids=["tf32", "bfloat16", "reordered"]
)
@pytest.mark.parametrize("k", [16, 4096])
def test_narrow_products_are_seen_and_another_order_of_summation_is_none(
    k: int, bits: int, agrees: bool, kind: str
) -> None:
    """The product of one layer in narrower arithmetic, or its terms summed one by one, under a norm that cancels."""
    torch.manual_seed(0)
    layer = nn.Linear(k, 24) if kind == "linear" else nn.Conv2d(k, 24, 1)
    net = nn.Sequential(layer, nn.BatchNorm1d(24) if kind == "linear" else nn.BatchNorm2d(24))
    x = torch.randn(64, k) if kind == "linear" else torch.randn(4, k, 4, 4)

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(a, w)
            total = torch.zeros(a.shape[0], w.shape[0])
            for i in range(a.shape[1]):
                total += a[:, i, None] * w[None, :, i]
            return total

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> tuple[Tensor, Tensor]:
            a, w = ctx.saved_tensors
            return g[0] @ w, g[0].T @ a

    def product(a: Tensor, w: Tensor) -> Tensor:
        return Summed.apply(a, w) if not bits else narrowed(a, bits) @ narrowed(w, bits).T  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def changed(module: nn.Module) -> Iterator[None]:
        def forward(a: Tensor) -> Tensor:
            rows = a if a.dim() == 2 else a.movedim(1, -1).reshape(-1, k)
            made = product(rows, layer.weight.flatten(1)) + layer.bias
            return made if a.dim() == 2 else made.view(4, 4, 4, 24).movedim(-1, 1)

        layer.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            layer.__dict__.pop("forward", None)

    with torch.no_grad():
        samples = find_roots(lambda: net(x.clone())).samples
    found = compare(samples, changed=changed)
    assert found.agrees == agrees and found.against == FLOAT64, found


class Of(nn.Module):
    """A function of one argument, that another may be put in the place of."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    @contextlib.contextmanager
    def by(self, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        was, self.function = self.function, function
        yield
        self.function = was


def with_nan(x: Tensor) -> Tensor:
    return torch.cat([torch.full_like(x[:, :1], float("nan")), x[:, 1:]], 1)


def _one_by_one(x: Tensor) -> Tensor:
    total = torch.zeros(len(x))
    for column in x.unbind(1):
        total += column
    return total


@pytest.mark.parametrize(
    ("function", "other", "size", "agrees"),
    [
        (lambda x: x.sum(1), _one_by_one, (4, 4096), True),
        (lambda x: x.mean(1), lambda x: _one_by_one(x) / 4096, (4, 4096), True),
        (lambda x: F.mse_loss(x, -x), lambda x: _one_by_one((2 * x).square().view(1, -1))[0] / 16384, (4, 4096), True),
        (
            lambda x: F.cross_entropy(x, x.softmax(1)),
            lambda x: _one_by_one((-x.softmax(1) * x.log_softmax(1)).view(1, -1))[0] / 4, (4, 4096), True,
        ),
        (torch.norm, lambda x: x.double().square().sum().sqrt().float(), (1, 1 << 22), True),  # truer than torch's own
        (lambda x: x.sum(1), lambda x: narrowed(x, 16).sum(1), (64, 512), False),
        (lambda x: x.sum(1), lambda x: x[:, :-1].sum(1), (64, 512), False),
        (torch.norm, lambda x: torch.norm(x) * 1.02, (1, 1 << 22), False),
        (lambda x: with_nan(x).nansum(1), lambda x: _one_by_one(x[:, 1:]), (64, 512), True),
        (lambda x: with_nan(x).nansum(1), lambda x: narrowed(x[:, 1:], 13).sum(1), (64, 512), False),
        (lambda x: torch.sum(x, [0, -1], keepdim=True), lambda x: _one_by_one(x.view(1, -1)).view(1, 1), (4, 99), True),
        (lambda x: x.sum(), lambda x: narrowed(x, 13).sum(), (4, 999), False),
    ],
)  # fmt: skip
def test_another_order_of_a_reduction_is_none(
    function: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], size: tuple[int, int], *, agrees: bool
) -> None:
    """torch's sums are truer than a plain loop's, and one of its norms is much less true than a compiler's."""
    module, x = Of(function), torch.randn(size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        samples = find_roots(lambda: module(x)).samples
        found = compare(samples, changed=lambda changed: module.by(other))
    assert found.agrees == agrees and found.against, found


@pytest.mark.parametrize(("mean", "size"), [(1e-5, (1, 4096)), (0.25, (1, 1024)), (0.25, (1, 4096)), (0.0, (16, 4096))])
def test_a_mean_is_held_against_what_its_partial_sums_lose(mean: float, size: tuple[int, int]) -> None:
    """Whatever it comes to: near 0 another order of it is far off beside it, and is none; and narrower terms are seen
    where a mean of them, as their errors average out, is nearly right."""
    x = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    x = (x - x.mean() + mean).float()
    module = Of(lambda x: x.mean(-1))
    narrow = [lambda x, bits=bits: narrowed(x, bits).mean(-1) for bits in (13, 16)]
    others = ((lambda x: _one_by_one(x) / size[1], True), *((other, False) for other in narrow))
    with torch.no_grad():
        samples = find_roots(lambda: module(x)).samples
        for other, agrees in others:
            found = compare(samples, changed=lambda changed, other=other: module.by(other))  # type: ignore[misc]
            assert found.agrees == agrees and found.against, found


def test_a_sum_of_millions_is_moved_too() -> None:
    """As gradients of large logits are: the cube of so many terms is no integer of 64 bits."""
    x = torch.rand(3_000_000, generator=torch.Generator().manual_seed(5))
    with PerturbedRounding(0):
        moved = x.sum()
    assert 0 < abs(float(moved / x.sum()) - 1) < 1e-3


class _BiasOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, off: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.off = off
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flows = gradients[0]
        return flows @ weight, flows.T @ x, flows.sum(0) + ctx.off * flows[0], None


@contextlib.contextmanager
def bias_off(net: nn.Module, share: float) -> Iterator[None]:
    """The gradient of the bias is off by so much of what one row adds to it."""
    first = net[0]  # type: ignore[index]
    first.forward = lambda x: _BiasOff.apply(x, first.weight, first.bias, share)  # type: ignore[no-untyped-call]
    yield
    del first.forward


@pytest.mark.parametrize(("share", "agrees"), [(0.001, True), (0.1, False)])
def test_a_gradient_that_rounding_has_eaten_may_be_what_another_order_loses(share: float, agrees: bool) -> None:
    """Of a bias before a batch norm it is 0: what is left is what the order of its sum loses, a compiler's four times
    as much as torch's."""
    for seed in range(4):
        torch.manual_seed(seed)
        net, x = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)), torch.randn(1024, 16)
        sample = Sample(net, (x,), {}, False, training=True, modes=(True,) * 3, recording=True)
        found = compare([sample], changed=lambda module: bias_off(module, share), whole=True)
        assert found.agrees == agrees and found.against, found
