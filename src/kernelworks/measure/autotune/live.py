"""A call that a program is about to make, as the two sides of a race: its own tensors, its own modes.

Nothing of the program may change by it. Inputs are shared, not copied (``detach`` has the same memory), and only what
an op writes into is cloned. Gradients are asked for by ``torch.autograd.grad``, so no ``.grad`` is written and no hook
of a leaf runs; what flows in is drawn from a generator of our own, into a loss it is 1; hooks that pack what autograd
saves are put aside.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernelworks import ops
from kernelworks.contract.tensors import leaves
from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.dispatch.mutation import as_tuple, own_arguments
from kernelworks.dispatch.op import Op
from kernelworks.ops.baselines import eager_of

__all__ = ["Training", "detach_args", "kernelworks_call", "torch_call", "waiter", "without_saved_tensor_hooks"]

Call = Callable[[], Any]


def waiter(args: Sequence[Any]) -> Call | None:
    """What returns when the work on these tensors' device is done; None if a call returns when it is."""
    device = next((t.device for t in leaves(args)), torch.device("cpu"))
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None


def detach_args(op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments without gradients; what the op writes into is cloned, all else is the program's own memory."""
    return tuple(_without_gradient(a) for a in own_arguments(op, args, _clone))


def _clone(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone(memory_format=torch.preserve_format)
    return [_clone(v) for v in value] if isinstance(value, (list, tuple)) else value


def _without_gradient(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return [_without_gradient(v) for v in value] if isinstance(value, (list, tuple)) else value


def _leaf(value: Any) -> Any:
    """The same memory as a leaf of its own, which wants a gradient if the program's tensor does."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


# ---------------------------------------------------------------- calls as a user writes them


class _Outermost(TorchFunctionMode):
    """The functions of torch's that are called from outside of torch, and what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if next(leaves((result,)), None) is not None:  # sizes and flags are no work
            self.calls.append((func, args, kwargs or {}, result))
        return result


def torch_call(op: Op, args: tuple[Any, ...]) -> Call:
    """The call that a user would have written. If that is one function of torch's, it is called with no function of
    ours round it: on a small tensor a frame of Python is a tenth of the time. It is looked for by a call that writes to
    none of ``args``."""
    own = own_arguments(op, args, _clone)
    written = _as_users_do(op, own)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return lambda: (written or op.native)(*args)
    with _Outermost() as seen:
        result = (written or op.native)(*own)
    if len(seen.calls) == 1 and seen.calls[0][3] is result:
        func, given, named, _ = seen.calls[0]
        back = {id(copy): value for copy, value in zip(own, args, strict=True)}
        given = tuple(back.get(id(value), value) for value in given)
        return _written(func, given, {name: back.get(id(value), value) for name, value in named.items()})
    return _written(written or op.as_written, args, {})


def _as_users_do(op: Op, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What the op package says that users of torch write for such a call; None if it says nothing. It is called once
    here, so that what users keep between calls (a mask made once for all layers) is there."""
    stated, names = eager_of(op.name), op.passes["forward"].names
    if stated is None:
        return None

    def call(*args: Any) -> Any:
        return stated(**dict(zip(names, args, strict=True)))

    try:
        call(*args)
    except ValueError:
        return None
    return call


def kernelworks_call(op: Op, args: tuple[Any, ...], way: str) -> Call:
    """The same of ours: the public function, if the op has one that takes these arguments."""
    function = getattr(ops, op.name, None)
    if function is None:
        return _written(op.call, args, {"kernel": way})
    takes = inspect.signature(function).parameters
    given = dict(zip(op.passes["forward"].names, args, strict=True))
    if any(n not in takes and v is not None and v is not False for n, v in given.items()):
        return _written(op.call, args, {"kernel": way})
    by_place = [n for n, p in takes.items() if n in given and p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if by_place != list(takes)[: len(by_place)]:
        by_place = []
    named = {n: v for n, v in given.items() if n in takes and n not in by_place and v is not takes[n].default}
    return _written(function, tuple(given[n] for n in by_place), named | {"kernel": way})


def _written(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Call:
    """``lambda: function(a0, a1, name=...)``, which costs what the same line costs a user; a partial costs more."""
    places = {f"a{i}": value for i, value in enumerate(args)}
    given = ", ".join([*places, *(f"{name}={name}" for name in named)])
    scope: dict[str, Any] = {}
    names = ", ".join(["function", *places, *named])
    run_generated_code(f"def make({names}):\n    return lambda: function({given})", scope, "benchmarked call")
    call: Call = scope["make"](function, *places.values(), **named)
    return call


class Training:
    """The sides of a race of a call whose gradients are wanted."""

    def __init__(self, op: Op, args: tuple[Any, ...]) -> None:
        self.op, self.args = op, tuple(_leaf(a) for a in own_arguments(op, args, _clone))
        self.wanted = [t for t in leaves(self.args) if t.requires_grad]

    def forward(self, way: str | None) -> Call:
        """A forward that autograd records: ours, or torch's own if ``way`` is None."""
        return torch_call(self.op, self.args) if way is None else kernelworks_call(self.op, self.args, way)

    def forward_backward(self, way: str | None) -> Call:
        """Forward and backward, the graph freed as it is walked."""
        forward = self.forward(way)
        grads = self._flows(forward())

        def call() -> Any:
            return torch.autograd.grad(_recorded(forward()), self.wanted, grads, allow_unused=True)

        return call

    def backward(self, way: str | None) -> Call:
        """The backward alone, of one graph that is kept."""
        outputs = _recorded(self.forward(way)())
        grads = self._flows(outputs)
        return lambda: torch.autograd.grad(outputs, self.wanted, grads, retain_graph=True, allow_unused=True)

    def _flows(self, outputs: Any) -> list[Tensor]:
        """Gradients that flow in, for each output that has one: into a loss 1, as ``backward()`` starts it (its kernel
        may have made that gradient with the forward), else drawn."""
        made = []
        for output in _recorded(outputs):
            if output.dim() == 0:
                made.append(torch.ones_like(output, requires_grad=False))
                continue
            generator = torch.Generator(output.device).manual_seed(1)
            flow = torch.empty_like(output, requires_grad=False)
            made.append(flow.normal_(generator=generator))
        return made


def _recorded(outputs: Any) -> list[Tensor]:
    return [o for o in as_tuple(outputs) if isinstance(o, Tensor) and o.requires_grad]


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
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
