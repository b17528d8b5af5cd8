"""The gate of a gated MLP: gelu of one tensor times another."""

import torch
import torch.nn.functional as F

from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array, Gate
from kernelworks.ops.activation.gelu_mul.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "gelu_mul"]


def gelu_mul(
    gate: Array, up: Array, *, approximate: str = "none", out: Array | None = None, kernel: str | None = None
) -> Array:
    """Gelu of the gate times up, in one pass: ``output = gelu(gate) up`` (GeGLU).

    Args:
        gate: any shape and strides, float32, bfloat16 or float16.
        up: gate's shape and dtype, any strides.
        approximate: ``"none"`` (torch's default) or ``"tanh"``: see ``gelu``.
        out: where to write: a contiguous tensor of gate's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like gate, rounded once (torch rounds gelu to the dtype before it multiplies).

    Error bound: ``u |output|`` and ``|up|`` times what ``gelu`` may be off by in float32, and ``2^-24 |output|``; u the
    unit roundoff of the dtype.
    Cost: one exponential, about 20 flop an element (30 for "none"); reads gate and up once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Shazeer 2020, arXiv:2002.05202.
    """
    output: Array = OP.call(gate, up, approximate, out, kernel)
    return output


OP = TEMPLATE.op(
    CONTRACT,
    lambda gate, up, approximate: F.gelu(gate, approximate=approximate) * up,
    passthrough=Passthrough(
        "mul(gelu(gate, approximate=approximate), up)", (), names={"mul": torch.mul, "gelu": F.gelu}
    ),
)
GATE = Gate(OP, F.gelu, approximate=("none", "tanh"))
