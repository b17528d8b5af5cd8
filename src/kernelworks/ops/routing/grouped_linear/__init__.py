"""Rows sorted by group, multiplied with the group's own weight: the products of a mixture of experts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.offsets_argument import check_offsets, refuse_offset
from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.routing.grouped_linear.contract import ARGUMENTS, CONTRACT, groups_of, reference
from kernelworks.ops.routing.grouped_linear.mutants import MUTANTS
from kernelworks.templates.product import gradients_like

__all__ = ["OP", "grouped_linear"]


@overload
def grouped_linear(
    x: Array, weight: Array, offsets: Array, bias: Array | None = None, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def grouped_linear(
    mat_a: Array, mat_b: Array, *, offs: Array | None = None, bias: Array | None = None,
    out_dtype: torch.dtype | None = None, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def grouped_linear(
    x: Any = ABSENT, weight: Any = ABSENT, offsets: Any = ABSENT, bias: Any = None, *, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Affine map of each group of rows with a weight of its own: ``output[t] = weight[g] @ x[t] + bias[g]``.

    Args:
        x: [T, K], rows sorted by group, float32, bfloat16 or float16, any strides.
        weight: [E, N, K] of x's dtype, a matrix for each group as torch.nn.Linear stores it; each is read where it
            lies, row-major or transposed, and only if its group has rows.
        offsets: [E], int32 or int64: group g is the rows from ``offsets[g - 1]`` (0 for the first) up to
            ``offsets[g]``. A group may be empty. Rows beyond the last offset belong to no group: their output is 0,
            and they take no gradient.
        bias: [E, N] of x's dtype, or None for zeros.
        out: where to write: a contiguous [T, N] tensor.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [T, N].

    A call may also be in torch's signature, ``(mat_a, mat_b, offs=)`` with ``mat_b`` [E, K, N]: ``weight.mT``.

    Error bound: each group's as ``linear``'s: |output - exact| <= u |output| + n 2^-24 / (1 - n 2^-24) (|x| @
    |weight[g]|.T + |bias[g]|), u the unit roundoff of the dtype and n = min(K, K/8 + 384) + 10.
    Cost: 2 T N K flop; with few rows the weights of the groups that have rows are read once, and that is the time.
    Raises: IndexError where offsets fall or end beyond T; on a GPU, where nothing waits for the answer, such a group
    is cut off at T. TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.grouped_mm; Gale et al. 2022, arXiv:2211.15841.
    """
    if torchs or offsets is ABSENT:
        named = {"offsets": offsets, "bias": ABSENT if bias is None else bias}
        return TORCH_SIGNATURE((x, weight), {**torchs, **_given(named)}, {}, out, kernel)
    return OP.call(x, weight, offsets, bias, out, kernel)


def _given(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not ABSENT}


# ---------------------------------------------------------------- C++ kernels


def _matrices(weight: Tensor) -> Tensor:
    """As kernels read them: each row-major or transposed."""
    return weight if weight.stride(2) == 1 or weight.stride(1) == 1 else weight.contiguous()


def _nanoseconds(rows: Tensor, weight: Tensor) -> float:
    """Of one thread: for few rows the elements of their weights come from memory, for many a core does 16 products in
    one."""
    experts, n, k = weight.shape
    return n * k * max(float(min(experts, rows.shape[0])), rows.shape[0] / 16)


def _checked(wrong: int, offsets: Tensor, rows: Tensor) -> None:
    if wrong >= 0:
        refuse_offset("offsets", offsets, wrong, rows.shape[0])


def _forward(lib: Any, x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, out: Any = None) -> Tensor:
    output: Tensor = torch.empty((x.shape[0], weight.shape[1]), dtype=x.dtype) if out is None else out
    if bias is not None and bias.stride(1) != 1:
        bias = bias.contiguous()
    run, threads = choose_threads(lib.grouped_linear, _nanoseconds(x, weight))
    _checked(run(output, as_rows(x), _matrices(weight), offsets.contiguous(), bias, threads), offsets, x)
    return output


