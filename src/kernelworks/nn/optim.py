"""``torch.optim.AdamW`` whose step is ``kernelworks.adamw_`` if that is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from kernelworks.contract import FLOATS
from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch.plans import generation
from kernelworks.ops.optimizer.adamw import OP, adamw_

__all__ = ["AdamW"]

Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]

# What a group may ask for that the op has not, by the values that it has.
SERVED_OPTIONS: dict[str, tuple[Any, ...]] = {
    "amsgrad": (False,), "foreach": (None,), "capturable": (False,), "differentiable": (False,), "fused": (None,),
}  # fmt: skip


class AdamW(torch.optim.AdamW):
    """AdamW with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.adamw_`` if the chooser takes a kernel of ours for its tensors, and by torch's
    own step else: ``amsgrad``, ``capturable``, ``differentiable``, ``foreach`` or ``fused`` asked for, a learning rate
    that is a tensor, sparse and complex gradients, subclasses of tensors, while a graph is captured or a program
    compiled.

    Args: those of torch.optim.AdamW. Raises: what that raises.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter that has a gradient; returns what ``closure``, called first, returns."""
        stepping: object = self  # torch's own by now, where a wrapper has kept this function of one that was ours
        if not isinstance(stepping, AdamW) or torch.compiler.is_compiling() or _captured():
            return _torchs_step(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        whole = self.param_groups
        rest = [group for group in whole if not self._stepped(group)]
        if rest:
            self.param_groups = rest
            try:
                _torchs_step(self, None)
            finally:
                self.param_groups = whole
        return loss

    def _stepped(self, group: dict[str, Any]) -> bool:
        """Steps one group by the op, or says that it is torch's and leaves it as it was."""
        betas, numbers = group["betas"], (group["lr"], group["eps"], group["weight_decay"])
        if any(group[name] not in served for name, served in SERVED_OPTIONS.items()) or not group["params"]:
            return False
        if not all(value.__class__ in (int, float) for value in (*betas, *numbers)):
            return False
        first = group["params"][0]
        looks = (
            generation(), torch.get_num_threads(), len(group["params"]), first.dtype, first.device, group["maximize"]
        )  # fmt: skip
        kept: dict[int, tuple[Any, bool]] = self.__dict__.setdefault("_kernelworks_chosen", {})
        seen, ours = kept.get(id(group["params"]), (None, False))
        if seen == looks and not ours:
            return False  # before anything is looked at: torch's step is to cost no more than it does
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return True
        if not all(map(self.state.get, params)):  # a first step: torch makes the state, as it makes its own
            first_step: Any = self._init_group  # without annotations
            first_step(group, [], [], [], [], [], [])
        states = [self.state[p] for p in params]
        calls = _calls(params, states)
        lr, eps, weight_decay = map(float, numbers)
        named: dict[str, Any] = {
            "lr": lr, "beta1": float(betas[0]), "beta2": float(betas[1]), "eps": eps, "weight_decay": weight_decay,
            "maximize": bool(group["maximize"]),
        }  # fmt: skip
        if seen != looks:
            ours = calls is not None and all(_chosen(step, lists, named) for step, lists in calls)
            kept[id(group["params"])] = looks, ours
        if calls is None or not ours:
            return False
        for step, lists in calls:
            adamw_(*lists, step=step, **named)
        torch._foreach_add_([state["step"] for state in states], 1.0)
        return True


def _calls(params: list[Tensor], states: list[dict[str, Tensor]]) -> list[tuple[int, Lists]] | None:
    """The calls of the op for these parameters: one for each step that some of them are at; None if torch counts
    otherwise, or if there is something that no kernel may read."""
    by_step: dict[float, list[int]] = {}
    for i, state in enumerate(states):
        if not state["step"].is_cpu:
            return None
        by_step.setdefault(state["step"].item(), []).append(i)
    calls = []
    for step, places in by_step.items():
        lists = _lists([params[i] for i in places], [states[i] for i in places])
        if lists is None or not step.is_integer() or step < 0:
            return None
        calls.append((int(step) + 1, lists))
    return calls


def _lists(params: list[Tensor], states: list[dict[str, Tensor]]) -> Lists | None:
    """What a step reads and writes; None if some of it is nothing that a kernel may read."""
    grads = [p.grad for p in params]
    lists = (params, grads, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states])
    for p, g, m, v in zip(*lists, strict=True):
        if (
            g is None
            or p.__class__ not in PLAIN_TYPES
            or g.__class__ not in PLAIN_TYPES
            or g.layout is not torch.strided
        ):
            return None
        if (
            p.dtype not in FLOATS
            or g.dtype is not p.dtype
            or p.device != params[0].device
            or m.device != p.device
            or m.dtype is not v.dtype
        ):
            return None
    return cast(Lists, lists)  # no gradient is None by now


def _chosen(step: int, lists: Lists, named: dict[str, Any]) -> bool:
    args = (*lists, step, *(named[name] for name in OP.passes["forward"].names[5:]))
    try:
        OP.contract.check(**dict(zip(OP.passes["forward"].names, args, strict=True)))
    except (TypeError, ValueError):
        return False
    choice = OP.choice(args, None)
    return not choice.native and choice.kernel.source is not None


def _captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _torchs_step(optimizer: AdamW, closure: Callable[[], Any] | None) -> Any:
    """torch's step without its hooks, which run round ours."""
    step: Any = torch.optim.AdamW.step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    return step(optimizer, closure)
