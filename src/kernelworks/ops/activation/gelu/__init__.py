"""The Gaussian error linear unit, in its exact and its tanh form."""

from typing import Any, overload

import torch.nn.functional as F

from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature
from kernelworks.ops.activation.gelu.contract import CONTRACT, TEMPLATE
from kernelworks.ops.activation.gelu.mutants import MUTANTS

__all__ = ["OP", "gelu"]


@overload
def gelu(x: Array, *, approximate: str = "none", out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def gelu(*, input: Array, approximate: str = "none", out: Array | None = None, kernel: str | None = None) -> Array: ...
def gelu(
    x: Any = ABSENT, *, approximate: str = "none", out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """Gaussian error linear unit.

    ``"none"``: ``output = x Phi(x)``, Phi the normal distribution function, ``erfc(-x / sqrt 2) / 2``.
    ``"tanh"``: ``output = x sigmoid(2 u)``, ``u = sqrt(2 / pi) (x + 0.044715 x^3)``, which is ``x (1 + tanh u) / 2``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        approximate: ``"none"`` (torch's default) or ``"tanh"``.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound, with r the unit roundoff of the dtype: ``r |output| + 2^-24 (8 + 8 |u| sigmoid(-2 u)) |output|`` for
    the tanh form, ``r |output| + 2^-24 (16 |output| + 2.5 x^2 |x| Phi(-|x|))`` for the other: relative to the output,
    in the negative tail too, where ``1 + tanh u`` and ``1 + erf`` cancel to nothing.
    Cost: one exponential, about 20 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    if torchs:
        return TORCH_SIGNATURE((x,), torchs, {"approximate": approximate}, out, kernel)
    return OP.call(x, approximate, out, kernel)


OP = TEMPLATE.op(
    CONTRACT,
    lambda x, approximate: F.gelu(x, approximate=approximate),
    mutants=MUTANTS,
    passthrough=Passthrough(
        "gelu(x) if approximate == 'none' else gelu(x, approximate=approximate)", (), names={"gelu": F.gelu}
    ),
)

TORCH_SIGNATURE = TorchSignature(
    OP, F.gelu, lambda input, *, approximate="none": (input, approximate), {"input": "x"},
    unrecorded_arguments=({}, {"approximate": "tanh"}),
)  # fmt: skip
