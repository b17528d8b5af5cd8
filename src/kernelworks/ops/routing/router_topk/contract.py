"""What router_topk promises: the k experts of each token with the largest logits, and what each weighs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, Number, Word, check_of, errors_of
from kernelworks.contract.cases import draw
from kernelworks.contract.count_argument import Count
from kernelworks.contract.results import EqualIndex, Result
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.along import chain, distances

__all__ = ["ARGUMENTS", "CONTRACT", "EPS", "reference", "weights_of"]

BF16, F32 = torch.bfloat16, torch.float32
U32 = UNIT_ROUNDOFF[F32]
SMALLEST, SMALLEST_NORMAL = 2.0**-149, 2.0**-126  # of float32
EPS = 1e-20  # beside a sum of sigmoids, as DeepSeek-V3 has it

ARGUMENTS: Arguments = {
    "logits": T("T E", where=("E >= 1",)),
    "k": Count("logits", -1, least=1),
    "scoring": Word("softmax", "sigmoid"),
    "norm_topk_prob": Flag(),
    "scale": Number(least=None, finite=True),
}


# ---------------------------------------------------------------- the definition


def weights_of(logits: Tensor, indices: Tensor, scoring: str, norm_topk_prob: bool, scale: float) -> Tensor:
    """What the chosen experts weigh, in logits' dtype; differentiable."""
    chosen = logits.gather(-1, indices)
    if scoring == "sigmoid":
        scores = torch.sigmoid(chosen)
        weights = scores / (scores.sum(-1, keepdim=True) + EPS) if norm_topk_prob else scores
    elif norm_topk_prob:
        weights = torch.softmax(chosen, -1)
    else:
        weights = torch.softmax(logits, -1).gather(-1, indices)
    return weights * scale


