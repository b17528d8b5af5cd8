"""Arguments that are lists of tensors, as a kind of argument (``arguments.py``).

    ARGUMENTS = {"params": Tensors(written="a"), "grads": Tensors("params"), "exp_avgs": Tensors("params", written="b",
    state=True)}

The first list says how many tensors there are, and each one's shape, dtype and device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import describe, need_dtype, need_same, need_tensor
from kernelworks.contract.arguments import Arguments
from kernelworks.contract.tensor_argument import GivenArguments, Wrong, strides_of

__all__ = ["Tensors", "lists_of", "written_of"]

SHAPE = (2, 8)  # of the tensors in calls that must raise


@dataclass(frozen=True)
class Tensors:
    """A list of floating-point tensors of any strides. ``like`` names the list whose tensor in the same place has the
    shape, dtype and device of each. ``written``: the letter of its alias set in the schema. A ``state`` is of its
    tensor's dtype or of float32, all of one place in the dtype of the list ``state_like``. With ``unless`` the list
    is empty where the number of this name is 0. All lie on one type of device, or with ``one_device`` on one."""

    like: str = ""
    written: str = ""
    state: bool = False
    state_like: str = ""
    unless: str = ""
    one_device: bool = False

    @property
    def schema(self) -> str:
        return f"Tensor({self.written}!)[]" if self.written else "Tensor[]"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{name} must be a list of tensors, got {_kind(value)}")
        if self._is_empty(given):
            if value:
                raise ValueError(f"{name} must be empty where {self.unless} is 0, got {len(value)} tensors")
            return
        first = given[self.like] if self.like else value
        if len(value) != len(first):
            raise ValueError(f"{name} must hold one tensor for each of {self.like}, {len(first)}; got {len(value)}")
        for i, tensor in enumerate(value):
            self._check_item(f"{name}[{i}]", tensor, i, given)
            if not self.like and self._place(tensor) != self._place(first[0]):
                raise ValueError(f"{name}[{i}] must be on {name}[0]'s device {first[0].device}, got {tensor.device}")

    def _place(self, tensor: Any) -> str:
        return str(tensor.device) if self.one_device else torch.device(tensor.device).type

    def _is_empty(self, given: GivenArguments) -> bool:
        number = given.get(self.unless) if self.unless else None
        return isinstance(number, (int, float)) and number == 0

    def _check_item(self, name: str, tensor: Any, i: int, given: GivenArguments) -> None:
        need_tensor(name, tensor)
        if not self.like:
            need_dtype(name, tensor)
        else:
            of, other = f"{self.like}[{i}]", given[self.like][i]
            if tuple(tensor.shape) != tuple(other.shape):
                raise ValueError(f"{name} must have {of}'s shape {list(other.shape)}, got {list(tensor.shape)}")
            if self.state:
                need_dtype(name, tensor, (other.dtype, torch.float32))
                if torch.device(tensor.device).type != torch.device(other.device).type:
                    raise ValueError(f"{name} must be on {of}'s device {other.device}, got {tensor.device}")
            else:
                need_same(name, tensor, of, other)
        if self.state_like and tensor.dtype != (state := given[self.state_like][i]).dtype:
            of = f"{self.state_like}[{i}]"
            raise TypeError(f"{name} must have {of}'s dtype {describe(state)}, got {describe(tensor)}")
        if self.written and _crosses_itself(tensor):
            strides = list(strides_of(tensor))
            raise ValueError(f"{name} is written and must not share memory with itself: strides {strides}")

    def right(self, given: GivenArguments) -> Any:
        if self._is_empty(given):
            return []
        return [torch.ones(SHAPE), torch.ones(SHAPE)]

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        t, shape = torch.ones(SHAPE), list(SHAPE)
        yield f"{name} is a tensor", torch.ones(2, *SHAPE), TypeError, f"{name} must be a list of tensors"
        yield f"{name} is None", None, TypeError, f"{name} must be a list of tensors"
        yield f"{name} holds None", [t, None], TypeError, f"{name}[1] must be a torch.Tensor"
        yield f"{name} holds integers", [t, t.long()], TypeError, f"{name}[1] must have "
        yield f"{name} on two devices", [t, t.to("meta")], ValueError, f"{name}[1] must be on "
        if self.like:
            of = f"{name}[1] must have {self.like}[1]'s"
            yield f"{name} lacks a tensor", [t], ValueError, f"{name} must hold one tensor for each of {self.like}, 2"
            yield f"{name} of another shape", [t, torch.ones(5)], ValueError, f"{of} shape {shape}"
            yield f"{name} of another dtype", [t, t.half()], TypeError, f"{name}[1] must have "
        if self.written:
            message = f"{name}[1] is written and must not share memory with itself"
            yield f"{name} expanded", [t, torch.ones(1).expand(SHAPE)], ValueError, message
            yield f"{name} in windows", [t, torch.ones(16).as_strided(SHAPE, (4, 1))], ValueError, message
            yield f"{name} twice", [t, t], ValueError, f"{name}[1] shares memory with {name}[0]"
            crossed = torch.ones(20).as_strided(SHAPE, (8, 1)), torch.ones(20)
            yield f"{name} crossed", _crossed(*crossed), ValueError, f"{name}[1] shares memory with {name}[0]"
        elif self.like and _is_written(given, self.like):
            yield f"{name} in {self.like}'s memory", list(given[self.like]), ValueError, "] shares memory with"

    def __str__(self) -> str:
        if not self.like:
            return "a list of tensors of any shape and strides, float32, bfloat16 or float16"
        state = " or float32" if self.state else ""
        empty = f"; empty where {self.unless} is 0" if self.unless else ""
        return f"a list, one for each of {self.like}, of its shape, dtype{state} and device, any strides{empty}"


def _is_written(given: GivenArguments, name: str) -> bool:
    return name in given  # the lists that others are like come first, and are what a step writes


def _crossed(one: Tensor, memory: Tensor) -> list[Tensor]:
    """Two tensors of the same shape that lie in one memory, the second a few elements on."""
    shape = tuple(one.shape)
    return [memory.as_strided(shape, (8, 1), 0), memory.as_strided(shape, (8, 1), 3)]


def _kind(value: Any) -> str:
    return type(value).__name__


def _crosses_itself(tensor: Any) -> bool:
    """Whether two elements of a tensor may lie in one place."""
    sizes = zip(tensor.shape, strides_of(tensor), strict=True)
    steps = sorted((abs(stride), size) for size, stride in sizes if size != 1)
    reach = 0
    for stride, size in steps:
        if stride <= reach:
            return 0 not in tensor.shape
        reach += (size - 1) * stride
    return False


def lists_of(arguments: Arguments) -> tuple[str, ...]:
    """The names of those that are lists of tensors."""
    return tuple(name for name, argument in arguments.items() if isinstance(argument, Tensors))


def written_of(arguments: Arguments) -> tuple[str, ...]:
    """The names of the lists that are written."""
    return tuple(name for name, argument in arguments.items() if isinstance(argument, Tensors) and argument.written)
