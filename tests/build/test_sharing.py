"""Kernels share their work where that pays, and not while another program holds one of the cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_kernels import ALL_OPS, asked_kernels, label
from torch import Tensor

from kernelworks.build import sharing
from kernelworks.build.sharing import GRAIN_NS, choose_threads
from kernelworks.contract import Case
from kernelworks.contract.tensors import leaves
from kernelworks.dispatch.op import Op
from kernelworks.verify.parity import _declines

WORK = 10 * GRAIN_NS


class Machine:
    """Two threads, and a clock that runs as long as a kernel says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for name, value in {
            "_now": lambda: self.now, "_get_num_threads": lambda: 2, "_alone_until": 0.0,
            "_alone_s": sharing.SHORTEST_S, "is_forked": False,
        }.items():  # fmt: skip
            monkeypatch.setattr(sharing, name, value)

    def kernel(self, seconds: float) -> Callable[..., str]:
        def run(*args: Any) -> str:
            self.now += seconds
            return "done"

        return run

    def run(self, seconds: float, nanoseconds: float = WORK) -> int:
        """The threads that a kernel was given which then took so long."""
        kernel, threads = choose_threads(self.kernel(seconds), nanoseconds)
        assert kernel(1, 2, threads) == "done"
        return threads


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_work_too_small_to_share_is_not_shared(machine: Machine) -> None:
    assert [machine.run(1e-5, n) for n in (0, 1, GRAIN_NS, GRAIN_NS + 1)] == [1, 1, 1, 2]


def test_a_call_that_was_held_up_ends_sharing_for_a_while(machine: Machine) -> None:
    assert machine.run(2e-4) == 2
    assert machine.run(12e-3) == 2  # waited for a core
    assert machine.run(3e-4) == 1
    machine.now += sharing.SHORTEST_S
    assert machine.run(2e-4) == 2
    assert machine.run(2e-4) == 2


def test_a_while_doubles_up_to_a_limit_and_is_short_again_once_it_is_quiet(machine: Machine) -> None:
    waits = []
    for _ in range(8):
        assert machine.run(12e-3) == 2
        waits.append(sharing._alone_until - machine.now)
        machine.now += waits[-1]
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert machine.run(2e-4) == 2
    assert machine.run(12e-3) == 2
    assert sharing._alone_until - machine.now == pytest.approx(0.05)


def test_held_up_it_costs_less_than_twice_what_one_thread_costs(machine: Machine) -> None:
    begin, calls, one = machine.now, 0, 1e-4
    while machine.now < begin + 10:
        kernel, threads = choose_threads(lambda *args: None, WORK)
        seconds = one if threads == 1 else 12e-3
        kernel, _ = choose_threads(machine.kernel(seconds), WORK)
        kernel()
        calls += 1
    assert (machine.now - begin) / calls < 2 * one


def test_a_long_call_is_not_taken_for_one_that_was_held_up(machine: Machine) -> None:
    assert machine.run(0.05, 1e8) == 2
    assert machine.run(0.05, 1e8) == 2


def test_a_forked_child_shares_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "is_forked", True)
    assert machine.run(1e-3) == 1


def _takes(op: Op, kernel: str, case: Case) -> bool:
    args = case.make(torch.Generator().manual_seed(0), torch.float32)
    return not _declines(op, kernel, tuple(args.get(name) for name in op.passes["forward"].names))


# The widest of each op that this machine runs.
CPU_KERNELS = [
    (op, own[0].name) for op in ALL_OPS for own in [[k for k in asked_kernels(op) if k.device == "cpu"]] if len(own) > 1
]


@pytest.mark.parametrize(("op", "kernel"), CPU_KERNELS, ids=label)
def test_the_bits_are_the_same_for_any_number_of_threads(op: Op, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a program's answer would hang on what its neighbours do."""
    monkeypatch.setattr(sharing, "GRAIN_NS", 0)
    cases = [c for c in op.contract.cases if torch.float32 in c.dtypes and _takes(op, kernel, c)][:6]
    found: list[list[Tensor]] = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(sharing, "_get_num_threads", lambda threads=threads: threads)
        results = []
        for case in cases:
            args = case.make(torch.Generator().manual_seed(0), torch.float32)
            given = [args.get(name) for name in op.passes["forward"].names]
            result = op.run("forward", tuple(given), None, kernel)
            results += [t.clone() for t in leaves([result, *(args[name] for name in op.contract.mutates)])]
        found.append(results)
    for other in found[1:]:
        assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(found[0], other, strict=True))
