"""Work of matrix products, attention and recurrent layers. Their dtype decides the unit that can do them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from kernelworks.profile.cost import Work
from kernelworks.profile.cost.operands import Arguments, Operand, name_of, total_bytes
from kernelworks.profile.cost.results import result_bytes, results

__all__ = [
    "addmm", "attention", "attention_backward", "bilinear", "distances", "encoder_layer", "linear", "matmul", "mm",
    "outer", "recurrent",
]  # fmt: skip

Formula = Callable[[Arguments], Work | None]
PRODUCTS = frozenset({
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "mkldnn_linear", "scaled_dot_product_attention",
})  # fmt: skip


def _unit(a: Arguments, operand: Operand) -> str:
    """The dtype that the product is done in: under autocast not its arguments', but that of the product below."""
    waiting = list(a.call.children)
    while waiting:
        call = waiting.pop(0)
        if call.name.removeprefix("aten::") in PRODUCTS:
            dtype = next((d for d in call.dtypes if d is not None), None)
            if dtype is not None:
                return name_of(dtype)
        waiting.extend(call.children)
    return name_of(operand.dtype)


def _product(a: Arguments, M: int, N: int, K: int, batch: int, operands: list[Operand]) -> Work:
    dtype = operands[-1].dtype
    unit = _unit(a, operands[-1])
    out = dtype.itemsize if unit == name_of(dtype) else getattr(torch, unit).itemsize
    return Work(2.0 * batch * M * N * K, 0.0, total_bytes(operands), batch * M * N * out, unit)


def mm(a: Arguments) -> Work | None:
    """mm, bmm: [.., M, K] x [.., K, N]."""
    x, y = a[0], a[1]
    if not (isinstance(x, Operand) and isinstance(y, Operand)) or len(x.shape) < 2 or len(y.shape) < 2:
        return None
    found = _product(a, x.shape[-2], y.shape[-1], x.shape[-1], math.prod(x.shape[:-2]), [x, y])
    written = None if x.dtype.itemsize > 1 else result_bytes(a)  # products of 8 bits have a result of another dtype
    return found if written is None else dataclasses.replace(found, written=written)


def addmm(a: Arguments) -> Work | None:
    """addmm(c, x, y), baddbmm, addbmm, addmv: a product and what is added to it."""
    c, x, y = a[0], a[1], a[2]
    if not all(isinstance(o, Operand) for o in (c, x, y)) or len(x.shape) < 2:
        return None
    if len(y.shape) == 1:
        return _product(a, x.shape[-2], 1, x.shape[-1], 1, [c, x, y])
    batch = math.prod(x.shape[:-2])
    found = _product(a, x.shape[-2], y.shape[-1], x.shape[-1], batch, [c, x, y])
    written = result_bytes(a) if a.name == "addbmm" else None  # summed over the batch
    return found if written is None else dataclasses.replace(found, written=written)


def outer(a: Arguments) -> Work | None:
    """addr(c, x, y): c + x y^T."""
    c, x, y = a[0], a[1], a[2]
    if not all(isinstance(o, Operand) for o in (c, x, y)):
        return None
    return _product(a, x.numel, y.numel, 1, 1, [c, x, y])


