"""Outputs with several right answers are judged by their relation, by everybody, and each output says its dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from op_kernels import ALL_OPS, label
from torch import Tensor

import kernelworks as kw
from kernelworks.build.kernels import in_float64
from kernelworks.contract import Case
from kernelworks.contract.bounds import bound_of
from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.contract.results import (
    AnyOrder,
    ChosenIndex,
    EqualIndex,
    Equations,
    Relation,
    Result,
    result_dtype,
)  # fmt: skip
from kernelworks.contract.tensors import leaves
from kernelworks.dispatch.op import OPS, Op
from kernelworks.measure.bench import benchmark
from kernelworks.templates.mutants import generic
from kernelworks.verify.compare import compare_result, moved_to_choice
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import compute_reference, flat_outputs, follow_choice

TOPK, SORT = OPS["topk"], OPS["sort"]
CHOICE, ORDER = ChosenIndex("x", "dim", "values"), AnyOrder("dim", "sorted")
X = torch.tensor([[2.0, 5.0, 2.0, -0.0, 0.0, torch.nan], [1.0, 1.0, 1.0, 1.0, torch.inf, -torch.inf]])


def wrong(relation: Relation | None, got: Any, values: Tensor, dim: int = -1, **more: Any) -> str:
    """What is wrong with indices beside values of X."""
    want = torch.zeros(values.shape, dtype=torch.int64)
    args = {"x": X, "dim": dim} | more
    return compare_result(relation, got, want, torch.zeros(want.shape), args, {"values": values})[1]


@pytest.mark.parametrize("indices", [[[1, 0], [4, 0]], [[1, 2], [4, 3]], [[1, 2], [4, 1]]])
def test_any_index_of_the_value_will_do(indices: list[list[int]]) -> None:
    assert not wrong(CHOICE, torch.tensor(indices), torch.tensor([[5.0, 2.0], [torch.inf, 1.0]]))


def test_a_nan_is_named_by_any_nan_and_zero_by_either() -> None:
    values = torch.tensor([[torch.nan, 0.0], [-torch.inf, 1.0]])
    for zero in (3, 4):
        assert not wrong(CHOICE, torch.tensor([[5, zero], [5, 2]]), values)


@pytest.mark.parametrize(
    ("indices", "why"),
    [
        ([[1, 3], [4, 0]], "another value"),
        ([[1, 0], [4, 6]], "no index of 6"),
        ([[1, 0], [-2, 0]], "no index of 6"),
        ([[5, 0], [4, 0]], "another value"),
    ],
)
def test_an_index_of_another_value_is_refused(indices: list[list[int]], why: str) -> None:
    assert why in wrong(CHOICE, torch.tensor(indices), torch.tensor([[5.0, 2.0], [torch.inf, 1.0]]))


def test_an_element_named_twice_is_refused_though_its_value_is_there_twice() -> None:
    values = torch.tensor([[2.0, 2.0], [1.0, 1.0]])
    assert not wrong(CHOICE, torch.tensor([[0, 2], [3, 0]]), values)
    assert "names an element twice" in wrong(CHOICE, torch.tensor([[0, 2], [3, 3]]), values)
    down = torch.tensor([[1, 0]])  # along the first dimension each column has one
    assert not wrong(CHOICE, down, X.gather(0, down), dim=0)


@pytest.mark.parametrize("got", [torch.tensor([[1.0, 0.0], [4.0, 0.0]]), torch.tensor([[True, False]] * 2), None])
def test_what_is_no_index_is_refused(got: Any) -> None:
    assert wrong(CHOICE, got, torch.tensor([[5.0, 2.0], [torch.inf, 1.0]]))


def test_a_relation_binds_if_an_argument_says_so() -> None:
    stable = ChosenIndex("x", "dim", "values", "stable")
    values, indices = torch.tensor([[2.0, 2.0], [1.0, 1.0]]), torch.tensor([[2, 0], [0, 1]])
    assert not wrong(stable, indices, values, stable=False)
    assert wrong(stable, indices, values, stable=True)


def test_an_element_equal_to_the_definitions_will_do_and_its_gradient_moves_with_it() -> None:
    want = torch.tensor([[1, 0], [4, 2]])

    def said(got: Tensor) -> str:
        return compare_result(EqualIndex("x"), got, want, torch.zeros(want.shape), {"x": X}, {})[1]

    assert not said(torch.tensor([[1, 2], [4, 0]]))
    assert "another value" in said(torch.tensor([[1, 3], [4, 0]]))
    assert "no index of 6" in said(torch.tensor([[1, 2], [4, 9]]))
    assert "names an element twice" in compare_result(
        EqualIndex("x"), torch.tensor([[0, 0], [4, 0]]), torch.tensor([[0, 2], [4, 0]]), torch.zeros(2, 2), {"x": X}, {}
    )[1]  # fmt: skip
    gradient = torch.tensor([[3.0, 4.0, 0.5, 0.25, 0.125, 0.0], [0.0, 0.0, 7.0, 0.0, 8.0, 9.0]])
    moved = moved_to_choice(gradient, X, want, torch.tensor([[1, 2], [4, 0]]))
    assert moved.tolist() == [[0.5, 4.0, 3.0, 0.25, 0.125, 0.0], [7.0, 0.0, 0.0, 0.0, 8.0, 9.0]]


def in_order(got: Tensor, want: Tensor, *, given: bool, bound: float = 0.0) -> str:
    args = {"dim": -1, "sorted": given}
    return compare_result(ORDER, got, want.double(), torch.full(want.shape, bound).double(), args, {})[1]


def test_any_order_is_the_same_elements() -> None:
    want = torch.tensor([[5.0, 2.0, 2.0, torch.nan]])
    assert not in_order(want.flip(-1), want, given=False)
    assert in_order(want.flip(-1), want, given=True)
    assert in_order(torch.tensor([[5.0, 5.0, 2.0, torch.nan]]), want, given=False)
    assert not in_order(torch.tensor([[2.01, 5.0, 2.0, torch.nan]]), want, given=False, bound=0.02)


# ---------------------------------------------------------------- whoever holds an output against a reference


def ties(dtype: torch.dtype = torch.float32) -> tuple[Case, Tensor]:
    x = torch.randint(-3, 4, (6, 40), generator=torch.Generator().manual_seed(0)).to(dtype)
    return Case("ties", lambda g, d: {"x": x, "k": 9, "dim": -1, "largest": True, "sorted": True}), x


def last_of_equals(x: Tensor, k: int, dim: int, *rest: Any) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x.flip(dim), dim=dim, descending=True, stable=True)
    return values.narrow(dim, 0, k), (x.shape[dim] - 1 - indices).narrow(dim, 0, k)


def test_parity_and_bench_take_any_choice_and_no_wrong_one() -> None:
    case, x = ties()
    expected = compute_reference(TOPK, case, torch.float32)
    values, indices = last_of_equals(x, 9, -1)
    assert not torch.equal(indices, expected.outputs[1])
    twice = torch.cat((indices[:, 1:2], indices[:, 1:]), -1)
    for asked in (lambda out: judge(out, expected)[1], lambda out: benchmark._another_op(out, expected, torch.float32)):
        assert not asked((values, indices))
        assert asked((values, indices + 1))
        assert asked((values, twice))


def test_gradients_are_those_of_the_choice() -> None:
    case, x = ties()
    expected = compute_reference(TOPK, case, torch.float32)
    values, indices = last_of_equals(x, 9, -1)
    followed = follow_choice(TOPK, expected, {"values": values, "indices": indices})
    want = torch.zeros(x.shape).scatter(-1, indices, expected.grad_outputs[0])
    assert torch.equal(followed.gradients["x"], want.double())
    assert not torch.equal(followed.gradients["x"], expected.gradients["x"])
    assert follow_choice(OPS["relu"], expected_of("relu"), {}) is expected_of("relu")


def expected_of(name: str) -> Any:
    return compute_reference(OPS[name], OPS[name].contract.cases[0], torch.float32)


def exact(run: Callable[..., Any], *args: Any) -> list[bool]:
    """Of each integer that a program returns, whether a derived bound holds it to the reference's."""
    bound = bound_of(run, args)
    pairs = zip(bound.outputs, bound.reference, strict=True)
    return [bool((most == 0).all()) for most, reference in pairs if not is_inexact(reference.dtype)]


