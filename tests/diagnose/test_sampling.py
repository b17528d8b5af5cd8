"""The calls of a module that are kept to stand for all that a run makes of it."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from kernelworks.diagnose.optimizations.trial import race
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.sites.sampling import MOST, Look, standing_for


def look(*sizes: float, grad: bool = False) -> Look:
    return Look((grad,), sizes)


def test_calls_that_are_alike_are_the_first_and_the_last() -> None:
    assert standing_for([look(5)]) == {0: 1}
    assert standing_for([look(5)] * 2) == {0: 1, 1: 1}
    assert standing_for([look(5)] * 40) == {0: 1, 39: 39}
    assert standing_for([look(10), *(look(1, 5 + n / 100) for n in range(20))]) == {0: 1, 20: 20}


def test_calls_in_other_modes_and_of_other_sizes_stand_for_themselves() -> None:
    rollout = [look(8)] * 32 + [look(10, grad=True)] * 4
    assert standing_for(rollout) == {0: 32, 35: 4}
    middle = [look(4), look(9, grad=True), look(4), look(4), look(9.2, grad=True), look(4)]
    assert standing_for(middle) == {0: 1, 1: 2, 5: 3}
    sizes = [look(n) for n in (4, 4, 9, 4, 9, 4.5)]
    assert standing_for(sizes) == {0: 3, 2: 2, 5: 1}


def test_no_more_than_some_are_kept_and_they_stand_for_all() -> None:
    calls = [look(float(n)) for n in range(0, 60, 3)]
    found = standing_for(calls)
    assert len(found) == MOST and sum(found.values()) == len(calls)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)  # type: ignore[no-any-return]


def test_a_rollout_and_the_training_after_it_are_benchmarked_each() -> None:
    """32 steps without gradients and 4 with them: the last call is like few of the others."""
    policy, x = Policy(), torch.randn(2, 4)

    def program() -> None:
        with torch.no_grad():
            for _ in range(32):
                policy(x)
        for _ in range(4):
            policy(x.repeat(8, 1)).sum().backward()

    roots = find_roots(program)
    assert [(s.stands, s.recording, len(s.args[0])) for s in roots.samples] == [(32, False, 2), (4, True, 16)]
    ran: list[int] = []
    policy.register_forward_hook(lambda module, args, output: ran.append(len(args[0])))
    raced = race(roots, nullcontext(), nullcontext(), lambda run: run, backward=True)
    assert set(ran) == {2, 16} and raced.before_s > 0
