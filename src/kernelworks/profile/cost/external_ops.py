"""Work of operators of torch's outside aten: the products that inductor calls oneDNN and MKL for, by the sizes of a
weight that only those can read, and FSDP's copies.

What is fused with them (an activation, a sum) is a few flop an element and is not counted; a tensor that is added is
read. Their operators are not of aten's namespace, so the table has their full names.
"""

from __future__ import annotations

from kernelworks.profile.cost import Work
from kernelworks.profile.cost.formulas import Formula
from kernelworks.profile.cost.operands import Arguments, Operand, name_of, total_bytes
from kernelworks.profile.cost.windows import convolution_work

__all__ = ["EXTERNAL_FORMULAS"]


def _given(a: Arguments, *names: str) -> Operand | None:
    return next((found for found in (a[name] for name in names) if isinstance(found, Operand)), None)


def linear(a: Arguments) -> Work | None:
    """x [.., K] by a weight of N K elements, however they lie."""
    x, weight = _given(a, "X", "qx"), _given(a, "ORI_W", "W", "qw")
    if x is None or weight is None or not x.shape or not x.shape[-1]:
        return None
    k = x.shape[-1]
    rows, n = x.numel // k, weight.numel // k
    rest = [o for o in a.operands if o is not weight and o is not _given(a, "MKL_W")]
    read = total_bytes(rest) + n * k * weight.dtype.itemsize
    return Work(2.0 * rows * n * k, 0.0, float(read), float(rows * n * x.dtype.itemsize), name_of(x.dtype))


def convolution(a: Arguments) -> Work | None:
    """x [B, C, ..] by a weight of its own layout, transposed or not."""
    weight = _given(a, "W", "qw")
    if weight is None:
        return None
    rest = total_bytes(o for o in a.operands if o is not weight)
    return convolution_work(a, _given(a, "X", "qx"), weight, rest + weight.numel * weight.dtype.itemsize)


def fsdp_copy(a: Arguments) -> Work | None:
    """What FSDP copies together or apart: its first argument, read and written once."""
    given = a[0] if isinstance(a[0], list) else [a[0]]
    size = float(total_bytes(o for o in given if isinstance(o, Operand)))
    return Work(0.0, 0.0, size, size) if size else None


EXTERNAL_FORMULAS: dict[str, Formula] = {
    "fsdp::chunk_cat": fsdp_copy, "fsdp::split_with_sizes_copy": fsdp_copy, "fsdp::all_gather_copy_in": fsdp_copy,
    "mkl::_mkl_linear": linear, "mkldnn::_linear_pointwise": linear, "onednn::qlinear_pointwise": linear,
    "mkldnn::_convolution_pointwise": convolution, "mkldnn::_convolution_pointwise_": convolution,
    "onednn::qconv_pointwise": convolution, "mkldnn::_convolution_transpose_pointwise": convolution,
}  # fmt: skip
