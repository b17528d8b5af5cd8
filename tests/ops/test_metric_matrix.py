"""linear_kernel, polynomial_kernel and laplacian_kernel are scikit-learn's functions of these names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import pairwise

import kernelworks as kw
from kernelworks.dispatch.op import OPS

RANDOM = np.random.default_rng(4)
X, Y = RANDOM.normal(size=(13, 5)), RANDOM.normal(size=(9, 5))
NAMES = ("laplacian_kernel", "linear_kernel", "polynomial_kernel")


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("linear_kernel", {}), ("laplacian_kernel", {}), ("laplacian_kernel", {"gamma": 2}), ("polynomial_kernel", {}),
        *(("polynomial_kernel", {"degree": p, "gamma": 1, "coef0": c}) for p in (1, 2, 3) for c in (0, -2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("points", [(X, Y), (X[:1], Y[:1]), (-np.abs(X), np.abs(Y)), (1e4 + X, 1e4 + Y)])
def test_values_are_scikit_learns(name: str, numbers: dict[str, Any], points: tuple[Any, Any]) -> None:
    x, y = (p.astype(np.float32) for p in points)
    want = getattr(pairwise, name)(x.astype(np.float64), y.astype(np.float64), **numbers)
    for kernel in ("torch", "reference", "scalar"):
        found = getattr(kw, name)(x, y, **numbers, kernel=kernel)
        # of a power, the error of its base, p times; bases of the size of their terms
        assert isinstance(found, np.ndarray) and np.allclose(found, want, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", NAMES)
def test_both_points_may_be_one_tensor(name: str) -> None:
    """A gradient is the sum of both sides'."""
    x = torch.from_numpy(X).float().requires_grad_()
    getattr(kw, name)(x, x, kernel="scalar").sum().backward()
    twin = x.detach().double().requires_grad_()
    numbers: tuple[Any, ...] = {"polynomial_kernel": (3, None, 1.0), "laplacian_kernel": (None,)}.get(name, ())
    OPS[name].composite(twin, twin, *numbers).sum().backward()
    assert x.grad is not None and twin.grad is not None
    assert torch.allclose(x.grad.double(), twin.grad, rtol=1e-5, atol=1e-5)


def test_a_power_of_zero_is_one_and_has_no_gradient() -> None:
    x = torch.zeros(3, 2, requires_grad=True)
    for kernel in ("scalar", "torch", "reference"):
        k = kw.polynomial_kernel(x, x.detach(), 0, 1.0, 0.0, kernel=kernel)
        (grad,) = torch.autograd.grad(k.sum(), x)
        assert torch.equal(k, torch.ones(3, 3)) and torch.equal(grad, torch.zeros(3, 2))
