"""Functions of a program as roots of their own, beside the modules that it calls.

A program need not be made of modules: a loop over a function of tensors, a method of a solver, a loss that closes over
its weights. Such a function is found by looking at one run (``find_functions``), and is called through a module of ours
meanwhile (``Function``), so that it is benchmarked, verified and compiled as modules are, by the arguments that it was
called with, the object of a method among them. It is replaced wherever the program holds it (``holders``), or where the
program was given it to call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import math
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kernelworks.contract.leaves import leaves
from kernelworks.diagnose.sites.holders import LOCAL, Place, at_path, places, with_code
from kernelworks.profile.program import Entry, Program
from kernelworks.profile.timeline import Timeline

__all__ = ["Function", "count_outside_calls", "find_function", "find_functions"]

WORTH = 0.05  # a function must take at least this share of a run
MOST = 4  # at most so many functions are taken, the longest
MANY, WITHIN = 10, 0.5  # if so many calls of others take this share of its time, those are compiled, not their loop
FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
LIBRARIES = tuple(str(Path(folder).resolve()) + os.sep for folder in (*FOLDERS, str(Path(__file__).parents[2])))
TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # they return at once
CONTAINERS = (list, dict, set)
MAX_UNROLLED_CALLS = 300  # a loop with so few calls of torch's is compiled whole, with what it calls again and again
LIGHT = 2000  # a method's object is copied for each run: it may hold so many objects and numbers
HEAVY = 1 << 30  # it may hold so many bytes of tensors
CodeAndGlobals = tuple[CodeType, dict[str, Any]]  # code, with its globals


class Function(nn.Module):
    """A function as a module: what it reads beside its arguments are its parameters and buffers. ``bind`` puts another
    in its place for the program, ``unbind`` itself again. ``parts`` are what it calls again and again, each of which
    may be compiled in place of the whole."""

    parts: tuple[Function, ...]

    def __init__(
        self, fn: FunctionType, *, inner: Iterable[CodeAndGlobals] = (), entry: Entry | None = None,
        parts: Iterable[Function] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.fn = fn
        self.__dict__["parts"] = tuple(parts)  # no modules of its own
        self.path = fn.__qualname__
        self.of = str(fn.__module__)  # None of one that was made by exec
        self.held = False  # whether it reads anything but its arguments
        self.twice = False  # whether it was given what it reads by name too
        self.method = _is_method(fn)
        self.entry = entry if entry is not None and getattr(entry.fn, "__func__", entry.fn) is fn else None
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

    def attributes(self, args: tuple[Any, ...]) -> dict[str, Tensor]:
        """The tensors and numbers of the object that a method is called with, which it may read and write."""
        own = args[0] if self.method and args and _is_object(args[0]) else None
        return {f" attribute{name}": t for name, t in leaves(getattr(own, "__dict__", {})).items()}

    @functools.cached_property
    def places(self) -> tuple[Place, ...]:
        """Where the program holds it."""
        return tuple(place for place in places(self.fn) if place.get() is self.fn)

    @property
    def source_name(self) -> str:
        """What the program's author writes for it."""
        return next((place.name for place in self.places if place.name), self.path.rpartition(".")[2])

    def bind(self, other: Callable[..., Any]) -> Callable[[], None]:
        """Has the program call another in its place; returns what takes that back."""
        held, entry = self.places, self.entry
        given = entry.fn if entry is not None else None
        for place in held:
            place.put(other)
        if entry is not None:
            entry.fn = MethodType(other, given.__self__) if isinstance(given, MethodType) else other

        def back() -> None:
            for place in held:
                if place.get() is other:
                    place.put(self.fn)
            if entry is not None and given is not None:
                entry.fn = given

        return back

    @contextmanager
    def install(self) -> Iterator[None]:
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


def find_function(module: str, path: str, entry: Entry | None = None) -> Function | None:
    """The function of that name in a module that is loaded, or in the program's own file."""
    for name in (module, "__main__"):
        found = at_path(vars(sys.modules[name]), path) if name in sys.modules else None
        if isinstance(found, FunctionType):
            return Function(found, entry=entry)
    return None


