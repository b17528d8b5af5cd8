"""A captured call may be given its own answers: around its first calls their memory is given back as it begins."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from kernelworks.diagnose.optimizations.captured_calls import captures, memory_given_back, with_answers_copied

CAPTURED_AT = 2  # the first call warms up, the second is captured, the others are replayed
Steps = namedtuple("Steps", "now then")


class Graph:
    """As torch's are: replayed it reads all arguments first, and before that the last answers' memory is given back."""

    def __init__(self) -> None:
        self.state, self.reward, self.calls = torch.zeros(4), torch.zeros(4), 0
        self.given: list[Any] = []

    def given_back(self) -> Callable[[Tensor], bool] | None:
        places = {t.untyped_storage().data_ptr() for t in (self.state, self.reward)}
        return (lambda t: t.untyped_storage().data_ptr() in places) if 0 < self.calls <= CAPTURED_AT else None

    def answer(self, read: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        if 0 < self.calls <= CAPTURED_AT:
            self.state.fill_(-1.0)
        value = read().clone()
        self.calls += 1
        self.reward.copy_(value * 2)
        self.state.copy_(value + 1)
        return self.state, self.reward

    def __call__(self, state: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
        self.given.append(state)
        return self.answer(lambda: state)


def test_without_copies_it_would_be_wrong() -> None:
    step = Graph()
    state, _ = step(torch.ones(4))
    assert step(state)[0][0] == 0.0  # the test's own check: not 3


def test_a_loop_is_given_copies_of_its_own_answers_until_they_are_replayed() -> None:
    step, state = Graph(), torch.ones(4)
    call = with_answers_copied(step, step.given_back)
    for _ in range(6):
        state, reward = call(state)
    assert state[0] == 7.0 and reward[0] == 12.0
    assert [given is step.state for given in step.given] == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    "held",
    [
        lambda t: (t, 3), lambda t: Steps(t, None), lambda t: [t], lambda t: {"now": {"here": [t]}},
        lambda t: types.SimpleNamespace(layers=[types.SimpleNamespace(keys=t)]),
    ],
    ids=["tuple", "named tuple", "list", "dicts", "objects"],
)  # fmt: skip
def test_answers_in_what_it_is_given_are_copied(held: Callable[[Tensor], Any]) -> None:
    step, seen = Graph(), list[Tensor]()

    def first(value: Any) -> Tensor:
        while not isinstance(value, Tensor):
            value = next(iter(vars(value).values() if hasattr(value, "__dict__") else dict(enumerate(value)).values()
                              if isinstance(value, (tuple, list)) else value.values()))  # fmt: skip
        return value

    def captured(value: Any) -> Tensor:
        seen.append(first(value))
        return step.answer(lambda: seen[-1])[0]

    call, state = with_answers_copied(captured, step.given_back), torch.ones(4)
    for _ in range(5):
        state = call(held(state))
    assert state[0] == 6.0 and seen[1] is not step.state


def test_a_cache_that_grows_holds_copies_too() -> None:
    step, cache = Graph(), DynamicCache()
    keys = step(torch.ones(4))[0].view(1, 1, 2, 2)
    cache.update(keys, keys, 0)
    held = cache.layers[0].keys
    cache.layers[0].keys = keys  # as a graph leaves it there
    with_answers_copied(lambda past: None, step.given_back)(cache)
    assert cache.layers[0].keys.data_ptr() != keys.data_ptr() and torch.equal(cache.layers[0].keys, held)


def test_what_is_no_answer_is_handed_over_as_it_is() -> None:
    """A copy of what the call writes to would lose what it writes."""
    step, kept, layer = Graph(), torch.zeros(4), nn.Linear(2, 2)
    step(kept)
    items, mapping = [kept], {"it": kept}
    call = with_answers_copied(lambda *given: given, step.given_back)
    given = call(kept, items, mapping, (kept, 1), layer, None, "text")
    assert given[0] is kept and given[1] is items and items[0] is kept and given[2] is mapping
    assert given[3][0] is kept and given[4] is layer


class Sealed(dict[str, Tensor]):
    """It takes nothing by itself."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        raise TypeError("it is sealed")


@dataclasses.dataclass(frozen=True)
class Frozen:
    keys: Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    keys: Tensor


class Pair(tuple[Tensor, Tensor]):
    """Its own arguments are not the items."""

    def __new__(cls, first: Tensor, second: Tensor) -> Pair:
        return super().__new__(cls, (first, second))


class Guarded:
    """It lets nobody look."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("nobody looks")


def test_what_a_program_guards_is_copied_too_and_raises_nothing() -> None:
    sealed, frozen, slotted = Sealed(it=torch.zeros(4)), Frozen(torch.zeros(4)), Slotted(torch.zeros(4))
    pair = Pair(torch.zeros(4), torch.ones(4))
    before, keys, others = sealed["it"], frozen.keys, slotted.keys
    call = with_answers_copied(lambda *given: given, lambda: lambda tensor: True)
    assert call(sealed, frozen, slotted, pair)[0] is sealed
    assert sealed["it"] is not before and frozen.keys is not keys and slotted.keys is not others
    given = call(pair)[0]
    assert type(given) is Pair and given[0] is not pair[0] and torch.equal(given[1], pair[1])
    guarded = Guarded()
    assert call(guarded)[0] is guarded


def test_objects_that_hold_each_other_are_gone_through_once() -> None:
    one, other = types.SimpleNamespace(), types.SimpleNamespace()
    one.held, other.held, one.tensor = [other] * 50, [one] * 50, torch.zeros(4)
    before = one.tensor
    with_answers_copied(lambda given: None, lambda: lambda tensor: True)(one)
    assert one.tensor is not before


def test_gradients_flow_through_what_is_handed_on() -> None:
    layer = nn.Linear(4, 4)
    call = with_answers_copied(layer, lambda: lambda tensor: True)
    call(call(torch.ones(2, 4))).sum().backward()
    taken = layer.weight.grad
    layer.zero_grad()
    layer(layer(torch.ones(2, 4))).sum().backward()
    assert torch.equal(taken, layer.weight.grad)


@pytest.mark.parametrize(
    ("warms_up", "records", "copies"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_torchs_graphs_say_what_they_give_back(
    warms_up: bool, records: bool, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tensor] = []
    manager = types.SimpleNamespace(
        in_warmup=warms_up, in_recording=records, _get_cuda_graph_recorded_tensor_checker=lambda: asked.append
    )
    trees = types.SimpleNamespace(get_manager=lambda device, create_if_none_exists: manager)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert memory_given_back() == (asked.append if copies else None)
    del manager.in_warmup  # of another torch
    assert memory_given_back() is None


def test_torch_names_its_graphs_so() -> None:
    """What is asked of torch here is no interface of its own."""
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.CUDAGraphTreeManager
    assert isinstance(manager.in_warmup, property) and isinstance(manager.in_recording, property)
    assert callable(manager._get_cuda_graph_recorded_tensor_checker) and callable(cudagraph_trees.get_manager)


@pytest.mark.parametrize(
    ("mode", "are"),
    [("reduce-overhead", True), ("max-autotune", True), ("max-autotune-no-cudagraphs", False), (None, False)],
)
def test_modes_that_capture(mode: str | None, are: bool) -> None:
    assert captures(mode) is are
