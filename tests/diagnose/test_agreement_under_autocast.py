"""Gradients that autocast rounds to 16 bits, and steps that such roundings carry away, are held to those roundings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.diagnose.optimization import Scene
from kernelworks.diagnose.sites.modules import Sample, find_roots
from kernelworks.diagnose.verify import training_steps
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.diagnose.verify.drawn_inputs import drawn_samples
from kernelworks.diagnose.verify.precision import PerturbedRounding
from kernelworks.diagnose.verify.training_steps import same_steps
from kernelworks.profile.program import Program

BF16 = torch.bfloat16


class _WideBias(torch.autograd.Function):
    """A linear layer in 16 bits whose gradient of the bias is summed and left in float32, times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        of_x = (grad @ weight.to(BF16)).to(x.dtype)
        return of_x, (grad.T @ x.to(BF16)).float(), grad.float().sum(0) * ctx.factor, None


@contextlib.contextmanager
def wide_bias(layer: nn.Module, factor: float) -> Iterator[None]:
    plain = layer.forward
    layer.forward = lambda x: _WideBias.apply(x, layer.weight, layer.bias, factor)  # type: ignore[no-untyped-call]
    yield
    layer.forward = plain


@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (1.02, False)])
def test_a_gradient_that_is_rounded_less_agrees_and_a_wrong_one_does_not(factor: float, agrees: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 3), torch.randn(4096, 32)
    sample = Sample(layer, (x,), {}, False, training=True, modes=(True,), autocast={"cpu": BF16}, recording=True)
    found = compare([sample], changed=lambda module: wide_bias(module, factor), whole=True)
    assert found.agrees == agrees and found.against, found


class Temperature(nn.Module):
    """A loss of ``t``, whose gradient is a small difference of sums that bfloat16 rounds alike, and of ``plain``."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.plain = nn.Parameter(torch.tensor(2.6)), nn.Parameter(torch.tensor(0.5))
        self.features = nn.Buffer(1 + 0.003 * torch.randn(512, 128))

    def forward(self) -> Tensor:
        products = (self.features @ self.features.T) * (self.t.exp() / 128)
        return F.cross_entropy(products, torch.arange(512)) + (self.plain - 3).square()


@contextlib.contextmanager
def rate(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    optimizer.param_groups[0]["lr"] *= 3
    yield
    optimizer.param_groups[0]["lr"] /= 3


@pytest.mark.parametrize(
    ("changed", "agrees"),
    [(lambda optimizer: training_steps._without_autocast(), True), (rate, False)],
    ids=["wider", "rate"],
)
def test_steps_may_be_as_far_off_as_16_bits_carry_them(
    changed: Callable[[torch.optim.Optimizer], contextlib.AbstractContextManager[None]], agrees: bool
) -> None:
    torch.manual_seed(0)
    model = Temperature()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", BF16):
            loss = model()
        loss.backward()
        optimizer.step()
        return loss.detach()

    roots = find_roots(step)
    scene = Scene(roots, Program("p", step), optimizers=roots.optimizers)
    found = same_steps(scene, changed(optimizer))
    assert found is not None and found.agrees == agrees, found


class Embedded(nn.Module):
    """An embedding of ``k`` moves every pixel: its few roundings are in every gradient, and make its error."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, 2 * channels))
        self.first, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.GroupNorm(4, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        waves = k[:, None] * torch.exp(-9.2 * torch.arange(4) / 4)
        scale, shift = self.embed(torch.cat((waves.sin(), waves.cos()), 1))[:, :, None, None].chunk(2, 1)
        x = self.first(x)
        for _ in range(2):
            x = x + F.silu(self.norm(self.second(F.silu(x))) * (1 + scale) + shift)
        return x


@contextlib.contextmanager
def rounded_otherwise(module: nn.Module, seed: int, roundings: float) -> Iterator[None]:
    """Each result is moved by up to so many roundings, as that of another kernel."""
    plain = module.forward

    def forward(*args: Any) -> Any:
        with PerturbedRounding(seed, roundings):
            return plain(*args)

    module.forward = forward  # type: ignore[method-assign]
    yield
    module.forward = plain  # type: ignore[method-assign]


@pytest.mark.parametrize("values", ["zeros and the least integers", "small values and integers of the lower half"])
def test_other_roundings_agree_where_few_make_the_error_and_roundings_thrice_as_large_do_not(values: str) -> None:
    torch.manual_seed(0)
    module, x, k = Embedded(), torch.randn(4, 3, 8, 8), torch.rand(4) * 1000
    modes = (True,) * len(list(module.modules()))
    sample = Sample(module, (x, k), {}, False, training=True, modes=modes, autocast={"cpu": BF16}, recording=True)
    drawn = dict(drawn_samples(sample))[values]
    for roundings, agrees in ((0.75, True), (2.0, False)):
        found = [
            compare([drawn], changed=lambda m, s=seed, r=roundings: rounded_otherwise(m, s, r), whole=True)
            for seed in range(100, 104)
        ]
        assert [one.agrees for one in found] == [agrees] * 4, found


class SqueezedBlock(nn.Module):
    """A gate of eight channels, which all pixels share: its gradient is a small difference of large sums."""

    def __init__(self, channels: int = 32, squeezed: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return x + y * self.expand(F.relu(self.reduce(y.mean((2, 3), keepdim=True)))).sigmoid()


@contextlib.contextmanager
def other_convolutions(module: nn.Module) -> Iterator[None]:
    """Those of torch without oneDNN."""
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        yield


@contextlib.contextmanager
def wide_gate(module: nn.Module) -> Iterator[None]:
    """Everything of one block as it is, but for its gate's argument, which is 1.3 times as large."""
    handle = module[1].expand.register_forward_hook(lambda conv, args, out: 1.3 * out)  # type: ignore[index]
    yield
    handle.remove()


@pytest.mark.parametrize(("changed", "agrees"), [(other_convolutions, True), (wide_gate, False)])
def test_gates_of_few_channels_agree_with_other_kernels_and_not_with_another_gate(changed: Any, agrees: bool) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(SqueezedBlock() for _ in range(4)), nn.Conv2d(32, 4, 1))
        modes = (True,) * len(list(net.modules()))
        x = torch.randn(8, 3, 16, 16)
        sample = Sample(net, (x,), {}, False, training=True, modes=modes, autocast={"cpu": BF16}, recording=True)
        found = compare([sample], changed=changed, whole=True)
        assert found.agrees == agrees and found.against, found
