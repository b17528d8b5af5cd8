"""router_topk on the GPU: a program holds the logits of some tokens, and takes the largest one after the other."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, kernel
from kernelworks.contract.memory_layout import as_rows
from kernelworks.ops.routing.router_topk.contract import EPS
from kernelworks.tile.exp import exp, exp_to_add

CONFIGS = configs(__file__)


@kernel
def _sigmoid(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@kernel
def _largest(v):
    """Of each line; NaN where it holds one."""
    top = tl.max(v, 1)[:, None]
    return tl.where(tl.sum((v != v).to(tl.int32), 1)[:, None] > 0, float("nan"), top)


@triton.jit
def _forward(
    logits, weights, indices, tokens, experts, k, stride, scale, EPS: tl.constexpr, SIGMOID: tl.constexpr,
    NORMED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    place, number = tl.arange(0, BLOCK)[None, :], tl.arange(0, K)[None, :]
    inside, asked = (token < tokens) & (place < experts), (token < tokens) & (number < k)
    v = tl.load(logits + token * stride + place, mask=inside, other=float("-inf")).to(tl.float32)
    # A candidate is a logit's bits, in the order of the numbers, above its place turned around: no two are equal.
    bits = v.to(tl.int32, bitcast=True)
    bits = tl.where(bits == -(2**31), 0, bits)
    key = tl.where(v == v, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    c = tl.where(inside, (key.to(tl.int64) << 32) | (0xFFFFFFFF - place.to(tl.int64)), -(2**63))
    taken = tl.full([ROWS, K], -(2**63), tl.int64)
    for j in range(k):
        best = tl.max(c, 1)[:, None]
        taken = tl.where(number == j, best, taken)
        c = tl.where(c == best, -(2**63), c)
    tl.store(indices + token * k + number, 0xFFFFFFFF - (taken & 0xFFFFFFFF), mask=asked)
    bits = (taken >> 32).to(tl.int32)
    chosen = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    if SIGMOID:
        score = tl.where(asked, _sigmoid(chosen), 0.0)
        if NORMED:
            score = score / (tl.sum(score, 1)[:, None] + EPS)
    else:
        top = _largest(tl.where(number == 0, chosen, float("-inf")))
        if NORMED:
            total = tl.sum(tl.where(asked, exp_to_add(chosen - top), 0.0), 1)[:, None]
        else:
            total = tl.sum(tl.where(inside, exp_to_add(v - top), 0.0), 1)[:, None]
        score = tl.div_rn(exp(chosen - top), total)
    tl.store(weights + token * k + number, score * scale, mask=asked)


@triton.jit
def _backward(
    grad, logits, indices, out, tokens, experts, k, grad_stride, stride, scale, EPS: tl.constexpr,
    SIGMOID: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside, there = (token < tokens) & (place < experts), token < tokens
    v = tl.load(logits + token * stride + place, mask=inside, other=float("-inf")).to(tl.float32)
    flow = tl.zeros([ROWS, BLOCK], tl.float32)
    chosen = tl.zeros([ROWS, BLOCK], tl.int32)
    for j in range(k):
        expert = tl.load(indices + token * k + j, mask=there, other=-1)
        own = tl.load(grad + token * grad_stride + j, mask=there, other=0.0).to(tl.float32)
        flow = tl.where(place == expert, own, flow)
        chosen = tl.where(place == expert, 1, chosen)
    counts = (chosen > 0) if SIGMOID or NORMED else inside
    if SIGMOID:
        score = tl.where(counts, _sigmoid(v), 0.0)
        slope = score * _sigmoid(-v)
    else:
        top = _largest(tl.where(counts, v, float("-inf")))
        total = tl.sum(tl.where(counts, exp_to_add(v - top), 0.0), 1)[:, None]
        score = tl.where(counts, tl.div_rn(exp(v - top), total), 0.0)
        slope = score
    if SIGMOID and NORMED:
        total = tl.sum(score, 1)[:, None] + EPS
        score = score / total
        slope = slope / total
    if NORMED or not SIGMOID:
        flow -= tl.sum(flow * score, 1)[:, None]
    tl.store(out + token * experts + place, tl.where(counts, flow * scale * slope, 0.0), mask=inside)


FORWARD, BACKWARD = Kernel(_forward), Kernel(_backward)


@functools.cache
def _launch(
    which: Kernel, name: str, experts: int, dtype: torch.dtype, scoring: str, normed: bool, width: int
) -> Launch:
    return which.at(
        EPS=EPS, SIGMOID=scoring == "sigmoid", NORMED=normed, BLOCK=triton.next_power_of_2(experts), K=width,
        **CONFIGS.pick(name, N=experts, dtype=dtype),
    )  # fmt: skip


def forward(logits: Tensor, k: int, scoring: str, norm_topk_prob: bool, scale: float, out: Any = None) -> Any:
    tokens, experts = logits.shape
    weights, indices = out or (logits.new_empty((tokens, k)), logits.new_empty((tokens, k), dtype=torch.int64))
    if tokens:
        rows = as_rows(logits)
        launch = _launch(
            FORWARD, "forward", experts, logits.dtype, scoring, norm_topk_prob, triton.next_power_of_2(k)
        )  # fmt: skip
        grid = (triton.cdiv(tokens, launch.constants["ROWS"]), 1, 1)
        launch(grid, rows, weights, indices, tokens, experts, k, rows.stride(0), float(scale))
    return weights, indices


def backward(
    grad: Tensor, logits: Tensor, indices: Tensor, scoring: str, norm_topk_prob: bool, scale: float, out: Any = None
) -> Tensor:
    tokens, experts = logits.shape
    grad_logits: Tensor = logits.new_empty((tokens, experts)) if out is None else out
    if tokens:
        rows, flows = as_rows(logits), as_rows(grad)
        launch = _launch(BACKWARD, "backward", experts, logits.dtype, scoring, norm_topk_prob, 1)
        launch(
            (triton.cdiv(tokens, launch.constants["ROWS"]), 1, 1), flows, rows, indices.contiguous(), grad_logits,
            tokens, experts, indices.shape[1], flows.stride(0), rows.stride(0), float(scale),
        )  # fmt: skip
    return grad_logits
