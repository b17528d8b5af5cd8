"""rope on the GPU: queries and keys in one launch. A program turns tile after tile of heads at the same positions and
keeps their tables in registers. The backward is the same kernel with the angles reversed."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.contract.memory_layout import new_output

CONFIGS = configs(__file__)
MOST_BATCH = 65535  # CUDA's limit of the third grid dimension


@triton.jit
def _load(x, columns, mask, INTERLEAVED: tl.constexpr, R: tl.constexpr):
    """The two elements of every pair, in float32. ``x`` points to rows, ``columns`` counts what a load takes."""
    if INTERLEAVED:
        both = tl.load(x + columns, mask=mask).to(tl.float32)
        return tl.split(tl.reshape(both, (x.shape[0], x.shape[1], columns.shape[2] // 2, 2)))
    else:
        return tl.load(x + columns, mask=mask).to(tl.float32), tl.load(x + columns + R // 2, mask=mask).to(tl.float32)


@triton.jit
def _store(
    to, columns, mask, a, b, cos_a, cos_b, sin_a, sin_b, BACK: tl.constexpr, INTERLEAVED: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The pairs, turned, where ``_load`` would find them."""
    if BACK:
        turned_a, turned_b = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        turned_a, turned_b = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    if INTERLEAVED:
        both = tl.reshape(tl.join(turned_a, turned_b), (a.shape[0], a.shape[1], columns.shape[2]))
        tl.store(to + columns, both, mask=mask)
    else:
        tl.store(to + columns, turned_a, mask=mask)
        tl.store(to + columns + R // 2, turned_b, mask=mask)


@triton.jit
def _rope(
    to_q, to_k, q, k, cos, sin, H, Hkv, L, q_groups, to_q_b, to_q_h, to_q_l,
    to_k_b, to_k_h, to_k_l, q_b, q_h, q_l, k_b, k_h, k_l, table_b, table_l,
    BACK: tl.constexpr, INTERLEAVED: tl.constexpr, R: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    STEPS: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    first_position = tl.program_id(0) * POSITIONS
    group = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_q = group < q_groups
    first_head = (group - tl.where(of_q, 0, q_groups)) * HEADS * STEPS
    heads = tl.where(of_q, H, Hkv) - first_head
    x, x_b, x_h, x_l = _chosen(of_q, q, q_b, q_h, q_l, k, k_b, k_h, k_l)
    to, to_b, to_h, to_l = _chosen(of_q, to_q, to_q_b, to_q_h, to_q_l, to_k, to_k_b, to_k_h, to_k_l)
    head = tl.arange(0, HEADS)[:, None, None]
    position = tl.arange(0, POSITIONS)[None, :, None]
    column = tl.arange(0, WIDTH)[None, None, :]
    x += batch * x_b + first_head * x_h + first_position * x_l + head * x_h + position * x_l
    to += batch * to_b + first_head * to_h + first_position * to_l + head * to_h + position * to_l
    table = batch * table_b + first_position.to(tl.int64) * table_l + position.to(tl.int64) * table_l
    here = position < L - first_position
    inside = here & (column < (R if INTERLEAVED else R // 2))
    steps = tl.minimum(tl.cdiv(heads, HEADS), STEPS)
    cos_a, cos_b = _load(cos + table, column, inside, INTERLEAVED, R)
    sin_a, sin_b = _load(sin + table, column, inside, INTERLEAVED, R)
    a, b = _load(x, column, inside & (head < heads), INTERLEAVED, R)
    for step in range(1, steps):  # the next heads are on their way while these are turned
        next_a, next_b = _load(x + step * HEADS * x_h, column, inside & (head + step * HEADS < heads), INTERLEAVED, R)
        mask = inside & (head + (step - 1) * HEADS < heads)
        _store(to + (step - 1) * HEADS * to_h, column, mask, a, b, cos_a, cos_b, sin_a, sin_b, BACK, INTERLEAVED, R)
        a, b = next_a, next_b
    mask = inside & (head + (steps - 1) * HEADS < heads)
    _store(to + (steps - 1) * HEADS * to_h, column, mask, a, b, cos_a, cos_b, sin_a, sin_b, BACK, INTERLEAVED, R)
    if REST > 0:
        rest = R + tl.arange(0, REST)[None, None, :]
        for step in range(steps):
            copied = here & (head + step * HEADS < heads) & (rest < D)
            values = tl.load(x + step * HEADS * x_h + rest, mask=copied)
            tl.store(to + step * HEADS * to_h + rest, values, mask=copied)


@triton.jit
def _chosen(first, x, x_b, x_h, x_l, y, y_b, y_h, y_l):
    """One of two tensors, with its strides in 64 bits."""
    b, h, l_ = tl.where(first, x_b, y_b), tl.where(first, x_h, y_h), tl.where(first, x_l, y_l)
    return tl.where(first, x, y), b.to(tl.int64), h.to(tl.int64), l_.to(tl.int64)


ROPE = Kernel(_rope)
_empty_like = torch.empty_like


@functools.cache
def _at(
    back: bool, interleaved: bool, inside: bool, R: int, D: int, heads: int, positions: int, dtype: torch.dtype
) -> tuple[Launch, int, int]:
    """The launch, and how many heads and positions a program turns. ``inside``: heads lie closer together than
    positions. ``heads`` and ``positions`` are what there is, up to the next power of two."""
    chosen = CONFIGS.pick("rope", L=positions, inside=int(inside), dtype=dtype)
    width = triton.next_power_of_2(R if interleaved else R // 2)
    rest = triton.next_power_of_2(D - R) if D > R else 0
    together, elements = min(chosen.pop("HEADS"), heads), chosen.pop("ELEMENTS")
    tile = min(max(1, elements // (together * triton.next_power_of_2(D))), positions)
    launch = ROPE.at(
        BACK=back, INTERLEAVED=interleaved, R=R, D=D, HEADS=together, POSITIONS=tile, WIDTH=width, REST=rest, **chosen,
    )  # fmt: skip
    return launch, together * chosen["STEPS"], tile


def _run(
    to_q: Tensor, to_k: Tensor, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool
) -> None:
    B, H, L, D = q.shape
    Hkv = k.shape[1]
    if not (q.numel() or k.numel()):
        return
    if B > MOST_BATCH:
        for first in range(0, B, MOST_BATCH):
            part = slice(first, first + MOST_BATCH)
            c, s = (t[part] if t.dim() == 3 and t.shape[0] > 1 else t for t in (cos, sin))
            _run(to_q[part], to_k[part], q[part], k[part], c, s, interleaved, back)
        return
    cos, sin = _flat(cos), _flat(sin)
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    most, strides = max(H, Hkv), q.stride()
    launch, heads, positions = _at(
        back, interleaved, strides[1] < strides[2], cos.shape[-1], D, 1 << (most - 1).bit_length(),
        1 << (L - 1).bit_length(), q.dtype,
    )  # fmt: skip
    q_groups = -(-H // heads)
    launch(
        (-(-L // positions), q_groups - (-Hkv // heads), B), to_q, to_k, q, k, cos, sin, H, Hkv, L, q_groups,
        *to_q.stride()[:3], *to_k.stride()[:3], *strides[:3], *k.stride()[:3],
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
    to_q, to_k = (new_output(grad_q), new_output(grad_k)) if out is None else out
    _run(to_q, to_k, _flat(grad_q), _flat(grad_k), cos, sin, interleaved, True)
    return to_q, to_k
