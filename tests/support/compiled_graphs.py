"""The graphs that dynamo makes of a program, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from kernelworks.contract.complex_numbers import is_inexact

__all__ = ["graphs", "leaves_of", "reference"]


def graphs(program: Callable[..., Any], *args: Any, **how: Any) -> list[tuple[fx.GraphModule, list[Any]]]:
    """The graphs that dynamo makes of a program, with their inputs."""
    seen = []

    def keep(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append((graph, inputs))
        return graph.forward

    torch.compile(program, backend=keep, **how)(*args)
    return seen


def leaves_of(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same tensors, their gradients asked for."""
    return tuple(t.detach().requires_grad_(is_inexact(t.dtype)) for t in args)


class _Wider(TorchFunctionMode):
    """What a program casts to float32 goes to float64."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = Tensor.double if func is Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def reference(program: Callable[..., Any], *args: Tensor) -> Any:
    """What a program's formula gives in float64, of arguments in it, wherever it casts: where it went through float32,
    the reference would be what this machine makes of that."""
    with _Wider():
        return program(*args)
