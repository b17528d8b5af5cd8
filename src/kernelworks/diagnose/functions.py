"""Plain functions of a program as roots of their own, beside the modules that it calls.

A program need not be made of modules: a loop over a function of tensors, a loss or a solver beside a model. Such a
function is found by looking at one run (``sought``), and is called through a module of ours meanwhile (``Function``),
so that it is raced, proved and compiled as modules are, by the arguments that it was called with. It is replaced by its
name, wherever a module of the program holds it, or where the program was given it to call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kernelworks.diagnose.leaves import leaves
from kernelworks.observe.program import Entry, Program

__all__ = ["Function", "named", "sought"]

WORTH = 0.05  # of a run, which a function must take
MOST = 4  # functions, those that take the most time
MANY, WITHIN = 10, 0.5  # calls of others that take so much of a function's time: those are compiled, not their loop
FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
LIBRARIES = tuple(str(Path(folder).resolve()) + os.sep for folder in (*FOLDERS, str(Path(__file__).parents[1])))
TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # they have done nothing on returning
CONTAINERS = (list, dict, set)
Read = tuple[CodeType, dict[str, Any]]  # code, with its globals


class Function(nn.Module):
    """A function as a module: what it reads beside its arguments are its parameters and buffers. ``bind`` puts another
    in its place for the program, ``unbind`` itself again."""

    def __init__(self, fn: FunctionType, *, inner: Iterable[Read] = (), entry: Entry | None = None) -> None:
        super().__init__()
        self.fn = fn
        self.path = fn.__qualname__
        self.of = fn.__module__
        self.held = False  # whether it reads anything but its arguments
        self.twice = False  # whether it was given what it reads by name too
        self.entry = entry if entry is not None and entry.fn is fn else None
        for at, value in enumerate(_read(inspect.unwrap(fn), inner)):
            self._hold(f"held {at}", value)

    def _hold(self, name: str, value: Any) -> None:
        self.held = True
        if isinstance(value, Tensor):
            kept: dict[str, Any] = self._parameters if value.requires_grad and value.is_leaf else self._buffers
            kept[name] = value
        elif isinstance(value, nn.Module):
            for below, tensor in (*value.named_parameters(), *value.named_buffers()):
                self._hold(f"{name} {below}".replace(".", " "), tensor)
        else:
            self.__dict__[name] = value  # a list, say: put back as it was after each run
            for number, each in enumerate(value.values() if isinstance(value, dict) else value):
                if isinstance(each, Tensor):
                    self._hold(f"{name} {number}", each)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    @functools.cached_property
    def spaces(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """Where modules hold it by name."""
        spaces = {
            id(vars(module)): vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")
        }
        spaces[id(self.fn.__globals__)] = self.fn.__globals__
        return tuple(
            (space, name) for space in spaces.values() for name, value in list(space.items()) if value is self.fn
        )

    def bind(self, other: Callable[..., Any]) -> Callable[[], None]:
        """Has the program call another in its place; returns what takes that back."""
        spaces, entry = self.spaces, self.entry
        for space, name in spaces:
            space[name] = other
        if entry is not None:
            entry.fn = other

        def back() -> None:
            for space, name in spaces:
                if space.get(name) is other:
                    space[name] = self.fn
            if entry is not None:
                entry.fn = self.fn

        return back

    @contextmanager
    def called(self) -> Iterator[None]:
        """The program calls this module in the function's place."""
        mine = {id(t) for t in (*self.parameters(), *self.buffers())}

        @functools.wraps(self.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.twice = self.twice or any(id(t) in mine for t in leaves((args, kwargs)).values())
            return self(*args, **kwargs)

        back = self.bind(call)
        try:
            yield
        finally:
            back()


def named(module: str, path: str, entry: Entry | None = None) -> Function | None:
    """The function of that name in a module that is loaded, or in the program's own file."""
    for name in (module, "__main__"):
        found = getattr(sys.modules.get(name), path, None)
        if isinstance(found, FunctionType):
            return Function(found, entry=entry)
    return None


def _read(fn: FunctionType, inner: Iterable[Read]) -> list[Any]:
    """The tensors, modules and containers that code reads by global names, and what the function has closed over."""
    found: dict[int, Any] = {}
    values = [cell.cell_contents for cell in fn.__closure__ or () if _filled(cell)]
    for code, space in ((fn.__code__, fn.__globals__), *inner):
        values += [space[name] for name in _names(code) if name in space]
    for value in values:
        if isinstance(value, (Tensor, nn.Module, *CONTAINERS)):
            found[id(value)] = value
    return list(found.values())


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# ---------------------------------------------------------------- looking for them


@dataclass(eq=False)
class _Seen:
    """A function of the program's own, as another calls it."""

    code: CodeType | None = None
    space: dict[str, Any] = field(default_factory=dict)  # its globals
    calls: int = 0
    seconds: float = 0.0
    apart: bool = False  # it calls a module, or trains
    within: dict[CodeType, _Seen] = field(default_factory=dict)

    def inner(self) -> Iterator[Read]:
        """What it calls, and what that calls."""
        for each in self.within.values():
            if each.code is not None:
                yield each.code, each.space
                yield from each.inner()


class _Watch:
    """A profile function: which functions of the program's own call which, outside of modules."""

    def __init__(self, entry: Entry | None) -> None:
        self.top = _Seen()
        self._entry = getattr(entry.fn if entry is not None else None, "__code__", None)
        self._stack: list[tuple[FrameType | None, _Seen, float]] = [(None, self.top, 0.0)]
        self._inside: FrameType | None = None  # a call of a module
        self._own: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "return":
            if frame is self._inside:
                self._inside = None
            elif frame is self._stack[-1][0]:
                _, seen, begin = self._stack.pop()
                seen.seconds += time.perf_counter() - begin
        elif event == "call" and self._inside is None:
            code = frame.f_code
            if code in APART:
                for _, seen, _ in self._stack:
                    seen.apart = True
                self._inside = frame
            elif self._is_own(code):
                seen = self._stack[-1][1].within.setdefault(code, _Seen(code, frame.f_globals))
                seen.calls += 1
                self._stack.append((frame, seen, time.perf_counter()))

    def _is_own(self, code: CodeType) -> bool:
        if code not in self._own:
            file = code.co_filename
            inline = (
                code.co_name.startswith("<") and code is not self._entry
            )  # a comprehension, a lambda: of its caller
            own = not inline and not file.startswith("<") and not os.path.realpath(file).startswith(LIBRARIES)
            self._own[code] = own
        return self._own[code]


def _apart() -> set[CodeType]:
    """What a plain function does not do: it calls no module, and neither trains nor steps."""
    step: Any = Optimizer.profile_hook_step
    codes = [nn.Module._wrapped_call_impl, Tensor.backward, torch.autograd.backward, step]
    found = {each.__code__ for each in codes}
    found |= {each for each in step.__code__.co_consts if isinstance(each, CodeType)}  # the wrapper that it makes
    return found


APART = _apart()


def sought(program: Program) -> list[Function]:
    """Runs the program once, and finds the functions of its own that take notable time outside of modules, call none,
    and could be called alone; none of them within another."""
    watch, before = _Watch(program.entry), sys.getprofile()
    sys.setprofile(watch)
    begin = time.perf_counter()
    try:
        program.run()
    finally:
        sys.setprofile(before)
    wall = time.perf_counter() - begin
    found: dict[int, tuple[float, Function]] = {}
    for seen in watch.top.within.values():
        for each in _chosen(seen, program.entry, WORTH * wall):
            fn = _function_of(each, program.entry)
            if fn is not None:
                took = found[id(fn)][0] if id(fn) in found else 0.0
                found[id(fn)] = took + each.seconds, Function(fn, inner=each.inner(), entry=program.entry)
    return [function for _, function in sorted(found.values(), key=lambda item: -item[0])[:MOST]]


def _chosen(seen: _Seen, entry: Entry | None, least: float) -> Iterator[_Seen]:
    if seen.seconds < least:
        return
    often = sum(each.seconds for each in seen.within.values() if each.calls >= MANY * seen.calls)
    plain = not seen.apart and _function_of(seen, entry) is not None and _alone(seen)
    if plain and often < WITHIN * seen.seconds:
        yield seen
        return
    below = [found for each in seen.within.values() for found in _chosen(each, entry, least)]
    yield from below or ([seen] if plain else [])


def _function_of(seen: _Seen, entry: Entry | None) -> FunctionType | None:
    """The function that the program calls by a global name, or is given to call, when this code runs; torch's own
    decorators may be around it (``no_grad``), any other does what we cannot know."""
    assert seen.code is not None
    for held in (seen.space.get(seen.code.co_name), entry.fn if entry is not None else None):
        inner = held
        while isinstance(inner, FunctionType) and inner.__code__ is not seen.code:
            around = inner.__code__
            if around.co_name != "decorate_context" or not os.path.realpath(around.co_filename).startswith(TORCH):
                break
            inner = getattr(inner, "__wrapped__", None)
        if isinstance(held, FunctionType) and isinstance(inner, FunctionType) and inner.__code__ is seen.code:
            return held
    return None


def _alone(seen: _Seen) -> bool:
    """Whether it may be called by itself, again and again: it returns when it is done, and sets no name of others."""
    assert seen.code is not None
    codes = (seen.code, *(code for code, _ in seen.inner()))
    return not seen.code.co_flags & LATER and not any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (step.opname == "STORE_DEREF" and step.argval in seen.code.co_freevars)
        for code in codes
        for step in dis.get_instructions(code)
    )
