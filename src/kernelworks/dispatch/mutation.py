"""What a call writes into: tensors that a caller hands over with ``out=``, and parameters that a step overwrites.

A kernel that writes by address must say so to autograd (a tensor saved for a backward and changed since is an error,
by its version), must not read what it has overwritten, and must not touch an inference tensor where torch would not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.contract.tensors import is_plain, leaves

__all__ = [
    "announce", "announce_arguments", "as_tuple", "check_out", "copy_into", "find_shared", "overlap",
    "own_arguments", "refuse_crossed", "results_of", "same_place", "written_arguments",
]  # fmt: skip


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def written_arguments(op: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """What a forward of the op with these arguments writes to, of those that it was given."""
    names = op.passes["forward"].names
    return tuple(a for a in (args[names.index(name)] for name in op.contract.mutates) if a is not None)


def results_of(op: Any, result: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """All results of a forward of the op: what it returned, then what it wrote to."""
    return (*(as_tuple(result) if op.contract.returned_outputs else ()), *written_arguments(op, args))


def own_arguments(op: Any, args: Sequence[Any], copy: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The arguments of a forward of the op with a copy in the place of each that it writes to: for a call that leaves
    everybody's tensors as they are."""
    names = op.passes["forward"].names
    return tuple(copy(a) if n in op.contract.mutates else a for n, a in zip(names, args, strict=True))


def announce(tensors: Iterable[Tensor]) -> None:
    """Before tensors are written by address: bumps their versions. Raises where torch refuses an inference tensor."""
    written = list(tensors)
    _refuse_inference(written)
    increment_version(written)


def announce_arguments(op: Any, args: Sequence[Any]) -> None:
    """``announce`` for what a forward of the op writes to. Raises where a tensor of a list that is written shares
    memory with another of the lists, since a kernel takes all of them at once (``native/shared_memory.hpp`` looks for
    the same)."""
    written, names = op.contract.mutates, op.passes["forward"].names
    if not written:
        return
    lists = {name: value for name, value in zip(names, args, strict=True) if isinstance(value, (list, tuple))}
    if any(name in written for name in lists):
        found = find_shared(list(lists.values()), [name in written for name in lists])
        if found is not None:
            places = [f"{name}[{i}]" for name, tensors in lists.items() for i in range(len(tensors))]
            one, other = (places[place] for place in found)
            raise ValueError(f"{other} shares memory with {one}: a tensor that is written may share none")
    announce(leaves(written_arguments(op, args)))


def _refuse_inference(written: list[Tensor]) -> None:
    if not torch.is_inference_mode_enabled() and any(map(Tensor.is_inference, written)):
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a "
            "normal tensor before doing inplace update."
        )


def check_out(name: str, wanted: Any, out: Any, args: tuple[Any, ...]) -> None:
    """Raises unless ``out`` can take results like ``wanted`` (tensors of any device with their dtype and shape)."""
    wants, gots = as_tuple(wanted), as_tuple(out)
    if len(wants) != len(gots):
        raise ValueError(f"out must hold {len(wants)} tensors for {name}, got {len(gots)}")
    device = next((t.device for t in leaves(args)), torch.device("cpu"))  # of no tensors
    for want, got in zip(wants, gots, strict=True):
        if not isinstance(got, Tensor):
            raise TypeError(f"out must be a torch.Tensor, got {type(got).__name__}")
        if got.dtype != want.dtype:
            raise TypeError(f"out must have dtype {want.dtype}, got {got.dtype}")
        if got.shape != want.shape:
            raise ValueError(f"out must have shape {list(want.shape)}, got {list(got.shape)}")
        if got.device != device:
            raise ValueError(f"out must be on {device}, as the arguments are, got {got.device}")
        if not (got.is_contiguous() or _lies_as(got, want)):
            as_made = "" if want.is_contiguous() else f" or have the result's strides {list(want.stride())}"
            raise ValueError(f"out must be contiguous{as_made}, got strides {list(got.stride())}")
    floats = any(is_inexact(want.dtype) for want in wants)  # what has a gradient at all
    if floats and torch.is_grad_enabled() and any(t.requires_grad for t in leaves((*args, out))):
        raise RuntimeError("out= does not support autograd: no argument may require grad")
    if not torch.compiler.is_compiling():
        refuse_crossed(out)


def _lies_as(got: Tensor, want: Tensor) -> bool:
    """Whether a tensor of a result's shape lies as that: without gaps, in the same order (channels last, say)."""
    order = sorted(range(want.dim()), key=want.stride, reverse=True)
    places = zip(got.shape, got.stride(), want.stride(), strict=True)
    return want.permute(order).is_contiguous() and all(n <= 1 or a == b for n, a, b in places)


def _range(t: Tensor) -> tuple[int, int]:
    """The bytes from a tensor's first element to its last."""
    if not t.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    first = t.data_ptr()
    return first, first + (last + 1) * t.element_size()


def find_shared(lists: Sequence[Sequence[Tensor]], written: Sequence[bool]) -> tuple[int, int] | None:
    """Two tensors that may share memory, of which one is written: their places among all, list after list. Those
    without elements share none."""
    placed = [
        (*_range(t), place, write)
        for place, (t, write) in enumerate((t, w) for ts, w in zip(lists, written, strict=True) for t in ts)
        if t.numel()
    ]
    every = of_written = (0, 0)  # how far those so far reach, and which of them does
    for first, end, place, write in sorted(placed):
        until, other = every if write else of_written
        if first < until:
            return min(place, other), max(place, other)
        every = max(every, (end, place))
        if write:
            of_written = max(of_written, (end, place))
    return None


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors may share memory: whether their ranges do."""
    (a0, a1), (b0, b1) = _range(a), _range(b)
    return a0 < b1 and b0 < a1


def refuse_crossed(out: Any) -> None:
    """Raises where two results would be written to one place."""
    if isinstance(out, Tensor) or not is_plain(*out):
        return
    if any(_meet(a, b) for i, a in enumerate(out) for b in out[:i]):
        raise ValueError("out must hold tensors that share no memory")


def overlap(out: Any, args: tuple[Any, ...]) -> bool:
    """Whether a result written piece by piece into ``out`` might be read as an argument."""
    return any(_meet(o, a) for o in leaves((out,)) for a in leaves(args))


def copy_into(result: Any, out: Any) -> Any:
    """``result`` copied into ``out``, by torch, which keeps the versions (and refuses too late)."""
    if not torch.compiler.is_compiling():
        _refuse_inference(list(leaves((out,))))
    for target, value in zip(as_tuple(out), as_tuple(result), strict=True):
        target.copy_(value)
    return out


def same_place(out: Any, t: Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    return isinstance(out, Tensor) and (out.data_ptr(), out.shape, out.stride()) == (t.data_ptr(), t.shape, t.stride())
