"""Forwards that call torch.nn.functional, made to call kernelworks instead: one function at a time, reversibly.

A forward such as ``def forward(self, x): return F.gelu(self.up(x))`` finds ``F`` in the globals of its module. Its
rebound copy has the same code but looks for ``__kernelworks_F`` there, a module that is torch.nn.functional with
the functions of :mod:`kernelworks.nn.functional` in place of torch's. Only instances that are given the rebound copy
see it; every other global is still read where it always was, so later changes to them are seen, and torch.compile
traces the copy like any function. Helper functions that the forward calls by a global name are rebound with it.

What was replaced may be replaced by the user too: a name that has come to mean another object, or another forward on
the class, sends the call to the function as it was written (``guarded_method``). A name in a module's globals stays
there as long as a function lives that looks it up, so whoever holds a rebound forward can call it.
"""

from __future__ import annotations

import dis
import functools
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from kernelworks.nn import functional as calls
from kernelworks.nn.gates import GATES, with_fused_gates
from kernelworks.nn.originals import TORCH_FUNCTIONS, TWINS, is_from_package
from kernelworks.nn.source_code import equal_code, is_only_called

__all__ = ["Rebinder", "guarded_method", "same_code"]

_is_compiling = torch.compiler.is_compiling

PREFIX = "__kernelworks_"
_NEVER_CALLED = ("eager_attention_forward",)  # transformers' default where the registry has no entry; ours has one
# Wrappers of transformers' that call what they wrap with the same arguments: those of modules whose weights they use
# without calling them.
_TRANSPARENT = ("force_accelerate_hooks.<locals>.decorator.<locals>.wrapped",)
_LIBRARIES = ("torch", "numpy", "builtins", "typing", "math", "functools", "collections", "einops")


def same_code(a: Any, b: Any) -> bool:
    """Whether two plain functions do the same by their bytecode, whatever their docstrings and annotations say."""
    if not (isinstance(a, types.FunctionType) and isinstance(b, types.FunctionType)):
        return False
    return equal_code(_without_doc(a.__code__), _without_doc(b.__code__))


@functools.lru_cache(4096)
def _without_doc(code: types.CodeType) -> types.CodeType:
    """The code without its docstring: a first constant that no instruction reads (decorators change ``__doc__``)."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return code
    if any(i.opcode in dis.hasconst and i.arg == 0 for i in dis.get_instructions(code)):
        return code
    return code.replace(co_consts=(None, *code.co_consts[1:]))


def _standing_in(module: types.ModuleType) -> types.ModuleType:
    """A module in whose place ours is read: what is asked of it is looked up in torch's then and there, so what the
    user has put there is what comes; torch's own functions come as ours."""
    ours = types.ModuleType(f"kernelworks.nn.{module.__name__.rpartition('.')[2]}", module.__doc__)

    def look_up(name: str) -> Any:
        value = getattr(module, name)
        return _ours().get(id(value), value)

    vars(ours)["__getattr__"] = look_up
    return ours


def _torch_softmax(input: Any, dim: Any, dtype: Any = None, **others: Any) -> Any:
    found = None if others else calls.softmax_by_op(input, dim, dtype)
    return _SOFTMAX(input, dim, dtype, **others) if found is None else found


_SOFTMAX = torch.softmax


@functools.cache
def _modules() -> dict[int, types.ModuleType]:
    """id of torch's module -> the module that stands in for it."""
    return {id(module): _standing_in(module) for module in (F, torch.nn, torch.fft, torch.linalg, torch)}


@functools.cache
def _functions() -> dict[int, Callable[..., Any]]:
    """id of torch's function -> ours."""
    named = {id(TORCH_FUNCTIONS[name]): ours for name, ours in calls.FUNCTIONS.items()}
    twins = {id(twin): calls.twin_stand_in(name) for name, twin in TWINS.items()}
    return {**named, **twins, id(_SOFTMAX): _torch_softmax}


@functools.cache
def _ours() -> dict[int, Any]:
    return {**_modules(), **_functions()}


def _all_codes(code: types.CodeType) -> list[types.CodeType]:
    """The code and every function or comprehension inside it."""
    return [code, *(inner for c in code.co_consts if isinstance(c, types.CodeType) for inner in _all_codes(c))]


