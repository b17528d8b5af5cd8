"""Values derived from a module's tensors, attributes and structure, and when they are no longer valid.

A folded weight, a weight in another dtype, an int8 weight: each derives from tensors that a program may change at any
time, in ways that no version counter sees. So each call asks for it (``DerivedValue.cached``), and gets the kept value
only if the same tensors hold the same bytes and every plain attribute that was read is unchanged. Bytes are read on a
CPU only. On a GPU the host would wait for them, so nothing is kept there: each call derives the value from what the
tensors hold at that point of the stream, also when a captured graph is replayed. The benchmark includes that cost.

The module's own code runs (``needs_torch_operators``, ``as_shipped``) if something must see what torch computes: hooks,
modes, transforms, tracers and compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._device import DeviceContext

from kernelworks.build.digest import Contents, readable
from kernelworks.contract.tensors import is_transform_active
from kernelworks.nn.gates import is_hooked
from kernelworks.nn.originals import shipped_forward

__all__ = [
    "FORWARDS",
    "NARROW",
    "NORMS",
    "NO_DIGEST",
    "PRODUCTS",
    "SAME_VALUES",
    "DerivedValue",
    "any_requires_grad",
    "as_shipped",
    "needs_torch_operators",
    "own_memory",
]

T = TypeVar("T")
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
PRODUCTS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
FORWARDS: dict[type, Any] = {cls: shipped_forward(cls) for cls in PRODUCTS} | dict.fromkeys(
    NORMS, shipped_forward(_BatchNorm)
)
# What an instance may have in place of its class's, so that its call differs.
FORWARD_METHODS = frozenset(
    {"forward", "_conv_forward", "_output_padding", "_check_input_dim", "_call_impl", "_slow_forward"}
)
NARROW = (torch.float32, torch.bfloat16, torch.float16)  # what autocast casts
NO_DIGEST = "there is no C++ compiler, so nothing can tell whether a weight was written"
SAME_VALUES = "_kernelworks_same_values"  # on a forward of ours with the same output as the class's, bit for bit


class _Record(NamedTuple, Generic[T]):
    """Of one moment, and never written: threads see all of it or none."""

    tensors: tuple[Tensor, ...]
    attributes: Hashable
    contents: Contents
    value: T


class DerivedValue(Generic[T]):
    """What ``make(tensors, attributes)`` makes, as long as it is valid. ``attributes`` are all else that it depends
    on."""

    def __init__(self, make: Callable[[Sequence[Tensor], Any], T]) -> None:
        self._make = make
        self._record: _Record[T] | None = None

    def cached_value(self, tensors: Sequence[Any], attributes: Hashable) -> T | None:
        """What was made before, if it is valid. That these are plain tensors that fit each other was checked then."""
        record = self._record
        if record is None or len(record.tensors) != len(tensors) or record.attributes != attributes:
            return None
        for tensor, own in zip(tensors, record.tensors, strict=True):
            if tensor is not own:
                return None
        return record.value if record.contents.same(record.tensors) else None

    def of(self, tensors: Sequence[Tensor], attributes: Hashable) -> T:
        """Makes it anew, from tensors in plain memory; keeps it if their bytes can be read."""
        contents = Contents(tensors) if readable(tensors) else None
        with torch.inference_mode(False), torch.no_grad():  # in no mode of the caller's: a later one may want gradients
            value = self._make(tensors, attributes)
        if contents is not None and contents.same(tensors):  # nobody wrote meanwhile
            self._record = _Record(tuple(tensors), attributes, contents, value)
        return value


def needs_torch_operators() -> bool:
    """Whether something must see torch's own operators on the module's own tensors: a compiler, a tracer, a transform,
    or any mode but the default device and those of ours that only observe."""
    if torch.compiler.is_compiling() or is_transform_active():
        return True
    of_torch: Any = torch._C
    functions, operators = of_torch._len_torch_function_stack(), of_torch._len_torch_dispatch_stack()
    if not functions and not operators:
        return False
    return any(
        type(mode) is not DeviceContext and not _looks_on(mode)
        for mode in map(of_torch._get_function_stack_at, range(functions))
    ) or any(not _looks_on(mode) for mode in map(of_torch._get_dispatch_stack_at, range(operators)))


def _looks_on(mode: Any) -> bool:
    return bool(getattr(mode, "sees_kernelworks", False))


def as_shipped(module: Any) -> bool:
    """Whether a call of a module is its class's forward as torch ships it, without hooks."""
    shipped = FORWARDS.get(type(module))
    if shipped is None or type(module).forward is not shipped or is_hooked(module):
        return False
    space = module.__dict__
    if space.get("_compiled_call_impl") is not None:
        return False
    return space.keys().isdisjoint(FORWARD_METHODS) or _same_values(space)


def _same_values(space: dict[str, Any]) -> bool:
    """Whether its only override is a forward of ours that keeps the class's values."""
    return space.keys() & FORWARD_METHODS == {"forward"} and getattr(space["forward"], SAME_VALUES, False)


def any_requires_grad(tensors: Sequence[Tensor]) -> bool:
    """Whether one of them requires a gradient."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def own_memory(tensor: Tensor, was: Tensor) -> None:
    """Gives a tensor back the memory ``was`` with its present values, or new memory of its own if it became something
    else meanwhile (another dtype, size or device)."""
    if (tensor.dtype, tensor.shape, tensor.device) == (was.dtype, was.shape, was.device):
        if tensor.data_ptr() != was.data_ptr() or tensor.stride() != was.stride():
            tensor.data = was.copy_(tensor.data)
    else:
        tensor.data = tensor.data.clone()