def _is_method(fn: FunctionType) -> bool:
    owner = fn.__qualname__.rpartition(".")[0]
    return bool(owner) and LOCAL not in owner and isinstance(at_path(fn.__globals__, owner), type)


def _read(fn: FunctionType, inner: Iterable[CodeAndGlobals]) -> list[Any]:
    """The tensors, modules and containers that code reads by global names, and what the function has closed over."""
    found: dict[int, Any] = {}
    values = list(_closed_over(fn))
    for code, space in ((fn.__code__, fn.__globals__), *inner):
        values += [space[name] for name in _names(code) if name in space]
    for value in values:
        if isinstance(value, (Tensor, nn.Module, *CONTAINERS)):
            found[id(value)] = value
    return list(found.values())


def _closed_over(fn: FunctionType, depth: int = 8) -> Iterator[Any]:
    """What a function has closed over, and what functions among that have."""
    for cell in fn.__closure__ or ():
        if _filled(cell):
            value = cell.cell_contents
            yield value
            if isinstance(value, FunctionType) and depth:
                yield from _closed_over(value, depth - 1)


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
    given: Any = None  # its first argument, when it was first called
    within: dict[CodeType, _Seen] = field(default_factory=dict)

    def inner(self) -> Iterator[CodeAndGlobals]:
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
            if code in EXCLUDED_CODE:
                for _, seen, _ in self._stack:
                    seen.apart = True
                self._inside = frame
            elif self._is_own(code):
                within = self._stack[-1][1].within
                if code not in within:
                    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
                    within[code] = _Seen(code, frame.f_globals, given=first)
                seen = within[code]
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


EXCLUDED_CODE = _apart()


def count_outside_calls(timeline: Timeline | None) -> int | None:
    """How many of torch's functions a run calls outside of modules; None if not all of a run was looked at."""
    if timeline is None or timeline.surveyed is not None:
        return None
    return sum(not call.place.path and not call.backward for call in timeline.calls)


def find_functions(program: Program, calls: int | None = None) -> list[Function]:
    """Runs the program once, and finds the functions of its own that take notable time outside of modules, call none,
    and could be called alone; none of them within another, but as its part. ``calls`` is how many of torch's functions
    a run calls outside of modules, if that is known."""
    watch, before = _Watch(program.entry), sys.getprofile()
    sys.setprofile(watch)
    begin = time.perf_counter()
    try:
        program.run()
    finally:
        sys.setprofile(before)
    wall = time.perf_counter() - begin
    choice = _Choice(program.entry, WORTH * wall, calls / max(wall, 1e-9) if calls is not None else math.inf)
    found: dict[int, tuple[float, Function]] = {}
    for seen in watch.top.within.values():
        for each in choice.of(seen):
            function = choice.function(each)
            if function is not None:
                took = found[id(function.fn)][0] if id(function.fn) in found else 0.0
                found[id(function.fn)] = took + each.seconds, function
    return [function for _, function in sorted(found.values(), key=lambda item: -item[0])[:MOST]]


@dataclass
class _Choice:
    """Which of the functions that were seen are roots: those that take ``least`` seconds. ``rate`` is how many of
    torch's functions are called in a second outside of modules."""

    entry: Entry | None
    least: float
    rate: float

    def of(self, seen: _Seen) -> Iterator[_Seen]:
        if seen.seconds < self.least:
            return
        plain = not seen.apart and _function_of(seen, self.entry) is not None and _alone(seen)
        if plain and (not _loops(seen) or self.rate * seen.seconds <= MAX_UNROLLED_CALLS * seen.calls):
            yield seen
            return
        below = [found for each in seen.within.values() for found in self.of(each)]
        yield from below or ([seen] if plain else [])

    def _below(self, seen: _Seen) -> Iterator[_Seen]:
        for each in seen.within.values():
            yield from self.of(each)

    def _often(self, seen: _Seen) -> Iterator[_Seen]:
        """What it, or what it calls, calls again and again."""
        for each in seen.within.values():
            yield from self.of(each) if each.calls >= MANY * seen.calls else self._often(each)

    def function(self, seen: _Seen, *, whole: bool = True) -> Function | None:
        """As a root; with what it calls again and again as its parts if it spends its time in that, or if it
        makes more calls than a compiler gets through."""
        fn = _function_of(seen, self.entry)
        if fn is None:
            return None
        parts: list[Function] = []
        if whole and (_loops(seen) or self.rate * seen.seconds > MAX_UNROLLED_CALLS * seen.calls):
            below = self._below(seen) if _loops(seen) else self._often(seen)
            made = (self.function(each, whole=False) for each in itertools.islice(below, MOST))
            parts = [part for part in made if part is not None and part.fn is not fn]
        return Function(fn, inner=seen.inner(), entry=self.entry, parts=parts)


