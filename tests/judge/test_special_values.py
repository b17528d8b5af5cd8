"""Where large answers are compared, what inputs hold that no problem draws, and memory of which an address alone is
known."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from attacked import problem_in
from torch import Tensor

from kernelworks.judge.harness import Bench
from kernelworks.judge.inputs.cases import Comparison
from kernelworks.judge.inputs.places import places_of
from kernelworks.judge.inputs.raw_addresses import addresses_in, windows_at
from kernelworks.judge.inputs.special_values import SPECIAL_DRAWS, special_inputs
from kernelworks.judge.process.ipc import Memory
from kernelworks.judge.roles import oracle
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import Answer

NONE = frozenset[int]()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("shape", [(100_003,), (64, 333, 9), (1, 20_000), (2,) * 12 + (40,)], ids=str)
def test_places_of_a_large_answer_hold_its_edges(shape: tuple[int, ...]) -> None:
    count, most = math.prod(shape), 1024
    at = places_of(shape, most, _generator())
    assert torch.equal(at, at.unique()) and int(at[0]) >= 0 and int(at[-1]) == count - 1
    assert most // 2 < at.numel() < 2 * most
    assert not torch.equal(at, places_of(shape, most, torch.Generator().manual_seed(2)))
    if count // shape[-1] > most:  # of so many last columns some are looked at
        assert int((at % shape[-1] == shape[-1] - 1).sum()) >= most // 8 // len(shape) // 4


def _oracle(folder: Path) -> oracle.Oracle:
    problem = problem_in(folder, "special")
    papers = {"problem": problem, "shape": problem.shapes[0], "weights": 3, "threads": 1, "device": Host()}
    return oracle.Oracle(papers, folder)


def _case(made: oracle.Oracle, draw: str, most: int = 64) -> tuple[dict[str, object], list[Tensor]]:
    asked = {"seed": 5, "draw": draw, "places": 7, "most": most, "twice": False, "backward": False}
    said, descriptor = oracle._case(made, asked)
    memory = Memory.of(descriptor)
    return said, [memory.tensor((at, tuple(shape), tuple(steps), dtype)) for at, shape, steps, dtype in said["spots"]]


def test_the_reference_of_nan_is_kept_where_it_is_nan(tmp_path: Path) -> None:
    made = _oracle(tmp_path)
    said, (x, reference, bound, places) = _case(made, "NaN")
    assert torch.equal(places[reference.isnan()], x.reshape(-1).isnan().nonzero().view(-1))
    assert bool(bound.isinf().all()) and said["own"] == [0.0]
    _, (_, reference, bound, places) = _case(made, "equal elements")
    assert int(places[-1]) == 4799 and 4 < reference.numel() < 128 and bool((bound < 1e-4).all())


def test_special_inputs_are_what_they_are_called() -> None:
    x, ones = torch.randn(48, 100), torch.ones(100)
    given, others = [x, ones, 0.5, 3, True], [torch.randn(48, 100), ones, 0.5, 3, True]
    found = {draw: special_inputs(given, others, draw, NONE, _generator()) for draw in SPECIAL_DRAWS}
    assert 1 <= int(found["NaN"][0].isnan().sum()) <= 4 and found["NaN"][1] is ones
    assert found["equal elements"][0].unique().numel() <= 5 and bool((found["equal elements"][0] == 0).any())
    changed = found["other constants"]
    assert changed[0] is x and changed[1].unique().numel() > 50 and 0.5 < changed[2] < 1
    assert changed[3:] == [3, True]
    with pytest.raises(LookupError):
        special_inputs([torch.arange(9)], [torch.arange(9)], "NaN", NONE, _generator())
    with pytest.raises(LookupError):
        special_inputs([x], [x.clone()], "equal elements", frozenset([0]), _generator())


@pytest.mark.parametrize(("own", "answer", "kept"), [
    (0.5, Answer(0.0, found=[Comparison()]), True), (2.0, Answer(0.0, found=[Comparison()]), False),
    (0.5, Answer(0.0, found=[Comparison(math.inf, "1 of 2 elements")]), False), (0.5, Answer(0.0, raised="no"), False),
])  # fmt: skip
def test_a_case_that_the_reference_itself_does_not_pass_is_asked_of_nobody(
    own: float, answer: Answer, kept: bool
) -> None:
    bench, closed = Bench.__new__(Bench), list[str]()
    case: Any = SimpleNamespace(own=own, close=lambda: closed.append("case"))
    made: Any = bench
    made.special, made.problem = {}, SimpleNamespace(shapes=[None])
    made.case = lambda shape, draw: case
    made.baseline = lambda name: SimpleNamespace(call=lambda cases: answer)
    assert bench.special_case("NaN") is (case if kept else None) is bench.special_case("NaN")
    assert closed == ([] if kept else ["case"])


def test_addresses_are_found_in_arguments() -> None:
    array, given = numpy.zeros(4, numpy.float32), (ctypes.c_float * 4)()
    at = array.ctypes.data
    pointer = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    some = [array, at, ctypes.c_void_p(at), pointer, given, ctypes.c_long(3), 7, True, 2.5, None, "text", (at,)]
    assert [*addresses_in(some)] == [at, at, at, at, ctypes.addressof(given), at]


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
@pytest.mark.parametrize("count", [40, 100_000])
def test_what_was_written_at_an_address_is_found(count: int, dtype: type) -> None:
    rest = [numpy.zeros(count, dtype) for _ in range(3)]
    out, given = rest[1], numpy.arange(1, count + 1, dtype=dtype)
    addresses = [out.ctypes.data, given.ctypes.data]
    windows = windows_at(addresses, [])
    assert len(windows) == 2 and all(one.written_numbers() is None for one in windows)
    ctypes.memmove(out.ctypes.data, given.ctypes.data, out.nbytes)
    written = [found for one in windows if (found := one.written_numbers()) is not None]
    assert len(written) == 1 and written[0].numel() * written[0].element_size() >= out.nbytes - 64
    assert any(one.begins_with(written[0]) for one in windows)
    out[:] = given[::-1]
    assert not any(one.begins_with(written[0]) for one in windows)
    assert windows_at(addresses, [torch.from_numpy(out), torch.from_numpy(given)]) == []
    assert bool((rest[0] == 0).all() and (rest[2] == 0).all())