def test_a_derived_bound_leaves_open_which_of_equals_is_named() -> None:
    equal, apart = torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    for run in (lambda x: torch.topk(x, 2), lambda x: torch.sort(x), lambda x: torch.kthvalue(x, 3)):
        assert exact(run, equal) == [False]
        assert exact(run, apart) == [True]
    assert exact(lambda x: torch.sort(x, stable=True), equal) == [True]
    assert exact(lambda x: torch.argmax(x, -1), equal) == [True]  # of which torch promises the first
    assert exact(lambda x: torch.topk(x, 2), torch.tensor([[torch.nan, torch.nan, 1.0]])) == [False]


# ---------------------------------------------------------------- the dtype of each output


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_an_output_has_the_dtype_that_its_contract_says(op: Op) -> None:
    compared, promised = 0, dict(zip(op.contract.outputs, op.contract.results_in_order, strict=True))
    for case in op.contract.cases[:: max(1, len(op.contract.cases) // 12)]:
        for dtype in case.dtypes:
            args = case.make(torch.Generator().manual_seed(0), dtype)
            shapes = op.forward_shapes(tuple(args.get(n) for n in op.passes["forward"].names))
            made = flat_outputs(shapes) if op.contract.returned_outputs else ()
            named = [*zip(op.contract.returned_outputs, made, strict=False)]
            named += [(n, t) for n in op.contract.mutates for t in [*leaves((args[n],))][:1]]
            for name, its in named:
                result = promised[name]
                assert its.dtype is result_dtype(result, args) or not is_inexact(its.dtype), case.name
                assert result.shape is None or tuple(its.shape) == result.shape(args), case.name
                compared += 1
            there = sum(not promised[n].when or bool(args.get(promised[n].when)) for n in op.contract.returned_outputs)
            assert op.contract.outputs[1:] == ("sum",) or len(made) == there, case.name
    assert compared


def test_the_reference_rounds_each_output_to_its_own_dtype() -> None:
    def definition(q: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        return q * (1 / 3), state * (1 / 3), state.argmax(-1)

    q, state = torch.ones(4, dtype=torch.bfloat16), torch.ones(2, 4)
    results = (Result(), Result("state"), Result(torch.int64))
    for run in (in_float64(definition, results), generic(definition, ("q",), ("q", "state"), results)[0].run):
        assert [t.dtype for t in run(q, state)] == [torch.bfloat16, torch.float32, torch.int64]
    assert in_float64(definition, results)(q, state)[1][0, 0] == torch.tensor(1 / 3)
    assert [t.dtype for t in in_float64(definition)(q, state)][:2] == [torch.bfloat16] * 2


# ---------------------------------------------------------------- results with names


def test_a_result_has_torchs_names_however_it_is_asked_for() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    plain, out = x.detach(), (torch.empty(3, 2), torch.empty(3, 2, dtype=torch.int64))

    def through(call: Callable[..., Any]) -> Any:
        return torch.compile(call, backend="eager", fullgraph=True)(plain)

    found: Mapping[str, Any] = {
        "plain": kw.topk(plain, 2),
        "again": kw.topk(plain, 2),
        "recorded": kw.topk(x, 2),
        "torch": kw.topk(plain, 2, kernel="torch"),
        "reference": kw.topk(plain, 2, kernel="reference"),
        "recorded by name": kw.topk(x, 2, kernel="reference"),
        "in torch's way": kw.topk(input=plain, k=2),
        "float64": kw.topk(input=plain.double(), k=2),
        "out": kw.topk(plain, 2, out=out),
        "compiled": through(lambda t: kw.topk(t, 2)),
        "numpy": kw.topk(plain.numpy(), 2),
        "vmap": torch.vmap(lambda t: kw.topk(t, 2))(plain),
    }
    for way, result in found.items():
        assert type(result) is torch.return_types.topk, way
        assert torch.equal(torch.as_tensor(result.values).float(), plain.topk(2).values), way
    assert found["out"].values is out[0]
    assert through(lambda t: kw.sort(t).values * 2).equal(plain.sort().values * 2)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_gradients_of_gradients(layout: str) -> None:
    x = torch.randn(4, 7, dtype=torch.float64).float().requires_grad_()
    dim = -1 if layout == "rows" else 0
    found = []
    for function in (kw.topk, torch.topk):
        values = function(x, 3, dim).values
        (first,) = torch.autograd.grad(values.square().sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), x)))
    torch.testing.assert_close(*found)


