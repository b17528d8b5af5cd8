"""What one of CUDA's graphs ran: each kernel told by its place in the module that inductor wrote.

A graph is launched by one call of the driver, and the profiler sees its kernels with nothing that says what they are
for. But they are those of the module's calls, in the module's order: inductor's own by their names, and between two of
them those of torch's operators. What each was given is read off the module's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernelworks.profile.calls import Call, DeviceWork
from kernelworks.profile.inductor.compiled_graphs import KERNEL, CompiledGraph
from kernelworks.profile.inductor.expressions import value_of
from kernelworks.profile.inductor_code import Graph, Invocation, SizedTensor, SizeExpression, graph_of

__all__ = ["assign_calls", "build_call"]

# inductor's short names of dtypes
DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool", "c64": "complex64", "c128": "complex128",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
# Of the driver, or a second step of the operator before it.
AUXILIARY_KERNELS = ("Memset", "Memcpy", "splitKreduce", "splitk_reduce", "reduce_kernel")


def assign_calls(works: Sequence[DeviceWork], compiled: CompiledGraph, graph: str, *, backward: bool = False) -> None:
    """Says of each work of a graph's launches for which call of the module it was done."""
    calls = [build_call(i, compiled, number, graph) for number, i in enumerate(compiled.generated_module.invocations)]
    ours = [call.kernel is not None for call in calls]
    at = -1  # the call whose kernels run now
    for work in works:
        name = work.name.partition("(")[0]
        found = next((i for i in range(at + 1, len(calls)) if ours[i] and _named(calls[i], name)), None)
        if found is not None:
            at = found
        elif at + 1 < len(calls) and not ours[at + 1] and not any(word in work.name for word in AUXILIARY_KERNELS):
            at += 1
        if at >= 0:
            work.call = call = calls[at]
            call.start, call.end, call.backward = call.start or work.start, work.end, backward


def _named(call: Call, name: str) -> bool:
    return call.name.removeprefix(KERNEL).partition("@")[0] == name


def build_call(invocation: Invocation, compiled: CompiledGraph, number: int, graph: str) -> Call:
    """One of the module's calls, as if it had been seen."""
    kernel = compiled.generated_module.kernels.get(invocation.name)
    name = f"{KERNEL}{invocation.name}@{compiled.module}" if kernel is not None else invocation.name
    sizes = compiled.sizes
    values = [_known(value, sizes) for keyword, value in invocation.given if not keyword]
    named = {keyword: _known(value, sizes) for keyword, value in invocation.given if keyword}
    if kernel is None:
        values = _in_order(name, values, named)
    nodes = graph_of(compiled.graph)
    usual = next((d for d in (_dtype(v, nodes) for v in values if isinstance(v, SizedTensor)) if d is not None), None)
    call = Call(name, 0, 0, kernel=kernel, place=compiled.places[number], graph=graph)
    for value in values:
        sized = isinstance(value, SizedTensor)
        call.shapes.append(list(value.shape) if sized else [])
        call.strides.append(list(value.stride) if sized else [])
        call.dtypes.append((_dtype(value, nodes) or usual) if sized else None)
        call.scalars.append(None if sized else list(value) if isinstance(value, tuple) else value)
    return call


def _known(value: Any, sizes: Mapping[str, int]) -> Any:
    """The value with the sizes that the graph was given; of a tensor with any that is not known nothing is said."""
    if isinstance(value, SizeExpression):
        return value_of(value.text, sizes)
    if not isinstance(value, SizedTensor):
        return value
    shape, stride = ([_known(size, sizes) for size in its] for its in (value.shape, value.stride))
    if None in shape or None in stride:
        return None
    return SizedTensor(tuple(shape), tuple(stride), value.dtype, value.of)


def _in_order(name: str, values: list[Any], named: dict[str, Any]) -> list[Any]:
    """The arguments of an operator as its schema has them."""
    try:
        schema: Any = torch._C._get_schema(name, "")
    except RuntimeError:
        return values
    rest = [a.name for a in schema.arguments[len(values) :]]
    while rest and named.get(rest[-1]) is None:
        rest.pop()
    return [*values, *(named.get(each) for each in rest)]


def _dtype(sized: SizedTensor, nodes: Graph) -> torch.dtype | None:
    name = sized.dtype or (DTYPES.get(nodes[sized.of].dtype, "") if sized.of in nodes else "")
    found = getattr(torch, name, None) if name else None
    return found if isinstance(found, torch.dtype) else None