def _global_names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names that the code reads as globals, and the names that it uses in any other way."""
    read, other = set(), set()
    for part in _all_codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname == "LOAD_GLOBAL":
                read.add(str(instruction.argval))
            elif instruction.opcode in dis.hasname:
                other.add(str(instruction.argval))
    return read, other


def _attributes(code: types.CodeType) -> dict[str, set[str]]:
    """Of each name that the code reads as a global, the attributes that are asked of it and of those in turn:
    ``torch.nn.functional.gelu``. None is known of a name that is handed on."""
    found: dict[str, set[str]] = {}
    handed = set[str]()
    for part in _all_codes(code):
        name, depth = "", 0
        for instruction in dis.get_instructions(part):
            if instruction.opname == "LOAD_GLOBAL":
                handed |= {name} - {""} if not depth else set()
                name, depth = str(instruction.argval), 0
            elif name and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                found.setdefault(name, set()).add(str(instruction.argval))
                depth += 1
            elif name and instruction.opname not in ("PUSH_NULL", "EXTENDED_ARG", "CACHE"):
                handed |= {name} if not depth else set()
                name, depth = "", 0
    return {name: attributes for name, attributes in found.items() if name not in handed}


def _renamed(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    """The code with these globals looked up under other names."""
    return code.replace(
        co_names=tuple(names.get(n, n) for n in code.co_names),
        co_consts=tuple(_renamed(c, names) if isinstance(c, types.CodeType) else c for c in code.co_consts),
    )


@dataclass
class Rebound:
    """A rebound function, the calls in it that now go to kernelworks, and the globals that were replaced for it: whose,
    the name, and what stood there."""

    function: types.FunctionType
    calls: tuple[str, ...]
    replaced: tuple[tuple[dict[str, Any], str, Any], ...]


@dataclass
class _Placed:
    original: Any
    users: int = 0


# id of a module's globals -> (the globals, prefixed name -> what stands there for whom)
_PLACED: dict[int, tuple[dict[str, Any], dict[str, _Placed]]] = {}
_CHANGING = threading.Lock()  # who holds it places names or takes them away
_RELEASED: deque[tuple[dict[str, Any], str]] = deque()


@dataclass
class Rebinder:
    """Rebinds functions for one swap and knows what it put into which module's globals.

    ``known`` are further functions that stand in for one of the user's: ``known(function)`` returns (name, ours) or
    None.
    """

    known: Callable[[types.FunctionType], tuple[str, Callable[..., Any]] | None] = lambda function: None
    _done: dict[tuple[int, frozenset[tuple[str, str]]], Rebound | None] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)  # functions whose ids are keys above

    def rebind(self, function: Any, own: Mapping[str, str] = MappingProxyType({})) -> Rebound | None:
        """The rebound copy of a plain Python function, or None if there is nothing in it to rebind.

        ``own`` are the attributes of its ``self`` that are activations, with the op whose gate each begins.
        """
        if not isinstance(function, types.FunctionType):
            return None
        if hasattr(function, "__wrapped__"):
            return self._within(function, own) if _is_transparent(function) else None
        own = {name: op for name, op in own.items() if name in function.__code__.co_names}
        key = (id(function), frozenset(own.items()))
        if key in self._done:
            return self._done[key]
        self._kept.append(function)
        self._done[key] = None  # a function that calls itself keeps calling the original
        rebound = self._done[key] = self._rebind(function, own)
        return rebound

    def _within(self, wrapper: Any, own: Mapping[str, str]) -> Rebound | None:
        """The rebound copy of what a wrapper calls, in a copy of the wrapper."""
        inner = wrapper.__wrapped__
        rebound = self.rebind(inner, own)
        if rebound is None:
            return None
        cells = tuple(
            types.CellType(rebound.function) if cell.cell_contents is inner else cell for cell in wrapper.__closure__
        )
        copy = types.FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, cells)
        functools.update_wrapper(copy, rebound.function)
        return Rebound(copy, rebound.calls, rebound.replaced)

    def _rebind(self, function: types.FunctionType, own: Mapping[str, str]) -> Rebound | None:
        space = function.__globals__
        fused = with_fused_gates(function, own)
        code, fusing, within = fused or (function.__code__, set(), set())
        read, other = _global_names(code)
        of = _attributes(code)
        found: dict[str, tuple[Any, Any, tuple[str, ...]]] = {}
        replaced: list[tuple[dict[str, Any], str, Any]] = []
        if fused and GATES.keys() & (other | space.keys()):  # the user has such names
            code, within = function.__code__, set()
        elif fused:
            found |= {name: (GATES[name], GATES[name], tuple(fusing)) for name in GATES.keys() & read}
        for name in sorted((read - other) & set(space)):
            ours = self._stand_in(space[name], of.get(name, other), function)  # a tensor's own method is none of them
            if ours is not None:
                found[name] = (space[name], *ours[:2])
                replaced += [(space, name, space[name]), *ours[2]]
        if not found or not is_only_called(function, set(found), _ours()):
            return None
        with _CHANGING:
            names = {name: _name_for(space, name, original) for name, (original, _, _) in found.items()}
            copy = types.FunctionType(
                _renamed(code, names), space, function.__name__, function.__defaults__, function.__closure__
            )
            for name, (original, value, _) in found.items():
                _place(space, names[name], original, value, copy)
        _release_unused()
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__annotations__ = function.__annotations__
        copy.__doc__ = function.__doc__
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        ops = {call for _, _, called in found.values() for call in called} - within
        return Rebound(copy, tuple(sorted(ops)), tuple(replaced))

    def _stand_in(
        self, value: Any, attributes: set[str], inside: types.FunctionType
    ) -> tuple[Any, tuple[str, ...], tuple[Any, ...]] | None:
        """What replaces one global, the names of the calls that this changes, and what is replaced for it in turn."""
        if id(value) in _modules():
            used = tuple(sorted(attributes & set(calls.FUNCTIONS)))
            if value is torch and "functional" not in attributes:
                homes = (torch, *(getattr(torch, home) for home in ("fft", "linalg") if home in attributes))
                used = tuple(n for n in used if any(id(getattr(home, n, None)) in _functions() for home in homes))
                if (attributes & set(torch.fft.__all__)) - {"fft"}:  # then "fft" is the module on the way to another
                    used = tuple(n for n in used if n != "fft")
            if value is torch.fft or value is torch.linalg:
                used = tuple(n for n in used if id(getattr(value, n, None)) in _functions())
            if value is torch.nn and "functional" not in attributes:
                used = ()
            return (_modules()[id(value)], used, ()) if used else None
        if id(value) in _functions():
            name = next((n for n, shipped in TORCH_FUNCTIONS.items() if shipped is value), value.__name__)
            return _functions()[id(value)], (name,), ()
        if not isinstance(value, types.FunctionType) or str(value.__module__).partition(".")[0] in _LIBRARIES:
            return None
        if value.__name__ in _NEVER_CALLED:
            return None
        known = self.known(value)
        if known is not None:
            return known[1], (known[0],), ()
        if value.__module__ != inside.__module__:
            return None
        rebound = self.rebind(value)
        return (rebound.function, rebound.calls, rebound.replaced) if rebound else None


def _is_transparent(wrapper: types.FunctionType) -> bool:
    """Whether a wrapper is one of transformers' own that does no more than call what it wraps."""
    return wrapper.__code__.co_qualname in _TRANSPARENT and is_from_package("transformers", wrapper)


