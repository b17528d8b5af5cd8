"""What we race: torch as users write it, torch.compile of the same, and the strongest peer of the family.

A baseline takes the contract's arguments by name. Peers that need their own form of a weight convert it once, outside
the timing, as their own users would; each declines (None) what it does not do or where its package is missing.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.op import Op

__all__ = ["COMPILED", "EAGER", "PEERS", "Maker", "compiled", "eager"]

Baseline = Callable[..., Any]
Args = Mapping[str, Any]
Maker = Callable[[Any], Callable[[], Any] | None]  # prepares the call for one set of arguments; None declines


# ---------------------------------------------------------------- torch eager


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None) -> Any:
    if residual is None:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, eps), total


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _softmax(x: Tensor, dim: int) -> Tensor:
    return F.softmax(x, dim)


def _gelu(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _turned(x: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if cos.dim() == 3:  # [B, L, R]: one table for all heads
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    width = cos.shape[-1]

    def one(x: Tensor) -> Tensor:
        part = x[..., :width]
        turned = part * cos + _turned(part, interleaved) * sin
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), -1)

    return one(q), one(k)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


@functools.lru_cache(maxsize=64)
def _seen(lq: int, lk: int, causal: str, window: int | None, device: torch.device) -> Tensor:
    """Which keys each query sees. Cached: a model makes its mask once for all layers."""
    query, key = torch.arange(lq, device=device), torch.arange(lk, device=device)
    distance = query[:, None] + (lk - lq if causal == "bottom_right" else 0) - key[None, :]
    return (distance >= 0) & (distance < (lk + lq if window is None else window))


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: str | None, window: int | None, scale: float | None,
    mask: Tensor | None = None, with_lse: bool = False,
) -> Tensor:  # fmt: skip
    if with_lse:
        raise ValueError("scaled_dot_product_attention does not return the log-sum-exp")
    lq, lk = q.shape[-2], k.shape[-2]
    if causal == "bottom_right" and lq == 1 and window is None:
        causal = None  # a single query at the end sees all keys: users give no mask then
    plain = causal is None or (window is None and (causal == "top_left" or lq == lk))
    if causal is not None and (mask is not None or not plain):
        seen = _seen(lq, lk, causal, window, q.device)
        mask = seen if mask is None else mask & seen
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal is not None and mask is None, scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


def _cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    return F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def _linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int) -> Tensor:
    logits = F.linear(x, weight, bias).float()
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=ignore_index)


def _embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(ids, weight)


# Ops that are not here (rooms that joined from outside) race their own torch row.
EAGER: dict[str, Baseline] = {
    "rms_norm": _rms_norm, "layer_norm": _layer_norm, "softmax": _softmax, "gelu": _gelu, "silu_mul": _silu_mul,
    "rope": _rope, "linear": _linear, "attention": _attention, "cross_entropy": _cross_entropy,
    "embedding": _embedding, "linear_cross_entropy": _linear_cross_entropy,
}  # fmt: skip

# Where inductor generates a kernel of its own; for the others it calls the very kernel that eager calls.
COMPILED = frozenset({"rms_norm", "layer_norm", "softmax", "gelu", "silu_mul", "rope", "cross_entropy"})


def eager(op: Op) -> Baseline:
    """What a user of torch writes for this op, taking the contract's arguments by name."""
    if op.name in EAGER:
        return EAGER[op.name]
    names, row = op.passes["forward"].names, op.row("torch").load("forward")
    return lambda **args: row(*(args[name] for name in names))


def compiled(op: Op) -> Baseline | None:
    """torch.compile of the eager baseline, for static shapes; None for ops that it leaves to eager's kernels.

    The first call compiles (seconds). It raises whatever inductor raises.
    """
    if op.name not in COMPILED:
        return None
    torch._dynamo.reset()
    return torch.compile(eager(op), dynamic=False)


# ---------------------------------------------------------------- peers


def _mkldnn_linear(args: Args) -> Callable[[], Any] | None:
    """oneDNN through torch's own ``to_mkldnn``: a weight packed once. It has its own code paths for Zen 5."""
    x, weight, bias = args["x"], args["weight"], args.get("bias")
    if x.dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return None
    from torch.utils import mkldnn

    convert: Any = mkldnn.to_mkldnn  # without annotations

    with torch.device("meta"):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias.float(), requires_grad=False)
    packed = convert(layer.eval(), x.dtype)
    return functools.partial(packed, x)


def _numpy_linear(args: Args) -> Callable[[], Any] | None:
    """NumPy's BLAS. Needs threadpoolctl to be held to the same threads as everyone."""
    x, weight, bias = args["x"], args["weight"], args.get("bias")
    if x.dtype is not torch.float32 or importlib.util.find_spec("threadpoolctl") is None:
        return None
    import numpy as np
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped,unused-ignore]

    a, b = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).numpy(), weight.numpy().T
    offset = None if bias is None else bias.numpy()
    shape = (*x.shape[:-1], weight.shape[0])
    threadpool_limits(torch.get_num_threads(), "blas")

    def run() -> Tensor:
        product = np.matmul(a, b)
        if offset is not None:
            product += offset
        return torch.from_numpy(product).view(shape)

    return run


# By op, then by the arm's name.
PEERS: dict[str, dict[str, Maker]] = {"linear": {"mkldnn": _mkldnn_linear, "numpy": _numpy_linear}}
