"""Where in the program a call is made: module path, source line, page faults. Slow, so its times are never used."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from kernelworks.dispatch.signature import composites
from kernelworks.profile.calls import fold
from kernelworks.profile.composite_functions import describe_call
from kernelworks.profile.trace import PLACE, Place

__all__ = ["Survey", "fold"]

HOOKS = "Using `torch.compile\\(module\\)` when there are global hooks"  # ours, which end before it matters
SET_CALLBACK = "_maybe_set_eval_frame"  # what torch.compile calls as it enters and leaves code that is compiled
# Lines in these folders are the machinery, not the program.
MACHINERY = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).resolve().parents[1]) + os.sep, "<")
CELL = "<ipython-input-"  # So IPython names the code that a user typed.


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
        self.composites = composites()
        self.persistent: dict[int, int] = {}  # storage address -> bytes, of the parameters and buffers seen
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._roots: dict[int, Any] = {}
        self._handles: list[Any] = []
        self._busy = False
        self._asked: Any = None
        self._filter: Any = None
        self._looking = False
        self._within: Any = None  # what set dynamo's callback
        self._region: Any = None
        self._thread = threading.get_ident()
        self._eval_frame: Any = None
        self._set_callback: Any = None

    def __enter__(self) -> Any:
        warnings.filterwarnings("ignore", message=HOOKS)
        self._filter = warnings.filters[0]
        self._begin()
        self._eval_frame = sys.modules.get("torch._dynamo.eval_frame")
        self._set_callback = getattr(self._eval_frame, SET_CALLBACK, None)
        if self._set_callback is not None:
            setattr(self._eval_frame, SET_CALLBACK, self._callback)
        return self.places

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._set_callback is not None:
            setattr(self._eval_frame, SET_CALLBACK, self._set_callback)
        if self._looking:
            self._end()
        filters: Any = warnings.filters  # a list, which its type does not say
        if self._filter in filters:
            filters.remove(self._filter)

    @property
    def modules(self) -> frozenset[str]:
        """The paths of all modules in those that ran."""
        return frozenset(map(fold, self._names.values()))

    def _begin(self) -> None:
        self._looking = True
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._asked = torch.overrides.has_torch_function
        torch.overrides.has_torch_function = _overridden
        TorchFunctionMode.__enter__(self)

    def _end(self) -> None:
        self._looking = False
        TorchFunctionMode.__exit__(self, None, None, None)
        torch.overrides.has_torch_function = self._asked
        for handle in self._handles:
            handle.remove()

    def _callback(self, callback: Any) -> Any:
        """Where dynamo begins to look at frames the survey ends, and begins again where that ends: code that was
        compiled without a mode and without hooks is compiled anew if it finds any. The end is told by who calls:
        dynamo sets this and takes it back many times in between, as it compiles."""
        if threading.get_ident() == self._thread:
            caller = sys._getframe(1)
            owner = caller.f_locals.get("self") if caller.f_code.co_name in ("__enter__", "__exit__") else caller
            if self._looking and callable(callback):
                self._within = owner
                self._region = record_function(
                    self.annotate_frame(caller)
                )  # for what runs there and is not placed otherwise
                self._region.__enter__()
                self._end()
            elif not self._looking and owner is self._within and not callable(callback):
                self._within = None
                self._begin()
                self._region.__exit__(None, None, None)
        return self._set_callback(callback)

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        module = getattr(module, "_orig_mod", module)  # of torch.compile
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
            with contextlib.suppress(RuntimeError):  # it has no memory of its own
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
        number = len(self.places)
        annotation = self.annotate_frame(sys._getframe(1))
        words = _words(func, args)
        self._busy = True
        try:
            with record_function(annotation):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                result = func(*args, **kwargs)
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        finally:
            self._busy = False
        torch_signature = self.composites.get(id(func))
        function = None if torch_signature is None else describe_call(torch_signature, args, kwargs, result)
        self.places[number] = replace(self.places[number], faults=faults, words=words, function=function)
        return result

    def annotate_frame(self, frame: types.FrameType) -> str:
        """The annotation of a call that is made from there, which has a place from now on."""
        path = self._stack[-1] if self._stack else ""
        file, source = line_of(frame)
        self.places.append(Place(fold(path), source, 0, path, file=file))
        return f"{PLACE}{len(self.places) - 1}"


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


def line_of(frame: types.FrameType | None) -> tuple[str, str]:
    """The innermost line outside torch and this package: its file's path, and ``file.py:123``."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(MACHINERY) or name.startswith(CELL):
            return name, f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "", ""
