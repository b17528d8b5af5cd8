"""Convolutions under torch.func, whose tensors say of no format but contiguous whether they lie so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernelworks as kw

CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "volumes": (kw.conv3d, torch.conv3d, (1, 2, 3, 4, 5), (3, 2, 2, 1, 3)),
    "pictures, transposed": (kw.conv_transpose2d, torch.conv_transpose2d, (1, 2, 4, 3), (2, 3, 2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_mapped_as_torchs_are(name: str) -> None:
    ours, torchs, shape, filters = CASES[name]
    x, weight = torch.randn(2, *shape), torch.randn(2, *filters)
    for in_dims in (0, (0, None)):
        given = (x, weight if in_dims == 0 else weight[0])
        got, want = torch.vmap(ours, in_dims)(*given), torch.vmap(torchs, in_dims)(*given)
        torch.testing.assert_close(got, want)

    def slope(function: Callable[..., Any]) -> Any:
        return torch.func.vmap(torch.func.grad(lambda a, b: function(a, b).square().sum(), (0, 1)))(x, weight)

    torch.testing.assert_close(slope(ours), slope(torchs))