def reference(
    logits: Tensor, k: int, scoring: str = "softmax", norm_topk_prob: bool = False, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    indices = torch.topk(logits.detach(), k, -1).indices
    return weights_of(logits, indices, scoring, norm_topk_prob, scale), indices


# ---------------------------------------------------------------- bounds, as README.md derives them


def _softmax_off(line: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of each line, and how far a right kernel may be off in float32."""
    p, distance = torch.softmax(line, -1), distances(line, -1)
    mean_distance = (p * distance).sum(-1, keepdim=True)
    relative = 1.05 * (distance + mean_distance) + chain(p, -1) + 12.0
    return p, U32 * relative * p + SMALLEST


def _sigmoid_off(chosen: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.sigmoid(chosen)
    return scores, 8.0 * U32 * scores + SMALLEST_NORMAL


def _weights_off(args: Mapping[str, Any], indices: Tensor) -> Tensor:
    """How far the weights may be off before they are rounded to their dtype."""
    logits, norm, scale = args["logits"], args["norm_topk_prob"], abs(args["scale"])
    chosen = logits.gather(-1, indices)
    if args["scoring"] == "sigmoid":
        scores, off = _sigmoid_off(chosen)
        if norm:
            total = scores.sum(-1, keepdim=True) + EPS
            total_off = off.sum(-1, keepdim=True) + (args["k"] + 2.0) * U32 * total
            off = (off + scores * total_off / total) / total + 3.0 * U32 * scores / total
            scores = scores / total
    elif norm:
        scores, off = _softmax_off(chosen)
    else:
        p, every = _softmax_off(logits)
        scores, off = p.gather(-1, indices), every.gather(-1, indices)
    found: Tensor = scale * (off + U32 * scores) + SMALLEST
    return found


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    weights, indices = outputs
    return rounding(weights, dtype) + _weights_off(args, indices), torch.zeros_like(weights)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    logits, k, norm, scale, flow = args["logits"], args["k"], args["norm_topk_prob"], args["scale"], grads[0]
    indices = torch.topk(logits, k, -1).indices
    chosen, size = logits.gather(-1, indices), abs(scale)
    if args["scoring"] == "softmax":
        whole = torch.zeros_like(logits)
        flow, line = (flow, chosen) if norm else (whole.scatter(-1, indices, flow), logits)
        p, p_off = _softmax_off(line)
        mean = (flow * p).sum(-1, keepdim=True)
        mean_off = (flow.abs() * (p_off + (chain(p, -1) + 4.0) * U32 * p)).sum(-1, keepdim=True)
        off = p_off * (flow - mean).abs() + p * (mean_off + 4.0 * U32 * (flow.abs() + mean.abs()))
        off = size * off
    else:
        scores, scores_off = _sigmoid_off(chosen)
        slope = scores * (1.0 - scores)
        slope_off = 8.0 * U32 * slope + 4.0 * U32 * scores + SMALLEST_NORMAL  # 1 - score is off by 4 units of 1
        if norm:
            total = scores.sum(-1, keepdim=True) + EPS
            share = scale * scores / total
            share_off = _weights_off(args, indices)
            mean = (flow * share).sum(-1, keepdim=True)
            mean_off = (flow.abs() * (share_off + (k + 3.0) * U32 * share.abs())).sum(-1, keepdim=True)
            factor = (scale * flow - mean) / total
            relative = (k + 13.0) * U32 + scores_off.sum(-1, keepdim=True) / total
            factor_off = (mean_off + 3.0 * U32 * (size * flow.abs() + mean.abs())) / total + relative * factor.abs()
        else:
            factor, factor_off = scale * flow, U32 * size * flow.abs()
        off = factor.abs() * slope_off + factor_off * slope
    if norm or args["scoring"] == "sigmoid":  # of the chosen ones alone
        off = torch.zeros_like(logits).scatter(-1, indices, off)
    return {"logits": rounding(gradients["logits"], dtype) + off + 2.0**-148 * (1.0 + size)}


# ---------------------------------------------------------------- cost


def dims(request: Request) -> dict[str, int]:
    tokens, experts = request.args["logits"].shape
    return {"M": tokens, "N": experts, "K": int(request.args["k"])}


def cost(request: Request) -> Cost:
    tokens, experts, k = dims(request).values()
    logits = request.args["logits"]
    whole = request.args.get("scoring") == "softmax" and not request.args.get("norm_topk_prob")
    scored = tokens * (experts if whole else k)
    if request.pass_ == "backward":
        read = logits.nbytes + tokens * k * (logits.dtype.itemsize + 8)
        return Cost(4.0 * scored, float(scored), read, logits.nbytes)
    written = tokens * k * (logits.dtype.itemsize + 8)
    return Cost(float(tokens * experts + 3 * scored), float(scored), logits.nbytes, written)


# ---------------------------------------------------------------- cases

TIES, MASKED, ODD = "ties", "masked experts", "NaN and infinities"


def _logits(kind: str, generator: Generator, dtype: torch.dtype, shape: tuple[int, int]) -> Tensor:
    if kind not in (TIES, MASKED, ODD):
        return draw(kind, generator, dtype, *shape)
    x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
    x = torch.where(torch.rand(shape, generator=generator) < 0.5, x, -x)  # 0 of either sign
    which = torch.randint(0, 6 if kind == MASKED else 20, shape, generator=generator)
    if kind == MASKED:  # few experts are left, in one token none is
        x = torch.where(which == 0, torch.randn(shape, generator=generator).to(dtype), -torch.inf)
        x[..., 0] = 0.5
        x[:1] = -torch.inf
    if kind == ODD:
        for number, value in enumerate((torch.nan, torch.inf)):
            odd = torch.full(shape, value, dtype=dtype)
            x = torch.where(which == 2 * number, odd, torch.where(which == 2 * number + 1, -odd, x))
    return x


def _case(
    tokens: int, experts: int, k: int, way: int, kind: str = "normal", scale: float = 1.0, **more: Any
) -> Case:  # fmt: skip
    """``way``: which of the four functions."""
    scoring, norm = ("softmax", "sigmoid")[way % 2], way % 4 >= 2

    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        logits = _logits(kind, generator, dtype, (tokens, experts))
        return {"logits": logits, "k": k, "scoring": scoring, "norm_topk_prob": norm, "scale": scale}

    said = f"{scoring}{', normed' * norm}{f', scale {scale:g}' * (scale != 1.0)}{f', {kind}' * (kind != 'normal')}"
    return Case(f"{tokens} tokens, {k} of {experts}, {said}", make, **more)


SMOOTH_KINDS = ("large_mean", "tiny", "constant", "zeros", TIES)
ODD_KINDS = ("huge", "subnormal", "inf", "negative_inf", "nan", MASKED, ODD)


def _cases() -> Iterator[Case]:
    # All of them, one, around vectors, around four vectors and 4 k, below and above which the choice is made otherwise.
    for experts, k in (
        (1, 1), (2, 1), (2, 2), (3, 2), (7, 7), (8, 2), (15, 4), (16, 16), (17, 3), (33, 6), (60, 4), (64, 8), (65, 8),
        (65, 17), (127, 31), (128, 8), (128, 128), (129, 5), (257, 10), (1031, 70),
    ):  # fmt: skip
        for way in range(4) if experts in (7, 33, 128) else ((experts + k) % 4,):
            yield _case(5, experts, k, way)
    for number, tokens in enumerate((0, 1, 2, 3, 8, 16, 31, 64, 127, 128)):
        yield _case(tokens, 60, 4, number, layouts=tokens in (3, 31))
    for way in range(4):
        yield _case(9, 40, 6, way, scale=2.5, layouts=True)
        yield _case(3, 10, 2, way, scale=-0.5)
        yield _case(3, 10, 2, way, scale=0.0)
        for kind in SMOOTH_KINDS:
            yield _case(6, 33, 5, way, kind)
            yield _case(4, 70, 4, way, kind)
        for kind in ODD_KINDS:
            yield _case(6, 33, 5, way, kind, gradients=False)
            yield _case(4, 70, 4, way, kind, gradients=False)


def _timed(sizes: tuple[tuple[int, int, int, int], ...], dtypes: tuple[torch.dtype, ...]) -> tuple[Case, ...]:
    return tuple(_case(*size, dtypes=dtypes) for size in sizes)


CONTRACT = Contract(
    name="router_topk",
    family="routing",
    formula="indices = the k largest logits of each token, falling; weights = scale softmax(logits)[indices], or "
    "scale sigmoid(logits[indices]); if normed divided by their sum",
    source="Shazeer et al. 2017, arXiv:1701.06538; DeepSeek-V3, arXiv:2412.19437",
    outputs=("weights", "indices"),
    results={
        "weights": Result(shape=lambda args: (args["logits"].shape[0], args["k"])),
        "indices": Result(
            torch.int64, shape=lambda args: (args["logits"].shape[0], args["k"]), relation=EqualIndex("logits")
        ),
    },
    differentiable=("logits",),
    check=check_of(ARGUMENTS),
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    cases=tuple(_cases()),
    # A token and a prompt of Qwen3-MoE, of Mixtral and of DeepSeek-V3.
    bench_cases=_timed(
        ((1, 128, 8, 2), (128, 128, 8, 2), (4096, 128, 8, 2), (4096, 8, 2, 2), (4096, 256, 8, 3), (4096, 64, 8, 0)),
        (BF16, F32),
    ),
    device_cases=(_case(5003, 128, 8, 0), _case(1003, 250, 20, 2), _case(301, 1024, 50, 1), _case(70, 4096, 9, 3)),
    device_bench_cases=_timed(
        ((16, 128, 8, 2), (16_384, 128, 8, 2), (131_072, 128, 8, 2), (16_384, 256, 8, 3)), (BF16,)
    ),
    errors=errors_of(ARGUMENTS),
)  # fmt: skip
