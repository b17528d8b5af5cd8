"""What a swap puts on an instance, how it comes off, and why copies come out without it.

A swapped module differs from the module that it was by a few entries of its ``__dict__``. ``InstalledAttributes`` knows
them. It stands in the same ``__dict__`` as ``__getstate__``, which ``copy.copy``, ``copy.deepcopy``, ``pickle`` and
``torch.save`` ask for what an object consists of: the answer leaves the entries out, so that a copy is the model as it
was, bound to nothing that ``undo()`` takes away, and a file of it can be read without kernelworks.
"""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["InstalledAttributes", "copies_itself", "installed_on", "take_off_strangers"]


class _Absent:
    """Nothing was there. A class, which copies and pickles give back as it is."""


_STATE, _REPLICATE, _SCRIPT = "__getstate__", "_replicate_for_data_parallel", "__prepare_scriptable__"


class InstalledAttributes:
    """The entries that one swap, or one optimization, set in a module's ``__dict__``, each with what was there before.

    A second one on the same module lies on the first. They are removed in any order: what lies on the one that goes
    finds below it what that one had found.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.ours: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        if isinstance(module.__dict__.get(_STATE, self), InstalledAttributes):
            self.set(_STATE, self)
        self.set(_REPLICATE, MethodType(_replicated, module))
        self.set(_SCRIPT, MethodType(_scriptable, module))
        if hasattr(type(module), "__deepcopy__"):  # it may copy the entries themselves, without asking for a state
            self.set("__deepcopy__", MethodType(_deeply_copied, module))

    def __call__(self) -> Any:
        """The state of the module without ours: what ``__getstate__`` returns."""
        module = self.module()
        cls: Any = type(module)
        state = cls.__getstate__(module)
        if isinstance(state, tuple) and state and isinstance(state[0], dict):
            return (self.strip_all(state[0]), *state[1:])
        return self.strip_all(state) if isinstance(state, dict) else state

    def set(self, name: str, value: Any) -> None:
        """Sets an instance attribute, past nn.Module's own bookkeeping."""
        module = self.module()
        assert module is not None
        space = module.__dict__
        if name not in self.ours:
            self.before[name] = space.get(name, _Absent)
        space[name] = self.ours[name] = value

    def strip_own(self, space: dict[str, Any]) -> dict[str, Any]:
        """A copy of ``space`` in which nothing of ours stands."""
        plain = dict(space)
        for name, value in self.ours.items():
            if plain.get(name, _Absent) is not value:  # somebody set something else there since: theirs
                continue
            del plain[name]
            if self.before[name] is not _Absent:
                plain[name] = self.before[name]
        return plain

    def strip_all(self, space: dict[str, Any]) -> dict[str, Any]:
        """The same without what lies below either."""
        plain = self.strip_own(space)
        below = plain.get(_STATE)
        return below.strip_all(plain) if isinstance(below, InstalledAttributes) and below is not self else plain

    def remove(self) -> None:
        """Takes back what still stands there."""
        module = self.module()
        if module is not None:
            above = self._above(module)
            plain = self.strip_own(module.__dict__)
            for name in self.ours:
                if name in plain:
                    module.__dict__[name] = plain[name]
                else:
                    module.__dict__.pop(name, None)
            for upper in above:
                for name, value in self.ours.items():
                    if upper.before.get(name, _Absent) is value:
                        upper.before[name] = self.before[name]
        self.ours.clear()
        self.before.clear()

    def _above(self, module: nn.Module) -> list[InstalledAttributes]:
        """Those on the same module that lie on this one."""
        found, each = list[InstalledAttributes](), module.__dict__.get(_STATE)
        while isinstance(each, InstalledAttributes) and each is not self:
            found.append(each)
            each = each.before.get(_STATE)
        return found if each is self else []


def copies_itself(cls: type) -> bool:
    """Whether a user's class says itself what ``copy.copy`` makes of it. That may take over the entries of ``__dict__``
    one by one, ours among them, and no copy can be told from the module that they are bound to."""
    owner = next((base for base in cls.__mro__ if "__copy__" in base.__dict__), None)
    return owner is not None and owner.__module__.partition(".")[0] != "torch"


def installed_on(module: nn.Module) -> InstalledAttributes | None:
    """What a swap put on this very module."""
    found = module.__dict__.get(_STATE)
    return found if isinstance(found, InstalledAttributes) and found.module() is module else None


def take_off_strangers(module: nn.Module) -> None:
    """Removes what came with a ``__dict__`` that was copied entry by entry from a swapped module: it belongs there."""
    found = module.__dict__.get(_STATE)
    if isinstance(found, InstalledAttributes) and found.module() is not module:
        plain = found.strip_all(module.__dict__)
        for name in set(module.__dict__) - set(plain):
            del module.__dict__[name]
        module.__dict__.update(plain)


def _replicated(module: Any) -> Any:
    """nn.DataParallel copies ``__dict__`` entry by entry: bound methods there would run the original's parameters."""
    replica = type(module)._replicate_for_data_parallel(module)
    take_off_strangers(replica)
    return replica


def _scriptable(module: Any) -> Any:
    """What ``torch.jit.script`` compiles: the module as it was. torch writes into its ``_modules``: a copy."""
    found = installed_on(module)
    before = getattr(type(module), _SCRIPT, None)
    if found is None or before is not None:
        return before(module) if before is not None else module
    plain = object.__new__(type(module))
    plain.__dict__.update(found.strip_all(module.__dict__))
    plain.__dict__["_modules"] = dict(module._modules)
    return plain


def _deeply_copied(module: Any, memo: dict[int, Any]) -> Any:
    """The class's own ``__deepcopy__``, which meanwhile sees the module as it was."""
    found = installed_on(module)
    assert found is not None
    space = module.__dict__
    plain = found.strip_all(space)
    ours = {name: value for name, value in space.items() if plain.get(name, _Absent) is not value}
    try:  # one entry at a time: another thread may be running the module
        for name in ours:
            if name in plain:
                space[name] = plain[name]
            else:
                space.pop(name, None)
        return type(module).__deepcopy__(module, memo)
    finally:
        space.update(ours)
