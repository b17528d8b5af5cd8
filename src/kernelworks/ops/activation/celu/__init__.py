"""celu: output = x where x > 0, else alpha (e^(x / alpha) - 1).

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.celu.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "celu"]


@overload
def celu(x: Array, alpha: float = 1.0, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def celu(
    input: Array, alpha: float = 1.0, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def celu(
    x: Any = ABSENT,
    alpha: Any = 1.0,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = x where x > 0, else alpha (e^(x / alpha) - 1)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        alpha: a number above 0, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 20 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Barron, Continuously Differentiable Exponential Linear Units, 2017 (arXiv:1704.07483).
    """
    if torchs or inplace is not False:
        return TORCH_SIGNATURE((x, alpha), torchs, {"inplace": inplace}, out, kernel)
    return OP.call(x, alpha, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, alpha: Any = 1.0, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place, torch's own function writes" if inplace else (input, alpha)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"})
