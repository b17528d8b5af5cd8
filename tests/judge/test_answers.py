"""What a candidate's process makes of what came back: the whole of it, in order, in memory, while the clock runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelworks.judge.inputs.cases import compare_answers
from kernelworks.judge.inputs.values import leaves_by_path
from kernelworks.judge.roles.candidate import Caller, _by_wanted_paths, _Call, _whole, _WrongAnswer
from kernelworks.judge.roles.held_tensors import elements_held
from kernelworks.judge.roles.shared_answers import shared_answers

X = torch.randn(3, 4)
C = torch.randn(3, 4, dtype=torch.complex64)
VIEWS: dict[str, Tensor] = {
    "a lazy sign": torch._neg_view(X), "a lazy conjugate": C.conj(), "expanded": X[:1].expand(3, 4), "turned": X.t(),
    "every second column": torch.randn(3, 8)[:, ::2], "an imaginary part that is lazy": C.conj().imag,
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_made_whole(name: str) -> None:
    value = VIEWS[name]
    in_order = list(torch.empty(value.shape).stride())
    whole = _whole(value, "cpu", list(value.shape), str(value.dtype).removeprefix("torch."), in_order)
    assert torch.equal(whole, value) and not whole.is_neg() and not whole.is_conj()
    assert list(whole.stride()) == in_order
    assert whole.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


def test_strides_that_are_the_references_cost_nothing() -> None:
    turned = X.t()
    assert _whole(turned, "cpu", [4, 3], "float32", [1, 4]) is turned


def test_attributes_of_an_instance_stand_in_no_place() -> None:
    value, other = X[:, ::2], torch.zeros(3, 2)
    for name in ("contiguous", "data_ptr", "is_contiguous", "stride", "is_neg", "resolve_neg", "numel", "copy_"):
        setattr(value, name, getattr(other, name))
    whole = _whole(value, "cpu", [3, 2], "float32", [2, 1])
    assert torch.equal(whole, X[:, ::2]) and whole is not value


WRONG: dict[str, tuple[Any, str]] = {
    "a float": (1.0, "a float, not a tensor of float32"), "None": (None, "a NoneType, not a tensor"),
    "another shape": (torch.zeros(4, 3), r"the shape \[4, 3\], not \[3, 4\]"),
    "another dtype": (torch.zeros(3, 4).double(), "torch.float64, not torch.float32"),
    "sparse": (torch.zeros(3, 4).to_sparse(), "a tensor of torch.sparse_coo"),
    "elsewhere": (torch.zeros(3, 4, device="meta"), "a tensor on meta, not on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("off", [0, 1])
def test_whole_numbers_are_compared_as_they_are(off: int) -> None:
    large = torch.tensor([2**62 + 1, -(2**61), 7])
    case: Any = SimpleNamespace(
        outputs=[((3,), "int64")], names=["output"], reference=[large], bound=[torch.zeros(3).double()],
        places=[torch.arange(3)],
    )  # fmt: skip
    found = compare_answers(case, [large + torch.tensor([off, 0, 0])])
    assert bool(found.wrong) == bool(off) and (found.worst == 0) != bool(off)
    case.bound = [torch.full((3,), float("inf")).double()]  # where rounding decides
    assert not compare_answers(case, [large + off]).wrong


def _at(*addresses: int) -> tuple[str, str]:
    case: Any = SimpleNamespace(
        outputs=[((8,), "float32")] * len(addresses), strides=[(1,)] * len(addresses), names=["a", "b", "c"],
        shared={(0, 2)},
    )  # fmt: skip
    return shared_answers([case], [[[address, True] for address in addresses]])


def test_two_answers_in_one_memory_are_told_from_one_within_another() -> None:
    assert _at(64, 96) == _at(64, 960, 64) == ("", "")
    assert _at(64, 64)[0].startswith("a and b are one memory") and _at(64, 92)[1].startswith("a and b lie in one")


@pytest.mark.parametrize("name", WRONG)
def test_other_kinds_are_errors(name: str) -> None:
    value, said = WRONG[name]
    with pytest.raises(_WrongAnswer, match=said):
        _whole(value, "cpu", [3, 4], "float32", [4, 1])


def test_a_number_is_an_answer_where_the_reference_has_one() -> None:
    assert _whole(2.5, "cpu", [], "float64", []).item() == 2.5
    with pytest.raises(_WrongAnswer, match="a bool, not a tensor of float64"):
        _whole(True, "cpu", [], "float64", [])


def test_answers_stand_where_the_references_do() -> None:
    wanted = [["[0]"], ["[1]['b']"]]
    assert _by_wanted_paths(leaves_by_path((X, {"b": C})), wanted) == [X, C]
    for wrong in ([[X], {"b": C}], {"a": X, "b": C}, (X, C)):
        with pytest.raises(_WrongAnswer, match="where the reference returns"):
            _by_wanted_paths(leaves_by_path(wrong), wanted)
    with pytest.raises(_WrongAnswer, match="1 values, not 2"):
        _by_wanted_paths(leaves_by_path(X), wanted)


def test_what_hangs_on_an_input_goes_while_the_clock_runs() -> None:
    said = list[str]()

    class Later:
        def __del__(self) -> None:
            said.append("freed")

    def forward(x: Tensor) -> Tensor:
        x.later = Later()  # type: ignore[attr-defined]
        return x + 1

    caller: Any = Caller.__new__(Caller)
    from kernelworks.judge.roles.device import Host

    memory: Any = type("Memory", (), {"tensor": lambda self, spot: torch.ones(3, 4)})()
    call = _Call(
        memory, {"spots": [0], "inputs": [{"tensor": 0}], "wanted": [["", [3, 4], "float32", [4, 1]]], "hold": False}
    )
    caller.device, caller.on, caller.how, caller.fn = Host(), "cpu", "call", forward
    caller.calls, caller.number, caller.kept, caller.held, caller.answers = [call], 0, {}, {}, []
    found = caller.go(None, "nonce")
    assert found["wrong"] == "" and said == ["freed"] and found["at"] == [[[caller.answers[0][0].data_ptr(), True]]]


def test_elements_of_all_tensors_that_a_module_holds() -> None:
    made = torch.nn.Sequential(torch.nn.Linear(3, 4))
    made.packed = [torch.ones(5), {"a": torch.ones(7)}]  # type: ignore[assignment]
    made.same = made[0].weight  # type: ignore[assignment]
    assert elements_held(made) == 16 + 12 and elements_held(lambda: 0) == 0
