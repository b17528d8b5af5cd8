"""Arrays that are no torch tensors: NumPy's, and what speaks DLPack. While an op runs, a tensor stands for each.

A tensor that stands for an array shares its memory wherever torch can address it: copies are made of what runs
backwards, lies between elements, or has another byte order. An array that is written must be none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

__all__ = ["as_tensors", "has_foreign_array", "restore_arrays"]

NUMBERS = "fciub"  # NumPy's kinds of dtypes that a kernel may read: floats, complex numbers, integers, truth values


def has_foreign_array(values: Sequence[Any]) -> bool:
    """Whether an array that is no tensor is among values, or in a list among them."""
    return any(
        _is_foreign(value) or (isinstance(value, (list, tuple)) and any(map(_is_foreign, value))) for value in values
    )


def _is_foreign(value: Any) -> bool:
    if torch.compiler.is_compiling():  # a compiler knows NumPy's arrays, and no other
        return isinstance(value, np.ndarray)
    return not isinstance(value, Tensor) and hasattr(type(value), "__dlpack__")


def as_tensors(name: str, value: Any, *, written: bool = False) -> Any:
    """``value`` with a tensor in the place of each array; anything else as it is.

    Raises TypeError for what holds no numbers, ValueError where an array that is ``written`` cannot be.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(as_tensors(f"{name}[{i}]", item, written=written) for i, item in enumerate(value))
    if not _is_foreign(value):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value, written)
    try:
        return from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be read through DLPack: {error}") from error


def _from_numpy(name: str, array: np.ndarray[Any, Any], written: bool) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.as_tensor(array)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without a mask, got a MaskedArray")
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{name} must be an array of numbers, got {array.dtype}{list(array.shape)}")
    native, writeable = array.dtype.isnative, array.flags.writeable
    reachable = array.flags.aligned and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    if written and not (writeable and native and reachable):
        why = "of another byte order" if not native else "unaligned or backwards" if not reachable else "read-only"
        raise ValueError(f"{name} is written to and must not be {why}")
    if not native:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not reachable:
        array = array.copy(order="C")
    elif not writeable:
        array = np.asarray(_Read(array))
    try:
        return torch.from_numpy(np.asarray(array))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


class _Read:
    """An array that may not be written, as one that may: torch has no tensors of the first kind, and warns. The op only
    reads what stands for it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        said = array.__array_interface__
        self.__array_interface__ = {**said, "data": (said["data"][0], False)}


def restore_arrays(call: Callable[[], Any], arguments: Sequence[Any], out: Any) -> Any:
    """What ``call`` returns, as what came: NumPy's arrays where each array among the arguments is one, else tensors;
    ``out`` itself where there is one."""
    try:
        result = call()
    except TypeError as error:
        if any(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in _flat(arguments)):
            error.add_note("NumPy's arrays are float64 unless they are told otherwise: x.astype(numpy.float32)")
        raise
    if out is not None:
        return out
    arrays = [a for a in _flat(arguments) if isinstance(a, Tensor) or _is_foreign(a)]
    return _numpy(result) if all(isinstance(a, np.ndarray) for a in arrays) else result


def _flat(values: Sequence[Any]) -> list[Any]:
    return [item for v in values for item in (v if isinstance(v, (list, tuple)) else (v,))]


def _numpy(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        made = tuple(_numpy(item) for item in result)
        return made if type(result) in (list, tuple) else type(result)(made)  # one with names keeps them
    return result.numpy() if isinstance(result, Tensor) else result
