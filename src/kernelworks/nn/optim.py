"""torch's optimizers whose step is an op of kernelworks if that is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kernelworks.contract import FLOATS
from kernelworks.contract.lists import lists_of
from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch.mutation import find_shared
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.plans import generation
from kernelworks.nn.newton_schulz import orthogonalize_update, rate_ratio
from kernelworks.ops.optimizer.adamw import OP as ADAMW
from kernelworks.ops.optimizer.optimizer_table import ADADELTA_, ADAGRAD_, ADAM_, LION_, MUON_MOMENTUM_, RMSPROP_, lion_
from kernelworks.ops.optimizer.optimizer_table.contract import LION
from kernelworks.ops.optimizer.sgd import OP as SGD_OP
from kernelworks.ops.optimizer.sgd import sgd_

__all__ = ["OURS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Call", "Lion", "Muon", "RMSprop"]


@dataclass(frozen=True)
class Call:
    """One call of the op: its lists in their order, and its numbers by name."""

    lists: tuple[list[Tensor], ...]
    numbers: dict[str, Any]


class _Stepped(torch.optim.Optimizer):
    """What steps groups by an op. Below it stands the optimizer of torch's."""

    TORCHS: ClassVar[type[torch.optim.Optimizer]]
    OP: ClassVar[Op]
    # What a group may ask for that the op has not, by the values that it has; and what it says in numbers.
    SERVED: ClassVar[dict[str, tuple[Any, ...]]]
    NUMBERS: ClassVar[tuple[str, ...]]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter that has a gradient; returns what ``closure``, called first, returns."""
        stepping: object = self  # torch's own by now, where a wrapper has kept this function of one that was ours
        if not isinstance(stepping, _Stepped) or torch.compiler.is_compiling() or _captured():
            return _torchs_step(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        whole = self.param_groups
        rest = [group for group in whole if not self._step_group(group)]
        if rest:
            self.param_groups = rest
            try:
                _torchs_step(self, None)
            finally:
                self.param_groups = whole
        return loss

    @classmethod
    def serves(cls, group: dict[str, Any]) -> bool:
        """Whether a group asks for nothing that the op has not."""
        return all(group[name] in values for name, values in cls.SERVED.items())

    def _looks(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """What a choice for a group hangs on beside its tensors."""
        return ()

    def _calls(self, group: dict[str, Any], params: list[Tensor]) -> list[Call] | None:
        """The calls that step these parameters, with their state made; None if torch's own step is to take them."""
        return None

    def _after(self, call: Call) -> None:
        """What else a step of these parameters changes."""

    def _step_group(self, group: dict[str, Any]) -> bool:
        """Steps one group by the op, or says that it is torch's and leaves it as it was."""
        if not self.serves(group) or not group["params"]:
            return False
        numbers = [n for name in self.NUMBERS for n in (group[name] if name == "betas" else (group[name],))]
        if not all(value.__class__ in (int, float) for value in numbers):
            return False
        first = group["params"][0]
        looks = (
            generation(), torch.get_num_threads(), len(group["params"]), first.dtype, first.device, *self._looks(group)
        )  # fmt: skip
        kept: dict[int, tuple[Any, bool]] = self.__dict__.setdefault("_kernelworks_chosen", {})
        seen, ours = kept.get(id(group["params"]), (None, False))
        if seen == looks and not ours:
            return False  # before anything is looked at: torch's step is to cost no more than it does
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return True
        calls = self._calls(group, params) if all(map(_readable, params)) else None
        if calls is not None and not all(_alike(call.lists, params[0].device) for call in calls):
            calls = None
        if seen != looks:
            ours = calls is not None and self._chosen(calls)
            kept[id(group["params"])] = looks, ours
        if calls is None or not ours:
            return False
        for i, call in enumerate(calls):
            try:
                with torch.no_grad():
                    self.OP.call(*self._args(call), None, None)
            except ValueError:  # they share memory, before anything is written: torch steps one after the other
                if i:
                    raise
                return False
            self._after(call)
        return True

    def _args(self, call: Call) -> tuple[Any, ...]:
        names = self.OP.passes["forward"].names[len(call.lists) :]
        return (*call.lists, *(call.numbers[name] for name in names))

    def _chosen(self, calls: Sequence[Call]) -> bool:
        """Whether the chooser takes a kernel of ours for every call, and each is one that the op accepts. Of a first
        step, which there is once, it is not asked where others are there."""
        lasting = [call for call in calls if not call.numbers.get("is_first_step")]
        return all(_chosen(self.OP, self._args(call)) for call in lasting or calls)


