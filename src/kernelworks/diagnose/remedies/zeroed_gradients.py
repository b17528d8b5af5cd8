"""Gradients given back ahead of a backward, in the place of gradients filled with zeros.

``zero_grad(set_to_none=False)`` writes zeros over all gradients, and the backward then reads them again to add its own:
three passes over what need not be touched. Where the gradient is None, the backward leaves what it made. A parameter
that no backward reaches would then be skipped by its optimizer, where zeros still decay it: what is still None as a
step begins gets its zeros there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from kernelworks.diagnose.remedies.remedy import PROCESS, Change, Impossible, Offer, Promise, Scene
from kernelworks.diagnose.remedies.whole import in_turns

__all__ = ["REMEDY", "filled", "given_back"]

PROVED = "itself, as no number is changed"
KINDS: tuple[type, ...] = (Optimizer, nn.Module)  # whose zero_grad is called


class _Remedy:
    name = "zeroed gradients"

    def offers(self, scene: Scene) -> Iterator[Offer]:
        """Where one run fills gradients with zeros; many processes share theirs in ways that nobody may break."""
        program = scene.program
        if not scene.backward or program is None or _distributed():
            return
        if scene.keep("gradients filled with zeros", lambda: filled(program.run)):
            yield Offer(
                self.name, PROCESS, "gradients given back, not filled with zeros",
                code="optimizer.zero_grad()  # without set_to_none=False", group=self.name,
                touches=frozenset({"gradients"}),
            )  # fmt: skip

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        turns = in_turns(scene, self.apply(scene, offer))
        return Promise(turns.saves, turns.first_s, how="the program run so")

    def apply(self, scene: Scene, offer: Offer) -> Change:
        if _distributed():
            raise Impossible("several processes share their gradients")
        return Change(given_back, PROVED)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def filled(run: Callable[[], Any]) -> int:
    """How many gradients a run fills with zeros."""
    count = 0

    def see(parameters: list[Tensor], kept: Callable[[], None]) -> None:
        nonlocal count
        count += sum(p.grad is not None for p in parameters)
        kept()

    back = _asked(see)
    try:
        run()
    finally:
        back()
    return count


def given_back() -> Callable[[], None]:
    """Has gradients that are to be filled with zeros given back; returns what takes that back."""
    given = WeakIdKeyDictionary()  # parameters that wait for a gradient

    def give(parameters: list[Tensor], kept: Callable[[], None]) -> None:
        if not all(_plain(p) for p in parameters):
            kept()
            return
        for p in parameters:
            if p.grad is not None:
                p.grad = None
                given[p] = True

    def zeros(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if given.pop(p, None) is not None and p.grad is None:
                    p.grad = torch.zeros_like(p)

    back, hook = _asked(give), register_optimizer_step_pre_hook(zeros)

    def out() -> None:
        hook.remove()
        back()
        for p in list(given):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        given.clear()

    return out


def _plain(parameter: Tensor) -> bool:
    gradient = parameter.grad
    watched = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return not watched and (gradient is None or (type(gradient) is Tensor and gradient.grad_fn is None
                                                 and gradient.layout is torch.strided))  # fmt: skip


def _asked(instead: Callable[[list[Tensor], Callable[[], None]], None]) -> Callable[[], None]:
    """Has ``instead(parameters, kept)`` called where somebody asks for zeros, ``kept()`` being what he asked for."""
    undo = contextlib.ExitStack()

    def of_optimizer(self: Any, set_to_none: bool = True) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        _either(parameters, set_to_none, lambda: optimizers(self, set_to_none))

    def of_module(self: Any, set_to_none: bool = True) -> None:
        _either(list(self.parameters()), set_to_none, lambda: modules(self, set_to_none))

    def _either(parameters: list[Tensor], set_to_none: bool, kept: Callable[[], None]) -> None:
        if set_to_none or torch.compiler.is_compiling():
            kept()
        else:
            instead(parameters, kept)

    optimizers, modules = (kind.__dict__["zero_grad"] for kind in KINDS)
    for kind, other in zip(KINDS, (of_optimizer, of_module), strict=True):
        undo.callback(setattr, kind, "zero_grad", kind.__dict__["zero_grad"])
        setattr(kind, "zero_grad", other)  # noqa: B010
    return undo.close


REMEDY = _Remedy()
