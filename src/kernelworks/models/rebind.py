"""Forwards that call torch.nn.functional, made to call kernelworks instead: one function at a time, reversibly.

A forward such as ``def forward(self, x): return F.gelu(self.up(x))`` finds ``F`` in the globals of its module. Its
rebound copy has the same code but looks for ``__kernelworks_F`` there, a module that is torch.nn.functional with
the functions of :mod:`kernelworks.models.calls` in place of torch's. Only instances that are given the rebound copy
see it; every other global is still read where it always was, so later changes to them are seen, and torch.compile
traces the copy like any function. Helper functions that the forward calls by a global name are rebound with it.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from kernelworks.models import calls
from kernelworks.models.gates import GATE, equal_code, gate_mul, with_fused_gates

__all__ = ["Rebinder", "same_code"]

PREFIX = "__kernelworks_"
_NEVER_CALLED = ("eager_attention_forward",)  # transformers' default where the registry has no entry; ours has one
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


def _copy(module: types.ModuleType, changes: dict[str, Any]) -> types.ModuleType:
    """A module with the same contents, save for the changes."""
    copy = types.ModuleType(f"kernelworks.models.{module.__name__.rpartition('.')[2]}", module.__doc__)
    names = {k: v for k, v in vars(module).items() if k not in ("__name__", "__spec__", "__loader__")}
    vars(copy).update(names | changes)
    return copy


@functools.cache
def _modules() -> dict[int, types.ModuleType]:
    """id of torch's module -> the module that stands in for it."""
    functional = _copy(F, dict(calls.FUNCTIONS))
    nn = _copy(torch.nn, {"functional": functional})
    top = _copy(torch, {"nn": nn, "softmax": _torch_softmax})
    return {id(F): functional, id(torch.nn): nn, id(torch): top}


def _torch_softmax(input: Any, dim: Any, dtype: Any = None, **others: Any) -> Any:
    if others:
        return torch.softmax(input, dim, dtype, **others)
    return calls.softmax(input, dim, dtype=dtype)


@functools.cache
def _functions() -> dict[int, Callable[..., Any]]:
    """id of torch's function -> ours, for names imported one by one."""
    return {id(getattr(F, name)): ours for name, ours in calls.FUNCTIONS.items()} | {id(torch.softmax): _torch_softmax}


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


def _renamed(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    """The code with these globals looked up under other names."""
    return code.replace(
        co_names=tuple(names.get(n, n) for n in code.co_names),
        co_consts=tuple(_renamed(c, names) if isinstance(c, types.CodeType) else c for c in code.co_consts),
    )


@dataclass
class Rebound:
    """A rebound function and the calls in it that now go to kernelworks."""

    function: types.FunctionType
    calls: tuple[str, ...]


@dataclass
class _Placed:
    original: Any
    users: int = 0


# id of a module's globals -> (the globals, prefixed name -> what stands there for whom)
_PLACED: dict[int, tuple[dict[str, Any], dict[str, _Placed]]] = {}


@dataclass
class Rebinder:
    """Rebinds functions for one swap and knows what it put into which module's globals.

    ``known`` are further functions that stand in for one of the user's: ``known(function)`` returns (name, ours) or
    None.
    """

    known: Callable[[types.FunctionType], tuple[str, Callable[..., Any]] | None] = lambda function: None
    _done: dict[tuple[int, frozenset[str]], Rebound | None] = field(default_factory=dict)
    _placed: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)  # functions whose ids are keys above

    def rebind(self, function: Any, own: frozenset[str] = frozenset()) -> Rebound | None:
        """The rebound copy of a plain Python function, or None where there is nothing in it to rebind.

        ``own`` are the attributes of its ``self`` that are SiLU modules.
        """
        if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
            return None
        key = (id(function), own & set(function.__code__.co_names))
        if key in self._done:
            return self._done[key]
        self._kept.append(function)
        self._done[key] = None  # a function that calls itself keeps calling the original
        rebound = self._done[key] = self._rebind(function, own)
        return rebound

    def _rebind(self, function: types.FunctionType, own: frozenset[str]) -> Rebound | None:
        space = function.__globals__
        fused = with_fused_gates(function, own)
        code = fused or function.__code__
        read, other = _global_names(code)
        found: dict[str, tuple[Any, Any, tuple[str, ...]]] = {}
        if fused and GATE in read - other and GATE not in space:
            found[GATE] = (gate_mul, gate_mul, ("silu_mul",))
        elif fused:  # the user has a global of that name
            code = function.__code__
        for name in sorted((read - other) & set(space)):
            ours = self._stand_in(space[name], other, function)
            if ours is not None:
                found[name] = (space[name], *ours)
        if not found:
            return None
        names = {name: self._place(space, name, original, value) for name, (original, value, _) in found.items()}
        copy = types.FunctionType(
            _renamed(code, names), space, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__annotations__ = function.__annotations__
        copy.__doc__ = function.__doc__
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        return Rebound(copy, tuple(sorted({call for _, _, ops in found.values() for call in ops})))

    def _stand_in(
        self, value: Any, attributes: set[str], inside: types.FunctionType
    ) -> tuple[Any, tuple[str, ...]] | None:
        """What replaces one global, and the names of the calls that this changes."""
        if id(value) in _modules():
            used = tuple(sorted(attributes & set(calls.FUNCTIONS)))
            if value is torch and "functional" not in attributes:
                used = tuple(n for n in used if n == "softmax")
            if value is torch.nn and "functional" not in attributes:
                used = ()
            return (_modules()[id(value)], used) if used else None
        if id(value) in _functions():
            return _functions()[id(value)], (value.__name__,)
        if not isinstance(value, types.FunctionType) or value.__module__.partition(".")[0] in _LIBRARIES:
            return None
        if value.__name__ in _NEVER_CALLED:
            return None
        known = self.known(value)
        if known is not None:
            return known[1], (known[0],)
        if value.__module__ != inside.__module__:
            return None
        rebound = self.rebind(value)
        return (rebound.function, rebound.calls) if rebound else None

    def _place(self, module_globals: dict[str, Any], name: str, original: Any, value: Any) -> str:
        """Puts a stand-in into a module's globals, shared with other swaps, and returns the name that it got."""
        placed = _PLACED.setdefault(id(module_globals), (module_globals, {}))[1]
        chosen = PREFIX + name
        while chosen in placed and placed[chosen].original is not original:
            chosen += "_"  # the module's name was bound to another object since another swap met it
        if chosen not in placed:
            placed[chosen] = _Placed(original)
            module_globals[chosen] = value
        placed[chosen].users += 1
        self._placed.append((module_globals, chosen))
        return chosen

    def release(self) -> None:
        """Takes back what no other swap uses."""
        for module_globals, name in self._placed:
            placed = _PLACED[id(module_globals)][1]
            placed[name].users -= 1
            if not placed[name].users:
                del placed[name]
                module_globals.pop(name, None)
            if not placed:
                _PLACED.pop(id(module_globals), None)
        self._placed.clear()
