"""Ops of several processes: each rank's result and its bits, ranks that are late, have ended or call something else.

No outcome hangs on speed: who is to be late is started once the other has given up, and all waits are minutes long but
those that are meant to run out.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from eligible import KERNELS

from kernelworks.contract import Case, Mutant
from kernelworks.contract.ranks import ranks_of
from kernelworks.dispatch.op import OPS, Op
from kernelworks.verify import rank_worker
from kernelworks.verify.checks import surviving_mutants
from kernelworks.verify.parity import judge_outputs
from kernelworks.verify.ranks import (
    RANK_CHECKS,
    Pool,
    rank_parities,
    rank_reference,
    shared_pool,
)

pytestmark = pytest.mark.usefixtures("quick_processes")

PYTHON = sys.executable  # of the process that is killed
OF_RANKS = sorted(name for name, op in OPS.items() if ranks_of(op.contract))
SHORT_S = 3.0  # a groups' timeout that is meant to run out


def case_of(op: Op, name: str) -> Case:
    return next(case for case in op.contract.cases if case.name == name)


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """No process is left."""
    yield
    pool = shared_pool(3)
    pool.close()
    assert all(process.returncode is not None for process in pool.processes)
    assert not Path(pool.folder).exists()


def call(op: str, kernel: str, x: torch.Tensor, count: int = 2) -> tuple[Any, ...]:
    arguments = next(iter(OPS[op].contract.cases)).make(torch.Generator(), torch.float32)
    return op, kernel, {**arguments, "x": x}, count, 0.0


@pytest.mark.parametrize("kernel", ["scalar", *KERNELS[-1:], "reference"])
@pytest.mark.parametrize("name", OF_RANKS)
def test_every_rank_has_the_right_values(name: str, kernel: str) -> None:
    op, found = OPS[name], 0
    for case in op.contract.cases:
        if case.name in ("N=129", "no elements", "two chunks", "nan", "many integers", "max", "min in chunks"):
            for dtype in case.dtypes[:2]:
                for parity in rank_parities(op, kernel, case, dtype):
                    assert parity.ok, (parity.case, parity.dtype, parity.message)
                    found += 1
    assert found >= 40


@pytest.mark.parametrize("check", RANK_CHECKS)
@pytest.mark.parametrize("name", OF_RANKS)
def test_kernels_pass_what_is_asked_beyond_parity(name: str, check: str) -> None:
    assert RANK_CHECKS[check](OPS[name], KERNELS[-1]) == ""


@pytest.mark.parametrize("name", OF_RANKS)
def test_every_mutant_is_rejected(name: str) -> None:
    assert len(OPS[name].mutants) >= 10
    assert surviving_mutants(OPS[name]) == []


@pytest.mark.parametrize("name", OF_RANKS)
def test_a_mutant_that_is_right_survives(name: str) -> None:
    op = OPS[name]

    def run(xs: list[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
        calls = [dict(zip(op.passes["forward"].names, (x, *rest), strict=True)) for x in xs]
        ranks = ranks_of(op.contract)
        assert ranks is not None
        return [t.to(xs[0].dtype) for (t,) in ranks.reference(calls)]

    changed = object.__new__(Op)
    changed.__dict__.update(op.__dict__ | {"mutants": (Mutant("right", run, ""),)})
    assert surviving_mutants(changed) == ["right"]


def test_other_bits_within_the_bound_are_refused() -> None:
    op = OPS["all_reduce"]
    expected = rank_reference(op, case_of(op, "N=1031"), torch.float32, 3)
    xs = expected.args["x"]
    right = [(xs[0] + xs[1]) + xs[2]] * 3
    assert judge_outputs(right, expected)[1] == ""
    others = [right[0], right[1], xs[0] + (xs[1] + xs[2])]
    assert "other bits than another rank's" in judge_outputs(others, expected)[1]
    alone = dataclasses.replace(expected, relations={})
    assert judge_outputs(others, alone)[1] == ""  # each is within its bound


@pytest.mark.parametrize("name", OF_RANKS)
def test_a_rank_that_never_comes_is_named_and_finds_the_group_broken(name: str) -> None:
    x = torch.ones(6, 5)
    with Pool(2, timeout_s=SHORT_S) as pool:
        args = call(name, KERNELS[-1], x)
        pool.call(rank_worker.call_after, [call(name, KERNELS[-1], x)] * 2)
        pool.start(0, rank_worker.call_after, *args)
        (error,) = (pool._error(0),)
        assert error is not None and error.kind == "RuntimeError"
        assert "rank 1 (process " in error.text and f"did not come within {SHORT_S:g} s" in error.text
        began = time.monotonic()
        pool.start(1, rank_worker.call_after, *args)
        late = pool._error(1)
        assert late is not None and "rank 1 (process " in late.text and "make another group" in late.text
        assert time.monotonic() - began < 60
        pool.call(rank_worker.remake_groups, [(pool.folder,)] * 2)
        assert len(pool.call(rank_worker.call_after, [args] * 2)) == 2


def test_a_rank_that_ended_before_the_first_call_is_named() -> None:
    with Pool(2, timeout_s=SHORT_S) as pool:
        pool.kill(1)
        (error,) = pool.errors(rank_worker.call_after, [call("all_reduce", KERNELS[-1], torch.ones(4))])
        assert error is not None and error.kind == "RuntimeError" and "rank 1" in error.text


def test_ranks_of_another_dtype_or_word_are_refused_before_anything_is_written() -> None:
    pool = shared_pool(3)
    op, kernel, base, count, late = call("all_reduce", KERNELS[-1], torch.ones(40000))
    for change in ({"x": torch.ones(40000).bfloat16()}, {"op": "max"}, {"x": torch.ones(200, 200)}):
        args = [(op, kernel, {**base, **(change if rank else {})}, count, late) for rank in range(2)]
        errors = pool.errors(rank_worker.call_after, args)
        assert len({error.text for error in errors if error}) == 1 and errors[0] and errors[1]
        assert errors[0].kind == "ValueError" and "rank 0 all_reduce(float32[40000], sum)" in errors[0].text
    guarded = [(op, kernel, {**base, "x": torch.ones(n)}, count, "contiguous", True) for n in (7, 8)]
    assert all(error and error.kind == "ValueError" for error in pool.errors(rank_worker.call_guarded, guarded))


def test_nothing_is_left_where_all_ranks_and_their_parent_are_killed() -> None:
    before = set(os.listdir("/dev/shm"))
    text = (
        "import torch, sys\nfrom kernelworks.verify import rank_worker\nfrom kernelworks.verify.ranks import Pool\n"
        f"pool = Pool(2)\nargs = ('all_reduce', {KERNELS[-1]!r}, {{'x': torch.ones(5), 'op': 'sum'}}, 2, 0.0)\n"
        "pool.call(rank_worker.call_after, [args] * 2)\n"
        "print(pool.folder, *(process.pid for process in pool.processes), flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([PYTHON, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        folder, *pids = parent.stdout.readline().split()
        assert len(pids) == 2
        parent.kill()
    end = time.monotonic() + 300
    while any(_runs(int(pid)) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(_runs(int(pid)) for pid in pids)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "kernelworks" in name]
    for file in Path(folder).glob("*"):
        file.unlink()
    Path(folder).rmdir()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def test_a_process_alone_has_what_it_had_and_needs_no_group() -> None:
    import kernelworks as kw

    x = torch.randn(3, 4)
    for kernel in (None, "scalar", "torch", "reference"):
        made = kw.all_reduce(x, group="self", kernel=kernel)
        assert torch.equal(made, x) and made.data_ptr() != x.data_ptr()
        assert kw.all_reduce(x, "max", "self", out=x, kernel=kernel) is x
    with pytest.raises(ValueError, match=r"pass x\.detach"):
        kw.all_reduce(x.clone().requires_grad_(), group="self")
    with torch.no_grad():
        assert not kw.all_reduce(x.clone().requires_grad_(), group="self").requires_grad
    with pytest.raises(ValueError, match="no default process group"):
        kw.all_reduce(x)