def test_what_is_chosen_may_be_written_before_the_backward() -> None:
    """As with torch's own: gradients need the indices alone."""
    leaf = torch.randn(4, 50, requires_grad=True)
    x = leaf * 1
    values = kw.topk(x, 3, kernel="reference").values
    x.detach().zero_()
    values.sum().backward()
    assert leaf.grad is not None and int(leaf.grad.sum()) == 12


def _root(args: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
    """A square root of either sign."""
    return {"y y = x": ((outputs["y"] * outputs["y"] - args["x"]).abs(), torch.full_like(args["x"], 1e-3))}


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_every_answer_to_the_equations_is_right_and_no_other(sign: float) -> None:
    x = torch.tensor([4.0, 9.0])
    want, bound = x.double().sqrt(), torch.zeros(2).double()

    def said(y: Tensor) -> tuple[float, str]:
        return compare_result(Equations(_root), y, want, bound, {"x": x}, {"y": y})

    right = sign * torch.tensor([2.0, 3.0])
    assert said(right) == (0.0, "")
    assert 0.3 < said(right * (1 + 5e-5))[0] < 1.0
    for wrong in (right * 1.1, torch.tensor([2.0, torch.nan]), torch.tensor([torch.inf, 3.0])):
        share, why = said(wrong)
        assert "y y = x does not hold" in why
        assert share > 1
    assert "shape" in said(torch.ones(3))[1]
    assert "dtype" in said(right.int())[1]
    assert "cannot be asked" in compare_result(Equations(_root), right, want, bound, {"x": x}, {"y": None})[1]
