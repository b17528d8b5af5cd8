"""The two arms of a race made of a call that a program is about to make: its own tensors, its own modes.

Nothing of the program may change by it. Inputs are shared, not copied (``detach`` has the same memory), and only what
an op writes into is cloned. Gradients are asked for by ``torch.autograd.grad``, so no ``.grad`` is written and no hook
of a leaf runs; what flows in is drawn from a generator of our own; hooks that pack what autograd saves are put aside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.op import Op
from kernelworks.plain import leaves
from kernelworks.written import as_tuple

__all__ = ["Training", "forward_arms", "forward_only", "unhooked", "waiter"]

Call = Callable[[], Any]


def waiter(args: Sequence[Any]) -> Call | None:
    """What returns when the work on these tensors' device is done; None where a call returns when it is."""
    device = next((t.device for t in leaves(args)), torch.device("cpu"))
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None


def forward_only(op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments without gradients; what the op writes into is cloned, all else is the program's own memory."""
    names = op.passes["forward"].names
    return tuple(_alone(a, own=n in op.contract.mutates) for n, a in zip(names, args, strict=True))


def _alone(value: Any, *, own: bool) -> Any:
    if isinstance(value, Tensor):
        found = value.detach()
        return found.clone(memory_format=torch.preserve_format) if own else found
    return [_alone(v, own=own) for v in value] if isinstance(value, (list, tuple)) else value


def _leaf(value: Any) -> Any:
    """The same memory as a leaf of its own, which wants a gradient where the program's tensor does."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def forward_arms(op: Op, args: tuple[Any, ...]) -> tuple[Callable[[str], Call], Call]:
    """Ours by the name of a way, and torch's."""
    native = op.native

    def ours(way: str) -> Call:
        return lambda: op.call(*args, None, way)

    return ours, lambda: native(*args)


class Training:
    """The arms of a call whose gradients are wanted."""

    def __init__(self, op: Op, args: tuple[Any, ...]) -> None:
        self.op, self.args = op, tuple(_leaf(a) for a in args)
        self.wanted = [t for t in leaves(self.args) if t.requires_grad]

    def forward(self, way: str | None) -> Any:
        """One forward that autograd records: ours, or torch's own where ``way`` is None."""
        return self.op.native(*self.args) if way is None else self.op.call(*self.args, None, way)

    def both(self, way: str | None) -> Call:
        """Forward and backward, the graph freed as it is walked."""
        grads = self._flows(self.forward(way))

        def call() -> Any:
            return torch.autograd.grad(_recorded(self.forward(way)), self.wanted, grads, allow_unused=True)

        return call

    def backward(self, way: str | None) -> Call:
        """The backward alone, of one graph that is kept."""
        outputs = _recorded(self.forward(way))
        grads = self._flows(outputs)
        return lambda: torch.autograd.grad(outputs, self.wanted, grads, retain_graph=True, allow_unused=True)

    def _flows(self, outputs: Any) -> list[Tensor]:
        """Gradients that flow in, for each output that has one."""
        made = []
        for output in _recorded(outputs):
            generator = torch.Generator(output.device).manual_seed(1)
            flow = torch.empty_like(output, requires_grad=False)
            made.append(flow.normal_(generator=generator))
        return made


def _recorded(outputs: Any) -> list[Tensor]:
    return [o for o in as_tuple(outputs) if isinstance(o, Tensor) and o.requires_grad]


@contextlib.contextmanager
def unhooked() -> Iterator[None]:
    """Without the program's hooks on what autograd saves (checkpointing, offloading), which are no part of an op."""
    own: Any = torch._C._autograd
    aside = []
    while (hooks := own._top_saved_tensors_default_hooks(True)) is not None:
        aside.append(hooks)
        own._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(aside):
            own._push_saved_tensors_default_hooks(pack, unpack)
