"""What dynamo is to trace of the modules of one site, compiled in one way.

``nn.Module`` calls all modules by one code, those of a class share that of their ``forward``, and what dynamo has seen
it keeps by code: sizes that differ between two modules it takes for sizes that vary, and compiles the second one for
any. So what is traced has a code of its own.

Where a call comes down to the class's ``forward`` that is a copy of it: of ``model.compile()`` too dynamo traces that
alone, since it passes over the frame of ``nn.Module`` around it. A frame of ours around a whole call, hooks included,
has guards on that too, and is there for the others: modules with hooks, and torch's own (a Sequential's), whose frames
dynamo passes over as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.nn.modules import module as calling

from kernelworks.diagnose.functions import TORCH

__all__ = ["Frames", "compiled", "name_of"]

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def name_of(*said: object) -> str:
    """A name of which a code is known, made of what tells it from others."""
    return "call_" + re.sub(r"\W+", "_", "_".join(map(str, said)))


class Frames:
    """The frames of one name: one around a whole call, and a copy of each class's ``forward``. All are called with the
    module first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.whole = _named(_whole, name)
        self._copies: dict[FunctionType, FunctionType] = {}

    def of(self, forward: FunctionType) -> FunctionType:
        if forward not in self._copies:
            self._copies[forward] = _named(forward, f"{self.name}_{len(self._copies)}")
        return self._copies[forward]


def compiled(module: nn.Module, frames: Frames, compile: Compile) -> Callable[..., Any]:
    """What is called in a module's place: its ``forward`` compiled, or all of its call."""
    whole = compile(MethodType(frames.whole, module))
    plain = _forward(module)
    if plain is None:
        return whole
    alone = compile(MethodType(frames.of(plain), module))

    def call(*args: Any, **kwargs: Any) -> Any:
        if _hooked(module) or getattr(module.forward, "__func__", None) is not plain:
            return whole(*args, **kwargs)
        return alone(*args, **kwargs)

    return call


def _whole(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


def _forward(module: nn.Module) -> FunctionType | None:
    """The class's own, where that is all that a call of the module is; None of what dynamo would pass over."""
    kind = type(module)
    own = getattr(kind, "forward", None)
    if kind.__call__ is not nn.Module.__call__ or kind._call_impl is not nn.Module._call_impl:
        return None
    if not isinstance(own, FunctionType) or own.__code__.co_filename.startswith(TORCH):
        return None
    return own if inspect.getsourcefile(own) else None  # a method without a file of its own dynamo takes for a builtin


def _hooked(module: nn.Module) -> bool:
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own or calling._has_any_global_hook())


def _named(fn: Any, name: str) -> FunctionType:
    """The same function, with a code of its own."""
    made = FunctionType(fn.__code__.replace(co_name=name), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__, made.__module__, made.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    made.__dict__.update(fn.__dict__)
    return made
