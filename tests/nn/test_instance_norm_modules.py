"""torch's InstanceNorm modules by our op: with and without running statistics, in training and evaluation."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from eligible import KERNELS, only
from torch import nn

import kernelworks as kw

SHAPES = {nn.InstanceNorm1d: (3, 6, 11), nn.InstanceNorm2d: (3, 6, 5, 4), nn.InstanceNorm3d: (2, 6, 3, 2, 4)}


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("cls", SHAPES)
def test_outputs_gradients_and_running_statistics_are_torchs(cls: type[nn.Module], tracked: bool, affine: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(cls(6, affine=affine, track_running_stats=tracked, momentum=0.3))
    swapped = copy.deepcopy(plain)
    with only(KERNELS[-1] if KERNELS else "torch") as taken, kw.swap(swapped, verbose=False) as swap:
        if KERNELS:
            assert [(r.kind, r.ops) for r in swap.replaced] == [("instance norm", ("instance_norm",))]
        for training in (True, True, False):
            x = (torch.randn(SHAPES[cls]) * 2 + 1).requires_grad_()
            flow, leaves = torch.randn(SHAPES[cls]), [x, *plain.parameters()]
            want, got = plain.train(training)(x), swapped.train(training)(x)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                torch.autograd.grad(got, [x, *swapped.parameters()], flow),
                torch.autograd.grad(want, leaves, flow), rtol=1e-4, atol=1e-5,
            )  # fmt: skip
            torch.testing.assert_close(dict(swapped.named_buffers()), dict(plain.named_buffers()))
    if KERNELS:
        assert ("instance_norm", "forward") in taken
    assert "forward" not in swapped[0].__dict__


def test_an_input_without_a_batch_and_another_number_of_channels_are_torchs() -> None:
    swapped = nn.Sequential(nn.InstanceNorm1d(6), nn.InstanceNorm1d(6, affine=True))
    x = torch.randn(6, 11)
    want = copy.deepcopy(swapped)(x)
    with only(KERNELS[-1] if KERNELS else "torch"), kw.swap(swapped, verbose=False):
        assert torch.equal(swapped(x), want)
        with pytest.warns(UserWarning, match="does not match num_features"):
            swapped[0](torch.randn(2, 5, 11))
        with pytest.raises(ValueError, match="expected input's size"), warnings.catch_warnings():
            swapped[1](torch.randn(2, 5, 11))
        with pytest.raises(ValueError, match="expected 2D or 3D input"):
            swapped[0](torch.randn(2, 6, 5, 4))
