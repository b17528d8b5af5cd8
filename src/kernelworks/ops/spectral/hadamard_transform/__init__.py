"""The Hadamard transform of lines."""

from __future__ import annotations

from kernelworks.dispatch.signature import Array
from kernelworks.ops.spectral.hadamard_transform.contract import TEMPLATE
from kernelworks.ops.spectral.hadamard_transform.mutants import MUTANTS

__all__ = ["OP", "hadamard_transform"]


def hadamard_transform(
    x: Array, scale: float = 1.0, *, out: Array | None = None, kernel: str | None = None
) -> Array:  # fmt: skip
    """The Hadamard transform of the last dimension: ``output_i = scale * sum_j (-1)^popcount(i & j) x_j``.

    A line whose length is no power of two is filled with zeros to the next one, and the output cut to its length, as
    Dao-AILab's ``fast_hadamard_transform`` has it.

    Args:
        x: [..., N], float32, bfloat16 or float16, any strides.
        scale: a factor of the result; 1 / sqrt(N) makes the transform of a power of two its own inverse.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        A tensor of x's shape and dtype. Its gradient is the same transform of what flows in.

    Error bound: ``u |output| + (log2 P + 2) 2^-24 |scale| sum_j |x_j|``, P the power of two.
    Cost: P log2 P flop a line; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Hadamard 1893; Dao-AILab/fast-hadamard-transform.
    """
    result: Array = OP.call(x, scale, out, kernel)
    return result


OP = TEMPLATE.op(MUTANTS)
