"""A linear map of normalised rows: root mean square normalisation and the projection after it, in one."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from kernelworks.build.kernels import cuda_kernel
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import Array
from kernelworks.ops.linear.rms_norm_linear.contract import CONTRACT, TEMPLATE
from kernelworks.ops.linear.rms_norm_linear.mutants import MUTANTS
from kernelworks.ops.linear.rms_norm_linear.sm90 import guard
from kernelworks.templates.norm import EPS_CONDITION, root_mean_square
from kernelworks.templates.product import BIAS_CONDITION

__all__ = ["OP", "rms_norm_linear"]


def rms_norm_linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    eps: float,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array:
    """Affine map of root mean square normalised rows: ``output = x @ weight.T / sqrt(mean(x^2, -1) + eps) + bias``.

    A norm's own weight g belongs in ``weight``, once: ``rms_norm(x, g) @ W.T = rms_norm(x, None) @ (W * g).T``.

    Args:
        x: [..., K], float32, bfloat16 or float16, any strides.
        weight: [N, K] of x's dtype, as torch.nn.Linear stores it.
        bias: [N] of x's dtype, or None for zeros.
        eps: added to the mean of squares. No default: frameworks disagree.
        out: where to write: a contiguous [..., N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [..., N], rounded once (torch rounds the normalised rows to the dtype before it multiplies).

    Error bound: ``u |output|``, ``linear``'s error of the sum, scaled, and ``(K / 64 + 12) 2^-24 |output|``.
    Cost: 2 M N K flop for M rows of x; reads x twice (the GPU's kernel), weight once, and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    output: Array = OP.call(x, weight, bias, eps, out, kernel)
    return output


OP = TEMPLATE.op(
    CONTRACT,
    lambda x, weight, bias, eps: F.linear(root_mean_square(x, None, eps), weight, bias),
    ahead=[cuda_kernel(Path(__file__).parent, guard=guard)],
    mutants=MUTANTS,
    passthrough=Passthrough(
        "linear(rms_norm(x, x.shape[-1:], None, eps), weight, bias)",
        ("x", "weight"),
        (BIAS_CONDITION, EPS_CONDITION),
        {"rms_norm": torch.rms_norm, "linear": F.linear},
        ("bias",),
    ),
    # Torch has operators for both; of the norm's it calls the inner one, which returns the scale as well.
    aten=lambda x, weight, bias, eps: aten("linear", aten("rms_norm", x, (x.shape[-1],), None, eps), weight, bias),
)
