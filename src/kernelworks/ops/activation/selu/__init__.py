"""selu: output = scale (x where x > 0, else alpha (e^x - 1)).

Written by `make docs` from ops/activation/table.py: changes are lost.
"""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.activation.selu.contract import CONTRACT, ENTRY, TEMPLATE
from kernelworks.templates.activation import mutants_of

__all__ = ["OP", "selu"]


@overload
def selu(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def selu(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def selu(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = scale (x where x > 0, else alpha (e^x - 1))``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: ``u |output|``, u the unit roundoff of the dtype, and a running error analysis of the expression in
    float32; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 20 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Klambauer et al., Self-Normalizing Neural Networks, NeurIPS 2017 (arXiv:1706.02515).
    """
    if torchs or inplace is not False:
        return TORCH_SIGNATURE((x,), torchs, {"inplace": inplace}, out, kernel)
    return OP.call(x, out, kernel)


OP = TEMPLATE.op(CONTRACT, ENTRY.composite, mutants=mutants_of(ENTRY))


def _torchs(input: Any, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place, torch's own function writes" if inplace else (input,)


TORCH_SIGNATURE = TorchSignature(OP, ENTRY.torch, _torchs, {"input": "x"})