class _Counted(_Stepped):
    """One whose state of a parameter is a count of steps and tensors."""

    STATES: ClassVar[tuple[str, ...]]  # in the op's order
    MADE_LISTS: ClassVar[int]  # that torch's `_init_group` fills behind the group
    COUNTS: ClassVar[bool] = True  # whether the op takes the number of the step

    def _looks(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (bool(group["maximize"]),)

    def _calls(self, group: dict[str, Any], params: list[Tensor]) -> list[Call] | None:
        """One call for each step that some parameters are at."""
        if not all(map(self.state.get, params)):  # a first step: torch makes the state, as it makes its own
            first_step: Any = self._init_group  # type: ignore[attr-defined]  # without annotations
            first_step(group, *([] for _ in range(self.MADE_LISTS)))
        by_step: dict[float, list[Tensor]] = {}
        for p in params:
            if not self.state[p]["step"].is_cpu:
                return None
            by_step.setdefault(self.state[p]["step"].item() if self.COUNTS else 0.0, []).append(p)
        if not all(step.is_integer() and step >= 0 for step in by_step):
            return None
        numbers = {"maximize": bool(group["maximize"]), **_floats(group, *(n for n in self.NUMBERS if n != "betas"))}
        if "betas" in self.NUMBERS:
            numbers |= {"beta1": float(group["betas"][0]), "beta2": float(group["betas"][1])}
        return [
            Call(
                (mine, [_grad(p) for p in mine], *([self.state[p][name] for p in mine] for name in self.STATES)),
                numbers | {"step": int(step) + 1},
            )
            for step, mine in by_step.items()
        ]

    def _after(self, call: Call) -> None:
        torch._foreach_add_([self.state[p]["step"] for p in call.lists[0]], 1.0)


class AdamW(_Counted, torch.optim.AdamW):
    """AdamW with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.adamw_`` if the chooser takes a kernel of ours for its tensors, and by torch's
    own step else: ``amsgrad``, ``capturable``, ``differentiable``, ``foreach`` or ``fused`` asked for, a learning rate
    that is a tensor, sparse and complex gradients, subclasses of tensors, tensors that share memory, while a graph is
    captured or a program compiled.

    Args: those of torch.optim.AdamW. Raises: what that raises.
    """

    TORCHS = torch.optim.AdamW
    OP = ADAMW
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "amsgrad": (False,), "foreach": (None,), "capturable": (False,), "differentiable": (False,), "fused": (None,),
    }  # fmt: skip
    NUMBERS = ("betas", "lr", "eps", "weight_decay")
    STATES, MADE_LISTS = ("exp_avg", "exp_avg_sq"), 6


class Adam(_Counted, torch.optim.Adam):
    """Adam with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.adam_`` if the chooser takes a kernel of ours for its tensors, and by torch's
    own step else: where ``AdamW``'s are, and with ``decoupled_weight_decay``.

    Args: those of torch.optim.Adam. Raises: what that raises.
    """

    TORCHS = torch.optim.Adam
    OP = ADAM_
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = AdamW.SERVED | {"decoupled_weight_decay": (False,)}
    NUMBERS = ("betas", "lr", "eps", "weight_decay")
    STATES, MADE_LISTS = ("exp_avg", "exp_avg_sq"), 6


class RMSprop(_Counted, torch.optim.RMSprop):
    """RMSprop with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.rmsprop_`` if the chooser takes a kernel of ours for its tensors, and by torch's
    own step else: with ``momentum`` or ``centered``, ``capturable``, ``differentiable`` or ``foreach`` asked for, and
    where ``AdamW``'s tensors are.

    Args: those of torch.optim.RMSprop. Raises: what that raises.
    """

    TORCHS = torch.optim.RMSprop
    OP = RMSPROP_
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "momentum": (0,), "centered": (False,), "foreach": (None,), "capturable": (False,), "differentiable": (False,),
    }  # fmt: skip
    NUMBERS = ("lr", "alpha", "eps", "weight_decay")
    STATES, MADE_LISTS, COUNTS = ("square_avg",), 6, False


class Adagrad(_Counted, torch.optim.Adagrad):
    """Adagrad with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.adagrad_`` if the chooser takes a kernel of ours for its tensors, and by torch's
    own step else: ``differentiable``, ``foreach`` or ``fused`` asked for, and where ``AdamW``'s tensors are.

    Args: those of torch.optim.Adagrad. Raises: what that raises.
    """

    TORCHS = torch.optim.Adagrad
    OP = ADAGRAD_
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = {"foreach": (None,), "differentiable": (False,), "fused": (None,)}
    NUMBERS = ("lr", "lr_decay", "eps", "weight_decay")
    STATES, MADE_LISTS = ("sum",), 4


