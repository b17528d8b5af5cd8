"""Flop of our operators, as torch's own counter (``torch.utils.flop_counter``) has them.

That counter knows products and attention of torch's, and takes any other operator for none. An operator of ours counts
what the same call in torch's own functions would: its composite is run without data under a counter of its own, so no
op says here what it is. A backward counts what is left of the composite's derivative when the forward that is made
again for it is taken off.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from kernelworks.dispatch.autograd import derivative, recomputes_forward

if TYPE_CHECKING:
    from kernelworks.dispatch.op import Op

__all__ = ["register_with_counters"]


def register_with_counters(op: Op) -> None:
    """Has the counters that are at work, and all later ones, count the op. Called where an operator of ours is about to
    be seen; loads nothing: who counts has loaded torch's module, which takes half a second."""
    module: Any = sys.modules.get("torch.utils.flop_counter")
    if module is None:
        return
    modes = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    working = [mode.counter.flop_registry for mode in modes if isinstance(mode, module._FlopCounterMode)]
    for name, formula in (("", _forward), ("_backward", _backward)):
        packet = getattr(torch.ops.kernelworks, f"{op.name}{name}") if not name or "backward" in op.passes else None
        for registry in (module.flop_registry, *working) if packet is not None else ():
            registry.setdefault(packet, functools.partial(formula, module, op))


def _forward(module: Any, op: Op, *args: Any, kernel: str | None = None, out_val: Any = None) -> int:
    names = op.passes["forward"].names
    given = dict(zip(names, _unrecorded(op, args[: len(names)]), strict=True))
    return _counted(module, lambda: op.native(*map(_without_data, given.values())))


def _backward(module: Any, op: Op, *args: Any, kernel: str | None = None, out_val: Any = None) -> int:
    names = op.passes["backward"].names
    given = tuple(map(_without_data, args[: len(names)]))
    whole = _counted(module, lambda: derivative(op, given))
    if not recomputes_forward(op):
        return whole
    have = dict(zip(names, given, strict=True))
    forward = {n: have[n] for n in op.passes["forward"].names if n in have}
    return whole - _counted(module, lambda: op.composite(**forward))


def _unrecorded(op: Op, args: tuple[Any, ...]) -> Sequence[Any]:
    """The call as it was before autograd asked for more results than the user did."""
    if not op._to_record:
        return args
    fewer = [False if given is True else given for given in args]
    recorded = op._to_record(*fewer)
    return fewer if all(a is b for a, b in zip(recorded, args, strict=True)) else args


def _counted(module: Any, run: Callable[[], Any]) -> int:
    """Flop of torch's own operators. A counter asks from below autograd, which a derivative needs again."""
    counter = module.FlopCounterMode(display=False)
    with (
        torch.overrides.enable_reentrant_dispatch(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.no_grad(),
        module._FlopCounterMode(counter),
    ):
        run()
    return int(counter.get_total_flops())


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [_without_data(v) for v in value] if isinstance(value, (list, tuple)) else value
