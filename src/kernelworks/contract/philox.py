"""The counter-based stream of random bits, in torch's integers: what kernels of it are held against.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). Element i of the
stream (seed, offset) lies in block i / 64 at place r = i % 64: word r / 16 of the generator at the counter
(c mod 2^32, c / 2^32, offset mod 2^32, offset / 2^32), c = 16 (i / 64) + r % 16, under the key (seed mod 2^32,
seed / 2^32). ``simd/philox.hpp`` has the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["RESOLUTION", "keep_mask", "philox4x32", "random_bits", "threshold_of"]

WORD = 0xFFFFFFFF
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
RESOLUTION = 2**31  # an element is dropped with a probability of whole parts of it


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower word of a product of words. Int64 has 63 bits: the multiplier comes in halves."""
    low, high = b * (a & 0xFFFF), b * (a >> 16)
    middle = (low >> 16) + high
    return (middle >> 16) & WORD, ((middle & 0xFFFF) << 16 | (low & 0xFFFF)) & WORD


def philox4x32(counter: Sequence[Tensor | int], key: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words for each counter of four words, under a key of two: ten rounds."""
    c0, c1, c2, c3 = (torch.as_tensor(c, dtype=torch.int64) for c in counter)
    k0, k1 = key
    for _ in range(ROUNDS):
        a_high, a_low = _product(MULTIPLIERS[0], c0)
        b_high, b_low = _product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = b_high ^ c1 ^ k0, b_low, a_high ^ c3 ^ k1, a_low
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def random_bits(element: Tensor, seed: int, offset: int) -> Tensor:
    """The 32 bits of elements of a stream, by their places."""
    element = element.to(torch.int64)
    place = element % 64
    counter = (element // 64) * 16 + place % 16
    words = philox4x32(
        (counter & WORD, counter >> 32 & WORD, offset & WORD, offset >> 32 & WORD), (seed & WORD, seed >> 32 & WORD)
    )
    return torch.stack(torch.broadcast_tensors(*words)).gather(0, (place // 16).unsqueeze(0)).squeeze(0)


def threshold_of(p: float) -> int:
    """What the upper 31 bits of an element are compared with: below it the element is dropped."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be in [0, 1], got {p}")
    return math.floor(p * RESOLUTION + 0.5)


def keep_mask(shape: Sequence[int], p: float, seed: int, offset: int) -> Tensor:
    """Which elements of a tensor are kept, in the order of its dimensions."""
    count = math.prod(shape)
    bits = random_bits(torch.arange(count), seed, offset)
    return ((bits >> 1) >= threshold_of(p)).reshape(tuple(shape))
