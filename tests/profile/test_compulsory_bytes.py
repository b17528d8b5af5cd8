"""A call moves each tensor that it was given once, and what it returns, however many ops it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import work
from kernelworks.profile.recording import record

N, C = 64, 48
SIZE = 4 * N * C  # bytes of one float32 matrix
torch.manual_seed(0)
X, Y, Z = torch.randn(N, C), torch.rand(N, C), torch.randn(N, C)
SIGNS, IDS = torch.sign(torch.randn(N, C)), torch.randint(0, C, (N,))
QKV = torch.randn(2, 5, 3 * 8)
IMAGE = torch.randn(2, 4, 6, 6)

# call, bytes read, bytes written
COMPOSITES: dict[str, tuple[Callable[[], Any], int, int]] = {
    "hinge": (lambda: F.hinge_embedding_loss(X, SIGNS), 2 * SIZE, 4),
    "bce with logits": (lambda: F.binary_cross_entropy_with_logits(X, Y), 2 * SIZE, 4),
    "kl_div": (lambda: F.kl_div(X, Y, reduction="sum"), 2 * SIZE, 4),
    "kl_div of logs": (lambda: F.kl_div(X, Y, reduction="sum", log_target=True), 2 * SIZE, 4),
    "l1": (lambda: F.l1_loss(X, Y), 2 * SIZE, 4),
    "mse": (lambda: F.mse_loss(X, Y), 2 * SIZE, 4),
    "smooth l1": (lambda: F.smooth_l1_loss(X, Y), 2 * SIZE, 4),
    "huber, every element": (lambda: F.huber_loss(X, Y, reduction="none"), 2 * SIZE, SIZE),
    "cross entropy": (lambda: F.cross_entropy(X, IDS), SIZE + 8 * N, 4),
    "soft cross entropy": (lambda: F.cross_entropy(X, Y), 2 * SIZE, 4),
    "triplet": (lambda: F.triplet_margin_loss(X, Y, Z), 3 * SIZE, 4),
    "cosine embedding": (lambda: F.cosine_embedding_loss(X, Y, SIGNS[:, 0].contiguous()), 2 * SIZE + 4 * N, 4),
    "margin ranking": (lambda: F.margin_ranking_loss(X, Y, SIGNS), 3 * SIZE, 4),
    "poisson": (lambda: torch.poisson_nll_loss(X, Y, True, False, 1e-8, 1), 2 * SIZE, 4),
    "cosine similarity": (lambda: F.cosine_similarity(X, Y, dim=1), 2 * SIZE, 4 * N),
    "selu": (lambda: F.selu(X), SIZE, SIZE),
    "hardswish": (lambda: F.hardswish(X), SIZE, SIZE),
    "x + x": (lambda: X + X, SIZE, SIZE),
    "x + view of x": (lambda: _view(), SIZE, SIZE),
    "x * x, transposed": (lambda: X * X, SIZE, SIZE),
    "halves of one tensor": (lambda: _halves(), SIZE, SIZE // 2),
    "q, k and v of one tensor": (lambda: _attention(), 4 * 2 * 5 * 24, 4 * 2 * 5 * 8),
    "cat of one tensor": (lambda: torch.cat([X, X]), SIZE, 2 * SIZE),
    "addmm": (lambda: torch.addmm(X, X, torch.eye(C)), SIZE + 4 * C * C, SIZE),
    "einsum": (lambda: torch.einsum("ij,kj->ik", X, Y), 2 * SIZE, 4 * N * N),
    "group norm": (lambda: F.group_norm(IMAGE, 2), 4 * 288, 4 * 288),
    "instance norm": (lambda: F.instance_norm(IMAGE), 4 * 288, 4 * 288),
    "a reshape that copies": (lambda: X.t().reshape(-1), SIZE, SIZE),
    "a reshape that does not": (lambda: X.reshape(-1), 0, 0),
    "a cast to the same": (lambda: X.to(torch.float32), 0, 0),
    "sum in float64": (lambda: X.sum(dtype=torch.float64), SIZE, 8),
    "written into out=": (lambda: torch.add(X, Y, out=Z), 2 * SIZE, SIZE),
    "a few rows of many": (lambda: X.index_select(0, IDS[:3].clamp(max=3)), 3 * 4 * C + 24, 3 * 4 * C),
}  # fmt: skip


def _view() -> Tensor:
    x = X.clone()
    return x + x.view(N, C)


def _halves() -> Tensor:
    left, right = X.clone().chunk(2, -1)
    return left * right


def _attention() -> Tensor:
    q, k, v = QKV.clone().view(2, 5, 3, 8).unbind(2)
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])


def counted(run: Callable[[], Any]) -> Work:
    """The work of the last call that a run made."""
    with torch.no_grad():
        call = record(run, survey=Survey()).calls[-1]
    found = work(call)
    assert found is not None, f"{call.name} is unmodelled"
    return found


@pytest.mark.parametrize("name", COMPOSITES)
def test_each_input_once_and_each_output_once(name: str) -> None:
    run, read, written = COMPOSITES[name]
    found = counted(run)
    assert (found.read, found.written) == (read, written)


def test_what_autograd_keeps_is_not_compulsory() -> None:
    """A loss that saves its intermediates for the backward moves no more than one that does not."""
    x = X.clone().requires_grad_()
    calls = record(lambda: F.binary_cross_entropy_with_logits(x, Y), survey=Survey()).calls
    found = work(calls[-1])
    assert found is not None and (found.read, found.written) == (2 * SIZE, 4)
