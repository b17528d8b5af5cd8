"""What a program hands its modules need not be plain: a copy of it, and a look at it, raise nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from kernelworks.contract.leaves import leaves
from kernelworks.diagnose.sites.modules import find_roots, outermost
from kernelworks.diagnose.snapshot import duplicate
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.nn.expected_kernels import setting_of
from kernelworks.nn.swap import swap


class Point(tuple[Any, ...]):
    """Made of two values, not of a sequence."""

    note: str

    def __new__(cls, x: Any, y: Any) -> Point:
        made = super().__new__(cls, (x, y))
        made.note = "of two"
        return made


class Unwritten(list[Any]):
    def __setitem__(self, at: Any, value: Any) -> None:
        raise TypeError("nobody writes here")


ODD: dict[str, Callable[[Tensor], Any]] = {
    "a seed of 64 bits": lambda x: (1 << 63) + 5,
    "a number of 200 bits": lambda x: -(1 << 200),
    "a tuple made of two": lambda x: Point(x, 1),
    "a list that nobody writes": lambda x: Unwritten([x]),
    "the result of a max": lambda x: x.max(0),
}


@pytest.mark.parametrize("name", ODD)
def test_a_program_that_hands_over_odd_values_is_found_and_compared(name: str) -> None:
    net, x = nn.Linear(4, 4), torch.ones(2, 4)
    given = ODD[name](x)

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, other: Any) -> Any:
            return {"y": self.net(x), "other": other}

    model = Odd()
    with torch.no_grad():
        found = find_roots(lambda: model(x, given))
    assert [type(root) for root in found.modules] == [Odd] and type(found.samples[0].args[1]) is type(given)
    assert compare(found.samples, changed=lambda module: torch.no_grad()).agrees


GENERATORS: dict[str, Callable[[], Any]] = {
    "Python": lambda: random.Random(1),
    "NumPy": lambda: np.random.default_rng(1),
    "NumPy's older": lambda: np.random.RandomState(1),
}


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("given", [True, False])
def test_a_module_that_draws_by_a_generator_of_its_own_repeats_itself(name: str, given: bool) -> None:
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.own = nn.Linear(4, 4), [GENERATORS[name]()]

        def forward(self, x: Tensor, drawn: Any = None) -> Tensor:
            own = self.own[0] if drawn is None else drawn
            return self.net(x) * float(own.uniform(1.0, 2.0))  # type: ignore[no-any-return]

    model, x = Masks(), torch.ones(2, 4)
    drawn = GENERATORS[name]() if given else None
    found = find_roots(lambda: model(x, drawn))
    assert compare(found.samples, changed=lambda module: torch.no_grad()).agrees


def test_a_copy_shares_no_tensor_and_keeps_its_kind() -> None:
    x = torch.ones(3)
    point, held = duplicate(Point(x, 1)), duplicate(Unwritten([x]))
    assert type(point) is Point and point.note == "of two" and point[1] == 1 and type(held) is Unwritten
    for copied in (point[0], held[0]):
        assert torch.equal(copied, x) and copied.data_ptr() != x.data_ptr()


def test_numbers_are_told_apart_whatever_their_size() -> None:
    sizes = (0, 5, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, -(1 << 63), -(1 << 63) - 1, 1 << 70, -(1 << 70))
    seen = {(str(t.dtype), *t.reshape(-1).tolist()) for n in sizes for t in leaves(n).values()}
    assert len(seen) == len(sizes)


def test_a_call_within_a_transform_is_passed_over() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.ones(3, 4)
    seen: list[nn.Module] = []

    def run() -> Tensor:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        loss = torch.func.grad(lambda w: torch.func.functional_call(model, w, (x,)).square().sum())
        many = torch.func.vmap(lambda row: torch.func.functional_call(model, weights, (row,)))(x)
        with forward_ad.dual_level():
            dual = model(forward_ad.make_dual(x, torch.ones_like(x)))
            tangent = forward_ad.unpack_dual(dual).tangent
        return loss(weights)["0.weight"].sum() + many.sum() + tangent.sum() + model(x).sum()  # type: ignore[no-any-return]

    found = find_roots(run)
    assert found.modules == (model,) and len(found.samples) == 1 and not found.fresh
    with outermost(lambda module, args, kwargs: seen.append(module)):
        run()
    assert seen == [model]
    assert compare(found.samples, changed=lambda module: torch.enable_grad()).agrees


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.n(x + self.b(nn.functional.gelu(self.a(x))))  # type: ignore[no-any-return]


def test_scripted_modules_are_passed_over_by_a_swap() -> None:
    """They name no parts."""
    scripted = torch.jit.script(Block())  # type: ignore[no-untyped-call]
    assert setting_of(scripted, "a") == (torch.float32, "cpu")
    for each in (scripted, nn.ModuleList([scripted, Block()])):
        with swap(each, verbose=False):
            assert scripted(torch.ones(2, 4)).shape == (2, 4)


def test_a_default_device_is_the_programs_alone() -> None:
    """What we draw and count beside it lies in the host's memory: a program that sets "cuda" once, at its beginning.
    The device without memory stands for it."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)), torch.ones(2, 4)

    def run() -> None:
        model(x).sum().backward()

    torch.set_default_device("meta")
    try:
        found = find_roots(run)
        agreement = compare(found.samples, changed=lambda module: torch.enable_grad())
    finally:
        torch.set_default_device(None)
    assert agreement.agrees and agreement.against == "float64", agreement
