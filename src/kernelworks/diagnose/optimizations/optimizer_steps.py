"""Sets an entry of an optimizer's groups while it steps, and at no other time.

Groups are saved, copied, loaded and added to between two steps. ``state_dict()``, ``deepcopy`` and a pickle find them
as the program made them, and so does the optimizer after the undo.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = ["while_each_steps", "while_it_steps"]

ABSENT = object()
CHECK_ATTRIBUTE = "_need_device_dtype_check_for_fused"  # an attribute that torch's fused steps leave
Suits = Callable[[Optimizer], bool]


class _Asked:
    """Sets ``name`` in the groups of an optimizer for a step. A fused step needs its step counts on the parameters'
    device: on a GPU they stay there until ``over``, and ``state_dict()`` shows them on the host."""

    def __init__(self, optimizer: Optimizer, name: str, suits: Suits) -> None:
        self.name, self.suits = name, suits
        self._was: list[tuple[dict[str, Any], Any]] = []
        self._looks: list[tuple[Any, ...]] = []
        self._serves = True
        self._checked = CHECK_ATTRIBUTE in optimizer.__dict__
        self._moves = name == "fused"
        self._state: Any = None
        self._saved = [optimizer.register_state_dict_pre_hook(self.end)]  # of a step that raised
        if self._moves:
            self._saved.append(optimizer.register_state_dict_post_hook(self._told))

    def begin(self, optimizer: Optimizer, args: Any = (), kwargs: Any = None) -> None:
        self.end()
        if torch.compiler.is_compiling() or not self._suited(optimizer):
            return
        if self._moves and not (_laid_alike(optimizer) and _begun_alike(optimizer)):
            return
        for group in optimizer.param_groups:
            self._was.append((group, group.get(self.name, ABSENT)))
            group[self.name] = True
        if self._moves and self._state is not optimizer.state:  # a state dict that is loaded makes another one
            _counted_by_the_device(optimizer)
            self._state = optimizer.state

    def end(self, *step: Any) -> None:
        while self._was:  # including what a step that raised has left
            group, was = self._was.pop()
            if was is ABSENT:
                del group[self.name]
            else:
                group[self.name] = was

    def over(self, optimizer: Optimizer) -> None:
        self.end()
        for hook in self._saved:
            hook.remove()
        if self._moves:
            _counted_by_the_host(optimizer)
            if not self._checked:
                optimizer.__dict__.pop(CHECK_ATTRIBUTE, None)

    def _suited(self, optimizer: Optimizer) -> bool:
        """Whether it suits; checked anew if groups, their parameters or their options differ."""
        looks = [
            (id(group["params"]), len(group["params"]), type(group["lr"]), group.get("differentiable"),
             group.get("fused"), group.get("foreach"))
            for group in optimizer.param_groups
        ]  # fmt: skip
        if looks != self._looks:
            self._looks, self._serves = looks, self.suits(optimizer)
        return self._serves

    def _told(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """The state dict as it would be without this."""
        host = {
            index for group in saved["param_groups"] if not (group.get("capturable") or group.get("fused"))
            for index in group["params"]
        }  # fmt: skip
        state = {
            index: {**each, "step": each["step"].cpu()} if index in host and _on_a_gpu(each) else each
            for index, each in saved["state"].items()
        }
        return {**saved, "state": state}


def _laid_alike(optimizer: Optimizer) -> bool:
    """Whether every parameter has the strides and the dtype of its gradient and its states. torch's fused steps go
    through memory in order, and ignore strides on a CPU. Any of these tensors may have been replaced since the last
    step (``model.to(memory_format=...)``, a gradient that was assigned)."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            gradient = p.grad
            if gradient is None:
                continue
            lies = p.stride()
            if gradient.stride() != lies or gradient.dtype is not p.dtype:
                return False
            for held in optimizer.state.get(p, {}).values():
                if isinstance(held, Tensor) and held.dim() and (held.stride() != lies or held.shape != p.shape):
                    return False
    return True


def _begun_alike(optimizer: Optimizer) -> bool:
    """Whether all parameters of a group that have a gradient have momentum, or none has yet. torch's fused SGD raises
    where some have: of a layer that was frozen in the first steps, of a parameter that has come since."""
    if not isinstance(optimizer, torch.optim.SGD):
        return True
    for group in optimizer.param_groups:
        states = (optimizer.state.get(p, {}) for p in group["params"] if p.grad is not None)
        if group["momentum"] and len({state.get("momentum_buffer") is None for state in states}) > 1:
            return False
    return True


def _on_a_gpu(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get("step"), Tensor) and state["step"].is_cuda


def _counted_by_the_device(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"] if any(p.is_cuda for p in group["params"]) else ():
            state = optimizer.state.get(p, {})
            step = state.get("step")
            if isinstance(step, Tensor) and step.device != p.device:
                state["step"] = step.to(p.device, torch.float32)


def _counted_by_the_host(optimizer: Optimizer) -> None:
    """Moves the counts of a fused step from the GPU to where torch's other steps expect them."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            if _on_a_gpu(state) and not group.get("capturable"):
                state["step"] = state["step"].cpu()


def while_it_steps(optimizer: Optimizer, name: str, suits: Suits) -> Callable[[], None]:
    """Sets ``name`` to True in every group while this one steps, as long as it ``suits``; returns what ends that."""
    asked = _Asked(optimizer, name, suits)
    hooks = optimizer.register_step_pre_hook(asked.begin), optimizer.register_step_post_hook(asked.end)

    def back() -> None:
        for hook in hooks:
            hook.remove()
        asked.over(optimizer)

    return back


def while_each_steps(is_one: Suits, name: str, suits: Suits) -> Callable[[], None]:
    """The same for each optimizer that ``is_one``, when it first steps. It holds none of them alive."""
    seen: weakref.WeakKeyDictionary[Optimizer, _Asked] = weakref.WeakKeyDictionary()

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in seen and is_one(optimizer) and suits(optimizer):
            seen[optimizer] = _Asked(optimizer, name, suits)
        if optimizer in seen:
            seen[optimizer].begin(optimizer)

    def end(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in seen:
            seen[optimizer].end()

    def over() -> None:
        for optimizer, asked in seen.items():
            asked.over(optimizer)

    back = contextlib.ExitStack()
    back.callback(over)
    back.callback(register_optimizer_step_pre_hook(begin).remove)
    back.callback(register_optimizer_step_post_hook(end).remove)
    return back.close
