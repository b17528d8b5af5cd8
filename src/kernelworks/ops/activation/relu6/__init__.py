"""relu6: output = min(max(x, 0), 6).

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.relu6.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "relu6"]


@overload
def relu6(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def relu6(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def relu6(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = min(max(x, 0), 6)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 4 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Krizhevsky, Convolutional Deep Belief Networks on CIFAR-10, 2010.
    """
    if torchs or inplace is not False:
        return TORCH_SIGNATURE((x,), torchs, {"inplace": inplace}, out, kernel)
    return OP.call(x, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place, torch's own function writes" if inplace else (input,)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"}, operator="relu6")
