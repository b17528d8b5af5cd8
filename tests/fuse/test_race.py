"""A fused kernel serves only where it is quicker than its function: one race for a call signature, kept on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.tuning_records import RaceResult
from kernelworks.fuse import race
from kernelworks.measure.clock.duel import Duel

CLEAR, NOISY = 0.0, 1.0


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """``raced(ratio)`` has all races end so, and returns what both sides gave in each."""

    def set_up(ratio: float, spread: float = CLEAR) -> list[Any]:
        met: list[Any] = []

        def ended(ours: Callable[[], Any], eager: Callable[[], Any], wait: Any) -> Duel:
            met.append((ours(), eager()))
            return Duel(RaceResult(1.0, ratio, (ratio, ratio), spread), rounds=6)

        monkeypatch.setattr(race, "duel", ended)
        return met

    return set_up


def test_a_kernel_that_is_slower_does_not_serve(raced: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 3 + 1.5

    met, x = raced(0.9), torch.randn(7, 33)
    fused = kw.fuse(function)
    for _ in range(3):
        assert torch.equal(fused(x), function(x))
    assert "unfused: timed: torch is as quick or quicker (0.90x" in fused.explain()
    ((ours, eager),) = met
    torch.testing.assert_close(ours, eager)
    again = kw.fuse(function)
    assert torch.equal(again(x), function(x)) and "unfused" in again.explain()
    assert len(met) == 1, "the tuning record decides"


def test_a_kernel_that_is_quicker_serves_and_calls_like_it(raced: Any) -> None:
    def function(x: Tensor, b: Tensor) -> Tensor:
        return (x + b).relu() * 0.25

    met, fused = raced(1.5), kw.fuse(function)
    for n in (40, 41, 50):  # sizes of one bucket
        x, b = torch.randn(n, 40), torch.randn(40)
        torch.testing.assert_close(fused(x, b), function(x, b))
    assert len(met) == 1 and "unfused" not in fused.explain() and "1.50x torch" in fused.explain()
    raced(0.5)
    fused(torch.randn(4000, 40), torch.randn(40))
    assert "unfused" in fused.explain().splitlines()[-1], "another bucket has a race of its own"


def test_what_is_too_noisy_is_torchs_and_is_not_kept(raced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(tuning_records, "write", kept.append)
    raced(1.5, NOISY)
    fused = kw.fuse(lambda x: x * 5 - 2)
    fused(torch.randn(5, 9))
    assert "unfused: measurement too noisy" in fused.explain() and not kept


def test_training_is_raced_with_its_gradients(raced: Any) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(x) * y

    x, y = (torch.randn(6, 21, requires_grad=True) for _ in range(2))
    met, fused = raced(1.01), kw.fuse(function)
    wanted = torch.autograd.grad(function(x, y).sum(), (x, y))
    for round_ in range(3):
        found = fused(x, y)
        assert len(met) == min(round_, 1), "not before gradients are asked for"
        for a, b in zip(torch.autograd.grad(found.sum(), (x, y)), wanted, strict=True):
            torch.testing.assert_close(a, b)
    assert "unfused: timed" in fused.explain()
    ((ours, eager),) = met  # calls as a program makes them, autograd's own time in both
    for a, b, c in zip(ours, eager, wanted, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)


def test_a_process_reads_what_another_kept(raced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records pass through their file format whole."""
    kept: list[tuning_records.TuningRecord] = []
    monkeypatch.setattr(tuning_records, "write", lambda record: (kept.append(record), tuning_records.remember(record)))
    raced(1.5)
    fused = kw.fuse(lambda x: torch.tanh(x) * 7)
    x = torch.randn(5, 9, requires_grad=True)
    fused(x).sum().backward()
    fused(x.detach())
    assert [record.pass_ for record in kept] == ["training", "forward"]
    for record in kept:
        text = tuning_records._text([record])
        import json

        (read,) = json.loads(text)["tuning_records"]
        assert tuning_records._parse_record(read) == record


def test_another_number_of_threads_has_a_race_of_its_own(raced: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sigmoid(x) - 0.125

    x, before = torch.randn(8, 65), torch.get_num_threads()
    met, fused = raced(1.5), kw.fuse(function)
    try:
        torch.set_num_threads(2)
        fused(x)
        assert len(met) == 1 and "unfused" not in fused.explain()
        raced(0.5)
        torch.set_num_threads(1)
        fused(x)
        assert "unfused" in fused.explain().splitlines()[-1]
        torch.set_num_threads(2)
        assert "unfused" not in fused.explain().splitlines()[0]
    finally:
        torch.set_num_threads(before)


def test_dropout_has_no_other_kernel_to_race(raced: Any) -> None:
    met = raced(0.5)
    assert kw.dropout(torch.ones(3, 77), 0.5, 9).shape == (3, 77) and not met
