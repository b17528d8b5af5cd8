"""What a call returned, and the same again with other tensors in it: nested sequences and mappings, and objects that
the call makes anew (a cache of keys and values, say)."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, GeneratorType, MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelworks.diagnose.optimization import Impossible
from kernelworks.diagnose.snapshot import CONTAINERS, LIBRARY_PACKAGES, map_tensors

__all__ = ["ReturnedValue"]


class _Given(NamedTuple):
    """An object that the call was given, by its place among them."""

    number: int


class ReturnedValue:
    """``tensors`` are those that the call made, each once; what it returned ``before`` too is the same object each time
    and stays so, but for what it was ``given``. Of the ``objects`` that it was given it keeps none."""

    def __init__(
        self, value: Any, before: ReturnedValue | None = None, given: Sequence[Tensor] = (), objects: Sequence[Any] = ()
    ) -> None:
        flat, self._spec = pytree.tree_flatten(value)
        self._flat = [next((_Given(i) for i, one in enumerate(objects) if one is item), item) for item in flat]
        self._seen: dict[int, Any] = {}
        for item in self._flat:
            map_tensors(item, lambda tensor: tensor, self._seen)
        own = {id(tensor) for tensor in given}
        lasting = before._seen.keys() - own if before is not None else ()
        self._shared = {key: (value, value) for key in lasting if key in self._seen for _, value in [self._seen[key]]}
        self.tensors = [v for key, (_, v) in self._seen.items() if isinstance(v, Tensor) and key not in self._shared]

    def check(self) -> None:
        """Raises Impossible if what was returned cannot be made again of other tensors."""
        if any(_closed(item) for item in self._flat):
            raise Impossible("it returns more than tensors (a function)")
        for key, (made, value) in self._seen.items():
            if key in self._shared:
                wrong = any(id(item) in self._seen and id(item) not in self._shared for item in _held(value))
            else:
                wrong = _opaque(made, value)
            if wrong:
                raise Impossible(f"it returns more than tensors ({type(value).__name__})")
        if not self.tensors:
            raise Impossible("it returns no tensor")

    def rebuild(self, tensors: Sequence[Tensor], objects: Sequence[Any] = ()) -> Any:
        """The same with these in the places of ``tensors``, and of the objects that the call was given."""
        seen = dict(self._shared)
        for old, tensor in zip(self.tensors, tensors, strict=True):
            seen[id(old)] = (tensor, old)
        flat = [
            objects[item.number] if isinstance(item, _Given) else map_tensors(item, _as_it_is, seen)
            for item in self._flat
        ]
        return pytree.tree_unflatten(flat, self._spec)

    @property
    def all_tensors(self) -> list[Tensor]:
        """Every tensor in it, in their order, those that stay the same too."""
        return [value for _, value in self._seen.values() if isinstance(value, Tensor)]


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _opaque(made: Any, value: Any) -> bool:
    """Whether an object may hold on to tensors that a copy of it does not show."""
    if isinstance(value, (Tensor, enum.Enum)):
        return False
    alien = made is value or str(type(value).__module__).partition(".")[0] in LIBRARY_PACKAGES
    if alien and not isinstance(value, (tuple, *CONTAINERS)):
        return True
    return any(_closed(item) for item in _held(value))


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        return
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (tuple, *CONTAINERS)):
        yield from value
    yield from (getattr(value, "__dict__", None) or {}).values()


def _closed(item: Any) -> bool:
    """Whether it may have closed over tensors."""
    if isinstance(item, FunctionType):
        return item.__closure__ is not None
    return isinstance(item, (MethodType, GeneratorType, functools.partial)) and not isinstance(item, nn.Module)
