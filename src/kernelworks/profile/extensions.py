"""A program's own kernels under torch's profiler: functions of C++ extensions that take tensors, and Triton kernels.

The profiler knows neither: pybind11 calls a function without torch, and Triton launches without an operator. For the
time of an observation each such call is within an annotation that says its name and holds its arguments. Functions that
the program took out of an extension's module before (``from ext import f``) stay as they are: native code.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor
from torch._C._profiler import _RecordFunctionFast
from torch.autograd.profiler import record_function

__all__ = ["annotate_extension_calls"]

FrameAnnotator = Callable[[types.FrameType], str]

SKIPPED_PACKAGES = (
    "torch",
    "functorch",
    "kernelworks",
    "triton",
    "torchvision",
    "numpy",
    "tvm_ffi",
)  # packages left alone
BUILT_IN = (types.BuiltinFunctionType, types.FunctionType)
RECORDABLE_TYPES = (Tensor, int, float, bool)


@contextlib.contextmanager
def annotate_extension_calls(placed: FrameAnnotator | None = None) -> Iterator[None]:
    """Every call of one of them within an annotation, ``extension::function`` or ``triton::kernel``. ``placed`` makes
    another around it that says where the call was made."""
    with contextlib.ExitStack() as stack:
        for module, name, function in _functions(len(sys.modules), _built()):
            if vars(module).get(name) is function:
                its = _annotated(f"{module.__name__.rpartition('.')[2]}::{name}", function, placed)
                stack.callback(_put_back, module, name, its, function)
                setattr(module, name, its)
        jit = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
        if jit is not None:
            launch = jit.run
            its = _launched(launch, placed)
            stack.callback(_put_back, jit, "run", its, launch)
            jit.run = its
        yield


def _put_back(holder: Any, name: str, its: Any, before: Any) -> None:
    if vars(holder).get(name) is its:
        setattr(holder, name, before)


def _built() -> int:
    """How many extensions torch has built and loaded in this process, which it keeps to itself."""
    builder = getattr(sys.modules.get("torch.utils.cpp_extension"), "JIT_EXTENSION_VERSIONER", None)
    return len(getattr(builder, "entries", ()))


@functools.lru_cache(maxsize=1)
def _functions(modules: int, built: int) -> tuple[tuple[ModuleType, str, Any], ...]:
    """The functions of extensions whose signature, which pybind11 writes, names a tensor. ``modules`` and ``built`` are
    how many there are: if that has changed, they are looked for anew."""
    found: list[tuple[ModuleType, str, Any]] = []
    named = [held for held in list(sys.modules.values()) if type(held) is ModuleType]
    for module in {id(held): held for held in (*named, *_unnamed(built))}.values():
        if not _compiled(module) or module.__name__.partition(".")[0] in SKIPPED_PACKAGES:
            continue
        for each, function in list(vars(module).items()):
            if isinstance(function, BUILT_IN) and "Tensor" in (getattr(function, "__doc__", None) or ""):
                found.append((module, each, function))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _unnamed(built: int) -> tuple[ModuleType, ...]:
    """Extensions that are not among ``sys.modules``, as those that torch has built: found among all objects, which
    takes a tenth of a second and more."""
    return tuple(held for held in gc.get_objects() if type(held) is ModuleType and _compiled(held))


def _compiled(module: ModuleType) -> bool:
    path = vars(module).get("__file__")
    return isinstance(path, str) and path.endswith((".so", ".pyd"))


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the profiler can keep of them."""
    return tuple(a if isinstance(a, RECORDABLE_TYPES) or _tensors(a) else None for a in args)


def _tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, Tensor) for each in value)


@contextlib.contextmanager
def _within(mark: str, args: tuple[Any, ...], placed: FrameAnnotator | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if placed is not None:
            stack.enter_context(record_function(placed(sys._getframe(3))))
        stack.enter_context(_RecordFunctionFast(mark, _plain(args)))
        yield


def _annotated(mark: str, function: Any, placed: FrameAnnotator | None) -> Any:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _within(mark, (*args, *kwargs.values()), placed):
            return function(*args, **kwargs)

    return run


def _launched(launch: Any, placed: FrameAnnotator | None) -> Any:
    """``JITFunction.run``, which launches or, if asked to, only compiles."""

    @functools.wraps(launch)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _within(f"triton::{getattr(self, '__name__', 'kernel')}", args, placed):
            return launch(self, *args, **kwargs)

    return run
