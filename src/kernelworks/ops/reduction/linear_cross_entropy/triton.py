"""linear_cross_entropy on the GPU: rows are taken some thousand at a time, their logits lie in one buffer.

The vendor's product makes a chunk's logits, cross-entropy turns them into what flows into them where they lie, and two
more products make the gradients of it. The chunk is small beside the weight and its gradient, or the device's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.contract.memory_layout import as_rows
from kernelworks.ops.reduction.cross_entropy.triton import PartialSums, Rows, count_valid_rows, finish, shape
from kernelworks.ops.reduction.linear_cross_entropy.contract import CHUNK

CONFIGS = configs(__file__)
SHARE = 0.32  # of x and weight: what the logits of a chunk may take
ALWAYS = 1 << 26  # bytes that they may take in any case
OF_MEMORY, OF_LOGITS = 64, 4  # a 64th of the device's memory they may take too, where that is no more than a quarter
TILE = 128, 256  # of the products: chunks are whole tiles

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
ValidRows = tuple[Tensor, Tensor | None, int]  # every row's target, how many rows count, the target that does not


@triton.jit
def _scale(
    gradient, grad, target, count, size, K, ignore_index, BLOCK: tl.constexpr
):  # fmt: skip
    """The gradient times what flows in; nothing is read or written where that is 1.

    What no row that counts flows into stays 0 whatever flows in, infinity and NaN too: a line of K numbers whose
    target is ignored, or (without `target`) everything, where no row counts.
    """
    factor = tl.load(grad).to(tl.float32)
    if factor != 1.0:
        some = tl.load(count) > 0
        for begin in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
            at = begin + tl.arange(0, BLOCK)
            scaled = tl.load(gradient + at, mask=at < size, other=0.0).to(tl.float32) * factor
            if target is None:
                scaled = tl.where(some, scaled, 0.0)
            else:
                ignored = tl.load(target + at // K, mask=at < size, other=0) == ignore_index
                scaled = tl.where(ignored, 0.0, scaled)
            tl.store(gradient + at, scaled, mask=at < size)


SCALE = Kernel(_scale)


@contextmanager
def _sums_in_float32() -> Iterator[None]:
    """The vendor's products may add up parts of a sum in 16 bits unless they are told not to."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = before


@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Bytes of its memory, and its multiprocessors."""
    if device.type != "cuda":
        return 0, 1
    found = torch.cuda.get_device_properties(device)
    return found.total_memory, found.multi_processor_count


def _chunk(m: int, x: Tensor, weight: Tensor) -> int:
    """How many rows are taken at a time: of what fits, and is no less than half of it, what leaves the fewest
    multiprocessors idle while x's gradient is made, whose tiles are few and long."""
    (n, k), (memory, multiprocessors) = weight.shape, _device(x.device)
    line = n * weight.itemsize
    budget = max(SHARE * (x.nbytes + weight.nbytes), ALWAYS, min(memory / OF_MEMORY, m * line / OF_LOGITS))
    most = max(int(budget / line), CHUNK)
    if most >= m:
        return max(1, m)

    def busy(rows: int) -> float:
        tiles = triton.cdiv(rows, TILE[0]) * triton.cdiv(k, TILE[1])
        return tiles / multiprocessors / triton.cdiv(tiles, multiprocessors)

    least = max(CHUNK, triton.cdiv(most // 2, TILE[0]) * TILE[0])
    return max(range(least, most + 1, TILE[0]), key=lambda rows: (busy(rows), rows))


def _swept(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, needs: list[bool] | None,
    grad: Tensor | None = None,
) -> tuple[PartialSums, ValidRows, Gradients]:  # fmt: skip
    """Goes over the rows once: what they publish, which count, and the gradients that ``needs`` asks for, for ``grad``
    (1 where it is None)."""
    (n, k), m = weight.shape, target.numel()
    wanted, rows = target.reshape(-1).contiguous(), as_rows(x).reshape(m, k)
    published = PartialSums(m, shape(n, x.dtype), x.device)
    every = needs is not None and any(needs)
    count = count_valid_rows(wanted, ignore_index) if every else None
    grad_x = torch.empty((m, k), dtype=x.dtype, device=x.device) if needs and needs[0] else None
    grad_weight = torch.empty((n, k), dtype=x.dtype, device=x.device) if needs and needs[1] else None
    if grad_weight is not None and not m:
        grad_weight.zero_()
    grad_bias = torch.zeros(n, dtype=torch.float32, device=x.device) if needs and needs[2] else None
    size = _chunk(m, x, weight)
    buffer = torch.empty((size, n), dtype=x.dtype, device=x.device)
    with _sums_in_float32():
        for begin in range(0, m, size):
            end = min(begin + size, m)
            logits, part = buffer[: end - begin], rows[begin:end]
            if bias is None:
                torch.mm(part, weight.T, out=logits)
            else:
                torch.addmm(bias, part, weight.T, out=logits)
            chunk = Rows(logits, wanted[begin:end], ignore_index, count, published.rows(begin, end))
            chunk.step(logits if every else None, grad)
            if grad_x is not None:
                torch.mm(logits, weight, out=grad_x[begin:end])
            if grad_weight is not None and begin == 0:
                torch.mm(logits.T, part, out=grad_weight)
            elif grad_weight is not None:
                torch.addmm(grad_weight, logits.T, part, out=grad_weight)
            if grad_bias is not None:
                grad_bias += logits.sum(0, dtype=torch.float32)
    return published, (wanted, count, ignore_index), (
        None if grad_x is None else grad_x.view(x.shape),
        grad_weight,
        None if grad_bias is None else grad_bias.to(x.dtype),
    )  # fmt: skip


def _loss(x: Tensor, weight: Tensor, published: PartialSums, wanted: Tensor, ignore_index: int, out: Any) -> Tensor:
    loss = torch.empty((), dtype=torch.float32, device=x.device) if out is None else out
    n = weight.shape[0]
    return finish(published, wanted, shape(n, x.dtype), n, ignore_index, "mean", loss)


def forward(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, out: Tensor | None = None
) -> Tensor:
    published, (wanted, *_), _ = _swept(x, weight, target, bias, ignore_index, None)
    return _loss(x, weight, published, wanted, ignore_index, out)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    gradients = _swept(x, weight, target, bias, ignore_index, needs, grad)[2]
    return tuple(x.new_empty(0) if g is None else g for g in gradients)


def training(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, needs: list[bool]
) -> tuple[Tensor, tuple[ValidRows, Gradients]]:
    """The loss, and what ``resumed`` needs: which rows count, and the gradients for a 1 that flows in."""
    published, counts, gradients = _swept(x, weight, target, bias, ignore_index, needs)
    return _loss(x, weight, published, counts[0], ignore_index, None), (counts, gradients)


def resumed(kept: tuple[ValidRows, Gradients], grad: Tensor) -> Gradients:
    """The gradients for what flows in."""
    (target, count, ignore_index), gradients = kept
    for name, gradient in zip(("x", "weight", "bias"), gradients, strict=True):
        if gradient is not None and gradient.numel():
            settings = CONFIGS.pick("scale", elements=gradient.numel(), dtype=gradient.dtype)
            blocks = min(triton.cdiv(gradient.numel(), settings["BLOCK"]), 1056)
            lines = target if name == "x" else None
            SCALE.at(**settings)(
                (blocks, 1, 1), gradient, grad, lines, count, gradient.numel(), gradient.shape[-1], ignore_index
            )
    return gradients
