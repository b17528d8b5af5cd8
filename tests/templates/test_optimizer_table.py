"""The table of optimizers: each entry keeps its contract, its known-wrong versions do not, and numbers are bounded."""

from __future__ import annotations

from dataclasses import replace

import forked
import pytest
import torch
from op_kernels import SHOWN, runs_here
from telling_cases import telling

from kernelworks.contract.numbers import is_middle
from kernelworks.dispatch.op import OPS, Op
from kernelworks.ops.optimizer.optimizer_table.contract import TABLE
from kernelworks.templates.optimizers.step_table import _decline_numbers
from kernelworks.templates.running_error import Running
from kernelworks.verify.bounds import loose_bounds, merge_shares
from kernelworks.verify.checks import surviving_mutants
from kernelworks.verify.parity import parities

ENTRIES = TABLE.entries
TRIED = 60  # of work (telling_cases.py)


def kernels_of(op: Op) -> list[str]:
    """The widest that this machine runs, and the plain one."""
    here = [k.name for k in op.kernels if k.source is not None and k.device == "cpu" and runs_here(k)]
    return [here[0], "scalar"]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_optimizer_keeps_its_contract_and_its_mutants_do_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, entry = OPS[name], ENTRIES[name]
    own = [c for c in op.contract.cases if c.name in {*entry.tries, "N=257", "first step", "zeros everywhere"}]
    cases = tuple({case.name: case for case in (*own, *telling(op, TRIED, most=20_000))}.values())
    found = [
        p for case in cases for d in case.dtypes for kernel in kernels_of(op) for p in parities(op, kernel, case, d)
    ]
    assert len(found) > 20 and [f"{p.kernel} {p.case} {p.dtype}: {p.message}" for p in found if not p.ok] == []
    assert loose_bounds(op.contract, merge_shares({p.dtype: p.shares} for p in found)) == []
    monkeypatch.setattr(op, "contract", replace(op.contract, cases=cases))
    count = len(entry.mutants) + len(entry.wrong_numbers)
    monkeypatch.setattr(op, "mutants", op.mutants[-count:])
    assert count >= 3 and surviving_mutants(op) == []


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in SHOWN])
def test_an_optimizer_on_a_gpu_keeps_its_contract_interpreted(name: str) -> None:
    command = (name, "--kernel", "triton", "--case", "three tensors", "--dtype", "bfloat16")
    done = forked.python(*command, module="kernelworks.verify.triton_interpreter", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_number_beyond_float32_is_taken_in_float64_or_declined() -> None:
    assert is_middle(0.0) and is_middle(2.0**-100) and not is_middle(2.0**-101) and not is_middle(2.0**16)
    op = OPS["rmsprop_"]
    tensors = [[torch.full((3,), 2.0)] for _ in range(3)]
    given = (*tensors, 2.0**-110, 0.99, 1e-8, 0.0, False)
    assert "2^-100" in str(_decline_numbers(ENTRIES["rmsprop_"], op.request("forward", given)))
    op(*given, kernel="scalar")
    assert float(tensors[0][0][0]) == 2.0, "the step is far below a rounding"


def test_nothing_times_nothing_is_exact() -> None:
    """So that the sign of 0 is asked for, not covered by a bound."""
    nothing, error = torch.zeros(1, dtype=torch.float64), torch.full((1,), 1e-9, dtype=torch.float64)
    exact, rounded = Running(nothing, nothing.clone()), Running(torch.full_like(nothing, 0.9), error)
    assert float((exact * rounded).error) == 0.0 and float((rounded * exact).error) == 0.0
    assert float((Running(nothing, error) * rounded).error) > 0.0
    infinite = Running(torch.full_like(nothing, torch.inf), error)
    assert (exact * infinite).value.isnan().all()
    lost = Running(torch.full_like(nothing, 2.0), torch.full_like(nothing, torch.inf))  # it overflows on the way
    assert float((exact * lost).error) > 0.0
