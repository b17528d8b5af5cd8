"""Gradients and states in their parameter's memory order, while an optimizer takes a fused step of the program's own.

torch's fused steps go through memory in order. On a CPU they ignore strides, and step the wrong elements; on a GPU they
raise. Once a weight is laid out anew, tensors beside it may lie as they did: states that are older or were loaded, a
gradient that the program assigns, or that is a view of a larger memory. So a state is laid as its weight is. A
gradient, and a state in whose memory others lie, is in a copy of the right order for the time of a step, and gets back
the values that the step leaves.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from kernelworks.diagnose.optimizations.settings import held_elsewhere
from kernelworks.diagnose.snapshot import as_made

__all__ = ["OrderOfSteps"]


class OrderOfSteps:
    """Of these weights, from ``install`` to what it returns. ``optimizers`` are all that stepped meanwhile."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        self._weights = {id(weight) for weight in weights}  # the installer holds them
        self._back = contextlib.ExitStack()
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def install(self) -> Callable[[], None]:
        hooks = contextlib.ExitStack()
        hooks.callback(self._end)
        hooks.callback(register_optimizer_step_pre_hook(self._begin).remove)
        hooks.callback(register_optimizer_step_post_hook(self._end).remove)
        return hooks.close

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._end()
        if torch.compiler.is_compiling():
            return
        self.optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"] if group.get("fused") else ():
                if id(parameter) in self._weights and parameter.grad is not None:
                    self._lay(parameter, optimizer.state.get(parameter, {}))

    def _end(self, *step: Any) -> None:
        """Also of a step that raised: the next one begins with it."""
        self._back.close()

    def _lay(self, parameter: nn.Parameter, state: MutableMapping[str, Any]) -> None:
        gradient = parameter.grad
        if gradient is not None and _lies_apart(gradient, parameter):
            mine = parameter.grad = _laid_as(parameter, gradient)
            self._back.callback(_put_gradient_back, parameter, gradient, mine)
        for name, value in state.items():
            if not isinstance(value, Tensor) or not _lies_apart(value, parameter):
                continue
            if not held_elsewhere(value):  # as a rule, and so this is done once
                with as_made(value):
                    value.data = _laid_as(parameter, value)
            else:
                state[name] = mine = _laid_as(parameter, value)
                self._back.callback(_put_state_back, state, name, value, mine)


def _lies_apart(tensor: Tensor, parameter: Tensor) -> bool:
    alike = tensor.layout is torch.strided and tensor.shape == parameter.shape and tensor.device == parameter.device
    return alike and tensor.stride() != parameter.stride()


def _laid_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    with torch.no_grad(), as_made(tensor):
        laid = torch.empty_strided(parameter.shape, parameter.stride(), dtype=tensor.dtype, device=tensor.device)
        return laid.copy_(tensor)


def _put_gradient_back(parameter: nn.Parameter, gradient: Tensor, mine: Tensor) -> None:
    if parameter.grad is mine:
        _copied(mine, gradient)
        parameter.grad = gradient


def _put_state_back(state: MutableMapping[str, Any], name: str, value: Tensor, mine: Tensor) -> None:
    if state.get(name) is mine:
        _copied(mine, value)
        state[name] = value


def _copied(mine: Tensor, tensor: Tensor) -> None:
    with torch.no_grad(), as_made(tensor):
        tensor.copy_(mine)
