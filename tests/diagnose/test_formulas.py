"""Flop and bytes of aten ops, counted from recorded calls of the ops themselves, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import work
from kernelworks.profile.recording import record
from kernelworks.profile.trace import Call

torch.manual_seed(0)
X = torch.randn(4, 8)
Y = torch.randn(8, 6)
W = torch.randn(6, 8)
IDS = torch.tensor([[1, 2, 3], [3, 2, 1]])
IMAGE, KERNEL = torch.randn(2, 3, 9, 9), torch.randn(5, 3, 3, 3)
Q, K = torch.randn(1, 4, 5, 16), torch.randn(1, 4, 7, 16)
BF = torch.bfloat16
HALF = X.to(BF)

# name, call, flop, elementary functions, bytes read, bytes written
CASES: list[tuple[str, Callable[[], Any], float, float, float, float]] = [
    ("mm", lambda: X @ Y, 2 * 4 * 6 * 8, 0, 4 * (32 + 48), 4 * 24),
    ("linear", lambda: F.linear(X, W, torch.ones(6)), 2 * 4 * 6 * 8, 0, 4 * (32 + 48 + 6), 4 * 24),
    ("linear bf16", lambda: F.linear(X.to(BF), W.to(BF)), 2 * 4 * 6 * 8, 0, 2 * (32 + 48), 2 * 24),
    ("bmm", lambda: torch.bmm(X.view(2, 2, 8), Y.expand(2, 8, 6)), 2 * 2 * 2 * 6 * 8, 0, 4 * (32 + 48), 4 * 24),
    ("addmm", lambda: torch.addmm(torch.ones(6), X, Y), 2 * 4 * 6 * 8, 0, 4 * (6 + 32 + 48), 4 * 24),
    ("batched matmul", lambda: torch.randn(3, 4, 8) @ Y, 2 * 3 * 4 * 6 * 8, 0, 4 * (96 + 48), 4 * 72),
    ("mv", lambda: torch.mv(X, Y[:, 0].contiguous()), 2 * 4 * 8, 0, 4 * (32 + 8), 4 * 4),
    ("add", lambda: X + X, 32, 0, 4 * 32, 4 * 32),
    ("add broadcast", lambda: X + X[:1], 32, 0, 4 * (32 + 8), 4 * 32),
    ("add out=", lambda: torch.add(X, X, out=torch.empty(4, 8)), 32, 0, 4 * 32, 4 * 32),
    ("add mixed", lambda: X + X.to(BF), 32, 0, 4 * 32 + 2 * 32, 4 * 32),
    ("mul_ in place", lambda: X.clone().mul_(2.0), 32, 0, 4 * 32, 4 * 32),
    ("compare", lambda: X > X, 32, 0, 4 * 32, 32),
    ("pow 2", lambda: X.pow(2), 32, 0, 4 * 32, 4 * 32),
    ("pow 2.5", lambda: X.abs().pow(2.5), 32, 64, 4 * 32, 4 * 32),
    ("exp", lambda: X.exp(), 0, 32, 4 * 32, 4 * 32),
    ("silu", lambda: F.silu(X), 96, 32, 4 * 32, 4 * 32),
    ("gelu", lambda: F.gelu(X), 128, 32, 4 * 32, 4 * 32),
    ("masked_fill", lambda: X.masked_fill(X > 0, 0.0), 0, 0, 4 * 32 + 32, 4 * 32),
    ("sum", lambda: X.sum(), 32, 0, 4 * 32, 4),
    ("mean keepdim", lambda: X.mean(-1, keepdim=True), 32, 0, 4 * 32, 4 * 4),
    ("argmax", lambda: X.argmax(-1), 32, 0, 4 * 32, 8 * 4),
    ("max with indices", lambda: X.max(-1), 32, 0, 4 * 32, 12 * 4),
    ("softmax", lambda: X.softmax(-1), 4 * 32, 32, 4 * 32, 4 * 32),
    ("layer_norm", lambda: F.layer_norm(X, (8,), torch.ones(8), torch.ones(8)), 8 * 32, 0, 4 * (32 + 16), 4 * 32),
    ("rms_norm", lambda: F.rms_norm(X, (8,), torch.ones(8), 1e-6), 4 * 32, 0, 4 * (32 + 8), 4 * 32),
    ("embedding", lambda: F.embedding(IDS, Y), 0, 0, 8 * 6 + 4 * 36, 4 * 36),
    ("index_select", lambda: X.index_select(0, IDS[0]), 0, 0, 8 * 3 + 4 * 24, 4 * 24),
    ("index", lambda: X[IDS[0]], 0, 0, 4 * 24, 4 * 24),
    ("gather", lambda: X.gather(1, IDS), 0, 0, 8 * 6 + 4 * 6, 4 * 6),
    ("cat", lambda: torch.cat([X, X, X]), 0, 0, 4 * 32, 4 * 96),
    ("cat of 16 bits", lambda: torch.cat([HALF, HALF, HALF]), 0, 0, 2 * 32, 2 * 96),
    ("stack of 16 bits", lambda: torch.stack([HALF, HALF]), 0, 0, 2 * 32, 2 * 64),
    ("contiguous copy", lambda: X.t().contiguous(), 0, 0, 4 * 32, 4 * 32),
    ("cast", lambda: X.to(BF), 0, 0, 4 * 32, 2 * 32),
    ("cast to the same", lambda: X.to(torch.float32), 0, 0, 0, 0),
    ("reshape that copies", lambda: X.t().reshape(-1), 0, 0, 4 * 32, 4 * 32),
    ("reshape that views", lambda: X.reshape(-1), 0, 0, 0, 0),
    ("transpose", lambda: X.transpose(0, 1), 0, 0, 0, 0),
    ("slice", lambda: X[1:3], 0, 0, 0, 0),
    ("repeat", lambda: X.repeat(2, 3), 0, 0, 4 * 32, 4 * 192),
    ("pad", lambda: F.pad(X, (1, 1)), 0, 0, 4 * 32, 4 * 40),
    ("zeros", lambda: torch.zeros(4, 8), 0, 0, 0, 4 * 32),
    (
        "conv2d",
        lambda: F.conv2d(IMAGE, KERNEL, padding=1, stride=2),
        2 * (2 * 5 * 3) * (13 * 13),  # of 15 taps a line 13 are not on the padding
        0,
        4 * (2 * 3 * 81 + 5 * 27),
        4 * (2 * 5 * 25),
    ),
    (
        "grouped conv",
        lambda: F.conv1d(torch.randn(1, 4, 10), torch.randn(4, 1, 3), groups=4),
        2 * (4 * 8) * 3,
        0,
        4 * (40 + 12),
        4 * 32,
    ),
    (
        "conv_transpose2d",
        lambda: F.conv_transpose2d(IMAGE, torch.randn(3, 5, 2, 2), stride=2),
        2 * (2 * 3 * 81) * (5 * 4),
        0,
        4 * (2 * 3 * 81 + 3 * 5 * 4),
        4 * (2 * 5 * 18 * 18),
    ),
    (
        "attention",
        lambda: F.scaled_dot_product_attention(Q, K, K),
        4 * 5 * 7 * (2 * 32 + 4),
        4 * 5 * 7,
        4 * (4 * 5 * 16 + 4 * 7 * 16),
        4 * (4 * 5 * 16),
    ),
    (
        "causal attention",
        lambda: F.scaled_dot_product_attention(K, K, K, is_causal=True),
        4 * 28 * (2 * 32 + 4),
        4 * 28,
        4 * (4 * 7 * 16),
        4 * (4 * 7 * 16),
    ),
    (
        "max_pool2d",
        lambda: F.max_pool2d(torch.randn(2, 3, 8, 8), 2),
        2 * 3 * 16 * 4,
        0,
        4 * 2 * 3 * 64,
        4 * 2 * 3 * 16,
    ),
    ("topk", lambda: X.topk(3), 32, 0, 4 * 32, 12 * 12),
]


def _calls(run: Callable[[], Any]) -> list[Call]:
    with torch.no_grad():
        return record(run, survey=Survey()).calls


@pytest.mark.parametrize(("name", "run", "flop", "functions", "read", "written"), CASES, ids=[c[0] for c in CASES])
def test_formula(name: str, run: Callable[[], Any], flop: float, functions: float, read: float, written: float) -> None:
    counted = work(_calls(run)[-1])
    assert counted is not None
    assert (counted.flop, counted.transcendental, counted.read, counted.written) == (flop, functions, read, written)


def test_einsum_counts_as_what_it_calls() -> None:
    counted = work(_calls(lambda: torch.einsum("ij,jk->ik", X, Y))[-1])
    assert counted is not None and counted.flop == 2 * 4 * 6 * 8


def test_op_without_a_formula_is_unmodelled() -> None:
    calls = [c for c in _calls(lambda: torch.eye(4).to_sparse()) if "sparse" in c.name]
    assert calls and work(calls[0]) is None


def test_fused_optimizer_reads_and_writes_its_state() -> None:
    parameter = torch.nn.Parameter(torch.randn(10, 10))
    parameter.grad = torch.randn(10, 10)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()
    call = next(c for c in _calls(optimizer.step) if c.name == "aten::_fused_adamw_")
    assert work(call) == Work(14 * 100, 0.0, 4 * 400, 4 * 300, "float32")


def test_backward_products() -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)
    calls = record(lambda: F.linear(x, w).sum().backward(), survey=Survey()).calls
    products = [work(c) for c in calls if c.backward and c.name == "aten::mm"]
    assert [p.flop for p in products if p] == [2 * 4 * 6 * 8] * 2


def test_our_ops_count_by_their_contract() -> None:
    from kernelworks.ops.norm.rms_norm import rms_norm

    call = next(c for c in _calls(lambda: rms_norm(X, torch.ones(8), eps=1e-6)) if c.name == "kernelworks::rms_norm")
    assert work(call) == Work(4.0 * 32, 4, 4 * 40, 4 * 32, "float32")


def test_a_causal_attention_of_ours_does_half_of_the_work_backwards_too() -> None:
    """The profiler records no strings: the survey does, and a backward has those of its forward."""
    import kernelworks as kw

    q = torch.randn(1, 2, 64, 16, requires_grad=True)
    flop = {}
    for causal in ("top_left", None):
        run = lambda causal=causal: kw.attention(q, q, q, causal=causal, kernel="reference").sum().backward()  # noqa: E731
        calls = record(run, survey=Survey()).calls
        flop[causal] = [work(c).flop for c in calls if c.name.startswith("kernelworks::attention")]
    assert len(flop[None]) == 2
    assert [a / b for a, b in zip(flop["top_left"], flop[None], strict=True)] == pytest.approx([0.5, 0.5], abs=0.02)
