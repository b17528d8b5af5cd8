"""y[N] = W[N, K] x[K] with W in ggml's Q4_0: a weight matrix of four bits a number times one vector.

No weight is used twice, so the bytes of the weights are the time, and with four bits they are half of what Q8_0 has.
Blocks of 32 along a row are a float16 scale and 16 bytes, 18 together: byte i holds weight i in its lower half and
weight i + 16 in its upper one, each 0 to 15, of which 8 is taken away. The row is [K / 32, 18] bytes; x and y are
float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.climb.baselines_ggml import ggml
from kernelworks.climb.problem import Format, Problem, Size

UNIT_ROUNDOFF = 2.0**-24
BLOCK = 32  # weights that share a scale
BLOCK_BYTES = 2 + BLOCK // 2

Given = dict[str, Tensor]


def inputs(size: Size, generator: torch.Generator) -> Given:
    """Random numbers; in the small verification sizes also rows whose products with x are all positive, and mostly
    positive x: there what is off by a little adds up, where elsewhere it would cancel."""
    weight = torch.randn(size["N"], size["K"], generator=generator)
    x = torch.randn(size["K"], generator=generator)
    if size["K"] < 1024:
        kept = (torch.arange(size["K"]) // BLOCK) % 4 == 3
        x = torch.where(kept, x, x.abs())
        weight[1::2] = weight[1::2].abs() * x.sign()
    return {"W": weight, "x": x}


# ---------------------------------------------------------------- formats


def to_q4_0(given: Given) -> Given:
    """The number of largest magnitude becomes -8, and the scale is stored as float16: as ggml writes it into model
    files."""
    n, k = given["W"].shape
    blocks = given["W"].view(n, k // BLOCK, BLOCK)
    most = blocks.gather(2, blocks.abs().argmax(2, keepdim=True))
    scale = most / -8
    steps = blocks * torch.where(scale != 0, 1 / scale, 0.0)
    whole = (steps + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    packed = whole[..., : BLOCK // 2] | (whole[..., BLOCK // 2 :] << 4)
    return {"W": torch.cat((scale.half().view(torch.uint8), packed), 2), "x": given["x"]}


def dequantised(received: Given) -> Given:
    """What the blocks say, exactly: a float16 times a whole number of four bits fits a float64."""
    raw = received["W"]
    scale, packed = raw[..., :2].contiguous().view(torch.float16), raw[..., 2:]
    whole = torch.cat((packed & 15, packed >> 4), 2).double() - 8
    return {"W": (scale.double() * whole).flatten(1), "x": received["x"].double()}


# ---------------------------------------------------------------- bounds


def gamma(steps: int) -> float:
    return steps * UNIT_ROUNDOFF / (1 - steps * UNIT_ROUNDOFF)


def bound(exactly: Given, reference: Tensor) -> Tensor:
    """gamma_n |W| |x| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5). A term meets a rounding of
    its product, one where a block's scale is multiplied in, and at most K - 1 of sums, however they are grouped."""
    return gamma(exactly["x"].numel() + 1) * (exactly["W"].abs() @ exactly["x"].abs())


def bound_rounded(exactly: Given, reference: Tensor) -> Tensor:
    """The same for a rung that rounds x to multiples of a 127th of the largest of its block: half a step more for each
    element of x, and 4 float32 roundings of the largest: the step, its inverse, the multiplication by each."""
    weight, x = exactly["W"].abs(), exactly["x"].abs()
    largest = x.view(-1, BLOCK).amax(1, keepdim=True).expand(-1, BLOCK).reshape(-1)
    off = largest * (0.5 / 127 + 4 * UNIT_ROUNDOFF)
    return weight @ off + gamma(x.numel() + 4) * (weight @ (x + off))


# ---------------------------------------------------------------- the problem


def bytes_of(weight: float) -> Callable[[Size], float]:
    """Each weight, x and y once."""
    return lambda size: weight * size["N"] * size["K"] + 4.0 * (size["K"] + size["N"])


def q4_0(bound: Callable[[Given, Tensor], Tensor] | None = None) -> Format:
    return Format(to_q4_0, dequantised, bound, bytes_of(BLOCK_BYTES / BLOCK), {"ggml": ggml})


PROBLEM = Problem(
    title="a weight matrix times a vector on the CPU, y[N] = W[N, K] x[K], W in ggml's Q4_0",
    symbol="gemv",
    signature=(*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3, ctypes.c_int64),
    size={"N": 14336, "K": 4096},
    verification_sizes=(
        {"N": 1, "K": 32},
        {"N": 3, "K": 32},
        {"N": 7, "K": 64},
        {"N": 33, "K": 96},
        {"N": 67, "K": 544},
        {"N": 130, "K": 160},
    ),
    inputs=inputs,
    shape=lambda size: (size["N"],),
    reference=lambda exactly: exactly["W"] @ exactly["x"],
    bound=bound,
    flop=lambda size: 2.0 * size["N"] * size["K"],
    bytes=bytes_of(BLOCK_BYTES / BLOCK),
    arguments=lambda size, given, out, threads: (
        size["N"], size["K"], given["W"].data_ptr(), given["x"].data_ptr(), out.data_ptr(), threads,
    ),
    said={
        "ggml": "ggml's CPU backend from llama-cpp-python (pip install llama-cpp-python), its graph built once, on the "
        "same memory; it rounds x to 8 bits",
    },
    unit="GB/s",
    rows="N",
    formats={
        "q4_0": q4_0(),
        "q4_0_x8": q4_0(bound_rounded),  # x in 8 bits too
        "q4_0_x8_large": q4_0(bound_rounded),  # the same, in memory of its own: it is moved to large pages
    },
    lessons="src/kernelworks/simd/packed/formats.hpp",
)  # fmt: skip