def matmul(a: Arguments) -> Work | None:
    """matmul, mv, dot."""
    x, y = a[0], a[1]
    if not (isinstance(x, Operand) and isinstance(y, Operand)) or not x.shape or not y.shape:
        return None
    M = x.shape[-2] if len(x.shape) > 1 else 1
    N = y.shape[-1] if len(y.shape) > 1 else 1
    batch = math.prod(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    return _product(a, M, N, x.shape[-1], batch, [x, y])


def linear(a: Arguments) -> Work | None:
    """linear(x [.., K], weight [N, K], bias), inner."""
    x, weight = a[0], a[1]
    if not (isinstance(x, Operand) and isinstance(weight, Operand)) or not x.shape or not weight.shape:
        return None
    K = x.shape[-1]
    return _product(a, x.numel // max(K, 1), weight.numel // max(K, 1), K, 1, [*a.operands[2:], x, weight])


def bilinear(a: Arguments) -> Work | None:
    """_trilinear(x1, weight, x2, ...), what ``bilinear`` calls: two products over every pair of features."""
    x, weight, y = a[0], a[1], a[2]
    if not all(isinstance(o, Operand) and o.shape for o in (x, weight, y)):
        return None
    rows = x.numel // max(x.shape[-1], 1)
    flop = 2.0 * rows * weight.numel + 2.0 * rows * weight.numel / max(y.shape[-1], 1)
    written = result_bytes(a)
    return None if written is None else Work(flop, 0.0, total_bytes([x, weight, y]), written, name_of(x.dtype))


def distances(a: Arguments) -> Work | None:
    """cdist(x [.., P, M], y [.., R, M]), pdist(x [P, M]): subtract, power and sum for each pair and feature."""
    x, out = a[0], results(a)
    if not isinstance(x, Operand) or not out or not x.shape:
        return None
    return Work(3.0 * out[0].numel * x.shape[-1], 0.0, total_bytes(a.operands), out[0].bytes)


# ---------------------------------------------------------------- attention


def pairs(Lq: int, Lk: int, causal: bool) -> int:
    """Pairs of a query and a key that are not masked: if causal the lower triangle from the top left."""
    short = min(Lq, Lk)
    return short * (short + 1) // 2 + max(Lq - Lk, 0) * Lk if causal else Lq * Lk


def attention(a: Arguments) -> Work | None:
    """q [.., Lq, D], k [.., Lk, D], v [.., Lk, Dv]: two products and a softmax over the pairs that are not masked."""
    q, k, v = a[0], a[1], a[2]
    if not all(isinstance(o, Operand) and len(o.shape) >= 2 for o in (q, k, v)):
        return None
    scores = pairs(q.shape[-2], k.shape[-2], a["is_causal"] is True) * math.prod(q.shape[:-2])
    mask = next((o.bytes for o in a.operands[3:] if o.shape), 0)
    unit = _unit(a, q)
    written = math.prod(q.shape[:-1]) * v.shape[-1] * int(getattr(torch, unit).itemsize)
    flop = scores * (2.0 * (q.shape[-1] + v.shape[-1]) + 4.0)
    return Work(flop, scores, total_bytes([q, k, v]) + mask, written, unit)


def attention_backward(a: Arguments) -> Work | None:
    """Five products over the pairs: the scores again, and the gradients of v, p, q and k. The result and its gradient
    are read, three gradients written."""
    grad, q, k, v = a[0], a[1], a[2], a[3]
    if not all(isinstance(o, Operand) and len(o.shape) >= 2 for o in (grad, q, k, v)):
        return None
    scores = pairs(q.shape[-2], k.shape[-2], a["is_causal"] is True) * math.prod(q.shape[:-2])
    out = a["out"]
    read = total_bytes([grad, q, k, v, *([out] if isinstance(out, Operand) else [])])
    written = sum(o.numel for o in (q, k, v)) * q.dtype.itemsize
    return Work(scores * (6.0 * q.shape[-1] + 4.0 * v.shape[-1]), scores, read, written, name_of(q.dtype))


def encoder_layer(a: Arguments) -> Work | None:
    """_transformer_encoder_layer_fwd, _native_multi_head_attention: every matrix is a product over all positions, and
    attention of each position to each."""
    x, heads = a[0], a["num_heads"] or a["num_head"]
    if not isinstance(x, Operand) or len(x.shape) != 3 or not isinstance(heads, int):
        return None
    B, L, E = x.shape
    weights = [o for o in a.operands[1:] if len(o.shape) == 2 and E in o.shape]
    products = 2.0 * B * L * sum(o.numel for o in weights)
    scores = float(B * heads * L * L)
    whole = "layer" in a.name
    widening = a["ffn_weight_1"]
    hidden = widening.shape[0] if isinstance(widening, Operand) else 0
    gelu = a["use_gelu"] is True
    flop = products + scores * (4.0 * E / heads + 4) + (16.0 * B * L * E + (4 if gelu else 1) * B * L * hidden) * whole
    functions = scores + (B * L * hidden if gelu else 0)
    return Work(flop, functions, total_bytes(a.operands), x.numel * x.dtype.itemsize, name_of(x.dtype))


# ---------------------------------------------------------------- recurrent layers

GATES = {4: (10.0, 5.0), 3: (9.0, 3.0), 1: (1.0, 1.0)}  # matrices a step -> flop, elementary functions, an element


def recurrent(a: Arguments) -> Work | None:
    """A layer or a network of LSTM, GRU or plain cells in one op: each matrix is a product at every step, and each cell
    its gates. Backward: two products for each."""
    x, out = a[0], results(a)
    if not isinstance(x, Operand) or len(x.shape) < 2:
        return None
    hidden = a["hidden_size"]
    lists = [item for item in a.items if isinstance(item, list) and item and isinstance(item[0], Operand)]
    matrices = [o for o in (lists[0] if lists else a.operands[1:5]) if len(o.shape) == 2]
    steps = math.prod(x.shape[:-1])
    backward = "backward" in a.name
    flop = 2.0 * steps * sum(o.numel for o in matrices)
    cells, functions = 0.0, 0.0
    if isinstance(hidden, int) and hidden and matrices:
        each = GATES.get(matrices[0].shape[0] // hidden, (0.0, 0.0))
        cells, functions = (steps * hidden * len(matrices) / 2 * count for count in each)
    written = sum(o.bytes for o in out[:3]) if out else steps * (hidden or 0) * x.dtype.itemsize
    if backward:
        flop, written = 2 * flop, sum(o.bytes for o in out) if out else total_bytes(a.all_operands)
    return Work(flop + cells, functions, total_bytes(a.all_operands), written, name_of(x.dtype))
