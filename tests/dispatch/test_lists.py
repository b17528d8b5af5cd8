"""Lists of tensors as arguments: what is refused, and memory that a written one shares."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.build import native
from kernelworks.contract.lists import Tensors
from kernelworks.contract.tensor_argument import GivenArguments
from kernelworks.dispatch.mutation import find_shared
from kernelworks.dispatch.op import OPS

NUMBERS = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": False}
SGD = OPS["sgd_"]
PLAIN: tuple[Any, ...] = (*([torch.ones(3)] for _ in range(3)), 0.1, 0.9, 0.0, 0.1, False, False, False)
RUNS = [k.name for k in SGD.kernels if k.device != "cuda" and k.guard(SGD.request("forward", PLAIN)) is None]


def step(params: list[Any], grads: list[Any], buffers: list[Any], **named: Any) -> None:
    kw.sgd_(params, grads, buffers, **(NUMBERS | named))


@pytest.fixture(params=["C++", "Python"])
def entered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Calls go through C++, or through Python."""
    module = native.find_extension()
    assert module is not None, native.fallback_reason()
    SGD.entry.use_module(module if request.param == "C++" else None)
    yield
    SGD.entry.use_module(module)


def drawn(draw: random.Random, memory: Tensor) -> list[list[Tensor]]:
    """Three lists of views of one memory, alike in their places; most lie apart, some at random, some are strided."""
    sizes = [(draw.choice((0, 1, 3, 8)), draw.choice((1, 1, 2))) for _ in range(draw.randint(1, 4))]
    places = [(k, i) for k in range(3) for i in range(len(sizes))]
    draw.shuffle(places)
    lists: list[list[Any]] = [[None] * len(sizes) for _ in range(3)]
    at = 0
    for k, i in places:
        size, stride = sizes[i]
        if draw.random() < 0.25:
            at = draw.randint(0, 48)
        lists[k][i] = memory.as_strided((size,), (stride,), at)
        at += (size - 1) * stride + 1 if size else 0
    return lists


def meet(a: Tensor, b: Tensor) -> bool:
    ranges = [(t.storage_offset(), t.storage_offset() + (t.numel() - 1) * t.stride(0)) for t in (a, b) if t.numel()]
    return len(ranges) == 2 and ranges[0][0] <= ranges[1][1] and ranges[1][0] <= ranges[0][1]


def test_what_shares_memory_is_found_as_by_looking_at_every_pair() -> None:
    draw, memory, hits = random.Random(4), torch.zeros(512), 0
    for _ in range(300):
        lists = drawn(draw, memory)
        flags = [draw.random() < 0.5 for _ in lists]
        flat = [(t, flag) for tensors, flag in zip(lists, flags, strict=True) for t in tensors]
        pairs = {
            (i, j) for (i, (a, w)), (j, (b, v)) in itertools.combinations(enumerate(flat), 2) if (w or v) and meet(a, b)
        }
        found = find_shared(lists, flags)
        assert found in pairs if pairs else found is None
        hits += bool(pairs)
    assert 30 < hits < 270


@pytest.mark.usefixtures("entered")
def test_each_call_is_looked_at_whatever_was_planned() -> None:
    draw, memory, hits = random.Random(5), torch.ones(512), 0
    for _ in range(60):
        p, g, b = drawn(draw, memory)
        apart = [[torch.ones(32).as_strided(t.shape, t.stride()) for t in p] for _ in range(3)]
        step(*apart, kernel="scalar")  # which makes the plan
        if find_shared([p, g, b], [True, False, True]) is None:
            step(p, g, b, kernel="scalar")
        else:
            with pytest.raises(
                ValueError, match=r"\] shares memory with .*\]: a tensor that is written may share none"
            ):
                step(p, g, b, kernel="scalar")
            assert bool((memory == 1).all())
            hits += 1
        memory.fill_(1.0)
    assert 5 < hits < 55


@pytest.mark.usefixtures("entered")
def test_what_is_only_read_may_be_shared() -> None:
    g = torch.full((5,), 2.0)
    for _ in range(2):
        p, b = [torch.ones(5), torch.ones(5)], [torch.zeros(5), torch.zeros(5)]
        step(p, [g, g], b, kernel="scalar")
        torch.testing.assert_close(p[0], p[1])


@pytest.mark.parametrize("kernel", RUNS)
def test_a_plan_does_not_let_shared_memory_pass(kernel: str) -> None:
    lists = [[torch.ones(3), torch.ones(3)] for _ in range(3)]
    step(*lists, kernel=kernel)
    one = torch.ones(3)
    with pytest.raises(ValueError, match="shares memory"):
        step([one, one], lists[1], lists[2], kernel=kernel)
    with pytest.raises(ValueError, match="shares memory"):
        step(lists[0], lists[2], lists[2], kernel=kernel)


