"""attention_fp8 as torch has it: tensors in more bits, then its attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.ops.attention.attention_fp8.contract import DESCALES, DTYPES, TEMPLATE, TENSORS, per_head, result_like
from kernelworks.templates.attention import torch_kernels
from kernelworks.templates.attention.reference import DenseCall

__all__ = ["composite", "dequantize", "native", "result_like"]


def dequantize(tensors: Sequence[Tensor], descales: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """q, k and v in ``dtype``, each element rounded once behind a product in float32."""
    groups = tensors[1].shape[1]
    pairs = zip(tensors, descales, strict=True)
    return [(t.float() * per_head(descale, t.shape[1], groups)).to(dtype) for t, descale in pairs]


def _inner(q: Tensor) -> torch.dtype:
    """What torch's attention is given: bfloat16, which holds every number of 8 bits; float32 on a CPU, which loses
    nothing by it."""
    return torch.float32 if q.device.type == "cpu" else torch.bfloat16


def _by(function: Callable[..., Any], args: dict[str, Any]) -> Tensor:
    tensors, descales = ([args[name] for name in names] for names in (TENSORS, DESCALES))
    q, k, v = dequantize(tensors, descales, _inner(args["q"]))
    call = DenseCall.of(q, k, v, args["causal"], None, args["scale"])
    output: Tensor = function(**call.args, with_lse=False)
    return output.to(DTYPES[args["out_dtype"]])


def composite(*given: Any, **more: Any) -> Any:
    """What a transform can look into."""
    return _by(torch_kernels.composite, TEMPLATE.named_arguments(given, more))


def native(*given: Any) -> Any:
    """torch's function, whichever kernel it takes."""
    return _by(torch_kernels.native, TEMPLATE.named_arguments(given))
