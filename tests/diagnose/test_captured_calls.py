"""A captured call may be given its own answers, which lie in memory that it is about to overwrite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.optimizations.captured_calls import captures, with_answers_copied


class Overwriting:
    """As a CUDA graph does: it writes its answers to the same memory, before it has read all that it was given."""

    def __init__(self) -> None:
        self.state, self.reward = torch.zeros(4), torch.zeros(4)
        self.given: list[Any] = []

    def __call__(self, state: Any, *more: Any, **named: Any) -> Any:
        self.given.append(state)
        read = state["now"][0] if isinstance(state, dict) else state
        self.state.fill_(-1.0)
        self.reward.copy_(read * 2)
        self.state.copy_(read + 1)
        return {"now": [self.state]} if isinstance(state, dict) else (self.state, self.reward)


def test_without_copies_it_would_be_wrong() -> None:
    step = Overwriting()
    state, _ = step(torch.ones(4))
    assert step(state)[0][0] == 0.0  # the test's own check: not 3


def test_a_loop_is_given_copies_of_its_own_answers() -> None:
    step = Overwriting()
    call, state = with_answers_copied(step), torch.ones(4)
    for _ in range(5):
        state, reward = call(state)
    assert state[0] == 6.0 and reward[0] == 10.0
    assert all(given is not step.state for given in step.given)


def test_answers_in_containers_are_copied_too() -> None:
    call, state = with_answers_copied(Overwriting()), {"now": [torch.ones(4)]}
    for _ in range(3):
        state = call(state)
    assert state["now"][0][0] == 4.0


def test_views_of_answers_are_copied_too() -> None:
    call = with_answers_copied(Overwriting())
    state, _ = call(torch.ones(4))
    assert call(state.view(2, 2).flatten())[0][0] == 3.0


def test_what_one_captured_call_answers_another_is_given_as_a_copy() -> None:
    """torch's graphs share one pool: each call of a compiled function ends the memory of the one before."""
    first, second = Overwriting(), Overwriting()
    call, then = with_answers_copied(first), with_answers_copied(second)
    then(call(torch.ones(4))[0])
    assert second.given[0] is not first.state


def test_what_is_no_answer_is_handed_over_as_it_is() -> None:
    """A copy of what the call writes to would lose what it writes."""
    kept = torch.zeros(4)

    def counts(x: Tensor) -> Tensor:
        return x.add_(1)  # it gives back what it was given

    call = with_answers_copied(counts)
    for _ in range(3):
        assert call(kept) is kept
    assert kept[0] == 3.0


def test_gradients_flow_through_what_is_handed_on() -> None:
    layer = nn.Linear(4, 4)
    call = with_answers_copied(layer)
    call(call(torch.ones(2, 4))).sum().backward()
    taken = layer.weight.grad
    layer.zero_grad()
    layer(layer(torch.ones(2, 4))).sum().backward()
    assert torch.equal(taken, layer.weight.grad)


@pytest.mark.parametrize(
    ("mode", "are"),
    [("reduce-overhead", True), ("max-autotune", True), ("max-autotune-no-cudagraphs", False), (None, False)],
)
def test_modes_that_capture(mode: str | None, are: bool) -> None:
    assert captures(mode) is are
