"""Small programs for optimizations, and what somebody else may hold of one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernelworks.diagnose.optimization import Candidate, Impossible, Optimization, Scene
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.profile.on_cpu import CpuTimeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.program import Program
from kernelworks.profile.timeline import survey_all_calls

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)


class Net(nn.Module):
    """Convolutions and norms in the ways in which one follows the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8, affine=False), nn.ReLU())
        self.wide = nn.Sequential(nn.ConvTranspose2d(8, 6, 2, stride=2), nn.BatchNorm2d(6))
        self.seen, self.after = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)  # what it makes is read twice
        self.head, self.last = nn.Linear(6, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.seen(self.wide(self.deep(self.norm(self.conv(x)).relu())))
        y = self.after(y) + y
        return self.last(self.head(y.mean((2, 3))))


def net() -> Net:
    torch.manual_seed(0)
    made = Net().eval()
    for part in made.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            torch.nn.init.uniform_(part.running_mean, -1, 1)  # type: ignore[arg-type]
            torch.nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
    return made


class Attending(nn.Module):
    """Query, key and value of one input, gate and up of another."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, width, bias=bias) for width in (8, 4, 4))
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=bias) for a, b in ((8, 16), (8, 16), (16, 8)))
        self.alone = nn.Linear(8, 8)
        self.tied = self.down

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 8)
        q, k, v = self.query(x), self.key(x), self.value(x)
        y = self.alone(q + torch.cat([k, v], -1))
        return self.tied(self.gate(y).relu() * self.up(y))  # type: ignore[no-any-return]


def attending(*, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return Attending(bias).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Case(NamedTuple):
    model: nn.Module
    run: Callable[[], Any]
    optimizer: torch.optim.Optimizer | None = None


def asked(model: nn.Module, *, autocast: bool = False) -> Case:
    """A program of inference."""

    def run() -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(X)

    return Case(model, run)


def trained(
    model: nn.Module, kind: Any = torch.optim.SGD, *, to_none: bool = True, clip: float = 0.0, **more: Any
) -> Case:
    """A program of training; with ``clip`` its gradients are clipped to that norm."""
    optimizer = kind(model.train().parameters(), lr=1e-3, **more)

    def run() -> Any:
        optimizer.zero_grad(set_to_none=to_none)
        loss = model(X).square().mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.detach()

    return Case(model, run, optimizer)


def counted(case: Case) -> tuple[Case, list[None]]:
    """The same program, and what has an item for each of its runs: scenes and optimizations run it to see what it
    does."""
    ran: list[None] = []

    def run() -> Any:
        ran.append(None)
        return case.run()

    return case._replace(run=run), ran


def scene_of(case: Case, **more: Any) -> Scene:
    """What is known of a program, with a timeline of as much as optimizations read."""
    roots = find_roots(case.run)
    trace, persistent = survey_all_calls(case.run, 1e9)
    timeline = CpuTimeline(wall=1e-2, moments=(), rest=0.0, floors=FLOORS, persistent=persistent, **more)
    timeline = (
        SimpleNamespace(calls=trace.calls, entries=lambda: [SimpleNamespace(seconds=1e-5)]) if not more else timeline
    )  # type: ignore[assignment]
    side: Any = SimpleNamespace(timeline=timeline, device=SimpleNamespace(with_sync=lambda run: run))
    optimizers = (case.optimizer,) if case.optimizer is not None else ()
    return Scene(roots, Program("p", case.run), optimizers, side, (1e-2,))


class OnGpu(Scene):
    """A scene that is played on a GPU."""

    on_gpu = True  # type: ignore[assignment]


def candidates(optimization: Optimization, scene: Scene) -> list[Candidate]:
    try:
        return list(optimization.candidates(scene))
    except Impossible:
        return []


class Looks(NamedTuple):
    """All that somebody else may hold of a program."""

    tensors: dict[str, tuple[int, int, Any, Any, bool]]
    spaces: list[dict[str, Any]]
    states: list[Any]
    groups: list[Any]


def steps(tensor: Tensor) -> list[int]:
    """Its strides, where they say anything."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def looks(case: Case) -> Looks:
    held = case.model.state_dict(keep_vars=True)
    grads = {f"grad of {n}": p.grad for n, p in case.model.named_parameters() if p.grad is not None}
    tensors = {
        name: (id(t), t.data_ptr(), t.shape, steps(t), t.requires_grad, t.is_inference())
        for name, t in {**held, **grads}.items()
    }
    spaces = [{k: v for k, v in m.__dict__.items() if k != "training"} for m in case.model.modules()]
    states = []
    groups: list[Any] = []
    if case.optimizer is not None:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in case.optimizer.param_groups]
        groups += [type(case.optimizer), sorted(case.optimizer.__dict__)]
        for state in case.optimizer.state.values():
            states.append({k: (id(v), steps(v), v.device) for k, v in state.items() if isinstance(v, Tensor)})
    return Looks(tensors, [dict(space) for space in spaces], states, groups)
