"""The choices that a module makes with torch's functions: another one among equal elements is no other answer.

torch does not say which of equal elements ``topk`` and ``sort`` name. Where a module returns such indices, a kernel may
return others: each must name an element of the value that torch's named, and none twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.verify.compare import repeated_places, right_choices

__all__ = ["Choice", "RecordedChoices"]

MOST_BYTES = 1 << 28  # of tensors that were chosen from


@dataclass(frozen=True)
class Choice:
    """What was chosen from ``of`` along ``dim``."""

    of: Tensor
    dim: int
    values: Tensor
    indices: Tensor

    def names_equals(self, places: Tensor) -> Tensor:
        """Where other indices name elements of the same values."""
        return right_choices(self.of, self.dim, self.values, places)

    def names_twice(self, places: Tensor) -> Tensor:
        """Where other indices stand in a line that names an element twice, as no rounding has it."""
        return repeated_places(self.dim, places)


class RecordedChoices(TorchDispatchMode):
    """While it is on, ``topk`` and ``sort`` are recorded in ``found``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Choice] = []
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in ("topk", "sort") and not kwargs.get("stable") and isinstance(args[0], Tensor):
            of = args[0].detach()
            self._bytes += of.nbytes
            if self._bytes <= MOST_BYTES and type(result[0]) is Tensor:
                place = {a.name: i for i, a in enumerate(func._schema.arguments)}["dim"]
                dim = kwargs.get("dim", args[place] if len(args) > place else -1)
                self.found.append(Choice(of.clone(), dim, result[0].detach().clone(), result[1].clone()))
        return result
