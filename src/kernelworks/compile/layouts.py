"""The memory layout of what is put into a graph: the same as of what it replaces. What a program does with it next, a
``view`` for example, may depend on that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from kernelworks.compile.partition import stops
from kernelworks.contract.tensors import leaves

__all__ = ["LaidOtherwise", "check", "laid_as", "lie_alike", "outputs_of"]

Layout = tuple[tuple[Any, ...], torch.dtype, tuple[Any, ...]]


class LaidOtherwise(Exception):
    """What a graph returns lies otherwise than it did."""


def _steps(value: Tensor) -> list[Any]:
    """Its strides, where they say anything."""
    if value.numel() == 0:
        return []
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size != 1]


def lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether elements of the same place lie at the same one of memory."""
    return _steps(one) == _steps(other)


def laid_as(graph: fx.Graph, node: fx.Node, was: Tensor) -> fx.Node:
    """What a node makes, in the order of dimensions in which ``was`` lies. One that is no whole memory in any order (an
    expanded one) is contiguous."""
    strides = was.stride()
    order = sorted(range(was.dim()), key=lambda dim: (-strides[dim], was.shape[dim] == 1))
    if was.is_contiguous() or not was.permute(order).is_contiguous():
        return graph.call_method("contiguous", (node,))
    back = [order.index(dim) for dim in range(was.dim())]
    turned = graph.call_method("permute", (node, tuple(order)))
    return graph.call_method("permute", (graph.call_method("contiguous", (turned,)), tuple(back)))


def outputs_of(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Layout] | None:
    """What it returns: shapes, dtypes, strides, told without data; None if that cannot be told, as of sizes that
    vary."""
    if not all(isinstance(t, Tensor) and all(type(n) is int for n in (*t.shape, *t.stride())) for t in inputs):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # a graph may set it otherwise, and end so
            made = FakeTensorProp(graph, mode).propagate(*inputs)
            return [(tuple(t.shape), t.dtype, tuple(_steps(t))) for t in leaves(made)]
    except Exception as error:  # what cannot be played is inductor's to say
        if stops(error):
            raise
    return None


def check(graph: fx.GraphModule, inputs: Sequence[Any], before: list[Layout] | None) -> None:
    """Raises LaidOtherwise where a changed graph returns other shapes, dtypes or strides than it did ``before``."""
    graph.recompile()
    now = outputs_of(graph, inputs) if before is not None else None
    if before is not None and now is not None and now != before:
        raise LaidOtherwise("what it returns would lie otherwise")
