"""Small programs of many kinds: every op has its work, what they are is seen and nothing else, and regions add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from machines import record as machine
from small_programs import PROGRAMS, TRAINED, X

from kernelworks.diagnose.account.account import account
from kernelworks.diagnose.account.hotspots import find_hotspots
from kernelworks.diagnose.account.on_cpu import Cpu
from kernelworks.diagnose.forecast.races import Races
from kernelworks.diagnose.rules.patterns import patterns
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost.calls import work
from kernelworks.profile.on_cpu import fit_timeline
from kernelworks.profile.overhead import Floors
from kernelworks.profile.recording import record
from kernelworks.profile.trace import Trace

LINEAR = torch.nn.Linear(16, 4)
BAG = torch.nn.EmbeddingBag(50, 16, mode="sum", sparse=True)
FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)
VERIFIED = {  # problems that a rule may see in a tiny program only where its pattern is
    "a norm made of many ops": "norm", "a rotary embedding made of many ops": "rotary",
    "a gate made of two ops": "gate", "a growing cache copied at every step": "cache",
    "an optimizer in many passes": "adam", "batch norms that convolutions could hold": "foldable",
}  # fmt: skip


def _surveyed(run: Callable[[], Any], *, grad: bool) -> Trace:
    with torch.set_grad_enabled(grad):
        run()
        return record(run, survey=Survey())


@pytest.mark.parametrize("name", ["encoder, quick way", "attention of torch", "vision transformer", "lstm"])
def test_a_survey_sees_the_calls_that_are_timed(name: str) -> None:
    """A module may ask whether torch is being watched, and go another way."""
    run = PROGRAMS[name][0]
    surveyed = _surveyed(run, grad=False)
    with torch.no_grad():
        timed = record(run)
    assert [c.name for c in surveyed.calls] == [c.name for c in timed.calls]


ODD: dict[str, Callable[[], Any]] = {
    "vmap": lambda: torch.func.vmap(lambda v: F.softmax(LINEAR(v), -1))(X),
    "hessian": lambda: torch.func.hessian(lambda v: F.gelu(LINEAR(v)).sum())(X[0]),
    "forward mode": lambda: torch.func.jvp(LINEAR, (X,), (X,)),
    "traced within": lambda: torch.jit.trace(LINEAR, X)(X),
    "jagged": lambda: torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged).sin(),
    "sparse": lambda: torch.sparse.mm(torch.eye(6).to_sparse(), X),
    "sparse gradients": lambda: torch.enable_grad()(lambda: BAG(torch.arange(48).view(6, 8)).sum().backward())(),
    "another layout": lambda: F.relu(X.to_mkldnn()).to_dense(),
    "on no device": lambda: torch.empty(3, 3, device="meta") @ torch.empty(3, 3, device="meta"),
    "complex": lambda: torch.view_as_complex(X.view(6, 8, 2)) * torch.randn(8, dtype=torch.cfloat),
    "nothing in it": lambda: [torch.empty(0, 16) @ torch.empty(16, 2), torch.empty(0).sum(), torch.empty(0, 3).sort()],
    "one number": lambda: [torch.tensor(3.0).sort(), torch.tensor(3.0).topk(1), torch.tensor(3.0).cumsum(0)],
    "no batch": lambda: [F.conv2d(X.view(1, 6, 16), torch.ones(2, 1, 3, 3)), F.conv1d(X, torch.ones(2, 6, 3))],
    "by a mask": lambda: [X[X > 0], X.unique(), torch.where(X > 0), X.masked_fill(X > 0, 1.0)],
    "drawn": lambda: [torch.poisson(X.abs()), torch.randperm(5), torch.distributions.Gamma(2.0, 2.0).sample((3,))],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_programs_are_counted_or_declined(name: str) -> None:
    """Tensors without strides, without data or without elements, and other ways of differentiating: nothing raises."""
    trace = _surveyed(ODD[name], grad=False)
    wall = (trace.end - trace.start) / 1e9
    its, _ = find_hotspots(
        account(fit_timeline(wall, [trace], trace, FLOORS), Cpu(machine(), FLOORS, 2)), wall, Races(0.0, 2)
    )
    assert math.isclose(sum(region.seconds for region in its), wall, rel_tol=1e-6)


@pytest.mark.parametrize(("name", "grad"), [*((n, False) for n in PROGRAMS), *((n, True) for n in TRAINED)])
def test_program(name: str, grad: bool) -> None:
    run, expected = (TRAINED if grad else PROGRAMS)[name]
    trace = _surveyed(run, grad=grad)
    assert trace.calls
    unknown = {call.name for call in trace.calls if work(call) is None}
    assert not unknown, "without a formula"
    found = {pattern for names in patterns(trace.calls).values() for pattern in names}
    assert found == expected

    wall = (trace.end - trace.start) / 1e9
    timeline = fit_timeline(wall, [trace], trace, FLOORS)
    its, problems = find_hotspots(account(timeline, Cpu(machine(), FLOORS, 2)), wall, Races(0.0, 2))
    assert math.isclose(sum(region.seconds for region in its), wall, rel_tol=1e-6)
    assert {VERIFIED[problem] for problem in problems if problem in VERIFIED} <= expected
