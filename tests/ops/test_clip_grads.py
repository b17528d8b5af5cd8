"""clip_grads_ beside torch.nn.utils.clip_grad_norm_: the same norm and gradients, and what torch's overflows on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.dispatch.op import OPS

CLIP = OPS["clip_grads_"]
PLAIN: tuple[Any, ...] = ([torch.ones(3)], 1.0, 2.0, False)
RUNS = [k.name for k in CLIP.kernels if k.device != "cuda" and k.guard(CLIP.request("forward", PLAIN)) is None]


def grads(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes: tuple[tuple[int, ...], ...] = ((70, 33), (5,), (), (0, 4), (9001,))
    return [(torch.randn(s, generator=generator) * scale).to(dtype) for s in shapes]


@pytest.mark.parametrize("kernel", [*RUNS, None])
@pytest.mark.parametrize("norm_type", [2.0, math.inf, 2])
@pytest.mark.parametrize("max_norm", [0.5, 1e4, math.inf, 0.0, 1])
def test_it_clips_as_torchs(kernel: str | None, norm_type: float, max_norm: float) -> None:
    params = [nn.Parameter(torch.zeros_like(g)) for g in grads() if g.numel()]  # torch refuses the others' largest
    for p, g in zip(params, (g for g in grads() if g.numel()), strict=True):
        p.grad = g
    want = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
    got = grads()
    norm = kw.clip_grads_(got, max_norm, norm_type, kernel=kernel)
    torch.testing.assert_close(norm, want, rtol=1e-5, atol=0.0)
    torch.testing.assert_close([g for g in got if g.numel()], [p.grad for p in params], rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("kernel", [name for name in RUNS if name != "torch"])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 6e3), (torch.bfloat16, 1e30), (torch.float32, 1e25)])
def test_nothing_overflows_on_the_way_to_the_norm(kernel: str, dtype: torch.dtype, scale: float) -> None:
    given = grads(dtype, scale)
    exact = torch.cat([g.double().reshape(-1) for g in given])
    norm = kw.clip_grads_(given, 1e-3 * float(exact.norm()), kernel=kernel)
    assert norm.dtype is torch.float32 and math.isclose(float(norm), float(exact.norm()), rel_tol=1e-6)
    after = torch.cat([g.double().reshape(-1) for g in given])
    close = 1e-5 if dtype is torch.float32 else 2e-2
    assert math.isclose(float(after.norm()), 1e-3 * float(exact.norm()), rel_tol=close)


@pytest.mark.parametrize("kernel", [*RUNS, None])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_a_norm_that_is_not_finite(kernel: str | None, value: float, norm_type: float) -> None:
    for place in (0, -1):
        given = grads()
        given[-1][place] = value
        before = [g.clone() for g in given]
        with pytest.raises(RuntimeError, match="is non-finite, so they cannot be clipped"):
            kw.clip_grads_(given, 1.0, norm_type, True, kernel=kernel)
        for a, b in zip(given, before, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, rtol=0.0, atol=0.0)
        norm = kw.clip_grads_(given, 1.0, norm_type, kernel=kernel)
        assert norm.isnan() if math.isnan(value) else norm.isinf()
        assert bool(given[-1][place].isnan())
        assert bool(given[1].isnan().all()) if math.isnan(value) else bool((given[1] == 0).all())


@pytest.mark.parametrize("kernel", RUNS)
def test_what_is_below_the_limit_is_left_to_the_bit(kernel: str) -> None:
    given, before = grads(), grads()
    kw.clip_grads_(given, 1e6, kernel=kernel)
    for a, b in zip(given, before, strict=True):
        assert torch.equal(a, b)


def test_no_bit_hangs_on_the_number_of_threads() -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            given = [torch.linspace(-1.0, 1.0, 100_003), *grads()]
            norm = kw.clip_grads_(given, 0.5, kernel=RUNS[0])
            found.append((norm, *given))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_nothing_to_clip() -> None:
    for given in ([], [torch.ones(0)], [torch.ones(0, 3), torch.ones(2, 0)]):
        for kernel in (*RUNS, None):
            assert float(kw.clip_grads_(given, 1.0, kernel=kernel)) == 0.0
