"""Problems for schedules, and a way to run one: through g++, against float64 and the judge's own bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.contract.bounds import bound_of
from kernelworks.judge.formats.loading import module_of
from kernelworks.search.schedule import candidate
from kernelworks.search.schedule.candidate import candidate_of
from kernelworks.search.schedule.derive import derive_nest
from kernelworks.search.schedule.moves import MOVES, Step, apply, draw_args
from kernelworks.search.schedule.nest import Kernel
from kernelworks.search.schedule.plan import Illegal, Plan, Schedule, make_plan, naive
from kernelworks.verify.compare import compare

__all__ = ["PROBLEMS", "changed", "nest", "ran", "share"]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(48, 40)
        self.norm = nn.LayerNorm(40)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.dense(x)))


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(F.silu(self.conv(x)), 2)


def _functions(x: Tensor) -> tuple[Tensor, ...]:
    return torch.exp(x), torch.log(x), torch.tanh(x), torch.erf(x), torch.sigmoid(x), F.gelu(x), x.clamp(-1, 2), x.abs()


# name -> the function, and its inputs
PROBLEMS: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Any]]]] = {
    "softmax": (lambda x: torch.softmax(x, 1), lambda: [torch.randn(12, 75)]),
    "middle": (lambda x: torch.softmax(x, 1) * 2.0, lambda: [torch.randn(3, 10, 33)]),
    "sum": (lambda x: x.sum(1, keepdim=True), lambda: [torch.randn(4, 21, 35)]),
    "layer": (Layer().eval(), lambda: [torch.randn(9, 48)]),
    "products": (
        lambda a, b: torch.relu(a @ b.transpose(1, 2)), lambda: [torch.randn(2, 17, 24), torch.randn(2, 64, 24)]
    ),
    "windows": (Windows().eval(), lambda: [torch.randn(2, 4, 10, 12)]),
    "loss": (lambda x, y: F.cross_entropy(x, y), lambda: [torch.randn(20, 37), torch.randint(0, 37, (20,))]),
    "masked": (
        lambda x, m: torch.softmax(x.masked_fill(m, float("-inf")), 2) @ x,
        lambda: [torch.randn(2, 12, 12), torch.ones(12, 12).triu(1).bool()],
    ),
    "heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: [torch.randn(1, 2, 18, 8), torch.randn(1, 2, 18, 8), torch.randn(1, 2, 18, 8)],
    ),
    "tanh_gelu": (lambda x: F.gelu(x, approximate="tanh"), lambda: [3 * torch.randn(7, 129)]),
    "gram": (lambda x: x.t() @ x, lambda: [torch.randn(19, 16)]),
}  # fmt: skip


def nest(name: str) -> tuple[Kernel, Callable[..., Any], Sequence[Any]]:
    torch.manual_seed(7)
    call, inputs = PROBLEMS[name]
    given = inputs()
    return derive_nest(call, given), call, given


def changed(kernel: Kernel, seed: int, count: int) -> tuple[Schedule, list[Step]]:
    """The plain schedule after so many moves that are drawn."""
    draw = random.Random(seed)
    schedule, steps = naive(kernel), list[Step]()
    for _ in range(40 * count):
        if len(steps) == count:
            break
        name = draw.choice(list(MOVES))
        args = draw_args(make_plan(kernel, schedule), name, draw)
        if args is None:
            continue
        try:
            schedule = apply(kernel, schedule, name, args)
        except Illegal:
            continue
        steps.append((name, args))
    return schedule, steps


def ran(plan: Plan, call: Callable[..., Any], inputs: Sequence[Any], folder: Path) -> Any:
    """The answer of the printed candidate, compiled in haste: what it computes does not hang on that."""
    flags = candidate.FLAGS
    text = candidate_of(plan).replace('"-O3"', '"-O1"')
    assert '"-O1"' in text and flags[1] == "-O3"
    folder.mkdir(parents=True, exist_ok=True)
    model = module_of("scheduled_candidate", text, folder).ModelNew()
    if isinstance(call, nn.Module):
        model.load_state_dict(call.state_dict())
    with torch.no_grad():
        return model(*inputs)


def share(answer: Any, call: Callable[..., Any], inputs: Sequence[Any]) -> float:
    """The worst error as a share of the bound."""
    with torch.no_grad():
        bound = bound_of(call, inputs)
    answers = answer if isinstance(answer, tuple) else (answer,)
    assert len(answers) == len(bound.reference)
    return max(
        compare(a, t, b)[0] for a, t, b in zip(answers, bound.reference, bound.outputs, strict=True)
    )  # fmt: skip
