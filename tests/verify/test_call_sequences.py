"""A case of several calls on its own state: what single calls do not see, and who takes turns with whom."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelworks.contract import Case, Kernel
from kernelworks.contract.continuation import Continuation
from kernelworks.dispatch.op import OPS
from kernelworks.ops.scan.gated_delta_rule.cases import case
from kernelworks.verify.call_sequences import turns
from kernelworks.verify.parity import parities

OP = OPS["gated_delta_rule"]
HELD: dict[tuple[int, ...], Tensor] = {}


def _forward(*args: Any, out: Any = None) -> Any:
    """Right, but its state lies in one place for all calls, and is cleared before the old one is read."""
    *given, first, final, normal = args
    last = HELD.setdefault(tuple(first.shape), torch.empty_like(first))
    last.zero_()
    output, state = OP.composite(*given, first, final, normal)
    last.copy_(state)
    if out is None:
        return output, last
    for target, value in zip(out, (output, state), strict=True):
        target.copy_(value)
    return out


def _with_kernel(monkeypatch: pytest.MonkeyPatch, forward: Any) -> None:
    kernel = Kernel("held", "held", lambda pass_: forward, passes=("forward",), device="any")
    monkeypatch.setattr(OP, "kernels", (kernel, *OP.kernels))
    OP.forget()


def test_a_state_held_in_one_place_is_seen_only_by_a_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_kernel(monkeypatch, _forward)
    once = case(1, 12, 1, 1, 4, 4, gradients=False)
    assert all(parity.ok for parity in parities(OP, "held", once, torch.float32))
    several = dataclasses.replace(once, name="several", calls=(5, 1, 6))
    wrong = [parity.case for parity in parities(OP, "held", several, torch.float32) if not parity.ok]
    OP.forget()
    assert "several (held then held)" in wrong and "several" not in wrong


def _in_turns_behind_torch(monkeypatch: pytest.MonkeyPatch, forward: Any) -> list[str]:
    """What is refused of a kernel in turns with a torch kernel that is off by more than the bound."""

    def inexact(*args: Any, out: Any = None) -> Any:
        made = tuple(t + 1e-3 for t in OP.composite(*args))
        return made if out is None else tuple(target.copy_(value) for target, value in zip(out, made, strict=True))

    torchs = dataclasses.replace(OP.kernel("torch"), load=lambda pass_: inexact)
    kernel = Kernel("held", "held", lambda pass_: forward, passes=("forward",), device="any")
    monkeypatch.setattr(OP, "kernels", (kernel, *(torchs if k.name == "torch" else k for k in OP.kernels)))
    OP.forget()
    several = dataclasses.replace(case(1, 12, 1, 1, 4, 4, gradients=False), name="several", calls=(5, 1, 6))
    wrong = [parity.case for parity in parities(OP, "held", several, torch.float32) if not parity.ok]
    OP.forget()
    return wrong


def test_a_state_from_torch_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(*args: Any, out: Any = None) -> Any:
        made = OP.composite(*args)
        return made if out is None else tuple(target.copy_(value) for target, value in zip(out, made, strict=True))

    assert "several (torch then held)" not in _in_turns_behind_torch(monkeypatch, right)


def test_a_kernel_that_ignores_torchs_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*args: Any, out: Any = None) -> Any:
        *given, first, final, normal = args
        made = OP.composite(*given, torch.zeros_like(first), final, normal)
        return made if out is None else tuple(target.copy_(value) for target, value in zip(out, made, strict=True))

    assert "several (torch then held)" in _in_turns_behind_torch(monkeypatch, without)


def test_every_pair_of_kernels_takes_turns() -> None:
    pairs = set(turns(OP, "avx2"))
    assert {
        ("avx2", "avx2"),
        ("avx2", "avx2_chunked"),
        ("avx2", "scalar"),
        ("avx2", "torch"),
        ("torch", "avx2"),
    } <= pairs
    assert not any("reference" in pair for pair in pairs)


def test_calls_without_a_sequence_are_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["adamw_"]
    state = {name: name for name in op.contract.mutates}
    made = next(c for c in op.contract.cases if torch.float32 in c.dtypes)
    several = dataclasses.replace(made, calls=(1, 1, 1))
    with pytest.raises(ValueError, match="says no continuation"):
        list(parities(op, "torch", several, torch.float32))
    monkeypatch.setattr(op, "contract", dataclasses.replace(op.contract, continuation=Continuation(state)))
    found = [p for p in parities(op, "torch", several, torch.float32) if "then" in p.case]
    assert found and all(parity.ok for parity in found)


def test_calls_that_do_not_add_up_are_refused() -> None:
    short: Case = dataclasses.replace(case(1, 12, 1, 1, 4, 4), calls=(5, 1))
    with pytest.raises(ValueError, match="calls of 6 steps"):
        list(parities(OP, "torch", short, torch.float32))
