"""What attention_fp8 is benchmarked against beside torch's own: kernels for 16 bits, whose tensors are dequantised
before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernelworks.ops.attention.attention.baselines import BASELINES as OF_16_BITS
from kernelworks.ops.attention.attention_fp8.torch_kernels import dequantize
from kernelworks.ops.baselines import Args, Maker

__all__ = ["BASELINES"]


def _of_bfloat16(kernel: str, args: Args) -> Callable[[], Any] | None:
    tensors, descales = ([args[name + what] for name in ("q", "k", "v")] for what in ("", "_descale"))
    q, k, v = dequantize(tensors, descales, torch.bfloat16)
    run = OF_16_BITS["cuda"][kernel]({"q": q, "k": k, "v": v, "causal": args["causal"], "scale": args["scale"]})
    return run if args["out_dtype"] == "bfloat16" else None


BASELINES: dict[str, dict[str, Maker]] = {
    "cuda": {f"{kernel} bfloat16": functools.partial(_of_bfloat16, kernel) for kernel in ("flash", "cudnn")}
}
