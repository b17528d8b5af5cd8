"""Small programs of many kinds: every op has its work, what they are is seen and nothing else, and regions add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_programs import PROGRAMS, TRAINED

from kernelworks.diagnose.account import account
from kernelworks.diagnose.costs import work
from kernelworks.diagnose.overhead import Floors
from kernelworks.diagnose.patterns import patterns
from kernelworks.diagnose.places import Survey
from kernelworks.diagnose.regions import regions
from kernelworks.diagnose.timeline import settle
from kernelworks.diagnose.trace import Trace, record
from machines import record as machine

FLOORS = Floors(event=0.0, gap=0.5e-6, span=0.4e-6, fault=1e-6, free=0.5e-6)
PROVED = {  # problems that a rule may see in a tiny program only where its pattern is
    "a norm made of many ops": "norm", "a rotary embedding made of many ops": "rope", "a gate made of two ops": "gate",
    "a growing cache copied at every step": "cache", "an optimiser in many passes": "adam",
    "batch norms that convolutions could hold": "foldable",
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
    timeline = settle(wall, [trace], trace, FLOORS)
    its, problems = regions(account(timeline, FLOORS, 2, machine()), wall, 2)
    assert math.isclose(sum(region.seconds for region in its), wall, rel_tol=1e-6)
    assert {PROVED[problem] for problem in problems if problem in PROVED} <= expected