def _backward(
    lib: Any, grad: Tensor, x: Tensor, weight: Tensor, offsets: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    took, rows, ends = _nanoseconds(x, weight), as_rows(grad), offsets.contiguous()
    grad_x, grad_weight, grad_bias = _gradients(x, weight, needs) if out is None else out
    if needs[0]:
        run, threads = choose_threads(lib.grouped_linear_grad_x, took)
        _checked(run(grad_x, rows, _matrices(weight), ends, threads), offsets, x)
    if needs[1]:
        run, threads = choose_threads(lib.grouped_linear_grad_weight, took + weight.numel())
        _checked(run(grad_weight, rows, as_rows(x), ends, threads), offsets, x)
    if needs[2]:
        run, threads = choose_threads(lib.grouped_linear_grad_bias, grad.numel())
        _checked(run(grad_bias, rows, ends, threads), offsets, x)
    return grad_x, grad_weight, grad_bias


def _gradients(x: Tensor, weight: Tensor, needs: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_weight, _ = gradients_like(x, weight, needs)
    return grad_x, grad_weight, weight.new_empty(weight.shape[:2] if needs[2] else 0)


# ---------------------------------------------------------------- torch's own functions


def _composite(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every row by every group, and the one that it belongs to taken: what needs no look at any value."""
    row = torch.arange(x.shape[0], device=x.device, dtype=offsets.dtype)
    of = torch.searchsorted(offsets, row, right=True)[:, None]
    output = x.new_zeros(x.shape[0], weight.shape[1])
    for group in range(weight.shape[0]):
        product = F.linear(x, weight[group], None if bias is None else bias[group])
        output = torch.where(of == group, product, output)
    return output


def _native(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None = None) -> Tensor:
    """What a user of torch writes: a loop over the groups that have rows."""
    if tensor_kind(offsets) != MEMORY:
        return _composite(x, weight, offsets, bias)
    parts, last = [], 0
    for group, rows in enumerate(groups_of(offsets)):
        if rows.stop > rows.start:
            parts.append(F.linear(x[rows], weight[group], None if bias is None else bias[group]))
            last = rows.stop
    if not parts and weight.shape[0]:  # no row at all: a product of none, so that what wants a gradient is given 0
        parts.append(F.linear(x[:0], weight[0], None if bias is None else bias[0]))
    if last < x.shape[0] or not parts:
        parts.append(x.new_zeros(x.shape[0] - last, weight.shape[1]))
    return torch.cat(parts)


def _torch(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    if x.device.type == "cpu":
        check_offsets("offsets", offsets, x.shape[0])
    return into(_native(x, weight, offsets, bias), out)


def _exact(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    check_offsets("offsets", offsets, x.shape[0])
    return in_float64(reference)(x, weight, offsets, bias, out=out)


def _torch_backward(
    grad: Tensor, x: Tensor, weight: Tensor, offsets: Tensor, needs: list[bool], out: Any = None,
    compute: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again, for the bias is not among what it is given."""
    if x.device.type == "cpu" and tensor_kind(offsets) == MEMORY:
        check_offsets("offsets", offsets, x.shape[0])
    g, rows, matrices = (t.to(compute or grad.dtype) for t in (grad, x, weight))
    of_x, of_weight, of_bias, last = [], [], [], 0
    for group, at in enumerate(groups_of(offsets)):
        of_x += [g[at] @ matrices[group]] if needs[0] else []
        of_weight += [g[at].T @ rows[at]] if needs[1] else []
        of_bias += [g[at].sum(0)] if needs[2] else []
        last = at.stop
    nothing, none = g.new_empty(0), g.new_zeros(weight.shape)
    grad_x = torch.cat([*of_x, g.new_zeros(x.shape[0] - last, x.shape[1])]) if needs[0] else nothing
    grad_weight = (torch.stack(of_weight) if of_weight else none) if needs[1] else nothing
    grad_bias = (torch.stack(of_bias) if of_bias else g.new_zeros(weight.shape[:2])) if needs[2] else nothing
    return into(tuple(t.to(x.dtype) for t in (grad_x, grad_weight, grad_bias)), out)


PACKAGE = Path(__file__).parent
TARGETS = {"avx512_bf16": "simd.cpp", "avx512": "simd.cpp", "avx2": "simd.cpp", "scalar": "scalar.cpp"}
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward, targets=TARGETS),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _exact, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"grouped_linear({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda x, weight, offsets, bias: x.new_empty((x.shape[0], weight.shape[1])),
    ),
    backward=Pass(
        "grouped_linear_backward(Tensor grad_output, Tensor x, Tensor weight, Tensor offsets, bool[] needs, "
        "str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
        lambda grad, x, weight, offsets, needs: _gradients(x, weight, needs),
        returns=("x", "weight", "bias"),
        reads={"x": ("weight", "offsets"), "weight": ("x", "offsets"), "bias": ("offsets",)},
    ),
    composite=_composite,
    native=_native,
    mutants=MUTANTS,
)


def _ours(
    mat_a: Any, mat_b: Any, *, offs: Any = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    if not isinstance(mat_a, Tensor) or not isinstance(mat_b, Tensor) or not isinstance(offs, Tensor):
        return "only tensors in groups are the op's"
    if mat_a.dim() != 2 or mat_b.dim() != 3:
        return "only rows [T, K] in groups, with a matrix [K, N] for each, are the op's"
    if out_dtype not in (None, mat_a.dtype):
        return "out_dtype is another dtype than that of the rows"
    if bias is not None:
        return "torch's function takes no bias yet"
    return mat_a, mat_b.mT, offs, None


TORCH_SIGNATURE = TorchSignature(
    OP,
    getattr(F, "grouped_mm", None),
    _ours,
    {"mat_a": "x", "offs": "offsets"},
    joined={"weight": "mat_b"},
    name="grouped_mm",
    operator="_grouped_mm",
)
