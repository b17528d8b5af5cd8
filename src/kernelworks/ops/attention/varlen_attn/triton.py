"""varlen_attn on the GPU: attention's sweeps over keys, and a search for the sequence that a tile of queries is of.

Where sequences end is known on the device alone, so as many programs start as there may be tiles. Each adds up the
tiles of the sequences until it has come to its own; those that are too many end there. The kernels keep to the tokens
that there are, whatever is said of the sequences.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.attention.attention import readable
from kernelworks.ops.attention.attention.triton import _aligned, _sweep
from kernelworks.ops.attention.varlen_attn.contract import Window, edges, heads_first
from kernelworks.ops.attention.varlen_attn.triton_backward import NUMBERS, gradients
from kernelworks.ops.attention.varlen_attn.triton_sequences import ends_of, sequence_of

CONFIGS = configs(__file__)
LOG2E = 1.4426950408889634


@triton.jit(do_not_specialize=NUMBERS)
def _packed(
    q, k, v, output, lse, ends_q, ends_k, q_h, q_l, k_h, k_l, v_h, v_l, H, group, T, Tk, N, D, offset, window, factor,
    WINDOW: tl.constexpr, SIGN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr,
    WHOLE_D: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    unit, h = tl.program_id(0) // H, (tl.program_id(0) % H).to(tl.int64)
    sequence, before, tiles = sequence_of(ends_q, N, unit, BM)
    if sequence >= N:
        return
    tile = tiles - 1 - (unit - before)  # the last queries see most keys under causal: they start first
    first_q, Lq = ends_of(ends_q, sequence, T)
    first_k, Lk = ends_of(ends_k, sequence, Tk)
    shift = Lk - Lq + offset
    kv_h = h // group

    row, column = tile * BM + tl.arange(0, BM), tl.arange(0, DP)
    far = first_q + row.to(tl.int64)[:, None]
    position = row + shift
    inside = (row[:, None] < Lq) & (column[None, :] < D)
    q_tile = tl.load(q + h * q_h + far * q_l + column[None, :], mask=inside, other=0.0)
    if SIGN != 1:
        q_tile = (q_tile.to(tl.float32) * SIGN).to(q_tile.dtype)
    keys_at, values_at = k + kv_h * k_h + first_k * k_l, v + kv_h * v_h + first_k * v_l
    if TMA:
        keys_at = tl.make_tensor_descriptor(keys_at, [tl.maximum(Lk, 1), D], [k_l, 1], [BN, DP])
        values_at = tl.make_tensor_descriptor(values_at, [tl.maximum(Lk, 1), D], [v_l, 1], [BN, DP])

    # Keys [first, last) are seen by some query of the tile, [whole_first, whole_last) by every one.
    first = 0
    whole_first = 0
    last = tl.minimum(tl.maximum(tile * BM + BM + shift, 0), Lk)
    whole_last = tl.maximum(tl.minimum(tile * BM + shift + 1, Lk), 0) // BN * BN
    if WINDOW:
        first = tl.maximum(tile * BM + shift - window + 1, 0) // BN * BN
        whole_first = tl.cdiv(tl.maximum(tile * BM + BM - 1 + shift - window + 1, 0), BN) * BN
        whole_first = tl.minimum(whole_first, tl.cdiv(last, BN) * BN)
    whole_last = tl.maximum(whole_last, whole_first)

    acc = tl.zeros([BM, DP], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    some = tl.zeros([BM], tl.int32)
    if WINDOW:
        acc, total, top, some = _sweep(
            acc, total, top, some, q_tile, keys_at, values_at, None, first, whole_first, position, Lk, D, k_l, v_l, 0,
            window, factor, None, True, True, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
        )  # fmt: skip
    acc, total, top, some = _sweep(
        acc, total, top, some, q_tile, keys_at, values_at, None, whole_first, whole_last, position, Lk, D, k_l, v_l, 0,
        window, factor, None, False, True, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip
    acc, total, top, some = _sweep(
        acc, total, top, some, q_tile, keys_at, values_at, None, whole_last, last, position, Lk, D, k_l, v_l, 0,
        window, factor, None, True, True, WINDOW, BN, DP, WHOLE_D, TMA, PRECISION,
    )  # fmt: skip

    nearest = tl.full([BM], 0, tl.int32)
    if WINDOW:
        nearest = tl.maximum(nearest, position - window + 1)
    any_seen = nearest <= tl.minimum(position, Lk - 1)
    out = tl.where(any_seen[:, None], acc / total[:, None], 0.0)
    tl.store(output + (far * H + h) * D + column[None, :], out.to(output.dtype.element_ty), mask=inside)
    if lse is not None:
        natural = (top + tl.log2(total)) * 0.6931471805599453
        tl.store(lse + h * T + first_q + row, natural, mask=row < Lq)


FORWARD = Kernel(_packed)


@functools.cache
def _forward_at(
    dim: int, dtype: torch.dtype, window: bool, sign: int, tma: bool, tiles: int
) -> tuple[Launch, int]:  # fmt: skip
    """The launch, and the queries of a tile. ``tiles``: how many of 128 queries there would be of one sequence."""
    padded = max(64, triton.next_power_of_2(dim))
    options = CONFIGS.pick("forward", D=dim, dtype=dtype, tiles=tiles)
    options["TMA"] = tma and options["TMA"]
    launch = FORWARD.at(
        WINDOW=window, SIGN=sign, DP=padded, WHOLE_D=options["TMA"] or dim == padded,
        PRECISION="tf32x3" if dtype == torch.float32 else "tf32", **options,
    )  # fmt: skip
    return launch, options["BM"]


def window_limits(window_size: Window, tokens: int) -> tuple[int, int]:
    """The last key that a query sees, beyond its own position, and how many up to it (0: all), for kernels that compare
    with both: where nothing limits the right side, the last key lies beyond all tokens."""
    causal, offset, window = edges(window_size, tokens)
    if causal:
        return offset, window
    return tokens, window + tokens if window else 0


def forward(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    scale: float | None, window_size: Window, enable_gqa: bool, with_lse: bool, out: Any = None,
) -> Any:  # fmt: skip
    """As the op package's other launches: the output, and lse where it is asked for."""
    output, lse = out if with_lse and out is not None else (out, None)
    if output is None:
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if with_lse:
            lse = torch.empty(query.shape[1], query.shape[0], dtype=torch.float32, device=query.device)
    tokens, heads, dim = query.shape
    sequences = cu_seq_q.shape[0] - 1
    if tokens and heads and sequences:
        q, k, v = (readable(heads_first(t)) for t in (query, key, value))
        offset, window = window_limits(window_size, tokens + key.shape[0])
        factor = dim**-0.5 if scale is None else float(scale)
        launch, rows = _forward_at(
            dim, query.dtype, window > 0, (factor > 0) - (factor < 0), _aligned(k, v), min(tokens // 128 * heads, 1024)
        )
        launch(
            ((tokens + sequences * (rows - 1)) // rows * heads, 1, 1), q, k, v, output, lse, cu_seq_q.contiguous(),
            cu_seq_k.contiguous(), *q.stride()[1:3], *k.stride()[1:3], *v.stride()[1:3], heads, heads // k.shape[1],
            tokens, key.shape[0], sequences, dim, offset, window, LOG2E * (abs(factor) or 1.0),
        )  # fmt: skip
    return (output, lse) if with_lse else output


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor | None,
    cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, scale: float | None, window_size: Window,
    enable_gqa: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the op package's other launches: the gradients of query, key and value."""
    inputs = (query, key, value)
    results = tuple(t.new_empty(t.shape) for t in inputs) if out is None else tuple(out)
    if not (query.numel() and key.numel() and cu_seq_q.shape[0] > 1):
        for result in results:
            result.zero_()
        return results
    if lse is None or lse.numel() == 0:  # the forward was not asked for it
        output, lse = forward(
            *inputs, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa, True
        )  # fmt: skip
    g, q, k, v, o = (readable(heads_first(t)) for t in (grad, *inputs, output))
    offset, window = window_limits(window_size, query.shape[0] + key.shape[0])
    gradients(
        results, g, q, k, v, o, lse.contiguous(), cu_seq_q.contiguous(), cu_seq_k.contiguous(), offset, window,
        query.shape[2] ** -0.5 if scale is None else float(scale), _aligned(g, q, k, v),
    )  # fmt: skip
    return results
