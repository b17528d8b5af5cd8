"""Calls of torch's functions that are made of several operators (``F.softsign``: abs, add, div), seen as one.

The profiler records what such a function calls, and no call of it. A survey is told of it all the same, with what it
was given: if an op of ours says the same, the operators that it calls are one call, named as torch's operator would
be if there were one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kernelworks.contract.tensors import is_plain, leaves
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.profile.calls import Call

__all__ = ["describe_call"]


def describe_call(
    torch_signature: TorchSignature, args: Sequence[Any], named: Mapping[str, Any], result: Any
) -> Call | None:
    """The call with its arguments in the order of the torch pattern's names; None if they are no plain tensors, or not
    what the torch pattern knows."""
    given = dict(zip(torch_signature.positional, args, strict=False)) | dict(named)
    values = [given.get(name, torch_signature.defaults.get(name)) for name in torch_signature.names]
    made = list(leaves((result,)))
    listed = [value for value in values if isinstance(value, (list, tuple))]
    if list(leaves(listed)) or not given.keys() <= torch_signature.name_set or not is_plain(*leaves(values), *made):
        return None
    call = Call(f"aten::{torch_signature.operator}", 0, 0)
    for value in values:
        tensor = value if isinstance(value, Tensor) else None
        call.shapes.append([] if tensor is None else list(tensor.shape))
        call.strides.append([] if tensor is None else list(tensor.stride()))
        call.dtypes.append(None if tensor is None else tensor.dtype)
        call.scalars.append(value if tensor is None else None)
        call.pointers.append(None if tensor is None else tensor.untyped_storage().data_ptr())
        call.storage_bytes.append(None if tensor is None else tensor.untyped_storage().nbytes())
        call.tensors.append(None if tensor is None else id(tensor))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in made}
    call.made = tuple((at, size) for at, size in storages.items() if at and at not in call.pointers)
    return call
