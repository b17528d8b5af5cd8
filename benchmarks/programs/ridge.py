"""Kernel ridge regression in plain torch: a Gaussian kernel, a Cholesky solve, a prediction."""

from __future__ import annotations

import functools

import torch
from place import DEVICE, sized
from torch import Tensor, nn

PAIRS = {"ridge": "regression"}


class KernelRidge(nn.Module):
    def __init__(self, width: float, penalty: float) -> None:
        super().__init__()
        self.penalty = penalty
        self.register_buffer("width", torch.tensor(width))

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        square = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
        return torch.exp(-square.clamp_min(0) / (2 * self.width**2))

    def forward(self, x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
        """Fits on x and y, and predicts what is asked."""
        k = self.kernel(x, x) + self.penalty * torch.eye(len(x), device=x.device, dtype=x.dtype)
        weights = torch.cholesky_solve(y[:, None], torch.linalg.cholesky(k))
        return (self.kernel(asked, x) @ weights)[:, 0]


@functools.cache
def regression() -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    known, asked, features = sized(cpu=(3000, 3000, 16), gpu=(8192, 32768, 64))
    x, new = torch.randn(known, features, device=DEVICE), torch.randn(asked, features, device=DEVICE)
    return KernelRidge(features**0.5, 1e-1).to(DEVICE), x, x.sin().sum(1), new, new.sin().sum(1)


def ridge() -> float:
    """The mean square error of the prediction."""
    model, x, y, asked, truth = regression()
    return ((model(x, y, asked) - truth) ** 2).mean().item()
