"""Sizes of nought, in every dimension of every op: the answer is torch's own, forwards and backwards, or torch refuses
too."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from op_kernels import ALL_NAMES
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.nn.optim import SGD, AdamW


def t(*sizes: int) -> Tensor:
    torch.default_generator.manual_seed(sum(sizes))
    return torch.randn(sizes, requires_grad=True)


def whole(most: int, *sizes: int) -> Tensor:
    torch.default_generator.manual_seed(0)
    return torch.randint(0, max(most, 1), sizes)


class Case(NamedTuple):
    """``sizes`` by name, each of which is made nought; ``give`` makes the arguments; ``ours`` and ``torchs`` call."""

    sizes: dict[str, int]
    give: Callable[..., tuple[Any, ...]]
    ours: Callable[..., Any]
    torchs: Callable[..., Any]


def by_definition(name: str, **more: Any) -> Callable[..., Any]:
    """The op by its contract's definition, of ops that torch has no function of."""
    return functools.partial(getattr(kw, name), kernel="reference", **more)


def packed(rows: int, blocks: int) -> Tensor:
    return kw.quantize(t(rows, 32 * blocks).detach(), "Q8_0", kernel="reference")


def sdpa(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=k.shape[1] != q.shape[1], **named)


def blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    wide = mask.repeat_interleave(128, -1).repeat_interleave(128, -2)[:, :, : q.shape[2], : k.shape[2]]
    return sdpa(q, k, v, attn_mask=wide)


def sequences(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, *_: Any) -> Tensor:
    one = [tuple(x[a:b].transpose(0, 1)[None] for x in (q, k, v)) for a, b in itertools.pairwise(ends.tolist())]
    made = [sdpa(*each)[0].transpose(0, 1) for each in one]
    return torch.cat(made) if made else q.new_zeros(q.shape) + 0 * q


def groups(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor) -> Tensor:
    one = [
        F.linear(x[a:b], w, c)
        for (a, b), w, c in zip(itertools.pairwise([0, *ends.tolist()]), weight, bias, strict=True)
    ]
    rest = x.new_zeros(len(x) - (int(ends[-1]) if len(ends) else 0), weight.shape[1])
    return torch.cat([*one, rest + 0 * (x.nansum() + weight.sum() + bias.sum())])


