"""torch's Conv modules, whose forward only calls another method, and functions that torch has in two places."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw

INPUTS = {nn.Conv1d: (2, 4, 11), nn.Conv2d: (2, 4, 7, 6), nn.Conv3d: (2, 4, 5, 4, 6)}


@pytest.fixture(autouse=True)
def every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("cls", INPUTS)
def test_outputs_and_gradients_are_torchs(cls: type[nn.Module], groups: int, mode: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(cls(4, 8, 3, padding=1, groups=groups, padding_mode=mode))  # type: ignore[call-arg]
    swapped, x = copy.deepcopy(plain), torch.randn(INPUTS[cls], requires_grad=True)
    with kw.swap(swapped, verbose=False) as swap:
        assert [op for r in swap.replaced for op in r.ops] == [cls.__name__.lower()]
        want, got = plain(x), swapped(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        flow = torch.randn_like(want)
        torch.testing.assert_close(
            torch.autograd.grad(got, [x, *swapped.parameters()], flow),
            torch.autograd.grad(want, [x, *plain.parameters()], flow), rtol=1e-4, atol=1e-4,
        )  # fmt: skip
    assert "_conv_forward" not in swapped[0].__dict__


def test_a_users_own_method_in_the_place_of_torchs_is_what_runs() -> None:
    class Mine(nn.Conv1d):
        def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(input, weight, bias) + 1

    plain = Mine(4, 4, 3)
    swapped, x = copy.deepcopy(plain), torch.randn(INPUTS[nn.Conv1d])
    with kw.swap(swapped, verbose=False):
        torch.testing.assert_close(swapped(x), plain(x))


class Spelled(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        found = [torch.relu(x), torch.log_softmax(x, 1), torch.log_softmax(x, dim=0)]
        return [*found, torch.log_softmax(x, 1, torch.float64), torch.log_softmax(x, dim=1, dtype=torch.float64)]


def test_functions_that_torch_has_in_two_places_are_known_in_both() -> None:
    plain = Spelled()
    swapped, x = copy.deepcopy(plain), torch.randn(5, 70)
    with kw.swap(swapped, verbose=False) as swap:
        assert {op for r in swap.replaced for op in r.ops} == {"relu", "log_softmax"}
        got, want = swapped(x), plain(x)
        assert [g.dtype for g in got] == [w.dtype for w in want]
        torch.testing.assert_close(got, want)
