"""The kernels ``torch`` and ``reference``: torch's own function, and the definition in float64, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import as_float64, in_float64, into, python_kernel
from kernelworks.contract import Contract, Kernel, Request
from kernelworks.dispatch.autograd import derivative
from kernelworks.dispatch.mutation import as_tuple
from kernelworks.dispatch.op import Pass

__all__ = ["python_kernels"]


def python_kernels(
    contract: Contract,
    forward: Pass,
    backward: Pass,
    composite: Callable[..., Any],
    op: Callable[[], Any],
    *,
    torch_backward: Callable[..., Any] | None = None,
    guard: Callable[[Request], str | None] | None = None,
) -> list[Kernel]:
    """The kernels ``torch`` and ``reference``, for an op whose backward is given all inputs of its forward.

    ``composite(*args)`` is the op in torch's functions; its gradients, where ``torch_backward`` is not given, are those
    that autograd makes of it. ``op()`` gives the op, which is made of these kernels. ``guard`` holds for both:
    what it declines, ``Op.native`` must be able to do with less, and no ``passthrough`` may hand to torch at once.
    """

    def torch_forward(*args: Any, out: Any = None) -> Any:
        return into(composite(*args), out)

    def derived(*args: Any, out: Any = None) -> Any:
        return into(derivative(op(), args), out)

    rounded = in_float64(contract.reference, contract.results_in_order)
    return [
        python_kernel("torch", torch_forward, torch_backward or derived, guard),
        python_kernel(
            "reference", _writing(contract, forward.names, rounded), _exact(contract, forward, backward), guard
        ),
    ]


def _writing(contract: Contract, names: tuple[str, ...], rounded: Callable[..., Any]) -> Callable[..., Any]:
    """The definition's forward, which writes to what the op writes to, once all of it was read."""
    if not contract.mutates:
        return rounded

    def forward(*args: Any, out: Any = None) -> Any:
        made, count = as_tuple(rounded(*args)), len(contract.returned_outputs)
        for name, value in zip(contract.mutates, made[count:], strict=True):
            if value is not None:
                args[names.index(name)].copy_(value)
        return into(made[:count] if count > 1 else made[0], out)

    return forward


def _exact(contract: Contract, forward: Pass, backward: Pass) -> Callable[..., Any]:
    """The gradients of the definition, by autograd in float64, rounded once."""

    def backwards(*args: Any, out: Any = None) -> Any:
        have = dict(zip(backward.names, args, strict=True))
        exact = {name: as_float64(have[name]) for name in forward.names}
        wanted = [name for name in backward.returns if isinstance(have[name], Tensor)]
        with torch.enable_grad():
            exact |= {name: exact[name].detach().requires_grad_() for name in wanted}
            outputs = dict(zip(contract.outputs, as_tuple(contract.reference(**exact)), strict=False))
            flows = [(o, have.get(f"grad_{name}")) for name, o in outputs.items() if o is not None and o.requires_grad]
            pairs = [(o, as_float64(grad)) for o, grad in flows if grad is not None]
            found = torch.autograd.grad(
                [o for o, _ in pairs], [exact[name] for name in wanted], [grad for _, grad in pairs], allow_unused=True
            )
        gradients: tuple[Tensor | None, ...] = found
        made = {
            name: torch.zeros_like(have[name]) if g is None else torch.empty_like(have[name]).copy_(g)
            for name, g in zip(wanted, gradients, strict=True)
        }
        empty = next(iter(made.values())).new_empty(0)  # of an argument that is None
        result = tuple(made.get(name, empty) for name in backward.returns)
        return into(result if len(result) > 1 else result[0], out)

    return backwards
