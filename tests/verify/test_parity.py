"""Every kernel of every op against float64, on every case of its contract. Generated from the kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from op_kernels import ALL_OPS, certified, label, runnable_kernels
from telling_cases import SHORT, SMOKE, telling, traits_of
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case
from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.contract.results import Equations
from kernelworks.dispatch import certificates
from kernelworks.dispatch.mutation import results_of
from kernelworks.dispatch.op import Op
from kernelworks.verify.compare import compare_result, sort_as_promised
from kernelworks.verify.parity import parities
from kernelworks.verify.reference import (
    Reference,
    compute_reference,
    copy_tensors,
    flat_outputs,
    follow_choice,
    gradient_of,
)  # fmt: skip


@pytest.fixture(autouse=True)
def poisoned_memory():
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty comes filled with NaN
    yield
    torch.use_deterministic_algorithms(False)


def _cases(op: Op, kernel: str, whole: bool) -> tuple[Case, ...]:
    """The reference has no source that could have changed: it is asked as the op's own kernels are, and of views on one
    case. Its arithmetic is that of the truth that it is held to; what is asked is whether calls reach it as they are.
    """
    ours = [name for other, name in runnable_kernels() if other is op and op.kernel(name).source is not None]
    proved = all(certified(op, name) for name in ([kernel] if kernel in ours else ours))
    if whole:
        return op.contract.cases
    some = telling(op, SMOKE if proved else SHORT)
    viewed = next((case.name for case in some if case.layouts), None) if kernel == "reference" else None
    return tuple(replace(c, layouts=False) if viewed and c.name != viewed else c for c in some)


def _asked(op: Op, kernels: list[str], whole: bool) -> Iterator[tuple[torch.dtype, dict[str, Case]]]:
    """A case's kernels one after the other: its truth takes longer than any of them."""
    wanted = {k: {(case.name, d): case for case in _cases(op, k, whole) for d in case.dtypes} for k in kernels}
    for case in op.contract.cases:
        for dtype in case.dtypes:
            some = {k: its[case.name, dtype] for k, its in wanted.items() if (case.name, dtype) in its}
            if some:
                yield dtype, some


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_rows_keep_the_contract(op: Op, request: pytest.FixtureRequest) -> None:
    """A few cases where a certificate speaks for this very source, more where none does, all with ``--all``."""
    kernels = [kernel for other, kernel in runnable_kernels() if other is op and kernel != "torch"]
    failures, compared = [], dict.fromkeys(kernels, 0)
    for dtype, some in _asked(op, kernels, request.config.getoption("--all")):
        for kernel, case in some.items():
            for parity in parities(op, kernel, case, dtype):
                compared[kernel] += 1
                if not parity.ok:
                    failures.append(
                        f"{kernel} {parity.pass_} {parity.case} {parity.dtype}: {parity.message}\n{parity.reproduce}"
                    )
    assert min(compared.values()) > 20, compared
    assert not failures, f"{len(failures)} of {compared}:\n" + "\n".join(failures[:10])


# Values on which torch's own arithmetic is off (see each op package's README); our kernels are held to the bound on
# them too.
HARD = re.compile(
    "tiny|huge|subnormal|large_mean|constant|inf|nan|zeros|mean 1e|eps 0|far|climbing|no memory|first step|ignored"
    "|no rows|bottom right|sinks, large|two values per channel|many factors"
)


def _distance(got: Tensor, want: Tensor) -> float:
    unset = got.isnan() & want.isnan()  # what was never written to
    got, want = got.to(want.dtype).masked_fill(unset, 0), want.masked_fill(unset, 0)
    scale = want.norm().item()
    return (got - want).norm().item() / scale if scale else float(got.norm())