def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    def one(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        c, s = (each.chunk(2, -1)[0] for each in (cos, sin))
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    return one(q), one(k)


MATRIX = {"M": 3, "N": 5}
PRODUCT = {"M": 3, "N": 5, "K": 4}
HEADS = {"B": 2, "H": 2, "Lq": 3, "Lk": 4, "D": 8}


def heads(B: int, H: int, Lq: int, Lk: int, D: int) -> tuple[Tensor, ...]:
    return t(B, H, Lq, D), t(B, H, Lk, D), t(B, H, Lk, D)


CASES: dict[str, Case] = {
    "gelu": Case(MATRIX, lambda M, N: (t(M, N),), kw.gelu, F.gelu),
    "gelu_mul": Case(MATRIX, lambda M, N: (t(M, N), t(M, N)), kw.gelu_mul, lambda g, u: F.gelu(g) * u),
    "relu": Case(MATRIX, lambda M, N: (t(M, N),), kw.relu, F.relu),
    "hardswish": Case(MATRIX, lambda M, N: (t(M, N),), kw.hardswish, F.hardswish),
    "mish": Case(MATRIX, lambda M, N: (t(M, N),), kw.mish, F.mish),
    "softplus": Case(MATRIX, lambda M, N: (t(M, N), 0.5, 20.0), kw.softplus, F.softplus),
    "silu_mul": Case(MATRIX, lambda M, N: (t(M, N), t(M, N)), kw.silu_mul, lambda g, u: F.silu(g) * u),
    "attention": Case(HEADS, heads, kw.attention, sdpa),
    "attention, causal": Case(
        HEADS, heads, lambda *a, **n: kw.attention(*a, causal="top_left", **n), lambda *a: sdpa(*a, is_causal=True)
    ),
    "attention of groups": Case(
        {**HEADS, "G": 2}, lambda B, H, Lq, Lk, D, G: (t(B, H * G, Lq, D), t(B, H, Lk, D), t(B, H, Lk, D)),
        kw.attention, sdpa,
    ),
    "attention_fp8": Case(
        HEADS, lambda B, H, Lq, Lk, D: (
            *(x.detach().to(torch.float8_e4m3fn) for x in heads(B, H, Lq, Lk, D)),
            *(torch.ones(B, H) for _ in range(3)),
        ),
        lambda *a, **n: kw.attention_fp8(*a, out_dtype=torch.float32, **n),
        lambda q, k, v, *_: sdpa(q.float(), k.float(), v.float()),
    ),
    "block_sparse_attention": Case(
        {**HEADS, "D": 64}, lambda B, H, Lq, Lk, D: (
            *heads(B, H, Lq, Lk, D), torch.ones(B, H, -(-Lq // 128), -(-Lk // 128), dtype=torch.bool)
        ),
        kw.block_sparse_attention, blocks,
    ),
    "paged_attention": Case(
        {"T": 5, "H": 2, "D": 8, "N": 3}, lambda T, H, D, N: (
            t(T, H, D).detach(), t(N, 4, H, D).detach(), t(N, 4, H, D).detach(), torch.tensor([0, min(T, 2), T]),
            torch.tensor([7, 4]) * (N > 0), torch.tensor([[2, 0], [1, -1]]),
        ),
        kw.paged_attention, by_definition("paged_attention"),
    ),
    "varlen_attn": Case(
        {"T": 5, "H": 2, "D": 8}, lambda T, H, D: (
            t(T, H, D), t(T, H, D), t(T, H, D), *(torch.tensor([0, min(T, 2), T], dtype=torch.int32),) * 2, T, T
        ),
        kw.varlen_attn, sequences,
    ),
    "grouped_linear": Case(
        {**PRODUCT, "E": 2}, lambda M, N, K, E: (
            t(M, K), t(E, N, K), torch.tensor([M * (g + 1) // E for g in range(E)], dtype=torch.int32), t(E, N)
        ),
        kw.grouped_linear, groups,
    ),
    "combine": Case(
        {"M": 3, "K": 2, "R": 5, "N": 6}, lambda M, K, R, N: (t(R, N), t(M, K), whole(max(R, 1), M, K)), kw.combine,
        by_definition("combine"),
    ),
    "router_topk": Case({"M": 3, "E": 4}, lambda M, E: (t(M, E),), lambda x, **n: kw.router_topk(x, 2, **n),
                        by_definition("router_topk", k=2)),
    "linear": Case(PRODUCT, lambda M, N, K: (t(M, K), t(N, K), t(N)), kw.linear, F.linear),
    "linear_add": Case(
        PRODUCT, lambda M, N, K: (t(M, K), t(N, K), t(M, N), t(N)), kw.linear_add,
        lambda x, w, r, b: F.linear(x, w, b) + r,
    ),
    "linear_gelu": Case(
        PRODUCT, lambda M, N, K: (t(M, K), t(N, K), t(N)), kw.linear_gelu, lambda *a: F.gelu(F.linear(*a))
    ),
    "linear_silu_mul": Case(
        PRODUCT, lambda M, N, K: (t(M, K), t(N, K), t(N, K)), kw.linear_silu_mul,
        lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u),
    ),
    "rms_norm_linear": Case(
        PRODUCT, lambda M, N, K: (t(M, K), t(N, K), t(N)), lambda *a, **n: kw.rms_norm_linear(*a, eps=1e-5, **n),
        lambda x, w, b: F.linear(F.rms_norm(x, (x.shape[-1],), eps=1e-5), w, b),
    ),
    "embedding_bag": Case(  # torch refuses rows of nothing, and reads past the end of no offsets
        {"B": 2, "V": 6}, lambda B, V: (whole(V, 4 * (B * V > 0)), t(V, 5), torch.arange(B) * (V > 0)),
        kw.embedding_bag, F.embedding_bag,
    ),
    "embedding": Case({"M": 3, "V": 6, "N": 5}, lambda M, V, N: (whole(V, M), t(V, N)), kw.embedding, F.embedding),
    "add_layer_norm": Case(
        MATRIX, lambda M, N: (t(M, N), t(M, N), t(N), t(N)), lambda *a, **n: kw.add_layer_norm(*a, eps=1e-5, **n),
        lambda x, r, w, b: (F.layer_norm(x + r, (x.shape[-1],), w, b), x + r),
    ),
    "layer_norm": Case(
        MATRIX, lambda M, N: (t(M, N), t(N), t(N)), lambda *a, **n: kw.layer_norm(*a, eps=1e-5, **n),
        lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
    ),
    "rms_norm": Case(
        MATRIX, lambda M, N: (t(M, N), t(N)), lambda *a, **n: kw.rms_norm(*a, eps=1e-5, **n),
        lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5),
    ),
    "rope": Case(
        {"B": 2, "H": 2, "L": 3, "D": 8},
        lambda B, H, L, D: (t(B, H, L, D), t(B, H, L, D), *(x.detach() for x in (t(L, D), t(L, D)))),
        lambda q, k, c, s, **n: kw.rope(q, k, *(torch.cat([x.chunk(2, -1)[0]] * 2, -1) for x in (c, s)), **n), rotated,
    ),
    "argmax": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.argmax(x, -1, **n), lambda x: x.argmax(-1)),
    "argmin": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.argmin(x, -1, **n), lambda x: x.argmin(-1)),
    "argmin of all": Case(MATRIX, lambda M, N: (t(M, N),), kw.argmin, torch.argmin),
    "argmax of all": Case(MATRIX, lambda M, N: (t(M, N),), kw.argmax, torch.argmax),
    "nll_loss": Case(MATRIX, lambda M, N: (t(M, N), whole(N, M)), kw.nll_loss, F.nll_loss),
    "cross_entropy": Case(MATRIX, lambda M, N: (t(M, N), whole(N, M)), kw.cross_entropy, F.cross_entropy),
    "cross_entropy, summed": Case(
        MATRIX, lambda M, N: (t(M, N), whole(N, M)), lambda *a, **n: kw.cross_entropy(*a, reduction="sum", **n),
        lambda *a: F.cross_entropy(*a, reduction="sum"),
    ),
    "cross_entropy, of each": Case(
        MATRIX, lambda M, N: (t(M, N), whole(N, M)), lambda *a, **n: kw.cross_entropy(*a, reduction="none", **n),
        lambda *a: F.cross_entropy(*a, reduction="none"),
    ),
    "linear_cross_entropy": Case(
        PRODUCT, lambda M, N, K: (t(M, K), t(N, K), whole(N, M)), kw.linear_cross_entropy,
        lambda x, w, target: F.cross_entropy(F.linear(x, w), target),
    ),
    "log_softmax": Case(MATRIX, lambda M, N: (t(M, N),), kw.log_softmax, lambda x: F.log_softmax(x, -1)),
    "log_softmax, down": Case(
        MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.log_softmax(x, 0, **n), lambda x: F.log_softmax(x, 0)
    ),
    "softmax": Case(MATRIX, lambda M, N: (t(M, N),), kw.softmax, lambda x: F.softmax(x, -1)),
    "softmax, down": Case(
        MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.softmax(x, 0, **n), lambda x: F.softmax(x, 0)
    ),
    "mean": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.mean(x, -1, **n), lambda x: x.mean(-1)),
    "mean of all": Case(MATRIX, lambda M, N: (t(M, N),), kw.mean, torch.mean),
    "norm": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.norm(x, 2, 0, **n), lambda x: x.norm(2, 0)),
    "norm of all": Case(MATRIX, lambda M, N: (t(M, N),), kw.norm, torch.norm),
    "kl_div": Case(MATRIX, lambda M, N: (t(M, N), t(M, N).abs()), kw.kl_div, F.kl_div),
    "kl_div, of each": Case(
        MATRIX, lambda M, N: (t(M, N), t(M, N).abs()), lambda *a, **n: kw.kl_div(*a, reduction="none", **n),
        lambda *a: F.kl_div(*a, reduction="none"),
    ),
    "sum": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.sum(x, -1, **n), lambda x: x.sum(-1)),
    "sum, down": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.sum(x, 0, **n), lambda x: x.sum(0)),
    "sum of all": Case(MATRIX, lambda M, N: (t(M, N),), kw.sum, torch.sum),
    "prod": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.prod(x, -1, **n), lambda x: x.prod(-1)),
    "cosine_similarity": Case(MATRIX, lambda M, N: (t(M, N), t(M, N)),
                              lambda x, y, **n: kw.cosine_similarity(x, y, eps=1e-8, **n), F.cosine_similarity),
    "triplet_margin_loss": Case(MATRIX, lambda M, N: (t(M, N), t(M, N), t(M, N)), kw.triplet_margin_loss,
                                F.triplet_margin_loss),
    "topk": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.topk(x, x.shape[1] // 2, **n),
                 lambda x: torch.topk(x, x.shape[1] // 2)),
    "causal_conv1d": Case({"B": 2}, lambda B: (t(B, 3, 5), t(3, 4), t(3)), kw.causal_conv1d,
                          lambda x, w, b: F.conv1d(F.pad(x, (3, 0)), w[:, None], b, groups=3)),
    "conv2d": Case({"B": 2}, lambda B: (t(B, 3, 5, 4), t(6, 3, 2, 2), t(6)), kw.conv2d, F.conv2d),
    "adaptive_avg_pool2d": Case({"B": 2, "C": 3}, lambda B, C: (t(B, C, 5, 4),),
                                lambda x, **n: kw.adaptive_avg_pool2d(x, (2, 3), **n),
                                lambda x: F.adaptive_avg_pool2d(x, (2, 3))),
    "adaptive_max_pool2d": Case({"B": 2, "C": 3}, lambda B, C: (t(B, C, 5, 4),),
                                lambda x, **n: kw.adaptive_max_pool2d(x, (2, 3), **n),
                                lambda x: F.adaptive_max_pool2d(x, (2, 3))),
    "avg_pool2d": Case({"B": 2, "C": 3}, lambda B, C: (t(B, C, 5, 4),), lambda x, **n: kw.avg_pool2d(x, 2, **n),
                       lambda x: F.avg_pool2d(x, 2)),
    **{f"{fold}_pool{dims}d": Case(
        {"B": 2, "C": 3}, functools.partial(lambda B, C, shape: (t(B, C, *shape),), shape=(5, 4, 6)[:dims]),
        functools.partial(lambda x, ours, **n: ours(x, 2, **n), ours=getattr(kw, f"{fold}_pool{dims}d")),
        functools.partial(lambda x, torchs: torchs(x, 2), torchs=getattr(F, f"{fold}_pool{dims}d")))
       for fold, dims in (("max", 1), ("max", 2), ("max", 3), ("avg", 1), ("avg", 3))},
    **{f"conv{dims}d": Case(
        {"B": 2}, functools.partial(
            lambda B, shape, size: (t(B, 3, *shape), t(6, 3, *size), t(6)), shape=(5, 4, 6)[:dims], size=(2,) * dims),
        getattr(kw, f"conv{dims}d"), getattr(F, f"conv{dims}d")) for dims in (1, 3)},
    **{f"conv_transpose{dims}d": Case(
        {"B": 2}, functools.partial(
            lambda B, shape, size: (t(B, 3, *shape), t(3, 6, *size), t(6)), shape=(5, 4, 6)[:dims], size=(2,) * dims),
        getattr(kw, f"conv_transpose{dims}d"), getattr(F, f"conv_transpose{dims}d")) for dims in (1, 2, 3)},
    "gather": Case(MATRIX, lambda M, N: (t(M, N), torch.zeros(M, N, dtype=torch.int64)),
                   lambda x, i, **n: kw.gather(x, 1, i, **n), lambda x, i: torch.gather(x, 1, i)),
    "index_select": Case({"M": 3, "D": 2}, lambda M, D: (t(4, D), torch.zeros(M, dtype=torch.int64)),
                         lambda x, i, **n: kw.index_select(x, 0, i, **n), lambda x, i: torch.index_select(x, 0, i)),
    "scatter_add": Case(MATRIX, lambda M, N: (t(M, N), torch.zeros(M, N, dtype=torch.int64), t(M, N)),
                        lambda x, i, s, **n: kw.scatter_add(x, 1, i, s, **n),
                        lambda x, i, s: torch.scatter_add(x, 1, i, s)),
    "index_add": Case({"M": 3, "D": 2}, lambda M, D: (t(4, D), torch.zeros(M, dtype=torch.int64), t(M, D)),
                      lambda x, i, s, **n: kw.index_add(x, 0, i, s, **n),
                      lambda x, i, s: torch.index_add(x, 0, i, s)),
    "batch_norm": Case({"B": 3, "C": 4, "L": 5}, lambda B, C, L: (t(B, C, L), t(C), t(C)),
                       lambda x, w, b, **n: kw.batch_norm(x, None, None, w, b, training=True, **n),
                       lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "group_norm": Case({"B": 3, "C": 4, "L": 5}, lambda B, C, L: (t(B, C, L), t(C), t(C)),
                       lambda x, w, b, **n: kw.group_norm(x, 2, w, b, 1e-5, **n),
                       lambda x, w, b: F.group_norm(x, 2, w, b)),
    "instance_norm": Case({"B": 3, "C": 4, "L": 5}, lambda B, C, L: (t(B, C, L), t(C), t(C)),
                          lambda x, w, b, **n: kw.instance_norm(x, weight=w, bias=b, **n),
                          lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    "csr_matmul": Case(  # each row has an entry, if there are columns
        {"M": 3, "K": 4, "D": 2},
        lambda M, K, D: (torch.arange(M + 1) * (K > 0), whole(K, M * (K > 0)), t(M * (K > 0)), t(K, D)), kw.csr_matmul,
        lambda crow, column, values, x: torch.sparse_coo_tensor(
            torch.stack([torch.arange(len(column)), column]), values, (len(crow) - 1, len(x))
        ).to_dense() @ x,
    ),
    "solve": Case({"B": 2, "N": 4, "K": 3}, lambda B, N, K: (t(B, N, N) + 4 * torch.eye(N), t(B, N, K)), kw.solve,
                  torch.linalg.solve),
    "eigh": Case({"B": 2, "N": 4}, lambda B, N: (t(B, N, N) + torch.arange(N).diag(),),
                 lambda x, **n: kw.eigh(x, **n)[0], lambda x: torch.linalg.eigh(x)[0]),
    "cholesky_solve": Case({"B": 2, "N": 4, "K": 3},
                           lambda B, N, K: (t(B, N, K), (t(B, N, N) + 4 * torch.eye(N)).tril()),
                           kw.cholesky_solve, torch.cholesky_solve),
    **{name: Case(MATRIX, lambda M, N: (t(M, N).detach(),), functools.partial(getattr(kw, name), group="self"),
                  torch.clone)
       for name in ("all_gather", "all_reduce", "reduce_scatter")},
    "logcumsumexp": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.logcumsumexp(x, -1, **n),
                         lambda x: torch.logcumsumexp(x, -1)),
    "cumprod": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.cumprod(x, -1, **n),
                    lambda x: torch.cumprod(x, -1)),
    "cumsum": Case(MATRIX, lambda M, N: (t(M, N),), lambda x, **n: kw.cumsum(x, -1, **n),
                   lambda x: torch.cumsum(x, -1)),
    "gated_delta_rule": Case(
        {"B": 2, "T": 3, "H": 2}, lambda B, T, H: (
            t(B, T, H, 4), t(B, T, H, 4), t(B, T, H, 5), -t(B, T, H).detach().abs(), t(B, T, H).sigmoid().detach()
        ),
        lambda *a, **n: kw.gated_delta_rule(*a, **n)[0], lambda *a: kw.gated_delta_rule(*a, kernel="reference")[0],
    ),
    "linear_attention": Case({"B": 2, "T": 3, "H": 2}, lambda B, T, H: (t(B, T, H, 4), t(B, T, H, 4), t(B, T, H, 5)),
                             lambda *a, **n: kw.linear_attention(*a, **n)[0],
                             lambda *a: kw.linear_attention(*a, kernel="reference")[0]),
    "ssd": Case(
        {"B": 2, "T": 3, "H": 2}, lambda B, T, H: (
            t(B, T, H, 5), t(B, T, H).sigmoid().detach(), -t(H).detach().abs(), t(B, T, H, 4), t(B, T, H, 4)
        ),
        kw.ssd, functools.partial(kw.ssd, kernel="reference"),
    ),
    "lstm": Case({"T": 3, "B": 2}, lambda T, B: (t(T, B, 4), t(20, 4), t(20, 5), t(20), t(20), t(B, 5), t(B, 5)),
                 kw.lstm, by_definition("lstm")),
    "gru": Case({"T": 3, "B": 2}, lambda T, B: (t(T, B, 4), t(15, 4), t(15, 5), t(15), t(15), t(B, 5)),
                kw.gru, by_definition("gru")),
    "hadamard_transform": Case({"M": 3}, lambda M: (t(M, 8),), kw.hadamard_transform,
                               by_definition("hadamard_transform")),
    "rfft": Case(MATRIX, lambda M, N: (t(M, N),), kw.rfft, torch.fft.rfft),
    **{name: Case(MATRIX, lambda M, N: (torch.complex(t(M, N), t(M, N)),), getattr(kw, name), getattr(torch.fft, name))
       for name in ("fft", "ifft")},
    "irfft": Case(MATRIX, lambda M, N: (torch.complex(t(M, N), t(M, N)),), kw.irfft, torch.fft.irfft),
    "sort": Case(MATRIX, lambda M, N: (t(M, N),), kw.sort, torch.sort),
    **{name: Case({"N": 5, "M": 4, "D": 3, "E": 2}, lambda N, M, D, E: (t(N, D), t(M, D), t(M, E)),
                  functools.partial(getattr(kw, name), length_scale=1.5), by_definition(name, length_scale=1.5))
       for name in ("kernel_matmul", "matern12_matmul", "matern32_matmul", "matern52_matmul",
                    "laplacian_matmul")},
    "kernel_matrix": Case({"N": 5, "M": 4, "D": 3}, lambda N, M, D: (t(N, D), t(M, D)),
                          functools.partial(kw.kernel_matrix, length_scale=1.5),
                          by_definition("kernel_matrix", length_scale=1.5)),
    **{name: Case({"N": 5, "M": 4, "D": 3}, lambda N, M, D: (t(N, D), t(M, D)), getattr(kw, name),
                  functools.partial(getattr(kw, name), kernel="reference"))
       for name in ("laplacian_kernel", "linear_kernel", "polynomial_kernel")},
    "polynomial_matmul": Case(
        {"N": 5, "M": 4, "D": 3, "E": 2}, lambda N, M, D, E: (t(N, D), t(M, D), t(M, E)),
        functools.partial(kw.polynomial_matmul, length_scale=1.5, degree=3, coef0=1.0),
        by_definition("polynomial_matmul", length_scale=1.5, degree=3, coef0=1.0)),
    "quantize": Case({"M": 3, "B": 2}, lambda M, B: (t(M, 32 * B).detach(),),
                     functools.partial(kw.quantize, format="Q8_0"), by_definition("quantize", format="Q8_0")),
    "dequantize": Case({"M": 3, "B": 2}, lambda M, B: (packed(M, B),),
                       functools.partial(kw.dequantize, format="Q8_0", dtype="float32"),
                       by_definition("dequantize", format="Q8_0", dtype="float32")),
    "rowwise_quantize": Case({"M": 3, "K": 5}, lambda M, K: (t(M, K).detach(), "int8"), kw.rowwise_quantize,
                             by_definition("rowwise_quantize")),
    "rowwise_dequantize": Case({"M": 3, "K": 5}, lambda M, K: (torch.zeros(M, K, dtype=torch.int8), t(M).detach()),
                               kw.rowwise_dequantize, lambda codes, scale: codes.float() * scale.unsqueeze(-1)),
    "rowwise_linear": Case(
        {"M": 3, "N": 4, "K": 5},
        lambda M, N, K: (t(M, K), torch.zeros(N, K, dtype=torch.int8), t(N).detach(), t(N)), kw.rowwise_linear,
        lambda x, w, s, b: x @ w.float().T * s + b,
    ),
    "quantized_linear": Case({"M": 3, "N": 4, "B": 2}, lambda M, N, B: (t(M, 32 * B), packed(N, B)),
                             functools.partial(kw.quantized_linear, format="Q8_0"),
                             by_definition("quantized_linear", format="Q8_0")),
}  # fmt: skip
REFUSED = {  # heads of no dimension
    "attention", "attention_fp8", "block_sparse_attention", "paged_attention", "varlen_attn"
}  # fmt: skip
OTHERWISE = {
    "adam_", "adamw8bit_", "adamw_", "cache_append", "causal_conv1d_update", "clip_grads_", "lion_", "muon_momentum_",
    "sgd_",
}  # they write: below  # fmt: skip


def op_of(name: str) -> str:
    return name.partition(",")[0].partition(" of ")[0]


def noughts(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    for count in (1, 2):
        for names in itertools.combinations(sizes, count):
            yield sizes | dict.fromkeys(names, 0)


def outcome(call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Results and gradients; the error, where it is refused."""
    tensors = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    try:
        made = call(*given)
        made = made if isinstance(made, tuple) else (made,)
        wanted = [m for m in made if m.requires_grad]
        found = (
            torch.autograd.grad(wanted, tensors, [torch.ones_like(m) for m in wanted], allow_unused=True)
            if wanted
            else ()
        )
    except (RuntimeError, ValueError, IndexError) as error:
        return error
    return (*made, *(torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=False)))


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_asked_for_by_name_answers_the_same_or_says_why_not(name: str) -> None:
    case = CASES[name]
    for kernel in OPS[op_of(name)].kernels:
        if kernel.target in ("scalar", *KERNELS):
            for sizes in noughts(case.sizes):
                given = case.give(**sizes)
                want, got = (
                    outcome(case.torchs, given),
                    outcome(functools.partial(case.ours, kernel=kernel.name), given),
                )
                if isinstance(got, Exception):
                    assert str(got), (kernel.name, sizes)
                elif isinstance(want, Exception):
                    assert not got[0].numel(), (kernel.name, sizes)  # torch's libraries refuse to compute nothing
                else:
                    torch.testing.assert_close(got[0], want[0], equal_nan=True)


@pytest.mark.parametrize("kernel", ["", *KERNELS])
@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_size_is_answered_as_by_torch(name: str, kernel: str) -> None:
    case = CASES[name]
    with only(kernel) if kernel else contextlib.nullcontext():
        for sizes in noughts(case.sizes):
            given = case.give(**sizes)
            want, got = outcome(case.torchs, given), outcome(case.ours, given)
            if op_of(name) in REFUSED and not sizes["D"]:
                assert isinstance(got, ValueError) and "1 <= D <= 256" in str(got)
                continue
            if isinstance(want, Exception) or isinstance(got, Exception):
                assert isinstance(want, Exception) and isinstance(got, Exception), (sizes, want, got)
                continue
            for ours, theirs in zip(got, want, strict=True):
                assert ours.shape == theirs.shape and ours.dtype is theirs.dtype, (sizes, ours.shape, theirs.shape)
                torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text, s=sizes: f"{s}: {text}")


def test_every_op_is_asked() -> None:
    asked = {op_of(name) for name in CASES} | OTHERWISE
    assert set(ALL_NAMES) <= asked <= set(OPS)  # siblings of a template have cases of their own where they differ


def test_parameters_without_elements_step_as_torchs_do() -> None:
    for sizes in ([], [(0,)], [(0, 3), (2,)], [(3, 0), (0,)]):
        ends = []
        for kind in (torch.optim.AdamW, AdamW, torch.optim.SGD, SGD):
            parameters = [torch.nn.Parameter(torch.ones(size)) for size in (*sizes, (4,))]
            for p in parameters:
                p.grad = torch.ones_like(p)
            kind(parameters, lr=0.1).step()
            ends.append(parameters)
        torch.testing.assert_close(ends[0], ends[1])
        torch.testing.assert_close(ends[2], ends[3])
        lists = [[torch.ones(size) for size in sizes] for _ in range(4)]
        kw.adamw_(*lists, step=1, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0)
        nothing, codes = torch.ones(0), torch.ones(0, dtype=torch.uint8)
        for kernel in ("scalar", *KERNELS):
            kw.sgd_(*lists[:3], lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False, kernel=kernel)
            kw.sgd_(
                *lists[:2], [], lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, kernel=kernel
            )
            numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}
            kw.adam_(*lists, step=1, eps=1e-8, **numbers, kernel=kernel)
            kw.lion_(*lists[:3], **numbers, kernel=kernel)
            kw.muon_momentum_(*lists[:3], momentum=0.9, nesterov=True, kernel=kernel)
            states = (codes, nothing.clone(), codes.clone(), nothing.clone())
            kw.adamw8bit_(nothing, nothing.clone(), *states, step=1, eps=1e-8, **numbers, kernel=kernel)


@pytest.mark.parametrize(
    "named", [{"softcap": 2.0}, {"window": 2, "causal": "top_left"}, {"with_lse": True}, {"sinks": torch.ones(0)}]
)
def test_attention_of_no_heads_takes_all_that_attention_takes(named: dict[str, Any]) -> None:
    q, k = t(2, 0, 3, 8), t(2, 0, 4, 8)
    made = kw.attention(q, k, k, **named)
    output = made[0] if isinstance(made, tuple) else made
    assert output.shape == q.shape
    output.sum().backward()
    assert q.grad is not None and q.grad.shape == q.shape


@pytest.mark.parametrize("kernel", ["", "scalar", *KERNELS])
def test_no_token_leaves_a_cache_as_it_is(kernel: str) -> None:
    for tokens, blocks, heads, dim in ((0, 3, 2, 8), (2, 0, 2, 8), (2, 3, 0, 8), (2, 3, 2, 0)):
        rows, cache = torch.ones(tokens, heads, dim), torch.full((blocks, 4, heads, dim), torch.nan)
        slots = torch.tensor([-1, 5 if blocks else -1])[:tokens]
        kw.cache_append(rows, rows, cache, cache.clone(), slots, kernel=kernel or None)
        assert cache.isnan().all()
