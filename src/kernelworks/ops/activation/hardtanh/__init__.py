"""hardtanh: output = min(max(x, min_val), max_val).

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.hardtanh.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "hardtanh"]


@overload
def hardtanh(
    x: Array, min_val: float = -1.0, max_val: float = 1.0, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def hardtanh(
    input: Array,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def hardtanh(
    x: Any = ABSENT,
    min_val: Any = -1.0,
    max_val: Any = 1.0,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = min(max(x, min_val), max_val)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        min_val: a number, finite in float32.
        max_val: a number of at least min_val, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 4 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.hardtanh.
    """
    if torchs or inplace is not False:
        return TORCH_SIGNATURE((x, min_val, max_val), torchs, {"inplace": inplace}, out, kernel)
    return OP.call(x, min_val, max_val, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place, torch's own function writes" if inplace else (input, min_val, max_val)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"})
