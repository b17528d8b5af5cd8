"""Fused optimizer steps: one kernel a step, by torch's ``fused=True`` or by kernelworks' op. An optimizer without a
fused step computes each term for all parameters in one call (``foreach=True``).

torch's default step passes over parameters, gradients and states once for each term of its formula, on a CPU with a
Python call for each parameter and term. A fused step reads and writes each of them once. The object stays the same
optimizer, with its groups, states and hooks.
"""

from __future__ import annotations

import copyreg
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from kernelworks.diagnose.optimization import (
    PROCESS,
    Candidate,
    Change,
    Impossible,
    Promise,
    Rejected,
    Scene,
    kind_name,
)
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_string, one_of
from kernelworks.diagnose.optimizations.optimizer_steps import while_each_steps, while_it_steps
from kernelworks.diagnose.optimizations.trial import run_s
from kernelworks.nn import optim

__all__ = ["FOREACH", "FUSED", "OPTIMIZATION", "OURS", "fuse", "take_ours"]

FUSED, OURS, FOREACH = "fused", "kernelworks", "foreach"
KINDS: dict[str, tuple[type[Optimizer], ...]] = {
    FUSED: (Adam, AdamW, SGD, Adagrad),  # those with a fused step in torch
    OURS: tuple(optim.OURS),
    FOREACH: (  # those without one
        torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adadelta, torch.optim.Adamax,
        torch.optim.ASGD, torch.optim.Rprop,
    ),
}  # fmt: skip
MOST_BYTES = 256 << 20  # of parameters that are copied for a trial
TURNS, ENOUGH_S = (3, 15), 0.5
VERIFIED_AGAINST = "torch's own steps, on copies"
STEPS = 3  # after which parameters are compared
CODE = {
    FUSED: "{kind}(..., fused=True)", OURS: "kernelworks.nn.optim.{kind}(...)", FOREACH: "{kind}(..., foreach=True)",
}  # fmt: skip
SAYS = {
    FUSED: "{kind} with fused=True: one pass over its tensors", OURS: "{kind} steps by an op of kernelworks",
    FOREACH: "{kind} with foreach=True: each term of all tensors in one call",
}  # fmt: skip