def _loops(seen: _Seen) -> bool:
    """Whether it spends its time in calls of others, again and again."""
    often = sum(each.seconds for each in seen.within.values() if each.calls >= MANY * seen.calls)
    return often >= WITHIN * seen.seconds


def _function_of(seen: _Seen, entry: Entry | None) -> FunctionType | None:
    """The function that the program calls when this code runs: by a name of its module or its class, or the one that it
    was given, or the only one that was made of this code, held somewhere; torch's own decorators may be around it
    (``no_grad``), any other does what we cannot know."""
    assert seen.code is not None
    code = seen.code
    given = entry.fn if entry is not None else None
    path = code.co_qualname
    named = at_path(seen.space, path) if LOCAL not in path else None
    for held in (seen.space.get(code.co_name), named, getattr(given, "__func__", given)):
        if isinstance(held, FunctionType) and _inside(held, code):
            return held
    made = with_code(code)
    if len(made) == 1 and places(made[0]):
        return made[0]
    return None


def _inside(held: FunctionType, code: CodeType) -> bool:
    """Whether it is the function of that code, or torch's own decorators around it."""
    inner: Any = held
    while isinstance(inner, FunctionType) and inner.__code__ is not code:
        around = inner.__code__
        if around.co_name != "decorate_context" or not os.path.realpath(around.co_filename).startswith(TORCH):
            return False
        inner = getattr(inner, "__wrapped__", None)
    return isinstance(inner, FunctionType)


def _alone(seen: _Seen) -> bool:
    """Whether it may be called by itself, again and again: it returns when it is done, sets no name of others and no
    attribute of an object that it reads by a global name, and what it is a method of can be copied."""
    assert seen.code is not None
    read = [(seen.code, seen.space), *seen.inner()]
    objects = any(_is_object(space.get(name)) for code, space in read for name in _names(code))
    never = {"STORE_GLOBAL", "DELETE_GLOBAL"} | ({"STORE_ATTR", "DELETE_ATTR"} if objects else set())
    return (
        not seen.code.co_flags & LATER
        and not any(
            step.opname in never or (step.opname == "STORE_DEREF" and step.argval in seen.code.co_freevars)
            for code, _ in read
            for step in dis.get_instructions(code)
        )
        and (not _is_object(seen.given) or _light(seen.given))
    )


def _is_object(value: Any) -> bool:
    """Whether it is an object of a class of the program's own."""
    top = str(type(value).__module__).partition(".")[0]  # a class may have any object there
    return top not in sys.stdlib_module_names and top not in ("torch", "numpy", "kernelworks")


def _light(value: Any) -> bool:
    """Whether it holds little enough to be copied for each run."""
    queue, seen, nbytes = [value], set[int](), 0
    while queue:
        each = queue.pop()
        if id(each) in seen or isinstance(each, (type, FunctionType)):
            continue
        seen.add(id(each))
        nbytes += each.nbytes if isinstance(each, Tensor) and each.layout is torch.strided else 0
        if isinstance(each, Tensor):
            continue
        if isinstance(each, (nn.Module, Optimizer)) or len(seen) > LIGHT or nbytes > HEAVY:
            return False
        queue += each.values() if isinstance(each, dict) else each if isinstance(each, (list, tuple, set)) else ()
        queue += vars(each).values() if isinstance(getattr(each, "__dict__", None), dict) else ()
        if len(queue) > LIGHT:
            return False
    return True
