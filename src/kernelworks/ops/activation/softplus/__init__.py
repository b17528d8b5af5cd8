"""softplus: output = log(1 + e^(beta x)) / beta, and x where beta x > threshold.

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.softplus.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "softplus"]


@overload
def softplus(
    x: Array, beta: float = 1.0, threshold: float = 20.0, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def softplus(
    *, input: Array, beta: float = 1.0, threshold: float = 20.0, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def softplus(
    x: Any = ABSENT,
    beta: Any = 1.0,
    threshold: Any = 20.0,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = log(1 + e^(beta x)) / beta, and x where beta x > threshold``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        beta: a number above 0, finite in float32.
        threshold: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 34 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.softplus.
    """
    if torchs:
        return TORCH_SIGNATURE((x, beta, threshold), torchs, {}, out, kernel)
    return OP.call(x, beta, threshold, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> tuple[Any, ...] | str:
    return (input, beta, threshold)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"})
