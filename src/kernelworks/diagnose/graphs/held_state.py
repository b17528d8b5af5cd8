"""What a module holds while it is called: where its tensors lie, which parts it has, the numbers in its attributes, and
who watches it. A graph is of the module as it was: of another one it would give that one's answers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.build.digest import fingerprint
from kernelworks.nn.gates import has_foreign_hook

__all__ = ["PLAIN_TYPES", "HeldState", "Itself"]

PLAIN_TYPES = (bool, int, float, str, type(None), torch.dtype, torch.device)
OWN = frozenset(vars(nn.Module())) - {"training"}  # every module has these attributes, hooks among them
LISTS = (list, dict, set)
GONE, READ = object(), object()
Place = tuple[dict[str, Any], str, Any, Any]  # where a name stands, the name, its value, and where or what that is
_SIZES = operator.attrgetter("shape", "dtype", "requires_grad")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Itself:
    """An object as the key of a mapping: equal to itself alone, and held, so that its number is no other's."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


class HeldState:
    """Of one moment. ``takes`` says which tensors a graph reads where they lie; of others it has the numbers."""

    def __init__(self, module: nn.Module, takes: Callable[[Tensor], bool]) -> None:
        self.takes = takes
        self.places = list(self._places(module))
        self._read = [value for _, _, value, at in self.places if at is READ]
        self._lies = _lie(self._read)
        self._sizes = list(_sizes(module))
        self._types = [(part, type(part)) for part in module.modules()]
        self._hooks = [getattr(part, name) for part in module.modules() for name in HOOKS]
        self._watching = _hooks_in(self._hooks)

    def _places(self, module: nn.Module) -> Iterator[Place]:
        for part in module.modules():
            for space in (part._parameters, part._buffers, part._modules):
                for name, value in space.items():
                    yield space, name, value, self._at(value)
            space = vars(part)
            for name, value in space.items():
                if name not in OWN and isinstance(value, (Tensor, *PLAIN_TYPES)):
                    yield space, name, value, self._at(value)

    def _at(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        return READ if self._is_read(value) else (fingerprint(value), value.requires_grad)

    def _is_read(self, value: Tensor) -> bool:
        return self.takes(value) and value.layout is torch.strided

    def changed_name(self) -> str:
        """What is another one by now, by its name; "" if nothing is."""
        for space, name, value, at in self.places:
            now = space.get(name, GONE)
            if at is None:
                if now is not value and (type(now) is not type(value) or now != value):
                    return name
            elif now is not value or (at is not READ and self._at(value) != at):
                return name
        if _lie(self._read) != self._lies:
            return "where a tensor lies"
        if any(type(part) is not of for part, of in self._types):
            return "a part's class"
        if (self._watching or any(self._hooks)) and _hooks_in(self._hooks) != self._watching:
            return "a hook"
        return ""

    def resized_name(self) -> str:
        """A list, mapping or set in an attribute that has another size by now."""
        return next((name for held, name, size in self._sizes if len(held) != size), "")


def _lie(tensors: list[Tensor]) -> tuple[list[Any], ...]:
    """Where tensors lie and how, as quickly as can be asked: of all weights of a model, at each call."""
    return list(map(Tensor.data_ptr, tensors)), list(map(Tensor.stride, tensors)), list(map(_SIZES, tensors))


def _hooks_in(spaces: list[dict[int, Any]]) -> list[Any]:
    """The hooks that are none of ours."""
    return [hook for space in spaces for hook in space.values() if has_foreign_hook({0: hook})]


def _sizes(module: nn.Module) -> Iterator[tuple[Any, str, int]]:
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in OWN and isinstance(value, LISTS):
                yield value, name, len(value)
