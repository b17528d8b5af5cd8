"""kernel_matmul beyond its contract: integer length scales, the diagonal, results of which some rows are known, and
memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from op_kernels import runnable_kernels
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kernelworks as kw
from kernelworks.contract import Case
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.templates import pairwise
from kernelworks.verify.bounds import accepted_errors
from kernelworks.verify.parity import judge, parities
from kernelworks.verify.reference import Reference, compute_reference

OP = OPS["kernel_matmul"]
KERNELS = [name for op, name in runnable_kernels() if op is OP and op.kernel(name).source is not None]
MATERN_KERNELS = [name for op, name in runnable_kernels() if op.name == "matern32_matmul" and name != "torch"]
CASES = {case.name: case for case in OP.contract.cases}
WHOLE = CASES["N=130 M=61 D=5 E=2"]


def drawn(n: int, m: int, d: int, e: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y, v = (torch.randn(*shape, generator=generator) for shape in ((n, d), (m, d), (m, e)))
    return x, y, v


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "length_scale", [2, torch.tensor(2), torch.tensor([2], dtype=torch.int32), np.int64(2), np.float32(2)]
)
def test_whole_length_scales_are_numbers(kernel: str, length_scale: Any) -> None:
    x, y, v = drawn(9, 20, 3, 2)
    assert torch.equal(
        kw.kernel_matmul(x, y, v, length_scale, kernel=kernel), OP(x, y, v, torch.tensor(2.0), kernel=kernel)
    )


def test_arrays_come_back_as_arrays() -> None:
    x, y, v = drawn(9, 20, 3, 2)
    for length_scale in (2, np.array(2), np.array(2.0, dtype=np.float32)):
        found = kw.kernel_matmul(x.numpy(), y.numpy(), v.numpy(), length_scale)
        assert isinstance(found, np.ndarray) and found.shape == (9, 2)


@pytest.mark.parametrize("length_scale", [0, -1, float("nan"), float("inf")])
def test_numbers_that_are_no_length_are_refused(length_scale: float) -> None:
    with pytest.raises(ValueError, match="length_scale must be positive and finite"):
        kw.kernel_matmul(*drawn(2, 3, 1, 1), length_scale)


@pytest.mark.parametrize("length_scale", [True, "2", torch.tensor(True), None])
def test_what_is_no_number_is_refused(length_scale: Any) -> None:
    with pytest.raises(TypeError, match="length_scale must"):
        kw.kernel_matmul(*drawn(2, 3, 1, 1), length_scale)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("d", [1, 3, 7])
def test_a_point_meets_itself_with_one(kernel: str, mean: float, d: int) -> None:
    x = drawn(37, 1, d, 1)[0] + mean
    k = kw.kernel_matmul(x, x, torch.eye(37), 1e-3, kernel=kernel)
    assert torch.equal(k.diagonal(), torch.ones(37))
    assert torch.equal(k, k.T)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [1e-35, 1e-12, 1.0, 1e12, 1e35])
def test_no_unit_matters(kernel: str, scale: float) -> None:
    """Points and length scale a million million million times as large give the same K."""
    x, y, v = (t.double() for t in drawn(20, 33, 2, 1))
    s = (x[:, None] - y).square().sum(2)
    want = torch.exp(-0.5 * s / 0.49) @ v
    found = kw.kernel_matmul((x * scale).float(), (y * scale).float(), v.float(), 0.7 * scale, kernel=kernel)
    assert torch.allclose(found.double(), want, rtol=0, atol=3e-5 * 0.1)


def test_second_derivatives() -> None:
    x, y, v = (t.requires_grad_() for t in drawn(4, 5, 2, 1))
    length_scale = torch.tensor(1.3, requires_grad=True)
    inputs = (x, y, v, length_scale)

    def squared(*given: Tensor) -> Tensor:
        return torch.exp(-(given[0][:, None] - given[1]).square().sum(2) / (2 * given[3] ** 2)) @ given[2]

    def twice(function: Any) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), inputs)

    for found, want in zip(twice(kw.kernel_matmul), twice(squared), strict=True):
        assert torch.allclose(found, want, rtol=1e-4, atol=1e-4)


def test_a_matern_kernel_has_two_derivatives_where_points_meet() -> None:
    """Of a root, autograd would give NaN: 0 times an infinity."""
    x = drawn(5, 1, 2, 1)[0].requires_grad_()
    far = torch.full((1, 2), 1e19)

    def total(points: Tensor) -> Tensor:
        return kw.matern32_matmul(points, x.detach(), torch.eye(5), 0.8).diagonal().sum()

    (first,) = torch.autograd.grad(total(x), x, create_graph=True)
    assert torch.equal(first, torch.zeros(5, 2))
    (second,) = torch.autograd.grad(first[:, 0].sum(), x)
    assert torch.allclose(second[:, 0], torch.full((5,), -3 / 0.8**2), rtol=1e-5)
    for kernel in MATERN_KERNELS:
        assert torch.equal(
            kw.matern32_matmul(x.detach(), far, torch.ones(1, 1), 1e-20, kernel=kernel), torch.zeros(5, 1)
        )


# ---------------------------------------------------------------- results of which some rows are known


def in_pieces(case: Case, rows: int) -> tuple[Reference, Reference]:
    """What is right on a case, whole and in pieces."""
    return (
        compute_reference(OP, case, torch.float32),
        compute_reference(OP, dataclasses.replace(case, pieces=rows), torch.float32),
    )


def test_pieces_are_rows_of_the_whole() -> None:
    whole, some = in_pieces(WHOLE, 7)
    (rows,) = (some.pieces["output"].rows,)
    assert {0, 129} <= set(rows.tolist()) and len(rows) <= 7
    assert torch.allclose(some.outputs[0], whole.outputs[0][rows], rtol=1e-13, atol=0)
    assert torch.allclose(some.bounds[0], whole.bounds[0][rows], rtol=1e-12, atol=0)
    assert torch.equal(some.grad_outputs[0], whole.grad_outputs[0])
    assert set(some.gradients) == {"x", "y", "v"}  # the length scale's is a sum over all pairs
    for name in some.gradients:
        rows = some.pieces[f"gradient of {name}"].rows
        assert torch.allclose(some.gradients[name], whole.gradients[name][rows], rtol=1e-11, atol=1e-13), name
        assert torch.allclose(some.gradient_bounds[name], whole.gradient_bounds[name][rows], rtol=1e-9, atol=0), name


def test_pieces_of_a_wrong_answer_are_refused() -> None:
    _, some = in_pieces(WHOLE, 7)
    right = OP(*some.positional(OP), kernel="reference")
    assert not judge(right, some)[1]
    for row in some.pieces["output"].rows.tolist():
        wrong = right.clone()
        wrong[row] += 1e-3
        assert judge(wrong, some)[1]
    for shape in (right[:-1], right[some.pieces["output"].rows], right.T.contiguous()):
        assert judge(shape, some)[1]  # a result is the whole
    assert accepted_errors(OP, some) == []


def test_an_op_without_pieces_refuses_a_case_of_some() -> None:
    case = dataclasses.replace(OPS["argmax"].contract.cases[5], pieces=3)
    with pytest.raises(ValueError, match="argmax says no pieces"):
        compute_reference(OPS["argmax"], case, torch.float32)


class Largest(TorchDispatchMode):
    """The most elements that a tensor had which an operator made."""

    sees_kernelworks = True
    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor):
                self.elements = max(self.elements, t.numel())
        return result


def test_a_reference_of_pieces_holds_no_whole_matrix() -> None:
    case = dataclasses.replace(CASES["N=67 M=515 D=3 E=1"], pieces=4)
    with Largest() as largest:
        compute_reference.__wrapped__(OP, case, torch.float32)
    assert 0 < largest.elements <= 4 * 515


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name.startswith("avx")])
def test_a_large_problem_is_right_on_drawn_rows(kernel: str) -> None:
    case = next(case for case in OP.contract.bench_cases if "N=16384" in case.name)
    found = list(parities(OP, kernel, case, torch.float32))
    assert {parity.pass_ for parity in found} == {"forward", "backward"} and all(parity.ok for parity in found)


# ---------------------------------------------------------------- memory


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """K does not fit what is free, tuning records choose, and every kernel of ours passes for verified."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: None)
    monkeypatch.setattr(pairwise, "ALWAYS", 1000)
    monkeypatch.setattr(pairwise, "_free_bytes", lambda device: 20_000)
    OP.forget()


