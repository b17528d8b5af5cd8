"""What many kernels fail on and no case of a contract says: long positions, every number of tokens, small decays in
bfloat16, extreme codes, plans that are used again, and rows that are nearly constant far from 0."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_kernels import asked_kernels
from torch import Generator, Tensor

import kernelworks as kw
from kernelworks.contract import Case
from kernelworks.dispatch.op import OPS
from kernelworks.verify.parity import parities

DRAWN = functools.partial(torch.randn, generator=torch.Generator().manual_seed(7))


def each_kernel(*names: str, torchs: tuple[str, ...] = ("torch",)) -> Any:
    """An op's kernels that this run of the tests asks, and torch's."""
    pairs = [(name, kernel) for name in names for kernel in (*(k.name for k in asked_kernels(OPS[name])), *torchs)]
    return pytest.mark.parametrize(("name", "kernel"), pairs)


# ---------------------------------------------------------------- norms


def near_a_million(make: Callable[..., dict[str, Any]], generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """Rows of three neighbouring numbers of float32 at 1e6: of ``|x^2| - mean^2`` nothing is left."""
    made = make(generator, dtype)
    made["x"] = 1e6 + torch.randint(0, 3, made["x"].shape, generator=generator) * 0.0625
    if "residual" in made:
        made["residual"] = torch.zeros_like(made["residual"])
    return made


@each_kernel("layer_norm", "add_layer_norm", torchs=())  # torch's own takes the mean in float32
def test_rows_near_a_million_keep_their_spread(name: str, kernel: str) -> None:
    op = OPS[name]
    case = next(
        c for c in op.contract.cases if c.gradients and c.make(torch.Generator(), torch.float32)["x"].numel() > 300
    )
    changed = Case("near a million", functools.partial(near_a_million, case.make), gradients=False)
    found = list(parities(op, kernel, dataclasses.replace(changed, dtypes=(torch.float32,)), torch.float32))
    assert found and [parity for parity in found if parity.message] == []


# ---------------------------------------------------------------- optimizers


DECAYS: dict[str, Callable[..., None]] = {
    "sgd_": lambda p, **more: kw.sgd_(
        [p], [torch.zeros_like(p)], [], momentum=0.0, dampening=0.0, nesterov=False, **more
    ),
    "adamw_": lambda p, **more: kw.adamw_(
        [p], [torch.zeros_like(p)], [torch.zeros_like(p)], [torch.zeros_like(p)], step=1, beta1=0.9, beta2=0.99,
        eps=1e-8, **more,
    ),
    "lion_": lambda p, **more: kw.lion_(
        [p], [torch.zeros_like(p)], [torch.zeros_like(p)], beta1=0.9, beta2=0.99, **more
    ),
    "adamw8bit_": lambda p, **more: kw.adamw8bit_(
        p, torch.zeros_like(p), torch.zeros(len(p), dtype=torch.uint8), torch.zeros(-(-len(p) // 256)),
        torch.zeros(len(p), dtype=torch.uint8), torch.zeros(-(-len(p) // 256)), step=1, beta1=0.9, beta2=0.99, eps=1e-8,
        **more,
    ),
}  # fmt: skip


@each_kernel(*DECAYS, torchs=())  # torch's SGD rounds the decayed gradient to bfloat16
def test_a_decay_below_the_step_of_bfloat16_is_not_lost(name: str, kernel: str) -> None:
    """1 - d has no digits of such a d in bfloat16. In float32 a step ends at the nearest of what it should be."""
    before = DRAWN(1003).bfloat16()
    for decay in (0.6 * 2.0**-8, 0.8 * 2.0**-8):
        after = before.clone()
        DECAYS[name](after, lr=0.25, weight_decay=4 * decay, kernel=kernel)
        want = before.double() * (1.0 - decay)
        half = 2.0 ** (torch.frexp(want.abs())[1].double() - 9)  # half a step of bfloat16
        assert ((after.double() - want).abs() <= half * (1 + 2.0**-12)).all()
        assert (after != before).float().mean() > 0.2


# ---------------------------------------------------------------- positions


@each_kernel("rope")
def test_positions_to_131071(name: str, kernel: str) -> None:
    length, dim = 131_072, 4
    q = DRAWN(1, 1, 1, dim).expand(1, 1, length, dim).contiguous()
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    tables = [torch.cat([f(angles)] * 2, 1).float() for f in (torch.cos, torch.sin)]
    turned = kw.rope(q, q, *tables, kernel=kernel)[0]
    a, b = q[0, 0].double().chunk(2, 1)
    want = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], 1)
    assert (turned[0, 0].double() - want).abs().max() < 1e-6


# ---------------------------------------------------------------- tokens


@each_kernel("router_topk", "combine", "grouped_linear")
def test_every_number_of_tokens_to_128(name: str, kernel: str) -> None:
    """A token's result hangs on no other's: that of the first n of 128 tokens is the first n results."""
    experts, k, width = 5, 2, 6
    logits, rows, weight = DRAWN(128, experts), DRAWN(128, width), DRAWN(experts, 3, width)
    places = torch.stack([torch.arange(128), torch.arange(128).flip(0)], 1).to(torch.int32)
    shares = torch.rand(128, k, generator=torch.Generator().manual_seed(1))
    picked = kw.router_topk(logits, k, kernel="reference")
    dense = torch.einsum("tw,enw->etn", rows, weight)
    for n in range(129):
        if name == "router_topk":
            found = kw.router_topk(logits[:n], k, kernel=kernel)
            assert torch.equal(found[1], picked[1][:n]) and torch.allclose(found[0], picked[0][:n], rtol=1e-5)
        elif name == "combine":
            made = kw.combine(rows, shares[:n], places[:n], kernel=kernel)
            want = (rows[places[:n].long()] * shares[:n, :, None]).sum(1)
            assert torch.allclose(made, want, atol=1e-6)
        else:  # none of the first, one of the last, the rest in one hot group
            ends = torch.tensor([0, 0, max(n - 1, 0), n, n], dtype=torch.int32)
            made = kw.grouped_linear(rows[:n], weight, ends, kernel=kernel)
            want = torch.cat([dense[2, : max(n - 1, 0)], dense[3, max(n - 1, 0) : n]])
            assert torch.allclose(made, want, atol=1e-5)


# ---------------------------------------------------------------- codes


@each_kernel("rowwise_linear")
@pytest.mark.parametrize("k", [1, 16, 17, 31, 32, 48, 64, 67, 1000])
def test_sums_of_extreme_codes_do_not_saturate(name: str, kernel: str, k: int) -> None:
    """Pairs of products of bytes pass 2^15 from 16 elements on."""
    for code in (-128, -127, 127):
        weight = torch.full((3, k), code, dtype=torch.int8)
        for value in (1.0, -1.0, 255.0):
            x = torch.full((2, k), value)
            found = kw.rowwise_linear(x, weight, torch.ones(3), kernel=kernel)
            assert torch.equal(found, torch.full((2, 3), float(k * code * value)))


@each_kernel("quantized_linear")
def test_blocks_of_extreme_codes_do_not_saturate(name: str, kernel: str) -> None:
    for activations in ("float32", "int8"):
        for k in (32, 64, 96, 1024):
            packed = kw.quantize(torch.full((2, k), -1.0), "Q8_0", kernel="reference")
            found = kw.quantized_linear(
                torch.full((3, k), 1.0), packed, format="Q8_0", activations=activations, kernel=kernel
            )
            assert torch.allclose(found, torch.full((3, 2), -float(k)), rtol=2e-3)


# ---------------------------------------------------------------- transforms


@each_kernel("rfft", "irfft")
@pytest.mark.parametrize("n", [8, 30, 49])
def test_a_plan_that_is_used_again_is_the_same(name: str, kernel: str, n: int) -> None:
    """The second call of a length, with other numbers between, and an input that is left as it was."""
    function = getattr(kw, name)
    first, other = (DRAWN(5, n if name == "rfft" else n // 2 + 1) for _ in range(2))
    if name == "irfft":
        first, other = (torch.complex(t, t.flip(1)) for t in (first, other))
    kept = first.clone()
    more: dict[str, Any] = {"n": n}
    results: list[Tensor] = [function(t, **more, kernel=kernel) for t in (first, other, first)]
    assert torch.equal(results[0], results[2]) and torch.equal(first, kept)
    for given, found in zip((first, other), results, strict=False):
        wide = given.to(torch.complex128 if given.is_complex() else torch.float64)
        want = getattr(torch.fft, name)(wide, n=n)
        assert (found.to(want.dtype) - want).abs().max() < 1e-4


@pytest.mark.parametrize("n", [11, 97, 1031])
def test_prime_lengths_are_right_whoever_takes_them(n: int) -> None:
    x = DRAWN(3, n)
    there = kw.rfft(x)
    assert torch.allclose(there, torch.fft.rfft(x)) and torch.allclose(kw.irfft(there, n), x, atol=1e-5)
