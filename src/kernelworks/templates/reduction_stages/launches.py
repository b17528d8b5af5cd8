"""What the launches of a table's reductions share on every device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from torch import Tensor

from kernelworks.contract.reduced_dims import count_of, dims_of, kept_shape

__all__ = ["align_dims", "as_float32", "flow_of", "spread_view"]


def as_float32(number: float) -> float:
    """A number as a GPU's kernel takes it; the CPU's take the same."""
    return float(ctypes.c_float(number).value)


def flow_of(grad: Tensor, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """What flows in, with one element along each reduced dimension."""
    return grad if keepdim else grad.reshape(kept_shape(tuple(x.shape), dim))


def spread_view(grad: Tensor, x: Tensor, dim: Any, keepdim: bool, out: Any = None) -> Any:
    """The gradient of a mean: a line's own, divided by how many elements it has, as a view."""
    flow = flow_of(grad, x, dim, keepdim)
    spread = (flow / max(count_of(tuple(x.shape), dim), 1)).expand(x.shape)
    return spread if out is None else out.copy_(spread)


def align_dims(x: Tensor, dim: Any) -> tuple[Tensor, Any, Callable[[Tensor], Tensor] | None]:
    """A contiguous tensor with the elements of ``x``, the dimensions to reduce in it, which are neighbours there, and
    what makes a tensor like it one like ``x``; None where the two are laid out alike."""
    dims = dims_of(tuple(x.shape), dim)
    if dims is None or dims[-1] - dims[0] == len(dims) - 1:
        return x.contiguous(), dim, None
    order = [*(d for d in range(x.dim()) if d not in dims), *dims]
    back = [order.index(d) for d in range(x.dim())]
    turned = x.permute(order).contiguous()
    return turned, tuple(range(x.dim() - len(dims), x.dim())), lambda made: made.permute(back).contiguous()
