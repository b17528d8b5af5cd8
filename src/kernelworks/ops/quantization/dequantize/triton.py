"""dequantize on a GPU: each number from its block."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.contract.packed_formats import FORMATS
from kernelworks.ops.quantization.dequantize.contract import DTYPES
from kernelworks.tile.packed_blocks import decoded_numbers

CONFIGS = configs(__file__)


@triton.jit
def _dequantize(out, packed, n, FORMAT: tl.constexpr, BLOCK: tl.constexpr):
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, decoded_numbers(packed, k, k < n, FORMAT), mask=k < n)


DEQUANTIZE = Kernel(_dequantize)


def forward(packed: Tensor, format: str, dtype: str, out: Any = None) -> Tensor:
    found = FORMATS[format]
    shape = (*packed.shape[:-1], found.unpacked_size(packed.shape[-1]))
    output: Tensor = packed.new_empty(shape, dtype=DTYPES[dtype]) if out is None else out
    n = output.numel()
    if n:
        chosen = CONFIGS.pick("dequantize", n=n)
        DEQUANTIZE.at(FORMAT=found.number, **chosen)((triton.cdiv(n, chosen["BLOCK"]), 1, 1), output, packed, n)
    return output