@pytest.mark.usefixtures("little_memory")
def test_ours_runs_where_torch_would_store_too_much() -> None:
    x, y, v = drawn(60, 70, 3, 2)
    length_scale = torch.tensor(1.5)
    ours = OP.choice((x, y, v, length_scale), None)
    assert ours.kernel.source is not None and not ours.native and "K of 60 x 70 would be stored" in ours.because
    told = kw.explain(kw.kernel_matmul, x, y, v, length_scale)
    assert told.kernel == ours.kernel.name and "would be stored" in told.because
    with Largest() as largest:
        found = kw.kernel_matmul(x, y, v, length_scale)
    assert largest.elements < 60 * 70
    assert torch.equal(found, kw.kernel_matmul(x, y, v, length_scale, kernel=ours.kernel.name))
    inputs = [t.requires_grad_() for t in (x, y, v, length_scale)]
    training = OP.choice(tuple(inputs), None, ("x", "length_scale"))
    assert training.backward is not None and training.backward.source is not None and training.requested_kernel
    with Largest() as largest:
        torch.autograd.grad(kw.kernel_matmul(*inputs).sum(), inputs)
    assert largest.elements < 60 * 70
    with pytest.raises(RuntimeError, match="would be stored"):
        kw.kernel_matmul(*inputs, kernel="torch")
    small = OP.choice((x[:2], y, v, length_scale), None)
    assert small.native  # it fits


@pytest.mark.usefixtures("little_memory")
def test_torch_runs_by_parts_where_no_kernel_of_ours_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: "not verified")
    inputs = [t.requires_grad_() for t in (*drawn(60, 70, 3, 2), torch.tensor(1.5))]
    assert OP.choice(tuple(inputs), None, ("x",)).native
    with Largest() as largest:
        found = torch.autograd.grad(kw.kernel_matmul(*inputs).sum(), inputs)
    assert largest.elements < 60 * 70
    want = torch.autograd.grad(OP.composite(*inputs).sum(), inputs)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, want, strict=True))


def test_bounds_take_the_dtype_of_a_gradient_from_its_argument() -> None:
    """A float32 length scale beside 16-bit points has a gradient in float32, as fine as beside others."""
    expected = compute_reference(OP, CASES["N=1 M=1 D=1 E=1"], torch.bfloat16)
    want, bound = expected.gradients["length_scale"], expected.gradient_bounds["length_scale"]
    assert 0 < float(bound / want.abs()) < 2.0**-16
    own = compute_reference(OP, CASES["length scale of the points' dtype"], torch.bfloat16)
    want, bound = own.gradients["length_scale"], own.gradient_bounds["length_scale"]
    assert float(bound / want.abs()) > 2.0**-9