class Adadelta(_Counted, torch.optim.Adadelta):
    """Adadelta with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.adadelta_`` if the chooser takes a kernel of ours for its tensors, and by
    torch's own step else: ``capturable``, ``differentiable`` or ``foreach`` asked for, and where ``AdamW``'s tensors
    are.

    Args: those of torch.optim.Adadelta. Raises: what that raises.
    """

    TORCHS = torch.optim.Adadelta
    OP = ADADELTA_
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "foreach": (None,), "capturable": (False,), "differentiable": (False,),
    }  # fmt: skip
    NUMBERS = ("lr", "rho", "eps", "weight_decay")
    STATES, MADE_LISTS, COUNTS = ("square_avg", "acc_delta"), 5, False


class Lion(torch.optim.Optimizer):
    """Lion, which torch has not: ``kernelworks.lion_`` for each group.

    Args:
        params: parameters or groups of them, as torch's optimizers take them.
        lr: the learning rate, 1e-4.
        betas: of the step's average and of the momentum, (0.9, 0.99).
        weight_decay: decoupled, 0.
        maximize: climb instead of descend.

    Raises: TypeError, ValueError naming the argument; RuntimeError for a sparse gradient.
    Source: Chen et al. 2023, arXiv:2302.06675.
    """

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        LION_.contract.check(
            params=[], grads=[], exp_avgs=[], lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay,
            maximize=maximize,
        )  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter that has a gradient; returns what ``closure``, called first, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.layout is not torch.strided for p in params):
                raise RuntimeError("Lion takes dense gradients, got a sparse one")
            for p in params:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            beta1, beta2 = map(float, group["betas"])
            numbers: dict[str, Any] = {
                **_floats(group, "lr", "weight_decay"), "beta1": beta1, "beta2": beta2,
                "maximize": bool(group["maximize"]),
            }  # fmt: skip
            ours = [p for p in params if _readable(p)]
            lion_(ours, [_grad(p) for p in ours], [self.state[p]["exp_avg"] for p in ours], **numbers)
            with torch.no_grad():
                for p in (p for p in params if not _readable(p)):  # float64, subclasses: by the definition
                    average = self.state[p]["exp_avg"]
                    for target, value in zip(
                        (p, average), LION.definition(p, _grad(p), average, **numbers), strict=True
                    ):
                        target.copy_(value)
        return loss