class _Optimization:
    name = "fused optimizer"
    takes = Takes(
        ("optimizer", "process"), {"how": one_of(FUSED, OURS, FOREACH), "kind": a_string}, needs=(("how", "kind"),)
    )  # fmt: skip

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        for optimizer in scene.optimizers:
            kind = type(optimizer).__name__
            for how in KINDS:
                if suits(optimizer, how):
                    site = scene.site_of(optimizer)
                    yield Candidate(
                        self.name, site, SAYS[how].format(kind=kind), code=CODE[how].format(kind=kind),
                        options=(("how", how),), group=f"step of {site}", touches=frozenset({"optimizer"}),
                    )  # fmt: skip
        for name, optimizer in {kind_name(o): o for o in scene.roots.passing if suits(o, FUSED)}.items():
            kind = type(optimizer).__name__
            says = f"{SAYS[FUSED].format(kind=kind)}, wherever the program makes one"
            yield Candidate(
                self.name, PROCESS, says, code=CODE[FUSED].format(kind=kind), options=(("kind", name),),
                group=f"step of {name}", touches=frozenset({"optimizer"}),
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        """Benchmarks steps on copies: of all parameters, or of every n-th if they are large."""
        assert scene.forecaster is not None
        kind, with_sync = candidate.option("kind"), scene.forecaster.device.with_sync
        stepping = [o for o in scene.roots.passing if kind_name(o) == kind] if kind else [scene.at(candidate.site)]
        pairs = [_race_steps(optimizer, candidate.option("how", FUSED), with_sync) for optimizer in stepping]
        before, after = (sum(seconds) for seconds in zip(*pairs, strict=True))
        return Promise((before - after) / run_s(scene), how="steps on copies benchmarked")

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        if candidate.option("kind"):
            return Change(lambda: fuse_each(candidate.option("kind")), VERIFIED_AGAINST)
        optimizer, how = scene.at(candidate.site), candidate.option("how")
        if not suits(optimizer, how):
            raise Impossible(f"this {type(optimizer).__name__} has no such step")
        return Change(lambda: INSTALLERS[how](optimizer), VERIFIED_AGAINST)


def suits(optimizer: Optimizer, how: str) -> bool:
    """Whether an optimizer of torch's own could step so, and does not."""
    if type(optimizer) not in KINDS[how]:
        return False
    groups = optimizer.param_groups
    params = [p for group in groups for p in group["params"]]
    if not params or any(g.get("fused") or g.get("differentiable") or isinstance(g["lr"], Tensor) for g in groups):
        return False
    if how == OURS and "step" in optimizer.__dict__:  # a scheduler of learning rates wraps torch's own step
        return False
    if how == FOREACH and any(g.get("foreach") or (g.get("foreach") is None and _by_itself(g)) for g in groups):
        return False
    if how == OURS and not all(optim.OURS[type(optimizer)].serves(group) for group in groups):
        return False
    kinds = {p.device.type for p in params}
    return kinds <= {"cpu", "cuda"} and all(
        p.is_floating_point() and type(p.data) is Tensor and (p.grad is None or p.grad.layout is torch.strided)
        for p in params
    )


def _by_itself(group: dict[str, Any]) -> bool:
    """Whether torch takes all of a group together by default: on a GPU."""
    return any(p.is_cuda for p in group["params"])


def _taken(kind: type[Optimizer]) -> type[Optimizer]:
    """An optimizer of torch's with kernelworks' step for now: a copy of it, and what is saved of it, is torch's own."""

    def reduce(self: Any, protocol: Any) -> Any:
        reconstructor: Any = copyreg._reconstructor  # type: ignore[attr-defined]
        return reconstructor, (kind, object, None), self.__getstate__()

    names = {"__qualname__": kind.__qualname__, "__module__": __name__, "__reduce_ex__": reduce}
    return type(kind.__name__, (optim.OURS[kind],), names)  # whose name profiles and ``repr`` say


_TAKEN = {kind: _taken(kind) for kind in optim.OURS}


def take_ours(optimizer: Optimizer) -> Callable[[], None]:
    """Makes an optimizer of torch's one of ours: a class derived from it, with the same state."""
    kind = type(optimizer)
    optimizer.__class__ = _TAKEN[kind]
    optimizer._patch_step_function()  # hooks of steps run round ours too

    def back() -> None:
        optimizer.__class__ = kind
        optimizer.__dict__.pop("_kernelworks_chosen", None)

    return back


def fuse(optimizer: Optimizer) -> Callable[[], None]:
    """Sets ``fused`` in every group while it steps; returns what undoes that."""
    return while_it_steps(optimizer, FUSED, lambda one: suits(one, FUSED))


def take_together(optimizer: Optimizer) -> Callable[[], None]:
    """Sets ``foreach`` in every group while it steps; returns what undoes that."""
    return while_it_steps(optimizer, FOREACH, lambda one: suits(one, FOREACH))


def fuse_each(kind: str) -> Callable[[], None]:
    """Sets ``fused`` in each optimizer of a type while it steps; returns what undoes that."""
    return while_each_steps(lambda one: kind_name(one) == kind, FUSED, lambda one: suits(one, FUSED))


INSTALLERS: dict[str, Callable[[Optimizer], Callable[[], None]]] = {
    FUSED: fuse,
    OURS: take_ours,
    FOREACH: take_together,
}


def _race_steps(
    optimizer: Optimizer, how: str, with_sync: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> tuple[float, float]:
    """Seconds of a step as it is and so, in turns."""
    size = sum(p.nbytes for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
    every = max(1, -(-size // MOST_BYTES))
    first, second = (_copied(optimizer, every) for _ in range(2))
    if first is None or second is None:
        raise Impossible("it has no parameters with gradients")
    back = INSTALLERS[how](second)
    _check(first, second)
    steps = [with_sync(first.step), with_sync(second.step)]
    times: tuple[list[float], list[float]] = ([], [])
    for step in (*steps, *steps):
        step()
    begin = time.perf_counter()
    for turn in range(TURNS[1]):
        for variant in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            steps[variant]()
            times[variant].append(time.perf_counter() - start)
        if turn + 1 >= TURNS[0] and time.perf_counter() - begin > ENOUGH_S:
            break
    back()
    stepped = sum(p.nbytes for group in first.param_groups for p in group["params"])
    was, now = (statistics.median(t) * size / stepped for t in times)  # by bytes: one may be most of all
    return was, now


def _check(first: Any, second: Any) -> None:
    """Raises Rejected if some steps of the second lead to parameters that rounding does not explain."""
    before = [p.detach().clone() for group in first.param_groups for p in group["params"]]
    for _ in range(STEPS):
        first.step()
        second.step()
    ours = (p for group in second.param_groups for p in group["params"])
    theirs = (p for group in first.param_groups for p in group["params"])
    with torch.no_grad():
        for was, a, b in zip(before, theirs, ours, strict=True):
            unit = torch.finfo(a.dtype).eps
            allowed = STEPS * unit * a.double().norm() + 64 * unit * (a.double() - was.double()).norm()
            if not (a.double() - b.double()).norm() <= allowed:
                raise Rejected("its parameters differ after some steps by more than rounding explains")


def _copied(optimizer: Optimizer, every: int) -> Any:
    """The same optimizer on copies of every n-th parameter that steps, with small gradients."""
    groups = []
    kind: Any = type(optimizer)
    for group in optimizer.param_groups:
        stepping = [p for p in group["params"] if p.requires_grad][::every]
        params = []
        for p in stepping:
            with torch.no_grad():
                copy = torch.nn.Parameter(p.detach().clone())
                copy.grad = torch.full_like(copy, 1e-3)
            params.append(copy)
        if params:
            groups.append({**group, "params": params})
    return kind(groups) if groups else None


OPTIMIZATION = _Optimization()
