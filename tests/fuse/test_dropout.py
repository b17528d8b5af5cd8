"""The counter-based stream and the dropout that draws from it: published vectors, the same bits everywhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw
from kernelworks.contract.philox import keep_mask, philox4x32, random_bits, threshold_of
from kernelworks.fuse import cpu_kernel
from kernelworks.machine import machine

# Random123's known answers of philox4x32-10: counter, key, words.
VECTORS = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_has_the_published_words(counter: str, key: str, words: str) -> None:
    c, k, w = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    assert [int(word) for word in philox4x32(c, k)] == w


def test_the_stream_is_philox_by_counter() -> None:
    """Element 64 b + 16 w + l is word w at counter 16 b + l."""
    seed, offset = (1 << 63) + 5, (7 << 32) + 3
    place = 64 * (2**33) + 16 * 2 + 9
    counter = 16 * 2**33 + 9
    words = philox4x32((counter % 2**32, counter // 2**32, 3, 7), (5, 1 << 31))
    assert int(random_bits(torch.tensor([place]), seed, offset)) == int(words[2])


SHAPES = {"a vector": (1000,), "rows": (7, 67), "one": (1,), "scalar": (), "many": (3, 5, 129)}


@pytest.mark.parametrize("shape", SHAPES)
def test_kept_elements_are_the_streams(shape: str) -> None:
    x = torch.rand(SHAPES[shape]) + 1.0
    for seed, offset, p in ((0, 0, 0.5), (2**62 + 1, 2**40, 0.1), (-3, 5, 0.9), (1, 2, 0.0), (1, 2, 1.0)):
        keep = keep_mask(x.shape, p, seed, offset)
        wanted = torch.where(keep, x / (1 - p) if p < 1 else x, torch.zeros_like(x))
        torch.testing.assert_close(kw.dropout(x, p, seed, offset), wanted, rtol=1e-6, atol=0)


def test_strides_and_threads_change_no_bit() -> None:
    x = torch.rand(67, 41, 3) + 1.0
    whole = kw.dropout(x, 0.3, 11, 4)
    assert torch.equal(kw.dropout(x.permute(2, 0, 1).contiguous().permute(1, 2, 0), 0.3, 11, 4), whole)
    assert torch.equal(kw.dropout(x.repeat_interleave(2, -1)[..., ::2], 0.3, 11, 4), whole)
    large = torch.ones(513, 401)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = kw.dropout(large, 0.3, 11, 4)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(kw.dropout(large, 0.3, 11, 4), alone)
    assert torch.equal(alone != 0, keep_mask(large.shape, 0.3, 11, 4))


@pytest.mark.parametrize("target", ["scalar", "avx2"])
def test_every_instruction_set_draws_the_same(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cpu_kernel.TARGETS[target].needs <= machine().features:
        return
    monkeypatch.setattr(cpu_kernel, "target_here", lambda: target)
    fused = kw.fuse(lambda x, seed: kw.dropout(x, 0.25, seed))
    x = torch.ones(5, 131)
    assert torch.equal(fused(x, 9) != 0, keep_mask(x.shape, 0.25, 9, 0))
    assert target in fused.explain()


def test_gradients_draw_the_same_mask() -> None:
    x = (torch.rand(7, 67) + 1.0).requires_grad_()
    made = kw.dropout(x, 0.5, 3, 1)
    (grad,) = torch.autograd.grad(made.sum(), x)
    assert torch.equal(grad, (made != 0) * 2.0)


def test_it_is_part_of_a_fused_kernel() -> None:
    def block(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed: int) -> Tensor:
        return kw.dropout(F.silu(x + bias), p, seed) + residual

    fused = kw.fuse(block)
    x, bias, residual = (torch.randn(s, requires_grad=True) for s in ((9, 67), (67,), (9, 67)))
    for p, seed in ((0.5, 1), (0.1, 2**50)):
        found, wanted = fused(x, bias, residual, p, seed), block(x, bias, residual, p, seed)
        torch.testing.assert_close(found, wanted)
        for a, b in zip(
            *(torch.autograd.grad(y.square().sum(), (x, bias, residual)) for y in (found, wanted)), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(fused._plans) == 1
    assert "itself" not in fused.explain()


def test_shares_are_what_they_say() -> None:
    kept = keep_mask((1 << 18,), 0.3, 5, 6).double().mean()
    assert abs(float(kept) - 0.7) < 5 * (0.21 / (1 << 18)) ** 0.5
    assert threshold_of(1.0) == 2**31 and threshold_of(0.0) == 0


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((torch.ones(3), 1.5, 0), ValueError, "p must be"),
        ((torch.ones(3), 0.5, 1.0), TypeError, "seed must be an int"),
        ((torch.ones(3), 0.5, 1, True), TypeError, "offset must be an int"),
        ((torch.ones(3, dtype=torch.int64), 0.5, 1), TypeError, "x must be"),
    ],
)
def test_bad_arguments_are_named(args: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kw.dropout(*args)  # type: ignore[arg-type]
