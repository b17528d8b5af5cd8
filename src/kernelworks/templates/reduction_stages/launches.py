"""What the launches of a table's reductions share on every device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelworks.contract.reduced_dims import count_of, dims_of, kept_shape

__all__ = [
    "LossArguments", "LossCall", "align_dims", "as_float32", "divisor_of", "flow_of", "loss_call", "spread_view",
]  # fmt: skip


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


# ---------------------------------------------------------------- losses of elements


class LossArguments(NamedTuple):
    """A loss's arguments in their order; which are weights, flags and numbers; the operands of each variant."""

    names: tuple[str, ...]
    weights: tuple[str, ...]
    flags: tuple[str, ...]
    numbers: tuple[str, ...]
    operands: Mapping[str, tuple[str, ...]]


class LossCall(NamedTuple):
    """One call: the variant, its operands side by side, where lines lie (outer, n, inner and strides), the numbers."""

    variant: str
    operands: tuple[Tensor, ...]
    lines: tuple[int, int, int, int, int]
    numbers: tuple[float, ...]
    divisor: int
    shape: tuple[int, ...]

    @property
    def empty(self) -> float:
        """The result where there are no elements."""
        return float("nan") if self.divisor == 0 else 0.0


def divisor_of(x: Any, reduction: str) -> int:
    """What the sum of all terms is divided by."""
    if reduction == "batchmean":
        return int(x.shape[0]) if x.shape else 1
    count = 1
    for size in x.shape:
        count *= size
    return count if reduction == "mean" else 1


def loss_call(said: LossArguments, args: tuple[Any, ...]) -> LossCall:
    """What a loss's arguments ask for: all elements as one line, or each as a line of its own."""
    given = dict(zip(said.names, args, strict=True))
    x, reduction = given["x"], given["reduction"]
    chosen = next((flag for flag in said.flags if given[flag]), "")
    if any(given[name] is not None for name in said.weights):
        chosen = "weighted"
    operands = []
    for name in said.operands[chosen]:
        tensor = given[name]
        if tensor is None:
            tensor = torch.ones((), dtype=x.dtype, device=x.device)
        operands.append((tensor if tensor.shape == x.shape else tensor.expand(x.shape)).contiguous())
    n = x.numel()
    each = reduction == "none"
    numbers = tuple(as_float32(given[name]) for name in said.numbers)
    lines = (1, 1, n, n, n) if each else (1, n, 1, n, 1)
    return LossCall(chosen, tuple(operands), lines, numbers, divisor_of(x, reduction), tuple(x.shape) if each else ())