def _torch_kernel(op: Op, expected: Reference) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """(got, want) of the outputs and of the gradients of the torch kernel."""
    names = op.passes["forward"].names
    args = [copy_tensors(a) for a in expected.positional(op)]
    leaves = [args[names.index(n)].requires_grad_() for n in expected.gradients]
    result = op(*args, kernel="torch")
    outputs = flat_outputs(results_of(op, result, args))[: len(expected.outputs)]
    differentiable = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
    found: tuple[Tensor | None, ...] = ()
    if leaves:
        found = torch.autograd.grad(differentiable, leaves, list(expected.grad_outputs), allow_unused=True)
    expected = follow_choice(op, expected, dict(zip(expected.names, outputs, strict=False)))
    pieces = [expected.pieces.get(gradient_of(name)) for name in expected.gradients]
    found = tuple(g if g is None or p is None else p.rows_of(g) for g, p in zip(found, pieces, strict=bool(leaves)))
    gradients = [(g, w) for g, w in zip(found, expected.gradients.values(), strict=True) if g is not None]
    outputs = tuple(expected.drawn_output(i, o.detach()) for i, o in enumerate(outputs))
    return list(zip(outputs, expected.outputs, strict=True)), gradients


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_the_torch_kernel_computes_the_same_op(op: Op, request: pytest.FixtureRequest) -> None:
    """It is what the user has today, so it is not held to our bounds elementwise (torch breaks some of them), nor in
    guarded memory (its libraries read past their inputs); but it must be the same function, and so must our formula
    for its backward."""
    compared = 0
    for case in op.contract.cases if request.config.getoption("--all") else telling(op, SHORT):
        for dtype in case.dtypes:
            expected = compute_reference(op, case, dtype)
            if HARD.search(case.name) or not all(o.numel() for o in expected.outputs):
                continue
            if op.kernel("torch").guard(op.request("forward", expected.positional(op))):
                continue
            outputs, gradients = _torch_kernel(op, expected)
            named = dict(zip(expected.names, (got for got, _ in outputs), strict=False))
            for place, (got, want) in enumerate((*outputs, *gradients)):
                relation = expected.relation(place) if place < len(outputs) else None
                if not is_inexact(want.dtype) or isinstance(relation, Equations):
                    exact = torch.zeros(want.shape)
                    wrong = compare_result(relation, got, want, exact, expected.args, named)[1]
                    assert not wrong, f"{case.name} {dtype}: {wrong}"
                    compared += 1
                    continue
                if sort_as_promised(relation, want, expected.args) is not None:
                    got, want = (t.gather(*sort_as_promised(relation, t, expected.args)) for t in (got, want))
                if float(want.abs().max() if want.numel() else 0) < 1e-2:
                    continue  # what is left of a cancellation, as in the gradient of a norm of one element
                assert got.shape == want.shape, case.name
                assert _distance(got, want) <= 64 * UNIT_ROUNDOFF[dtype] + 1e-4, f"{case.name} {dtype}"
                compared += 1
    assert compared > 20


def test_a_row_that_is_not_proved_is_tried_on_more_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [(op, kernel) for op, kernel in runnable_kernels() if op.name == "rms_norm"]
    monkeypatch.setattr(certificates, "invalid_reason", lambda *asked: None)
    few = {kernel: _cases(op, kernel, False) for op, kernel in kernels}
    assert all(_cases(op, kernel, True) == op.contract.cases for op, kernel in kernels)
    monkeypatch.setattr(certificates, "invalid_reason", lambda *asked: "not verified")
    monkeypatch.setattr(certificates, "transferable_certificate", lambda *asked: None)
    assert all({c.name for c in few[kernel]} < {c.name for c in _cases(op, kernel, False)} for op, kernel in kernels)


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
@pytest.mark.parametrize("work", [SMOKE, SHORT])
def test_few_cases_are_of_every_kind(op: Op, work: int) -> None:
    """Every dtype, gradients, views, ragged lines and what a tensor may hold, where an op has cases of it."""
    some, whole = telling(op, work), op.contract.cases
    assert {d for c in some for d in c.dtypes} == {d for c in whole for d in c.dtypes}
    for dtype in {d for c in whole for d in c.dtypes}:
        for trait in ("gradients", "layouts"):
            assert any(getattr(c, trait) and dtype in c.dtypes for c in some) == any(
                getattr(c, trait) and dtype in c.dtypes for c in whole
            )
    assert traits_of(op, some) == traits_of(op, whole)
    assert telling(op, work) == some