def _name_for(space: dict[str, Any], name: str, original: Any) -> str:
    """The name under which a stand-in for this object stands, or will stand, in a module's globals."""
    placed = _PLACED.get(id(space), (space, {}))[1]
    chosen = PREFIX + name
    while chosen in placed and placed[chosen].original is not original:
        chosen += "_"  # the module's name was bound to another object since another swap met it
    return chosen


def _place(space: dict[str, Any], chosen: str, original: Any, value: Any, user: types.FunctionType) -> None:
    """Puts a stand-in into a module's globals for as long as a function lives that looks it up there."""
    placed = _PLACED.setdefault(id(space), (space, {}))[1]
    if chosen not in placed:
        placed[chosen] = _Placed(original)
        space[chosen] = value
    placed[chosen].users += 1
    weakref.finalize(user, _gone, space, chosen).atexit = False


def _gone(space: dict[str, Any], chosen: str) -> None:
    """A user is gone: said by the garbage collector, in whatever thread and in the midst of whatever it does."""
    _RELEASED.append((space, chosen))
    _release_unused()


def _release_unused() -> None:
    """Takes away what has no user any more, unless somebody is changing names, who does it afterwards."""
    while _RELEASED and _CHANGING.acquire(blocking=False):
        try:
            while _RELEASED:
                _release(*_RELEASED.popleft())
        finally:
            _CHANGING.release()


def _release(space: dict[str, Any], chosen: str) -> None:
    placed = _PLACED[id(space)][1]
    placed[chosen].users -= 1
    if not placed[chosen].users:
        del placed[chosen]
        space.pop(chosen, None)
    if not placed:
        _PLACED.pop(id(space), None)


def guarded_method(module: Any, name: str, function: types.FunctionType, rebound: Rebound) -> Callable[..., Any]:
    """The rebound copy of a module's function, as long as its class and the names in it mean what they meant.

    Its class is asked at every call: a parametrization gives it another one, whose functions may be set.
    """
    run, replaced, of = rebound.function, rebound.replaced, weakref.ref(module)

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        if not _is_compiling():
            current = getattr(type(of()), name, function)  # a static one outlives its module
            if current is not function:
                return current(*args, **kwargs)
            for space, key, original in replaced:
                if space.get(key) is not original:
                    return function(*args, **kwargs)
        return run(*args, **kwargs)

    return method
