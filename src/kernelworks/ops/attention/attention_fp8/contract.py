"""What attention_fp8 promises: attention of tensors of 8 bits with their scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import (
    UNIT_ROUNDOFF,
    Contract,
    Cost,
    Request,
    describe,
    heads_shared,
    need_64_bits,
    need_dtype,
    need_tensor,
    rounding,
)
from kernelworks.contract.results import Result
from kernelworks.ops.attention.attention.contract import CAUSAL, MAX_DIM, seen_pairs, visible
from kernelworks.ops.attention.attention.contract import reference as attention_of
from kernelworks.ops.attention.attention_fp8.cases import (
    BENCH_CASES,
    CASES,
    DEVICE_BENCH_CASES,
    DEVICE_CASES,
    EIGHT,
    NAMES,
)

__all__ = ["CONTRACT", "DTYPES", "per_head", "reference"]

U32 = UNIT_ROUNDOFF[torch.float32]
DTYPES = {name: dtype for dtype, name in NAMES.items()}  # of the output
MOST = 2**28  # scores that are formed at once here
TILE = 128  # keys whose products are summed before they are added to a running sum
# A weight of 8 bits that is made without an exponential is off by at most so much of itself, but for what all share.
WEIGHT = 0.09
FLUSH_THRESHOLD = 1.1 * 2.0**-14  # of the largest weight: what smaller ones lose near e4m3's lower end
UNITS = 34 * 2.0**-13  # what matrix units lose that add 32 products of 8 bits, each cut off 13 bits behind the largest


# ---------------------------------------------------------------- arguments


def _check_tensors(q: Any, k: Any, v: Any) -> None:
    for name, value in (("q", q), ("k", k), ("v", v)):
        need_tensor(name, value)
        need_dtype(name, value, (EIGHT,))
        if len(value.shape) != 4:
            raise ValueError(f"{name} must have four dimensions [B, H, L, D], got {describe(value)}")
        if torch.device(value.device).type != torch.device(q.device).type:
            raise ValueError(f"{name} must be on q's device {q.device}, got {value.device}")
    batch, heads, _, dim = q.shape
    if not 1 <= dim <= MAX_DIM:
        raise ValueError(f"q must have a head_dim of 1 to {MAX_DIM}, its last dimension; got {describe(q)}")
    if k.shape[0] != batch or k.shape[3] != dim:
        raise ValueError(f"k must have q's batch {batch} and head_dim {dim}, got {describe(k)}")
    if not heads_shared(heads, k.shape[1]):
        raise ValueError(f"k must have a number of heads that divides q's {heads}, got {describe(k)}")
    if tuple(v.shape) != tuple(k.shape):
        raise ValueError(f"v must have k's shape {list(k.shape)}, got {list(v.shape)}")


def check(
    q: Any, k: Any, v: Any, q_descale: Any, k_descale: Any, v_descale: Any, causal: Any = None, scale: Any = None,
    out_dtype: Any = "bfloat16",
) -> None:  # fmt: skip
    _check_tensors(q, k, v)
    want = (q.shape[0], k.shape[1])
    for name, value in (("q_descale", q_descale), ("k_descale", k_descale), ("v_descale", v_descale)):
        need_tensor(name, value)
        need_dtype(name, value, (torch.float32,))
        shape = tuple(value.shape)
        if shape and (len(shape) != 2 or any(n not in (1, m) for n, m in zip(shape, want, strict=True))):
            raise ValueError(
                f"{name} must have no dimension, or shape {list(want)} (batch, heads of k), or 1 in either; "
                f"got {list(shape)}"
            )
        if torch.device(value.device).type != torch.device(q.device).type:
            raise ValueError(f"{name} must be on q's device {q.device}, got {value.device}")
    if causal not in CAUSAL:
        raise ValueError(f"causal must be None, 'top_left' or 'bottom_right', got {causal!r}")
    if scale is not None:
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise TypeError(f"scale must be a float or None, got {describe(scale)}")
        need_64_bits("scale", scale)
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, got {scale}")
    if out_dtype not in DTYPES:
        raise ValueError(f"out_dtype must be torch.{', torch.'.join(DTYPES)}, got {out_dtype!r}")


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


def _attended(args: dict[str, Any]) -> Tensor:
    groups = args["k"].shape[1]
    q, k, v = (args[n] * per_head(args[f"{n}_descale"], args[n].shape[1], groups) for n in ("q", "k", "v"))
    found: Tensor = attention_of(q, k, v, args["causal"], None, args["scale"])[0]
    return found


def reference(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor,
    causal: str | None = None, scale: float | None = None, out_dtype: str = "bfloat16",
) -> tuple[Tensor, ...]:  # fmt: skip
    args = {"q": q, "k": k, "v": v, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    return (_in_shares(_attended, args | {"causal": causal, "scale": scale}),)


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


# ---------------------------------------------------------------- cost


def cost(request: Request) -> Cost:
    q, k, v = (request.args[name] for name in ("q", "k", "v"))
    pairs = q.shape[0] * q.shape[1] * seen_pairs(q.shape[2], k.shape[2], request.args["causal"], None)
    scales = sum(request.args[f"{name}_descale"].nbytes for name in ("q", "k", "v"))
    read = q.nbytes + k.nbytes + v.nbytes + scales
    return Cost(4.0 * q.shape[3] * pairs, pairs, read, q.numel * DTYPES[request.args["out_dtype"]].itemsize)


def dims(request: Request) -> dict[str, int]:
    q, k = request.args["q"], request.args["k"]
    return {
        "B": q.shape[0], "H": q.shape[1], "Hkv": k.shape[1], "Lq": q.shape[2], "Lk": k.shape[2], "D": q.shape[3],
        "causal": int(request.args["causal"] is not None),
    }  # fmt: skip


# ---------------------------------------------------------------- errors


def _eight(*shape: int) -> Tensor:
    return torch.ones(*shape).to(EIGHT)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        one = torch.ones(())
        tensors = {"q": _eight(2, 4, 3, 8), "k": _eight(2, 2, 5, 8), "v": _eight(2, 2, 5, 8)}
        return tensors | {"q_descale": one, "k_descale": one, "v_descale": one} | changed

    return make


ERRORS = (
    ("q is not a tensor", _with(q=[1.0]), TypeError, "q must be a torch.Tensor"),
    ("q of 16 bits", _with(q=torch.ones(2, 4, 3, 8).half()), TypeError, "q must have dtype float8_e4m3fn"),
    ("v of the other 8 bits", _with(v=torch.ones(2, 2, 5, 8).to(torch.float8_e5m2)), TypeError, "v must have dtype"),
    ("three dimensions", _with(q=_eight(4, 3, 8)), ValueError, "q must have four dimensions"),
    ("head_dim too large", _with(q=_eight(2, 4, 3, 257)), ValueError, "q must have a head_dim of 1 to 256"),
    ("heads that do not divide", _with(q=_eight(2, 3, 3, 8)), ValueError, "divides q's 3"),
    ("another head_dim", _with(k=_eight(2, 2, 5, 9)), ValueError, "k must have q's batch 2 and head_dim 8"),
    ("another length of v", _with(v=_eight(2, 2, 4, 8)), ValueError, "v must have k's shape"),
    ("a scale that is a number", _with(q_descale=1.0), TypeError, "q_descale must be a torch.Tensor"),
    ("a scale of 16 bits", _with(k_descale=torch.ones(()).half()), TypeError, "k_descale must have dtype float32"),
    ("scales of q's heads", _with(v_descale=torch.ones(2, 4)), ValueError, "v_descale must have no dimension"),
    ("scales of a batch alone", _with(q_descale=torch.ones(2)), ValueError, "q_descale must have no dimension"),
    ("causal as a bool", _with(causal=True), ValueError, "causal must be None"),
    ("scale that is no number", _with(scale="1"), TypeError, "scale must be a float"),
    ("infinite scale", _with(scale=math.inf), ValueError, "scale must be finite"),
    ("scale of 65 bits", _with(scale=2**63), ValueError, "scale must fit into 64 bits"),
    ("output of 8 bits", _with(out_dtype="float8_e4m3fn"), ValueError, "out_dtype must be torch.bfloat16"),
)

CONTRACT = Contract(
    name="attention_fp8",
    family="attention",
    arithmetic="products",
    formula="output = softmax(scale Q K^T, over the keys that a query sees) V of Q = q q_descale, K = k k_descale, "
    "V = v v_descale; 0 for a query that sees none",
    source="Shah et al., FlashAttention-3, 2024 (arXiv:2407.08608)",
    outputs=("output",),
    results={"output": Result("out_dtype")},
    differentiable=(),
    check=check,
    reference=reference,
    bound=bound,
    cost=cost,
    dims=dims,
    bucket=lambda request: {"D": request.args["q"].shape[3]},  # each has kernels of its own, in torch as here
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    errors=ERRORS,
)
