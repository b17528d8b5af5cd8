"""leaky_relu: output = x where x > 0, else negative_slope x.

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.leaky_relu.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "leaky_relu"]


@overload
def leaky_relu(
    x: Array, negative_slope: float = 0.01, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def leaky_relu(
    input: Array,
    negative_slope: float = 0.01,
    inplace: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def leaky_relu(
    x: Any = ABSENT,
    negative_slope: Any = 0.01,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = x where x > 0, else negative_slope x``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        negative_slope: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 3 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Maas, Hannun and Ng, Rectifier Nonlinearities Improve Neural Network Acoustic Models, ICML 2013.
    """
    if torchs or inplace is not False:
        return TORCH_SIGNATURE((x, negative_slope), torchs, {"inplace": inplace}, out, kernel)
    return OP.call(x, negative_slope, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, negative_slope: Any = 0.01, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place, torch's own function writes" if inplace else (input, negative_slope)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"})
