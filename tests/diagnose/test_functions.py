"""Functions that torch makes of several operators, where an op of ours says the same: diagnosed as one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

import kernelworks as kw
from kernelworks.diagnose.account.account import _functions
from kernelworks.dispatch import signature
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.registry import OPERATORS
from kernelworks.dispatch.signature import TorchSignature, by_operator, composite_by_operator, composites
from kernelworks.nn.functional import FUNCTIONS
from kernelworks.profile.calls import Call, Place
from kernelworks.profile.composite_functions import describe_call
from kernelworks.profile.cost.calls import work
from kernelworks.profile.replay import Job
from kernelworks.profile.timeline import CallRun
from kernelworks.records import Diagnosis, Peaks

PARTS = ["aten::abs", "aten::add", "aten::div"]


def rectified(input: Tensor, inplace: bool = False) -> Tensor:
    """As torch writes functions that have no operator of their own (``F.softsign``)."""
    if has_torch_function_unary(input):
        result: Tensor = handle_torch_function(rectified, (input,), input, inplace=inplace)
        return result
    return (input + input.abs()) / 2


def _ours(input: Any, inplace: bool = False) -> tuple[Any, ...] | str:
    return "in place" if inplace else (input,)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchSignature]:
    """An op package that declares relu so."""
    op = OPS["relu"]
    monkeypatch.setattr(op, "torch_signature", None)  # the op package's own comes back
    found = TorchSignature(op, rectified, _ours, {"input": "x"}, name="rectified")
    monkeypatch.setitem(FUNCTIONS, "rectified", kw.relu)
    monkeypatch.setitem(OPERATORS, "relu", "rectified")
    for known in (signature._by_operator, signature._composites):
        known.cache_clear()
    yield found
    for known in (signature._by_operator, signature._composites):
        known.cache_clear()


class Net(nn.Module):
    def __init__(self, turns: int = 1, inplace: bool = False) -> None:
        super().__init__()
        self.turns, self.inplace = turns, inplace

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.turns):
            x = rectified(x, inplace=self.inplace)
        return x + 1.0


def _diagnosed(run: Any, ceilings: Peaks) -> Diagnosis:
    found = kw.diagnose(run, peaks=ceilings, budget_s=0.5, rough=True)
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)
    return found


def test_only_what_has_no_operator_is_a_function(declared: TorchSignature) -> None:
    assert composites()[id(rectified)] is declared and by_operator("aten::rectified") is declared
    operators = [s.operator for s in signature.torch_signatures().values() if s not in composites().values()]
    assert "gelu" in operators and all(hasattr(torch.ops.aten, name) for name in operators)


def test_which_are_known_without_loading_all_op_packages() -> None:
    every = signature.torch_signatures().values()
    assert composites() == {id(s.function): s for s in every if s.composite} != {}
    for name in {name for s in every for name in (s.operator, *s.other_operators)}:
        found = by_operator(f"aten::{name}")
        assert composite_by_operator(f"aten::{name}") is (found if found is not None and found.composite else None)


def test_it_is_one_hotspot_with_the_work_of_the_op(declared: TorchSignature, ceilings: Peaks) -> None:
    model, x = Net(turns=3), torch.randn(512, 1024)
    found = _diagnosed(lambda: model(x), ceilings)
    seen = {hotspot.op: hotspot for hotspot in found.hotspots if hotspot.module == "Net"}
    assert {"rectified", "add"} <= seen.keys() and not {"abs", "div"} & seen.keys()
    hotspot = seen["rectified"]
    assert (hotspot.calls, hotspot.bytes, seen["add"].calls) == (3, 3 * 2 * x.nbytes, 1)
    op = OPS["relu"]
    choice = choose(op, op.request("forward", (x,)))
    assert hotspot.op_kernel == ("" if choice.kernel.source is None else f"kw.relu: {choice.way}")


def test_what_the_op_does_not_say_has_the_work_of_its_parts(declared: TorchSignature, ceilings: Peaks) -> None:
    model, x = Net(inplace=True), torch.randn(512, 1024)
    (hotspot,) = (r for r in _diagnosed(lambda: model(x), ceilings).hotspots if r.op == "rectified")
    assert hotspot.modelled and not hotspot.op_kernel
    assert (hotspot.flop, hotspot.bytes) == (3 * x.numel(), 2 * x.nbytes)  # what its parts hand on is not counted


def test_gradients_stay_those_of_its_parts(declared: TorchSignature, ceilings: Peaks) -> None:
    model, x = Net(), torch.randn(512, 1024, requires_grad=True)
    found = _diagnosed(lambda: model(x).sum().backward(), ceilings)
    ops = {hotspot.op for hotspot in found.hotspots}
    assert "rectified" in ops and "div (backward)" in ops


@pytest.mark.parametrize("given", [{"input": torch.ones(3), "colour": 1}, {"input": [torch.ones(3)]}])
def test_what_is_not_known_is_left_as_it_is(declared: TorchSignature, given: dict[str, Any]) -> None:
    assert describe_call(declared, (), given, torch.ones(3)) is None


def _ran(place: Place, turn: int, **more: Any) -> list[CallRun]:
    calls = [Call(name, 10 * i, 10 * i + 5, place=place, like=turn + i, **more) for i, name in enumerate(PARTS, 1)]
    jobs = [Job("kernel", 1.0, 7, call) for call in calls]
    return [CallRun(call, 1.0, 2.0, 3.0, 4.0, critical=2.0, jobs=[job]) for call, job in zip(calls, jobs, strict=True)]


def test_calls_of_a_function_are_one_on_every_device(declared: TorchSignature) -> None:
    """Nothing of what they took is lost; each turn of a loop is a call of its own, and backwards are none."""
    x = torch.ones(4)
    place = Place("Net", "net.py:1", function=describe_call(declared, (x,), {}, x + 1))
    entries = [*_ran(place, 100), *_ran(place, 100), *_ran(place, 200, backward=True), *_ran(Place("Net"), 300)]
    found = _functions(entries)
    assert [one.call.display_name for one in found] == ["rectified"] * 2 + [name[6:] for name in PARTS] * 2
    first = found[0]
    assert (first.before, first.host, first.seconds, first.exclusive, first.critical) == (3.0, 6.0, 9.0, 12.0, 6.0)
    assert [job.name for job in first.jobs] == ["kernel"] * 3 and first.call.events == 4
    its = work(first.call)
    assert its is not None and (its.read, its.written) == (x.nbytes, x.nbytes)


def test_parts_of_two_places_are_two_calls(declared: TorchSignature) -> None:
    x = torch.ones(4)
    one, other = (Place("Net", function=describe_call(declared, (x,), {}, x + 1)) for _ in range(2))
    assert len(_functions([*_ran(one, 1), *_ran(other, 10)])) == 2
