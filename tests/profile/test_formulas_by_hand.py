"""Flop, elementary functions and bytes of ops whose count is easy to get wrong, against counts by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import work
from kernelworks.profile.recording import record

torch.manual_seed(0)
N, C = 6, 16
X, SEQUENCE, IMAGE = torch.randn(N, C), torch.randn(3, 2, 4), torch.randn(2, 4, 6, 6)
SQUARE = torch.eye(5) * 9 + torch.ones(5, 5)
LSTM, GRU = nn.LSTM(4, 5), nn.GRU(4, 5)
ENCODER = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()
TOKENS, TABLE = torch.randn(2, 3, 8), torch.randn(50, 4)
BAGS = torch.tensor([[1, 2], [3, 4], [5, 6]])
LAYER = 2 * 2 * 3 * (3 * 8 * 8 + 8 * 8 + 2 * 8 * 12)  # products over 6 tokens

# call, flop (None: any), elementary functions, bytes read, bytes written
CASES: dict[str, tuple[Callable[[], Any], float | None, float, float, float]] = {
    "logsumexp": (lambda: X.logsumexp(1), 3 * N * C, N * C, 4 * N * C, 4 * N),
    "mish": (lambda: F.mish(X), 6 * N * C, N * C, 4 * N * C, 4 * N * C),
    "cummax": (lambda: X.cummax(1), N * C, 0, 4 * N * C, 12 * N * C),
    "cumsum": (lambda: X.cumsum(1), N * C, 0, 4 * N * C, 4 * N * C),
    "sum in float64": (lambda: X.sum(dtype=torch.float64), N * C, 0, 4 * N * C, 8),
    "sum over one, in float64": (lambda: X.sum(1, dtype=torch.float64), N * C, 0, 4 * N * C, 8 * N),
    "mean over both": (lambda: X.mean((0, 1)), N * C, 0, 4 * N * C, 4),
    "variance": (lambda: X.var(0, unbiased=False), 3 * N * C, 0, 4 * N * C, 4 * C),
    "glu": (lambda: F.glu(X), 1.5 * N * C, N * C / 2, 4 * N * C, 2 * N * C),
    "prelu": (lambda: F.prelu(X, torch.ones(1)), 2 * N * C, 0, 4 * N * C + 4, 4 * N * C),
    "pixel shuffle": (lambda: F.pixel_shuffle(IMAGE, 2), 0, 0, 4 * 288, 4 * 288),
    "nearest": (lambda: F.interpolate(IMAGE, scale_factor=2), 0, 0, 4 * 288, 16 * 288),
    "bilinear": (lambda: F.interpolate(IMAGE, size=3, mode="bilinear"), 8 * 72, 0, 4 * 288, 4 * 72),
    "grid": (lambda: F.grid_sample(IMAGE, torch.zeros(2, 1, 1, 2), align_corners=False), 8 * 8, 0, 4 * 8 * 4 + 16, 32),
    "im2col": (lambda: F.unfold(IMAGE, 3), 0, 0, 4 * 288, 4 * 2 * 36 * 16),
    "bags": (lambda: F.embedding_bag(BAGS, TABLE), 6 * 4, 0, 4 * 6 * 4 + 6 * 8 + 3 * 8, 4 * 3 * 4),
    "embedding": (lambda: F.embedding(BAGS, TABLE), 0, 0, 4 * 6 * 4 + 6 * 8, 4 * 6 * 4),
    "fft": (lambda: torch.fft.fft(torch.randn(3, 8, dtype=torch.cfloat)), 5 * 24 * 3, 0, 8 * 24, 8 * 24),
    "rfft": (lambda: torch.fft.rfft(torch.randn(3, 8)), 2.5 * 24 * 3, 0, 4 * 24, 8 * 15),
    "distances": (lambda: torch.cdist(X, X[:4].clone(), p=1.0), 3 * N * 4 * C, 0, 4 * (N + 4) * C, 4 * N * 4),
    "cholesky": (lambda: torch.linalg.cholesky(SQUARE), 125 / 3, 0, 100, 100),
    "solve": (lambda: torch.linalg.solve(SQUARE, X[:5]), 250 / 3 + 2 * 25 * C, 0, 4 * (25 + 5 * C), 4 * 5 * C),
    "singular values": (lambda: torch.linalg.svd(SQUARE), 12 * 125, 0, 100, 220),
    "half as wide as needed": (lambda: X.half() @ X.half().t(), 2 * N * N * C, 0, 4 * N * C, 2 * N * N),
    "picked losses": (lambda: F.nll_loss(X, BAGS.view(-1)), 0, 0, 4 * 6 + 8 * 6, 4),
    "in place": (lambda: X.clone().mul_(2), N * C, 0, 4 * N * C, 4 * N * C),
    "one pass over lists": (lambda: torch._foreach_add([X, SQUARE], 1.0), 121, 0, 4 * 121, 4 * 121),
    "encoder": (
        lambda: ENCODER(TOKENS),
        LAYER + 2 * 2 * 9 * (4 * 4 + 4) + 16 * 48 + 6 * 12, 36,
        4 * (48 + sum(p.numel() for p in ENCODER.parameters())), 4 * 48,
    ),
    "lstm": (
        lambda: LSTM(SEQUENCE), 2 * 6 * 20 * 9 + 10 * 30, 5 * 30,
        4 * (24 + 20 + sum(p.numel() for p in LSTM.parameters())), 4 * (30 + 20),
    ),
    "gru": (lambda: GRU(SEQUENCE), None, 3 * 30, 4 * (24 + 10 + sum(p.numel() for p in GRU.parameters())), 4 * 40),
}  # fmt: skip


def counted(run: Callable[[], Any], name: str = "") -> Work:
    """The work of the last call that a run made, or of the last whose name begins with ``name``."""
    calls = [c for c in record(run, survey=Survey()).calls if c.name.startswith(f"aten::{name}")]
    found = work(calls[-1])
    assert found is not None, f"{calls[-1].name} is unmodelled"
    return found


@pytest.mark.parametrize("name", CASES)
def test_count(name: str) -> None:
    run, flop, functions, read, written = CASES[name]
    with torch.no_grad():
        found = counted(run, {"lstm": "lstm", "gru": "gru"}.get(name, ""))
    assert flop is None or math.isclose(found.flop, flop), found.flop
    assert (found.transcendental, found.read, found.written) == (functions, read, written)


LISTS: dict[str, tuple[Callable[[list[Any], list[Any]], Any], float, float, float]] = {  # of 105 numbers
    "_foreach_add_": (lambda a, b: torch._foreach_add_(a, b), 105, 840, 420),
    "_foreach_add_ of itself": (lambda a, b: torch._foreach_add_(a, a), 105, 420, 420),
    "_foreach_lerp_": (lambda a, b: torch._foreach_lerp_(a, b, 0.5), 315, 840, 420),
    "_foreach_copy_": (lambda a, b: torch._foreach_copy_(a, b), 0, 420, 420),
    "_foreach_zero_": (lambda a, b: torch._foreach_zero_(a), 0, 0, 420),
    "_foreach_norm": (lambda a, b: torch._foreach_norm(a), 210, 420, 8),
    "_foreach_sqrt": (lambda a, b: torch._foreach_sqrt(a), 105, 420, 420),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors(name: str) -> None:
    run, flop, read, written = LISTS[name]
    a, b = ([torch.rand(10, 10), torch.rand(5)] for _ in range(2))
    found = counted(lambda: run(a, b), "_foreach")
    assert (found.flop, found.read, found.written) == (flop, read, written)


@pytest.mark.parametrize(
    ("make", "lists_read", "lists_written"),
    [(torch.optim.SGD, 3, 2), (torch.optim.Adam, 4, 3), (torch.optim.Adagrad, 3, 2)],
)
def test_fused_optimisers_do_not_write_gradients(make: Any, lists_read: int, lists_written: int) -> None:
    p = nn.Parameter(torch.randn(10, 10))
    p.grad = torch.randn(10, 10)
    more = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make([p], lr=0.1, fused=True, **more)
    optimizer.step()
    found = counted(optimizer.step, "_fused")
    assert found.read in (400 * lists_read, 400 * lists_read + 4)  # and the count of steps
    assert found.written in (400 * lists_written, 400 * lists_written + 4)


def test_cells_of_a_gru_are_products_and_gates() -> None:
    with torch.no_grad():
        found = counted(lambda: GRU(SEQUENCE), "gru")
    products = 2 * 6 * 15 * (4 + 5)
    assert products < found.flop < 1.3 * products


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (4, 8), (8, 4)])
def test_attention_counts_the_pairs_that_are_not_masked(causal: bool, queries: int, keys: int) -> None:
    q, k, v = (torch.randn(2, 3, n, 16, requires_grad=True) for n in (queries, keys, keys))
    run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    pairs = 6 * sum(not causal or j <= i for i in range(queries) for j in range(keys))
    assert counted(run).flop == pairs * (4 * 16 + 4)
    backward = counted(lambda: run().sum().backward(), "_scaled_dot_product_flash_attention_for_cpu_backward")
    assert backward.flop == pairs * 10 * 16


def test_a_product_under_autocast_is_done_in_16_bits() -> None:
    layer = nn.Linear(16, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = counted(lambda: layer(X), "linear")
    assert found.dtype == "bfloat16"
    assert (found.flop, found.written) == (2 * N * 16 * 8, 2 * N * 8)


def test_attention_under_autocast_is_done_in_16_bits() -> None:
    q = torch.randn(1, 2, 4, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = counted(lambda: F.scaled_dot_product_attention(q, q, q), "scaled_dot")
    assert (found.dtype, found.written) == ("bfloat16", 2 * 64)


@pytest.mark.parametrize("masked", [False, True])
def test_a_loss_backward_through_a_mask(masked: bool) -> None:
    """The backward of a convolution whose input needs no gradient is one product, not two."""
    x, layer = IMAGE.clone().requires_grad_(not masked), nn.Conv2d(4, 4, 3)
    found = counted(lambda: layer(x).sum().backward(), "convolution_backward")
    assert found.flop == (1 if masked else 2) * 2 * 2 * 16 * 16 * 9 + 2 * 4 * 16
