"""rope on the GPU: queries and keys in one launch. A program turns a tile of heads and positions, whose tables it reads
once. The backward is the same kernel with the angles reversed."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs

CONFIGS = configs(__file__)


@triton.jit  # type: ignore[untyped-decorator]
def _load(x, columns, mask, INTERLEAVED: tl.constexpr, R: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two elements of every pair, in float32. ``x`` points to rows, ``columns`` counts what a load takes."""
    if INTERLEAVED:
        both = tl.load(x + columns, mask=mask).to(tl.float32)
        return tl.split(tl.reshape(both, (x.shape[0], x.shape[1], columns.shape[2] // 2, 2)))
    else:
        return tl.load(x + columns, mask=mask).to(tl.float32), tl.load(x + columns + R // 2, mask=mask).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _turn(  # type: ignore[no-untyped-def]
    to, x, cos, sin, batch, first_head, first_position, H, L, to_b, to_h, to_l, x_b, x_h, x_l, table_b, table_l,
    WHOLE: tl.constexpr, BACK: tl.constexpr, INTERLEAVED: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    HEADS: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    head = tl.arange(0, HEADS)[:, None, None]
    position = tl.arange(0, POSITIONS)[None, :, None]
    column = tl.arange(0, WIDTH)[None, None, :]
    x += batch * x_b + first_head * x_h + first_position * x_l
    to += batch * to_b + first_head * to_h + first_position * to_l
    cos += batch * table_b + first_position * table_l
    sin += batch * table_b + first_position * table_l
    x_row = x + head.to(tl.int64) * x_h + position.to(tl.int64) * x_l
    to_row = to + head.to(tl.int64) * to_h + position.to(tl.int64) * to_l
    rows = (head < H - first_head) & (position < L - first_position)
    if WHOLE:
        mask = None
        table_mask = None
    else:
        inside = column < (R if INTERLEAVED else R // 2)
        mask = rows & inside
        table_mask = (position < L - first_position) & inside
    cos_a, cos_b = _load(cos + position.to(tl.int64) * table_l, column, table_mask, INTERLEAVED, R)
    sin_a, sin_b = _load(sin + position.to(tl.int64) * table_l, column, table_mask, INTERLEAVED, R)
    a, b = _load(x_row, column, mask, INTERLEAVED, R)
    if BACK:
        turned_a, turned_b = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        turned_a, turned_b = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    if INTERLEAVED:
        both = tl.reshape(tl.join(turned_a, turned_b), (HEADS, POSITIONS, WIDTH))
        tl.store(to_row + column, both, mask=mask)
    else:
        tl.store(to_row + column, turned_a, mask=mask)
        tl.store(to_row + column + R // 2, turned_b, mask=mask)
    if REST > 0:
        rest = R + tl.arange(0, REST)[None, None, :]
        copied = rows & (rest < D)
        tl.store(to_row + rest, tl.load(x_row + rest, mask=copied), mask=copied)


@triton.jit  # type: ignore[untyped-decorator]
def _tensor(  # type: ignore[no-untyped-def]
    to, x, cos, sin, batch, first_head, first_position, H, L, to_b, to_h, to_l, x_b, x_h, x_l, table_b, table_l,
    BACK: tl.constexpr, INTERLEAVED: tl.constexpr, R: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    EXACT: tl.constexpr = (R if INTERLEAVED else R // 2) == WIDTH
    if EXACT & (first_head + HEADS <= H) & (first_position + POSITIONS <= L):
        _turn(to, x, cos, sin, batch, first_head, first_position, H, L, to_b, to_h, to_l, x_b, x_h, x_l, table_b,
              table_l, True, BACK, INTERLEAVED, R, D, HEADS, POSITIONS, WIDTH, REST)  # fmt: skip
    else:
        _turn(to, x, cos, sin, batch, first_head, first_position, H, L, to_b, to_h, to_l, x_b, x_h, x_l, table_b,
              table_l, False, BACK, INTERLEAVED, R, D, HEADS, POSITIONS, WIDTH, REST)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _rope(  # type: ignore[no-untyped-def]
    to_q, to_k, q, k, cos, sin, H, Hkv, L, tiles, groups, to_q_b, to_q_h, to_q_l, to_k_b, to_k_h, to_k_l,
    q_b, q_h, q_l, k_b, k_h, k_l, table_b, table_l,
    BACK: tl.constexpr, INTERLEAVED: tl.constexpr, R: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    position = (tl.program_id(0) % tiles).to(tl.int64) * POSITIONS
    group = tl.program_id(1)
    if group < groups:
        head = group.to(tl.int64) * HEADS
        _tensor(to_q, q, cos, sin, batch, head, position, H, L, to_q_b, to_q_h, to_q_l, q_b, q_h, q_l, table_b,
                table_l, BACK, INTERLEAVED, R, D, HEADS, POSITIONS, WIDTH, REST)  # fmt: skip
    else:
        head = (group - groups).to(tl.int64) * HEADS
        _tensor(to_k, k, cos, sin, batch, head, position, Hkv, L, to_k_b, to_k_h, to_k_l, k_b, k_h, k_l, table_b,
                table_l, BACK, INTERLEAVED, R, D, HEADS, POSITIONS, WIDTH, REST)  # fmt: skip


ROPE = Kernel(_rope)
_empty_like, _empty = torch.empty_like, torch.empty


@functools.cache
def _at(
    back: bool, interleaved: bool, R: int, D: int, heads: int, positions: int, dtype: torch.dtype
) -> tuple[Launch, int, int]:
    """The launch, and how many heads and positions a program turns. ``heads`` and ``positions`` are what there is, up
    to the next power of two."""
    chosen = CONFIGS.pick("rope", L=positions, dtype=dtype)
    width = triton.next_power_of_2(R if interleaved else R // 2)
    rest = triton.next_power_of_2(D - R) if D > R else 0
    most, elements = chosen.pop("HEADS"), chosen.pop("ELEMENTS")
    group = min(most, heads)
    tile = min(max(1, elements // (group * triton.next_power_of_2(D))), positions)
    launch = ROPE.at(
        BACK=back, INTERLEAVED=interleaved, R=R, D=D, HEADS=group, POSITIONS=tile, WIDTH=width, REST=rest, **chosen
    )
    return launch, group, tile


def _run(
    to_q: Tensor, to_k: Tensor, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool
) -> None:
    B, H, L, D = q.shape
    Hkv = k.shape[1]
    if not (B and L and H + Hkv):
        return
    cos, sin = _flat(cos), _flat(sin)
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    most = max(H, Hkv)
    launch, heads, positions = _at(
        back, interleaved, cos.shape[-1], D, 1 << (most - 1).bit_length(), 1 << (L - 1).bit_length(), q.dtype
    )
    tiles, groups = -(-L // positions), -(-H // heads)
    launch(
        (tiles * B, groups - (-Hkv // heads), 1), to_q, to_k, q, k, cos, sin, H, Hkv, L, tiles, groups,
        *to_q.stride()[:3], *to_k.stride()[:3], *q.stride()[:3], *k.stride()[:3],
        cos.stride(0) if cos.dim() == 3 and cos.shape[0] > 1 else 0, cos.stride(-2),
    )  # fmt: skip


def _flat(x: Tensor) -> Tensor:
    """With unit stride in the last dimension, which is all that the kernel asks."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Any = None) -> Any:
    q, k = _flat(q), _flat(k)
    to_q, to_k = (_empty_like(q), _empty_like(k)) if out is None else out
    _run(to_q, to_k, q, k, cos, sin, interleaved, False)
    return to_q, to_k


def backward(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    if out is None:
        to_q = _empty(grad_q.shape, dtype=grad_q.dtype, device=grad_q.device)
        to_k = _empty(grad_k.shape, dtype=grad_k.dtype, device=grad_k.device)
    else:
        to_q, to_k = out
    _run(to_q, to_k, _flat(grad_q), _flat(grad_k), cos, sin, interleaved, True)
    return to_q, to_k
