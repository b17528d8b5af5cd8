"""softshrink: output = x - lambd where x > lambd, x + lambd where x < -lambd, else 0.

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.softshrink.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "softshrink"]


@overload
def softshrink(x: Array, lambd: float = 0.5, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def softshrink(*, input: Array, lambd: float = 0.5, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def softshrink(x: Any = ABSENT, lambd: Any = 0.5, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = x - lambd where x > lambd, x + lambd where x < -lambd, else 0``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        lambd: a number of at least 0, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 8 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.softshrink.
    """
    if torchs:
        return TORCH_SIGNATURE((x, lambd), torchs, {}, out, kernel)
    return OP.call(x, lambd, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, lambd: Any = 0.5) -> tuple[Any, ...] | str:
    return (input, lambd)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"})