def test_adamw_refuses_it_too() -> None:
    lists = [[torch.ones(3)] for _ in range(3)]
    numbers = {"step": 1, "lr": 0.1, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0}
    for _ in range(2):
        with pytest.raises(ValueError, match=r"exp_avg_sqs\[0\] shares memory with exp_avgs\[0\]"):
            kw.adamw_(*lists, lists[2], **numbers, kernel="scalar")


STRIDES: tuple[tuple[tuple[int, ...], tuple[int, ...], bool], ...] = (
    ((4, 3), (3, 1), False),
    ((4, 3), (1, 4), False),
    ((4, 3), (5, 1), False),
    ((4, 3), (2, 1), True),
    ((4, 3), (0, 1), True),
    ((1, 3), (0, 1), False),
    ((4, 0), (0, 0), False),
    ((2, 2, 2), (4, 2, 1), False),
    ((2, 2, 2), (3, 2, 1), True),
    ((), (), False),
)


@pytest.mark.parametrize(("shape", "strides", "crosses"), STRIDES)
def test_a_written_tensor_lies_once_in_its_memory(
    shape: tuple[int, ...], strides: tuple[int, ...], crosses: bool
) -> None:
    value = [torch.zeros(64).as_strided(shape, strides)]
    if crosses:
        with pytest.raises(ValueError, match=r"params\[0\] is written and must not share memory with itself"):
            Tensors(written="a").check("params", value, GivenArguments({"params": value}))
    else:
        Tensors(written="a").check("params", value, GivenArguments({"params": value}))
    Tensors().check("grads", value, GivenArguments())


def wrong(make: Callable[[], tuple[list[Any], list[Any], list[Any]]], **named: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        step(*make(), **named)
    return str(caught.value)


def test_what_is_said_names_the_tensor() -> None:
    p, q = torch.ones(3), torch.ones(3)
    said = wrong(lambda: ([p], [q], []), momentum=0.9)
    assert said == "momentum_buffers must hold one tensor for each of params, 1; got 0"
    said = wrong(lambda: ([p], [q], [q]), momentum=0.0)
    assert said == "momentum_buffers must be empty where momentum is 0, got 1 tensors"
    said = wrong(lambda: ([p, p.clone()], [q, torch.ones(4)], []))
    assert said == "grads[1] must have params[1]'s shape [3], got [4]"
    assert "momentum_buffers[0] must have dtype float32" in wrong(lambda: ([p], [q], [q.double()]))
    assert "params[1] must be a torch.Tensor, got NoneType" in wrong(lambda: ([p, None], [q, q], [q, q]))


def test_a_first_step_reads_no_momentum() -> None:
    for kernel in (*RUNS, None):
        b = [torch.full((40,), torch.nan)]
        step([torch.ones(40)], [torch.ones(40)], b, is_first_step=True, dampening=0.5, kernel=kernel)
        torch.testing.assert_close(b[0], torch.full((40,), 1.1))


def test_a_plan_of_no_momentum_serves_no_other() -> None:
    p, g = [torch.ones(3)], [torch.ones(3)]
    step(p, g, [], momentum=0.0, kernel="scalar")
    with pytest.raises(ValueError, match="momentum_buffers must hold one tensor"):
        step(p, g, [], momentum=0.9, kernel="scalar")


ENDS = (
    (1e-3, 0.5, 0.5, 3e38, 3e38, -3e38),
    (1e-30, 0.9, 1e30, 1.0, 1e-5, 1.0),
    (1e20, 1e-20, 0.0, 1.0, 1e-20, 1e10),
    (1e-40, 1e-3, 0.0, 1e-3, 1e38, 1e37),
    (1e30, 0.0, 1e-30, 1e5, 0.0, 0.0),
)


@pytest.mark.parametrize("kernel", [name for name in RUNS if name not in ("torch", "reference")])
@pytest.mark.parametrize(("lr", "momentum", "decay", "p", "g", "b"), ENDS)
def test_values_and_numbers_at_the_ends_of_float32(
    kernel: str, lr: float, momentum: float, decay: float, p: float, g: float, b: float
) -> None:
    """What a product on the way would make infinite, and what it would make 0."""
    tensors = [torch.full((19,), v) for v in (p, g, b)]
    d = tensors[1].double() + decay * tensors[0].double()
    m = momentum * tensors[2].double() + d
    want = tensors[0].double() - lr * (m if momentum else d)
    buffers = [tensors[2]] if momentum else []
    step([tensors[0]], [tensors[1]], buffers, lr=lr, momentum=momentum, weight_decay=decay, kernel=kernel)
    torch.testing.assert_close(tensors[0], want.float(), rtol=1e-5, atol=0.0)
    if momentum:
        torch.testing.assert_close(tensors[2], m.float(), rtol=1e-5, atol=0.0)
