"""The gate of a gated MLP: silu of one tensor times another."""

import torch
import torch.nn.functional as F

from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array, Gate
from kernelworks.ops.activation.silu_mul.contract import CONTRACT, TEMPLATE
from kernelworks.ops.activation.silu_mul.mutants import MUTANTS

__all__ = ["OP", "silu_mul"]


def silu_mul(gate: Array, up: Array, *, out: Array | None = None, kernel: str | None = None) -> Array:
    """Silu of the gate times up, in one pass: ``output = gate sigmoid(gate) up``.

    Args:
        gate: any shape and strides, float32, bfloat16 or float16.
        up: gate's shape and dtype, any strides.
        out: where to write: a contiguous tensor of gate's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like gate, rounded once (torch rounds silu to the dtype before it multiplies).

    Error bound: ``u |output| + 2^-24 (8 + 2 |gate| sigmoid(-gate)) |output|``, u the unit roundoff of the dtype
    (and ``2^-128 |gate up|`` where ``e^-gate`` leaves float32).
    Cost: one exponential, about 20 flop an element; reads gate and up once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Shazeer 2020, arXiv:2002.05202.
    """
    result: Array = OP.call(gate, up, out, kernel)
    return result


OP = TEMPLATE.op(
    CONTRACT,
    lambda gate, up: F.silu(gate) * up,
    mutants=MUTANTS,
    passthrough=Passthrough("mul(silu(gate), up)", (), names={"mul": torch.mul, "silu": torch._C._nn.silu}),
)
GATE = Gate(OP, F.silu)
