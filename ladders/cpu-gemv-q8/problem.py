"""y[N] = W[N, K] x[K]: a weight matrix times one vector, what a language model does for every token it writes.

No weight is used twice, so the bytes of the weights are the time, and their format is the first choice. Rungs take the
weights as bfloat16, or as ggml's Q8_0: blocks of 32 along a row, each a float16 scale and 32 int8, 34 bytes together,
the row [K / 32, 34] bytes. x and y are float32; x holds values that bfloat16 has, so that libraries which want x in
bfloat16 compute the same.
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
BLOCK_BYTES = 2 + BLOCK

Given = dict[str, Tensor]


def inputs(size: Size, generator: torch.Generator) -> Given:
    """Random numbers; in the small verification sizes also rows whose products with x are all positive, and mostly
    positive x: there what is off by a little adds up, where elsewhere it would cancel."""
    weight = torch.randn(size["N"], size["K"], generator=generator)
    x = torch.randn(size["K"], generator=generator).bfloat16().float()
    if size["K"] < 1024:
        kept = (torch.arange(size["K"]) // BLOCK) % 4 == 3
        x = torch.where(kept, x, x.abs())
        weight[1::2] = weight[1::2].abs() * x.sign()
    return {"W": weight, "x": x}


# ---------------------------------------------------------------- formats


def to_bf16(given: Given) -> Given:
    return {"W": given["W"].bfloat16(), "x": given["x"]}


def to_q8_0(given: Given) -> Given:
    """The largest of a block becomes 127, and the scale is stored as float16: as ggml writes it into model files."""
    n, k = given["W"].shape
    blocks = given["W"].view(n, k // BLOCK, BLOCK)
    scale = blocks.abs().amax(2, keepdim=True) / 127
    steps = blocks * torch.where(scale > 0, 1 / scale, 0.0)
    whole = torch.where(steps < 0, steps - 0.5, steps + 0.5).trunc().to(torch.int8)  # halves away from zero
    return {"W": torch.cat((scale.half().view(torch.uint8), whole.view(torch.uint8)), 2), "x": given["x"]}


def exact(received: Given) -> Given:
    return {name: value.double() for name, value in received.items()}


def dequantised(received: Given) -> Given:
    """What the blocks say, exactly: a float16 times an int8 fits a float64."""
    raw = received["W"]
    scale, whole = raw[..., :2].contiguous().view(torch.float16), raw[..., 2:].view(torch.int8)
    return {"W": (scale.double() * whole.double()).flatten(1), "x": received["x"].double()}


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


def torch_mv(given: Given, threads: int) -> Callable[[], Tensor]:
    """torch wants x in the dtype of the weight, and rounds y to it."""
    weight, x = given["W"], given["x"].bfloat16()
    out = torch.empty(weight.shape[0], dtype=torch.bfloat16)
    return lambda: torch.mv(weight, x, out=out)


def bytes_of(weight: float) -> Callable[[Size], float]:
    """Each weight, x and y once."""
    return lambda size: weight * size["N"] * size["K"] + 4.0 * (size["K"] + size["N"])


def q8_0(bound: Callable[[Given, Tensor], Tensor] | None = None) -> Format:
    return Format(to_q8_0, dequantised, bound, bytes_of(BLOCK_BYTES / BLOCK), {"ggml": ggml})


PROBLEM = Problem(
    title="a weight matrix times a vector on the CPU, y[N] = W[N, K] x[K], W in bfloat16 or in ggml's Q8_0",
    symbol="gemv",
    signature=(*[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3, ctypes.c_int64),
    size={"N": 14336, "K": 4096},
    verification_sizes=(
        {"N": 1, "K": 1},
        {"N": 5, "K": 33},
        {"N": 3, "K": 32},
        {"N": 7, "K": 64},
        {"N": 33, "K": 96},
        {"N": 70, "K": 300},
        {"N": 67, "K": 544},
        {"N": 130, "K": 160},
    ),
    inputs=inputs,
    shape=lambda size: (size["N"],),
    reference=lambda exactly: exactly["W"] @ exactly["x"],
    bound=bound,
    flop=lambda size: 2.0 * size["N"] * size["K"],
    bytes=bytes_of(4.0),
    arguments=lambda size, given, out, threads: (
        size["N"], size["K"], given["W"].data_ptr(), given["x"].data_ptr(), out.data_ptr(), threads,
    ),
    said={
        "torch": "torch.mv in bfloat16, which rounds y to bfloat16",
        "ggml": "ggml's CPU backend from llama-cpp-python (pip install llama-cpp-python), its graph built once, on the "
        "same memory; beside weights in Q8_0 it rounds x to 8 bits",
    },
    unit="GB/s",
    also=({"N": 4096, "K": 14336},),  # the way back from the wide layer
    rows="N",
    formats={
        "bf16": Format(to_bf16, exact, bound, bytes_of(2.0), {"torch": torch_mv, "ggml": ggml}),
        "q8_0": q8_0(),
        "q8_0_x8": q8_0(bound_rounded),  # x in 8 bits too
        "q8_0_x8_large": q8_0(bound_rounded),  # the same, in memory of its own: it is moved to large pages
    },
    lessons="src/kernelworks/ops/linear/linear/stream.hpp",
)  # fmt: skip
