"""The judge is judged: every known-wrong version of every op must be rejected by some case."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from op_kernels import ALL_OPS, label
from telling_cases import SHORT, SMOKE, telling

from kernelworks.build.kernels import in_float64
from kernelworks.dispatch.op import OPS, Op
from kernelworks.verify.checks import surviving_mutants
from kernelworks.verify.compare import compare
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import compute_reference


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_every_mutant_is_rejected(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the few cases of a kernel without a certificate, but one that a single case of the contract may be there for:
    what some of the cases reject, all of them do."""
    assert len(op.mutants) >= 5
    for work in (SMOKE, SHORT):
        with monkeypatch.context() as patch:
            patch.setattr(op, "contract", dataclasses.replace(op.contract, cases=telling(op, work)))
            left = surviving_mutants(op)
        asked = tuple(m for m in op.mutants if any(name == m.name or name.startswith(f"{m.name} (") for name in left))
        monkeypatch.setattr(op, "mutants", asked)
    assert len(asked) == len(left) <= 1
    assert surviving_mutants(op) == []


def _judge(got: list[float], want: list[float], bound: float = 1e-3, dtype: torch.dtype = torch.float32) -> str:
    want_tensor = torch.tensor(want, dtype=torch.float64)
    return compare(torch.tensor(got, dtype=dtype), want_tensor, torch.full_like(want_tensor, bound))[1]


def test_the_comparison_itself() -> None:
    nan, inf = float("nan"), float("inf")
    assert _judge([1.0, 2.0], [1.0, 2.0]) == ""
    assert _judge([nan, inf], [nan, inf]) == ""
    assert "elements off" in _judge([1.0, nan], [1.0, 2.0])  # a NaN never passes
    assert "elements off" in _judge([1.0, 2.0], [1.0, nan])
    assert "elements off" in _judge([1.0, inf], [1.0, 2.0])
    assert "elements off" in _judge([-inf], [inf])
    assert "elements off" in _judge([1.1], [1.0])
    assert _judge([inf], [1e39]) == ""  # beyond float32: rounds to infinity
    assert "elements off" in _judge([3e38], [1e39])
    assert "elements off" in _judge([-inf], [1.0], bound=inf)
    assert "shape" in _judge([1.0], [1.0, 2.0])


@pytest.mark.parametrize("last", [2.0, float("inf")])
def test_the_share_is_that_of_the_worst_element(last: float) -> None:
    got, want = torch.tensor([1.5, -1.0, 0.0, last]).double(), torch.tensor([1.0, -1.25, 0.0, last]).double()
    assert compare(got, want, torch.tensor([1.0, 0.25, 0.0, 1.0]).double()) == (1.0, "")
    share, message = compare(got, want, torch.tensor([1.0, 0.125, 0.0, 1.0]).double())
    assert share == 2.0 and message.startswith("1 of 4 elements off; at [1]: got -1, expected -1.25 within 0.125")


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (torch.tensor([3, 2**53 + 1]), ""),
        (torch.tensor([3, 2**53]), "1 of 2 elements off; at [1]: got 9007199254740992, expected 9007199254740993"),
        (torch.tensor([4, 2**53 + 1]), "1 of 2 elements off; at [0]: got 4, expected 3"),
        (torch.tensor([3.0, 2.0**53 + 1]), "dtype torch.float32, expected torch.int64"),
    ],
)
def test_whole_numbers_are_compared_as_such(got: torch.Tensor, message: str) -> None:
    """As float64, 2^53 + 1 is 2^53."""
    want = torch.tensor([3, 2**53 + 1])
    assert compare(got, want, torch.zeros(2)) == (float("inf") if message else 0.0, message)


def test_an_output_has_the_dtype_that_is_promised() -> None:
    op = OPS["softmax"]
    expected = compute_reference(op, op.contract.cases[3], torch.bfloat16)
    right = torch.softmax(expected.args["x"].double(), -1)
    assert judge(right.bfloat16(), expected)[1] == ""
    assert judge(right.float(), expected)[1] == "output 0: dtype torch.float32, expected torch.bfloat16"


def test_the_reference_rounds_floats_and_leaves_whole_numbers() -> None:
    kernel = in_float64(lambda ids, x: (x * 3, x.argmax(-1) + ids))
    scaled, index = kernel(torch.tensor([1]), torch.tensor([[0.1, 0.3]], dtype=torch.bfloat16))
    assert scaled.dtype == torch.bfloat16 and index.dtype == torch.int64 and index.item() == 2


def test_a_bound_that_is_not_a_number_passes_nothing() -> None:
    want = torch.zeros(2, dtype=torch.float64)
    assert compare(torch.ones(2), want, torch.full_like(want, float("nan")))[1]
