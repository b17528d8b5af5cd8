"""How numbers are rounded to the packed formats that search for their scales.

Steps and their order are those of ggml's reference quantizers (``quantize_row_*_ref`` in ggml/src/ggml-quants.c), in
float32 with sums from the first number to the last, so that bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract.packed_blocks import LEVELS, bytes_of_half, first_largest, nibbles, quotient
from kernelworks.contract.packed_groups import nearest_numbers

__all__ = ["pack_iq4_nl", "pack_q4_k", "pack_q5_k", "pack_q6_k"]

LEAST_OF_GROUP = 1e-15  # a part whose largest is smaller counts as zeros
CHUNK = 4096  # blocks that are rounded at once: a search holds some thirty times their size


def _sum(x: Tensor) -> Tensor:
    """Over the last dimension, from the first to the last."""
    first, *others = x.movedim(-1, 0).contiguous().unbind(0)
    total = first.clone()
    for other in others:
        total += other
    return total


def _search_range(x: Tensor, most: int, first: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and minimum (its size) of [..., 32]: numbers are about scale code - minimum, by weighted squares.

    Tried are ``steps + 1`` scales more, from ``(most + first) / range`` on, a tenth more each; the range is that of the
    best so far.
    """
    root = (_sum(x * x) / 32).double().sqrt().float()  # in float32 torch's may be a unit off
    weights = root[..., None] + x.abs()
    sum_w, sum_x = _sum(weights), _sum(weights * x)
    least, largest = x.amin(-1).clamp(max=0.0), x.amax(-1)

    def chosen(times: Tensor) -> Tensor:
        return nearest_numbers(times[..., None] * (x - least[..., None])).clamp(0, most).float()

    def error(codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
        off = scale[..., None] * codes + minimum[..., None] - x
        return _sum(weights * (off * off))

    flat = largest == least
    times = quotient(most, largest - least)
    codes, scale = chosen(times), 1.0 / times
    best = error(codes, scale, least)
    tenth = torch.tensor(0.1, dtype=torch.float32)
    for step in range(steps + 1):
        tried = chosen(quotient((first + tenth * step + most).item(), largest - least))
        weighted = weights * tried
        sum_l, sum_l2, sum_xl = _sum(torch.stack((weighted, weighted * tried, weighted * x)))
        determinant = sum_w * sum_l2 - sum_l * sum_l
        this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        this_least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = this_least > 0
        this_least = torch.where(above, 0.0, this_least)
        this_scale = torch.where(above, sum_xl / sum_l2, this_scale)
        found = error(tried, this_scale, this_least)
        better = (determinant > 0) & (found < best)
        codes = torch.where(better[..., None], tried, codes)
        best, scale = torch.where(better, found, best), torch.where(better, this_scale, scale)
        least = torch.where(better, this_least, least)
    return torch.where(flat[..., None], 0.0, codes), torch.where(flat, 0.0, scale), -least


def _search_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes from -32 to 31 and the scale of [..., 16], by least squares weighted by squares; of 19 scales the best."""
    largest, squares = first_largest(x), x * x
    tenth = torch.tensor(0.1, dtype=torch.float32)

    def chosen(times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        codes = nearest_numbers(times[..., None] * x).clamp(-32, 31).float()
        sum_lx, sum_l2 = _sum(torch.stack((squares * x * codes, squares * codes * codes)))
        return codes, sum_lx, sum_l2

    codes, sum_lx, sum_l2 = chosen(quotient(-32.0, largest))
    scale = torch.where(sum_l2 != 0, sum_lx / sum_l2, 0.0)
    best = scale * sum_lx
    for step in (*range(-9, 0), *range(1, 10)):
        tried, sum_lx, sum_l2 = chosen(quotient(-(32 + tenth * step).item(), largest))
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        codes = torch.where(better[..., None], tried, codes)
        scale = torch.where(better, sum_lx / sum_l2, scale)
        best = torch.where(better, scale * sum_lx, best)
    empty = largest.abs() < LEAST_OF_GROUP
    return torch.where(empty[..., None], -32.0, codes), torch.where(empty, 0.0, scale)


# ---------------------------------------------------------------- bytes


def _in_chunks(x: Tensor, pack: Callable[[Tensor], Tensor], nbytes: int, scales: tuple[int, ...]) -> Tensor:
    """``pack`` of some blocks at a time. A block with a NaN or an infinity has scales that are NaN, and else zeros."""
    finite = x.isfinite().all(-1, keepdim=True)
    blocks = torch.where(finite, x, 0.0).reshape(-1, x.shape[-1])
    packed = torch.cat([pack(some) for some in blocks.split(CHUNK)]).view(*x.shape[:-1], nbytes)
    odd = torch.zeros(nbytes, dtype=torch.uint8, device=x.device)
    for place in scales:
        odd[place + 1] = 0x7E
    return torch.where(finite, packed, odd)


def _six_bits(scales: Tensor, minima: Tensor) -> Tensor:
    """Eight of each in 12 bytes."""
    (first, second), (third, fourth) = scales.split(4, -1), minima.split(4, -1)
    return torch.cat((first | second >> 4 << 6, third | fourth >> 4 << 6, second & 15 | (fourth & 15) << 4), -1)


def _scaled_to_63(found: Tensor) -> tuple[Tensor, Tensor]:
    """The number of float16 of a block, as bytes, and 6 bits of each part."""
    most = found.amax(-1, keepdim=True)
    most = torch.where(most > 0, most, 0.0)  # never -0
    times = torch.where(most > 0, quotient(63, most), 0.0)
    six = (nearest_numbers(times * found) & 255).clamp(max=63).to(torch.uint8)
    return most / torch.full_like(most, 63.0), six


def _ranged(x: Tensor, most: int, first: float, steps: int) -> tuple[Tensor, Tensor]:
    """The first 16 bytes of blocks of Q4_K or Q5_K, and their codes, [blocks, 256]."""
    parts = x.unflatten(-1, (8, 32))
    codes, found, minimum = _search_range(parts, most, first, steps)
    (scale, six), (least, lesser) = _scaled_to_63(found), _scaled_to_63(minimum)
    by = (scale.half().float() * six.float())[..., None]
    less = (least.half().float() * lesser.float())[..., None]
    codes = torch.where(by != 0, nearest_numbers((parts + less) / by).clamp(0, most).float(), codes).flatten(-2)
    head = (bytes_of_half(scale[..., 0]), bytes_of_half(least[..., 0]), _six_bits(six, lesser))
    return torch.cat(head, -1), codes.to(torch.uint8)


def _low(codes: Tensor) -> Tensor:
    """Of 64 numbers each the low four bits, those of the first half in the low nibbles."""
    return nibbles((codes & 15).unflatten(-1, (-1, 64))).flatten(-2)


def _packed_q4_k(x: Tensor) -> Tensor:
    head, codes = _ranged(x, 15, -1.0, 20)
    return torch.cat((head, _low(codes)), -1)


def _packed_q5_k(x: Tensor) -> Tensor:
    head, codes = _ranged(x, 31, -0.5, 15)
    places = torch.arange(8, dtype=torch.uint8, device=x.device)[:, None]
    fifth = ((codes >> 4).unflatten(-1, (8, 32)) << places).sum(-2, dtype=torch.uint8)
    return torch.cat((head, fifth, _low(codes)), -1)


def _packed_q6_k(x: Tensor) -> Tensor:
    parts = x.unflatten(-1, (16, 16))
    codes, found = _search_scale(parts)
    largest = first_largest(torch.where(found.isnan(), 0.0, found))[..., None]
    times = quotient(-128, largest)
    half = (1.0 / times).half()
    eight = nearest_numbers(times * found).clamp(max=127).to(torch.int8)
    by = (half.float() * eight.float())[..., None]
    codes = torch.where(by != 0, nearest_numbers(parts / by).clamp(-32, 31).float(), codes).flatten(-2)
    whole = (codes + 32).to(torch.uint8).unflatten(-1, (2, 4, 32))
    low = torch.cat((whole[..., :2, :] & 15 | whole[..., 2:, :] << 4,), -1).flatten(-3)
    places = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=x.device)[:, None]
    high = ((whole >> 4) << places).sum(-2, dtype=torch.uint8).flatten(-2)
    packed = torch.cat((low, high, eight.view(torch.uint8), bytes_of_half(half[..., 0])), -1)
    return torch.where(largest.abs() < LEAST_OF_GROUP, 0, packed)


def _packed_iq4_nl(x: Tensor) -> Tensor:
    largest = first_largest(x)
    times = 1.0 / (largest / torch.full_like(largest, LEVELS[0]))
    levels = torch.tensor(LEVELS, dtype=torch.float32, device=x.device)
    scaled = times[..., None] * x
    codes = ((scaled + scaled)[..., None] >= levels[1:] + levels[:-1]).sum(-1)
    q, squares = levels[codes], x * x
    sum_qx, sum_q2 = _sum(torch.stack((squares * q * x, squares * q * q)))
    scale = torch.where(sum_q2 > 0, sum_qx / sum_q2, 0.0)
    packed = torch.cat((bytes_of_half(scale), nibbles(codes.to(torch.uint8))), -1)
    return torch.where(largest[..., None].abs() < LEAST_OF_GROUP, 0, packed)


def pack_iq4_nl(x: Tensor) -> Tensor:
    return _in_chunks(x, _packed_iq4_nl, 18, (0,))


def pack_q4_k(x: Tensor) -> Tensor:
    return _in_chunks(x, _packed_q4_k, 144, (0, 2))


def pack_q5_k(x: Tensor) -> Tensor:
    return _in_chunks(x, _packed_q5_k, 176, (0, 2))


def pack_q6_k(x: Tensor) -> Tensor:
    return _in_chunks(x, _packed_q6_k, 210, (208,))
