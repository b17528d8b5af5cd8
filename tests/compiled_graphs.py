"""The graphs that dynamo makes of a program, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["graphs", "leaves_of"]


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
    return tuple(t.detach().requires_grad_(t.is_floating_point()) for t in args)
