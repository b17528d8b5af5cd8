"""Gradients clipped by the norm of all of them, in place, over a list of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.optimizer.clip_grads.contract import ARGUMENTS, CONTRACT, EPS, clip_step, scale_of, total_norm
from kernelworks.ops.optimizer.clip_grads.mutants import MUTANTS

__all__ = ["OP", "clip_grads_"]

NONFINITE = (
    "The total norm of order {} of grads is non-finite, so they cannot be clipped. With error_if_nonfinite=False they "
    "are scaled by it"
)


def clip_grads_(
    grads: Sequence[Array],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    kernel: str | None = None,
) -> Array:
    """The norm of all gradients as one vector, and the gradients scaled to at most ``max_norm``, in place.

    ``total = ||grads||``, ``grads <- grads min(max_norm / (total + 1e-6), 1)``

    Args:
        grads: tensors of float32, bfloat16 or float16, on one device, any strides; of a list of several dtypes each
            keeps its own.
        max_norm: the largest norm that is left as it is; infinity to ask for the norm alone.
        norm_type: 2, or infinity for the largest magnitude.
        error_if_nonfinite: raise where the norm is infinite or NaN, before anything is written. Else all gradients are
            scaled by it, as torch does: by 0, or to NaN. On a GPU to ask is to wait.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The norm before, a float32 scalar: squares are summed in float64, and no dtype of gradients overflows.

    There is no gradient through it: the op runs outside autograd. No gradient may share memory with another.

    Error bound: the norm 2^-23 of itself; a gradient ``u |g| + 2^-22 |g|``, u the unit roundoff of its dtype.
    Cost: 3 flop an element; reads the gradients twice and writes them once; once, if nothing is to be clipped.
    Raises: TypeError, ValueError naming the argument; RuntimeError of a norm that is not finite, if that is asked, and
    where ``kernel`` cannot run.
    Source: Pascanu, Mikolov and Bengio 2013, arXiv:1211.5063; torch.nn.utils.clip_grad_norm_.
    """
    with torch.no_grad():
        total: Array = OP.call(grads, max_norm, norm_type, error_if_nonfinite, None, kernel)
    return total


def _into(total: Tensor, out: Tensor | None) -> Tensor:
    return total if out is None else out.copy_(total)


def refuse_nonfinite(total: float, norm_type: float) -> None:
    if not math.isfinite(total):
        raise RuntimeError(NONFINITE.format(norm_type))


def _forward(
    lib: Any, grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool, out: Any = None
) -> Tensor:
    found = torch.zeros((), dtype=torch.float64)
    elements = sum(map(Tensor.numel, grads))
    kernel, threads = choose_threads(lib.total_norm, elements)
    kernel(len(grads), found, norm_type == math.inf, threads, *grads)
    total = found.item()
    if error_if_nonfinite:
        refuse_nonfinite(total, norm_type)
    scale = max_norm / (total + EPS)
    if not scale >= 1.0:  # NaN too
        kernel, threads = choose_threads(lib.scale_grads, elements)
        kernel(len(grads), scale, threads, *grads)
    return _into(found.float(), out)


def _native(grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
    """torch's halves of clip_grad_norm_; the norm in float32 at least."""
    if not grads:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in grads if g.numel()]
    norms = norms or [grads[0].new_zeros((), dtype=torch.float32)]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    if error_if_nonfinite:
        refuse_nonfinite(float(total), norm_type)
    torch._foreach_mul_(list(grads), scale_of(total, max_norm))
    return total


def _torch(*args: Any, out: Any = None) -> Tensor:
    return _into(_native(*args), out)


def _reference(
    grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool, out: Any = None
) -> Tensor:
    if error_if_nonfinite:
        refuse_nonfinite(float(total_norm(grads, norm_type)), norm_type)
    total, scaled = clip_step(grads, max_norm, norm_type, error_if_nonfinite)
    for g, value in zip(grads, scaled, strict=True):
        g.copy_(value)
    return _into(total.float(), out)


def _fake(grads: Sequence[Tensor], *numbers: Any) -> Tensor:
    return grads[0].new_empty((), dtype=torch.float32) if grads else torch.empty(())


OP = Op(
    CONTRACT,
    [
        triton_kernel(Path(__file__).parent, passes=("forward",), in_place=True),
        *cpp_kernels(Path(__file__).parent, forward=_forward),
        python_kernel("torch", _torch),
        python_kernel("reference", _reference),
    ],
    op_package=__file__,
    forward=Pass(
        f"clip_grads_({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        _fake,
        free={"max_norm": lambda v: v.__class__ is float and v >= 0.0},
    ),
    composite=_native,
    native=_native,
    mutants=MUTANTS,
)
