"""The rectified linear unit."""

from typing import Any, overload

import torch
import torch.nn.functional as F

from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.relu.contract import CONTRACT, TEMPLATE
from kernelworks.ops.activation.relu.mutants import MUTANTS

__all__ = ["OP", "relu"]


@overload
def relu(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def relu(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def relu(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """Rectified linear unit: ``output = max(x, 0)``; NaN stays NaN.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x. Its gradient is 0 at 0, as torch's.

    Error bound: 0, forward and backward.
    Cost: one operation an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Nair and Hinton, ICML 2010.
    """
    if torchs or inplace is not False:
        return TORCH_SIGNATURE((x,), torchs, {"inplace": inplace}, out, kernel)
    return OP.call(x, out, kernel)


OP = TEMPLATE.op(CONTRACT, F.relu, mutants=MUTANTS, passthrough=Passthrough("relu(x)", (), names={"relu": torch.relu}))


def _torchs(input: Any, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place, torch's own function writes" if inplace else (input,)


TORCH_SIGNATURE = TorchSignature(OP, F.relu, _torchs, {"input": "x"})
