"""Where in the program a call is made: module path, source line, page faults. Slow, so its times are never used."""

from __future__ import annotations

import math
import os
import re
import resource
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from kernelworks.observe.trace import PLACE, Place

__all__ = ["Survey", "fold"]

# Lines in these folders are the machinery, not the program.
MACHINERY = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).resolve().parents[1]) + os.sep, "<")


def fold(path: str) -> str:
    """A module's path with every index replaced by ``*``, so that equal layers fall together."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


class Survey(TorchFunctionMode):
    """Puts a numbered annotation round every torch call that Python makes; ``places[number]`` says where it was.

    As a context it gives that list. Modules get their names from the outermost module that is running. After ``most``
    calls ``full`` is called, once, and the rest of the program goes unseen: looking costs 20 to 200 us a call.
    """

    sees_kernelworks = True

    def __init__(self, most: float = math.inf) -> None:
        super().__init__()
        self.most = most
        self.full: Callable[[], None] = lambda: None
        self.cut = False
        self.places: list[Place] = []
        self.persistent: dict[int, int] = {}  # storage address -> bytes, of the parameters and buffers seen
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._roots: dict[int, Any] = {}
        self._handles: list[Any] = []
        self._busy = False
        self._asked: Any = None

    def __enter__(self) -> Any:
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._asked = torch.overrides.has_torch_function
        torch.overrides.has_torch_function = _overridden
        TorchFunctionMode.__enter__(self)
        return self.places

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        TorchFunctionMode.__exit__(self, kind, value, trace)
        torch.overrides.has_torch_function = self._asked
        for handle in self._handles:
            handle.remove()

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        if not self._stack and id(module) not in self._roots:
            with torch._C.DisableTorchFunction():
                self._learn(module)
        self._stack.append(self._names.get(id(module), type(module).__name__))

    def _learn(self, root: torch.nn.Module) -> None:
        self._roots[id(root)] = root  # kept alive, so that no other module gets its id
        name = type(root).__name__
        for path, module in root.named_modules():
            self._names.setdefault(id(module), f"{name}.{path}" if path else name)
        for tensor in (*root.parameters(), *root.buffers()):
            storage = tensor.untyped_storage()
            self.persistent[storage.data_ptr()] = storage.nbytes()

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.cut or self._busy or getattr(func, "__name__", "") in ("__get__", "__set__"):
            return func(*args, **kwargs)
        if len(self.places) >= self.most:
            self.cut = True
            self.full()
            return func(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:  # torch.jit.trace would write the annotation into its graph
            return func(*args, **kwargs)
        path = self._stack[-1] if self._stack else ""
        source = line_of(sys._getframe(1))
        number = len(self.places)
        self.places.append(Place(fold(path), source, 0, path))
        words = _words(func, args)
        self._busy = True
        try:
            with record_function(f"{PLACE}{number}"):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                result = func(*args, **kwargs)
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        finally:
            self._busy = False
        self.places[number] = Place(fold(path), source, faults, path, words)
        return result


def _words(func: Any, args: Any) -> tuple[tuple[str, str], ...]:
    """The strings among the arguments of an operator of ours, by name: a causal attention does half of the work of one
    that is not."""
    if getattr(func, "namespace", "") != "kernelworks":
        return ()
    named = zip(func._schema.arguments, args, strict=False)
    return tuple((argument.name, value) for argument, value in named if isinstance(value, str))


def _overridden(args: Iterable[Any]) -> bool:
    """``torch.overrides.has_torch_function`` that does not count a mode. Modules ask it whether their quick way may be
    taken (an encoder layer in one op), and a survey is to see the calls that the program makes without it."""
    disabled = torch._C._disabled_torch_function_impl
    plain = (torch.Tensor.__torch_function__, disabled)
    return any(getattr(type(t), "__torch_function__", disabled) not in plain for t in args)


def line_of(frame: types.FrameType | None) -> str:
    """The innermost line outside torch and this package, as ``file.py:123``."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(MACHINERY):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