class Muon(_Stepped, torch.optim.Muon):
    """Muon with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group's momentum is taken by ``kernelworks.muon_momentum_``, and its last step, with the weight decay, by
    ``kernelworks.sgd_``, each of all matrices at once, if the chooser takes a kernel of ours; else torch's own step
    runs, as it does where ``AdamW``'s does. Between the two the products of Newton-Schulz are torch's, in bfloat16.
    The last step rounds once, where torch rounds after the weight decay and after the update.

    Memory: one more tensor of each parameter's size while a step runs.

    Args: those of torch.optim.Muon. Raises: what that raises.
    """

    TORCHS = torch.optim.Muon
    OP = MUON_MOMENTUM_
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}
    NUMBERS = ("lr", "weight_decay", "momentum", "eps")

    @classmethod
    def serves(cls, group: dict[str, Any]) -> bool:
        """Not what torch refuses, so that torch says so."""
        return bool(group["ns_steps"] < 100 and len(group["ns_coefficients"]) == 3)

    def _looks(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (bool(group["nesterov"]),)

    def _calls(self, group: dict[str, Any], params: list[Tensor]) -> list[Call] | None:
        """One call: the updates, whose memory is made here, in the parameters' place."""
        if any(p.dim() != 2 for p in params):
            return None
        grads = [_grad(p) for p in params]
        for p, g in zip(params, grads, strict=True):
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(g, memory_format=torch.preserve_format)
        lists = [torch.empty_like(g) for g in grads], grads, [self.state[p]["momentum_buffer"] for p in params]
        numbers = {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        return [Call(lists, numbers | {"group": group, "params": params})]

    def _after(self, call: Call) -> None:
        """The updates made orthogonal, and taken from the parameters: of each rate all at once."""
        group, by_ratio = call.numbers["group"], dict[float, tuple[list[Tensor], list[Tensor]]]()
        for p, update in zip(call.numbers["params"], call.lists[0], strict=True):
            params, made = by_ratio.setdefault(rate_ratio(group["adjust_lr_fn"], p.shape), ([], []))
            params.append(p)
            made.append(
                orthogonalize_update(update, group["ns_coefficients"], group["ns_steps"], group["eps"]).to(p.dtype)
            )
        for ratio, (params, made) in by_ratio.items():
            if ratio:  # of no elements
                sgd_(
                    params, made, [], lr=float(group["lr"]) * ratio, momentum=0.0, dampening=0.0,
                    weight_decay=float(group["weight_decay"]) / ratio, nesterov=False,
                )  # fmt: skip


class SGD(_Stepped, torch.optim.SGD):
    """SGD with torch's arguments, parameter groups, state and hooks; a state dict of either is one of the other.

    A group is stepped by ``kernelworks.sgd_`` if the chooser takes a kernel of ours for its tensors, and by torch's own
    step else: ``differentiable``, ``foreach`` or ``fused`` asked for, a learning rate that is a tensor, sparse and
    complex gradients, subclasses of tensors, tensors that share memory, while a graph is captured or a program
    compiled.

    Args: those of torch.optim.SGD. Raises: what that raises.
    """

    TORCHS = torch.optim.SGD
    OP = SGD_OP
    SERVED: ClassVar[dict[str, tuple[Any, ...]]] = {"foreach": (None,), "differentiable": (False,), "fused": (None,)}
    NUMBERS = ("lr", "momentum", "dampening", "weight_decay")

    def _looks(self, group: dict[str, Any]) -> tuple[Any, ...]:
        states = (self.state.get(p, {}) for p in group["params"])
        begun = group["momentum"] != 0 and any(state.get("momentum_buffer") is not None for state in states)
        return bool(group["maximize"]), bool(group["nesterov"]), group["momentum"] != 0, begun

    def _calls(self, group: dict[str, Any], params: list[Tensor]) -> list[Call] | None:
        """One call of those that begin, one of the others."""
        numbers = {
            "nesterov": bool(group["nesterov"]), "maximize": bool(group["maximize"]), "is_first_step": False,
            **_floats(group, *self.NUMBERS),
        }  # fmt: skip
        if not group["momentum"]:
            return [Call((params, [_grad(p) for p in params], []), numbers)]
        begun: dict[bool, list[Tensor]] = {}
        for p in params:
            begun.setdefault(self.state.get(p, {}).get("momentum_buffer") is None, []).append(p)
        return [
            Call(
                (mine, [_grad(p) for p in mine], [_momentum_of(self.state, p) for p in mine]),
                numbers | {"is_first_step": first},
            )
            for first, mine in begun.items()
        ]

    def _after(self, call: Call) -> None:
        if call.numbers["is_first_step"]:
            for param, made in zip(call.lists[0], call.lists[2], strict=True):
                self.state[param]["momentum_buffer"] = made


OURS: dict[type[torch.optim.Optimizer], type[_Stepped]] = {
    kind.TORCHS: kind for kind in (Adadelta, Adagrad, Adam, AdamW, Muon, RMSprop, SGD)
}


def _grad(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def _floats(group: dict[str, Any], *names: str) -> dict[str, float]:
    return {name: float(group[name]) for name in names}


def _momentum_of(state: Any, param: Tensor) -> Tensor:
    """A parameter's momentum; at a first step memory for it."""
    made: Tensor | None = state.get(param, {}).get("momentum_buffer")
    if made is None:
        made = torch.empty_like(_grad(param))
    return made


def _readable(param: Tensor) -> bool:
    """Whether a kernel may read a parameter and its gradient."""
    grad = _grad(param)
    return (
        param.__class__ in PLAIN_TYPES
        and grad.__class__ in PLAIN_TYPES
        and grad.layout is torch.strided
        and param.dtype in FLOATS
        and grad.dtype is param.dtype
    )


def _alike(lists: tuple[list[Tensor], ...], device: torch.device) -> bool:
    """Whether all lie on one device, and the states of a parameter are of one dtype."""
    states = lists[2:]
    return all(t.device == device for tensors in lists for t in tensors) and all(
        len({t.dtype for t in of_one}) == 1 for of_one in zip(*states, strict=True)
    )


def _chosen(op: Op, args: tuple[Any, ...]) -> bool:
    names = op.passes["forward"].names
    named = dict(zip(names, args, strict=True))
    try:
        op.contract.check(**named)
    except (TypeError, ValueError):
        return False
    lists = lists_of(op.template.arguments)
    if find_shared([named[name] for name in lists], [name in op.contract.mutates for name in lists]) is not None:
        return False
    choice = op.choice(args, None)
    return not choice.native and choice.kernel.source is not None


def _captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _torchs_step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> Any:
    """torch's step without its hooks, which run round ours."""
    torchs = next(kind for kind in type(optimizer).__mro__ if kind in OURS)
    step: Any = torchs.step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    return step(optimizer, closure)
