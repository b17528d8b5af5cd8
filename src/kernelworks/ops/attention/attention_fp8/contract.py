"""What attention_fp8 promises: attention of tensors of 8 bits with their scales."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF, rounding
from kernelworks.contract.arguments import Arguments, Word
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.attention_fp8 import cases
from kernelworks.ops.attention.attention_fp8.cases import EIGHT, NAMES
from kernelworks.templates.attention.arguments import CAUSAL, MAX_DIM, SCALE, wrong_calls
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.attention.reference import DenseCall, dense_sizes, seen_pairs, visible

__all__ = ["CONTRACT", "DTYPES", "TEMPLATE", "per_head", "result_like"]

U32 = UNIT_ROUNDOFF[torch.float32]
DTYPES = {name: dtype for dtype, name in NAMES.items()}  # of the output
MOST = 2**28  # scores that are formed at once here
TILE = 128  # keys whose products are summed before they are added to a running sum
# A weight of 8 bits that is made without an exponential is off by at most so much of itself, but for what all share.
WEIGHT = 0.09
FLUSH_THRESHOLD = 1.1 * 2.0**-14  # of the largest weight: what smaller ones lose near e4m3's lower end
UNITS = 34 * 2.0**-13  # what matrix units lose that add 32 products of 8 bits, each cut off 13 bits behind the largest

TENSORS = ("q", "k", "v")
DESCALES = ("q_descale", "k_descale", "v_descale")
ARGUMENTS: Arguments = {
    "q": T("B H Lq D", dtypes=(EIGHT,), where=(f"1 <= D <= {MAX_DIM}",)),
    "k": T("B Hkv Lk D", dtypes=(EIGHT,), where=("divides(Hkv, H)",)), "v": T("B Hkv Lk D", dtypes=(EIGHT,)),
    **dict.fromkeys(DESCALES, T(" or B|1 Hkv|1", dtypes=(torch.float32,))),
    "causal": CAUSAL, "scale": SCALE, "out_dtype": Word(*DTYPES),
}  # fmt: skip


# ---------------------------------------------------------------- the definition


def per_head(descale: Tensor, heads: int, kv_heads: int) -> Tensor:
    """[1|B, heads, 1, 1]: the scale of each head, of ``kv_heads`` groups."""
    each = descale if descale.dim() else descale.reshape(1, 1)
    return each.expand(each.shape[0], kv_heads).repeat_interleave(heads // max(kv_heads, 1), 1)[..., None, None]


def _in_shares(function: Callable[[dict[str, Any]], Tensor], args: dict[str, Any]) -> Tensor:
    """``function(args)``; a head of keys at a time where all scores together would take gigabytes."""
    q, k = args["q"], args["k"]
    batch, heads, groups = q.shape[0], q.shape[1], k.shape[1]
    if batch * heads * q.shape[2] * k.shape[2] <= MOST:
        return function(args)

    def share(name: str, b: int, g: int) -> Any:
        value = args[name]
        if not isinstance(value, Tensor):
            return value
        if name.endswith("descale"):
            return value.expand(batch, groups)[b : b + 1, g : g + 1]
        each = value.shape[1] // groups
        return value[b : b + 1, g * each : (g + 1) * each]

    shares = [[function({n: share(n, b, g) for n in args}) for g in range(groups)] for b in range(batch)]
    return torch.cat([torch.cat(of_batch, 1) for of_batch in shares])


def _calls(args: dict[str, Any]) -> Iterator[DenseCall]:
    """One, of what the stored numbers stand for."""
    q, k, v = (args[n] * per_head(args[f"{n}_descale"], args[n].shape[1], args["k"].shape[1]) for n in TENSORS)
    yield DenseCall.of(q, k, v, args["causal"], None, args["scale"])


def reference(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor,
    causal: str | None = None, scale: float | None = None, out_dtype: str = "bfloat16",
) -> tuple[Tensor, ...]:  # fmt: skip
    args = TEMPLATE.named_arguments((q, k, v, q_descale, k_descale, v_descale, causal, scale, out_dtype))
    return (_in_shares(lambda share: TEMPLATE.reference(**share)[0], args),)


# ---------------------------------------------------------------- bound


class _Scores:
    """Weights and what their scores may be off by, in float64."""

    def __init__(self, args: dict[str, Any], units: bool) -> None:
        q, k = args["q"], args["k"]
        heads, groups, dim = q.shape[1], k.shape[1], q.shape[3]
        k = k.repeat_interleave(heads // groups, 1)
        factor = per_head(args["q_descale"], heads, groups) * per_head(args["k_descale"], heads, groups)
        factor = factor * (1.0 / math.sqrt(dim) if args.get("scale") is None else args["scale"])
        self.seen = visible(q, k, args.get("causal"), None, None)
        scores = (q @ k.mT * factor).masked_fill(~self.seen, -torch.inf)
        self.any = self.seen.any(-1, keepdim=True)
        self.p = torch.softmax(scores.masked_fill(~self.any, 0.0), -1) * self.any
        factor = factor.abs()
        magnitudes = (q.abs() @ k.abs().mT * factor).masked_fill(~self.seen, 0.0)
        lost = (dim + 8) * U32 * magnitudes
        if units:
            lost = lost + self._of_units(q, k, factor)
        keys = k.shape[2]
        largest = magnitudes.amax(-1, keepdim=True) if keys else magnitudes.sum(-1, keepdim=True)
        self.lost = (lost + U32 * (4 * largest + 8 + 5 * (keys / TILE + 2))).masked_fill(~self.seen, 0.0)

    def _of_units(self, q: Tensor, k: Tensor, factor: Tensor) -> Tensor:
        """Of each 32 elements, beside what was summed before."""
        lost, before = torch.zeros_like(self.p), torch.zeros_like(self.p)
        for c in range(0, q.shape[3], 32):
            a, b = q[..., c : c + 32], k[..., c : c + 32]
            lost += UNITS * (a.abs() @ b.abs().mT + before.abs()) * factor
            before += a @ b.mT
        return lost.masked_fill(~self.seen, 0.0)


def bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
) -> tuple[Tensor, ...]:
    """README.md derives it. ``inner="input"``: weights of 8 bits, and units that add 8-bit products."""
    error = _in_shares(lambda share: _error(share, inner == "input"), args | {"output": outputs[0]})
    return (rounding(outputs[0], dtype) * (1 + 2.0**-6) + error,)


def _error(args: dict[str, Any], units: bool) -> Tensor:
    """How far from exact an output may be before it is rounded."""
    t = _Scores(args, units)
    v = args["v"].repeat_interleave(args["q"].shape[1] // args["v"].shape[1], 1)
    descale = per_head(args["v_descale"], args["q"].shape[1], args["k"].shape[1]).abs()
    out = torch.where(descale > 0, args["output"] / descale, 0.0)
    keys = v.shape[2]
    weight = WEIGHT if units else 0.0
    sums = (2 * (TILE + keys / TILE + 1) + 16) * U32 + (4 * UNITS if units else 0.0)
    off = torch.expm1(t.lost) * (1 + weight) + weight * t.seen  # of a weight, as a share of itself
    less = (t.p * (1 - torch.exp(-t.lost) * (1 - weight))).sum(-1, keepdim=True)  # of all weights at most
    peak = t.p.amax(-1, keepdim=True) if keys else t.p.sum(-1, keepdim=True)
    flushed = (
        FLUSH_THRESHOLD * peak * torch.exp(t.lost.amax(-1, keepdim=True) if keys else 0.0 * peak)
        if units
        else 0.0 * peak
    )
    flushed = torch.minimum(flushed + 2.0**-126, 2 * t.p * torch.exp(t.lost)) * t.seen
    # |sum p d (v - out)| <= sqrt(sum p d^2) sqrt(sum p (v - out)^2), and the second is sum p v^2 - out^2
    spread = (t.p @ v.square() * (1 + 2.0**-40) - out.square()).clamp(min=0.0).sqrt()
    error = (t.p * off.square()).sum(-1, keepdim=True).sqrt() * spread
    error = error + flushed @ v.abs() + flushed.sum(-1, keepdim=True) * out.abs()
    error = error + sums * ((t.p * (1 + off)) @ v.abs() + out.abs())
    rest = 1 - less - flushed.sum(-1, keepdim=True) - sums  # of the denominator
    largest = (v.abs().amax(2, keepdim=True) if keys else v.abs().sum(2, keepdim=True)).expand_as(out)
    # Weights are positive and add up to what they are divided by, however wrong they are.
    most = (2 + 4 * sums) * largest
    error = torch.where(rest > 0, error / rest, torch.inf).minimum(most) + 8 * U32 * out.abs()
    found: Tensor = error * descale * (1 + 2.0**-6) + 2.0**-126 * descale
    return found


# ---------------------------------------------------------------- the op


def result_like(q: Tensor, out_dtype: str) -> Tensor:
    """An output [B, H, L, D], laid out as [B, L, H, D]."""
    heads, length, dim = q.shape[1:]
    strides = (length * heads * dim, dim, heads * dim, 1)
    return torch.empty_strided(q.shape, strides, dtype=DTYPES[out_dtype], device=q.device)


def _dims(args: Mapping[str, Any]) -> dict[str, int]:
    return dense_sizes(args["q"], args["k"]) | {"causal": int(args["causal"] is not None)}


def _eight(*shape: int) -> Tensor:
    return torch.ones(*shape).to(EIGHT)


def _right() -> dict[str, Any]:
    tensors = {"q": _eight(2, 4, 3, 8), "k": _eight(2, 2, 5, 8), "v": _eight(2, 2, 5, 8)}
    return tensors | dict.fromkeys(DESCALES, torch.ones(()))


TEMPLATE = Attention(
    op_package=__file__,
    formula="output = softmax(scale Q K^T, over the keys that a query sees) V of Q = q q_descale, K = k k_descale, "
    "V = v v_descale; 0 for a query that sees none",
    source="Shah et al., FlashAttention-3, 2024 (arXiv:2407.08608)",
    arguments=ARGUMENTS,
    defaults={"causal": None, "scale": None, "out_dtype": "bfloat16"},
    calls=_calls,
    count_pairs=lambda args: (
        math.prod(args["q"].shape[:2]) * seen_pairs(args["q"].shape[2], args["k"].shape[2], args["causal"], None)
    ),
    dims=_dims,
    cases=cases,
    output=Result("out_dtype"),
    empty_output=lambda q, *rest: result_like(q, rest[-1]),
    beside=DESCALES,
    errors=wrong_calls(
        _right,
        ("v of the other 8 bits", {"v": torch.ones(2, 2, 5, 8).to(torch.float8_e5m2)}, TypeError, "v must have dtype"),
        ("heads that do not divide", {"q": _eight(2, 3, 3, 8)}, ValueError, "divides(Hkv, H)"),
        ("scales of q's heads", {"v_descale": torch.ones(2, 4)}, ValueError, "v_descale must have shape"),
        ("scales of a batch alone", {"q_descale": torch.ones(2)}, ValueError, "q_descale must have shape"),
    ),
)
CONTRACT = dataclasses.replace(TEMPLATE.contract, reference=reference, bound=bound)
