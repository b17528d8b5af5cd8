"""Every op as torch sees it: operator checks, torch.compile, and fresh random values on every case (fuzz)."""

from __future__ import annotations

import functools
import warnings
from inspect import signature
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from op_kernels import ALL_OPS, label, runnable_kernels
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kernelworks.contract.complex_numbers import as_parts, is_inexact
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.plans import forget_all
from kernelworks.verify.parity import parities
from kernelworks.verify.reference import compute_reference, flat_outputs

OPCHECKS = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
OF_A_KERNEL = 2  # the first are another matter for each kernel: what it writes, and how its results lie
DIFFERENTIABLE = [op for op in ALL_OPS if op.contract.differentiable]


@functools.cache
def _small_case(op: Op) -> Any:
    """The arguments of an ordinary case that is neither empty nor large."""

    def weight(case: Any) -> int:
        tensors = flat_outputs(list(case.make(torch.Generator().manual_seed(0), torch.float32).values()))
        sizes = [t.numel() for t in tensors if isinstance(t, Tensor)]
        return max(sizes) if sizes and min(sizes) > 16 else 1 << 40

    case = min((c for c in op.contract.cases if torch.float32 in c.dtypes and c.gradients), key=weight)
    return compute_reference(op, case, torch.float32).positional(op)


def _leaf(value: Any, grad: bool) -> Any:
    if isinstance(value, Tensor):
        return value.clone().requires_grad_(grad and is_inexact(value.dtype))
    return [_leaf(v, False) for v in value] if isinstance(value, (list, tuple)) else value


def _leaves(op: Op, grad: bool) -> tuple[Any, ...]:
    """Fresh arguments; those that the op differentiates want gradients where ``grad``."""
    named = zip(op.passes["forward"].names, _small_case(op), strict=True)
    return tuple(_leaf(a, grad and name in op.contract.differentiable) for name, a in named)


def _checked_kernels() -> list[tuple[Op, str | None]]:
    """The dispatcher's choice, and by name the plain kernel, where an op has one, and torch's."""
    named = [(op, kernel.name) for op in ALL_OPS for kernel in op.kernels if kernel.name in ("scalar", "torch")]
    return [*((op, None) for op in ALL_OPS), *named]


@pytest.mark.parametrize(("op", "kernel"), _checked_kernels(), ids=label)
def test_operator_check(op: Op, kernel: str | None, request: pytest.FixtureRequest) -> None:
    """Of a kernel by name what another kernel may do otherwise, without gradients: those are asked of the dispatcher's
    choice, and how a kernel's backward lies below."""
    whole = kernel is None or request.config.getoption("--all")
    all_checks = OPCHECKS if whole else OPCHECKS[:OF_A_KERNEL]
    for grad in (False, True) if op.contract.differentiable and whole else (False,):
        args = _leaves(op, grad)
        # The schema's check compares inputs by what torch cannot do in 8 bits; parity looks whether they were written.
        checks = all_checks[any(isinstance(a, Tensor) and a.is_floating_point() and a.itemsize == 1 for a in args) :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # opcheck itself uses deprecated parts of torch
            operator = getattr(torch.ops.kernelworks, op.name).default
            result = torch.library.opcheck(operator, (*args, kernel), test_utils=checks)
        assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["rms_norm", "rms_norm_linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_norm_is_given_no_symbol(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it reads one as a number, of 19 digits."""
    own, op = F.rms_norm, OPS[name]

    def of_numbers(x: Tensor, shape: tuple[int, ...], *more: Any) -> Tensor:
        assert all(type(n) is int for n in shape), shape
        return own(x, shape, *more)

    args = [a.to(dtype) if isinstance(a, Tensor) else a for a in _leaves(op, False)]
    monkeypatch.setattr(F, "rms_norm", of_numbers)
    traced = make_fx(lambda *given: op.composite(*given), tracing_mode="symbolic")(*args)
    for got, want in zip(flat_outputs(traced(*args)), flat_outputs(op.composite(*args)), strict=True):
        torch.testing.assert_close(got, want)


def _turned(value: Any) -> Any:
    """The same values, which lie otherwise."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    return value.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize(("op", "kernel"), [r for r in _checked_kernels() if r[0].contract.returned_outputs], ids=label)
@pytest.mark.parametrize("through", ["C++", "Python"])
def test_results_lie_as_a_compiled_program_was_told(
    op: Op, kernel: str | None, through: str, request: pytest.FixtureRequest
) -> None:
    if through == "Python":
        request.getfixturevalue("through_python")
    for turned in (True, True, False, False):  # the second call finds a plan
        named = zip(op.passes["forward"].names, _leaves(op, False), strict=True)
        args = tuple(_turned(a) if turned and name not in op.contract.contiguous else a for name, a in named)
        outputs = _lie_as_told(op, "forward", args, kernel)
        if op.contract.differentiable and (kernel is None or "backward" in op.kernel(kernel).passes):
            have: dict[str, Any] = dict(zip(op.passes["forward"].names, args, strict=True))
            have |= dict(zip(op.contract.returned_outputs, outputs, strict=True))
            have |= {
                f"grad_{name}": _turned(torch.ones_like(o))
                for name, o in zip(op.contract.returned_outputs, outputs, strict=True)
            }
            have["needs"] = [have.get(name) is not None for name in op.passes["backward"].returns]
            _lie_as_told(op, "backward", tuple(have.get(name) for name in op.passes["backward"].names), kernel)


@pytest.mark.parametrize("op", [op for op in ALL_OPS if op.contract.returned_outputs], ids=label)
def test_torchs_own_function_lies_as_a_compiled_program_was_told(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs where no tuning record speaks for a kernel."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr(tuning_records, "valid_records", lambda *given: ([], []))
    forget_all()
    try:
        for _ in range(2):  # the second call finds a plan
            _lie_as_told(op, "forward", _leaves(op, False), None)
    finally:
        forget_all()


def _lie_as_told(op: Op, pass_: str, args: tuple[Any, ...], kernel: str | None) -> list[Any]:
    operator = getattr(torch.ops.kernelworks, op.name if pass_ == "forward" else f"{op.name}_backward")
    got, told = flat_outputs(operator.default(*args, kernel)), flat_outputs(op.passes[pass_].fake(*args))
    assert [t.stride() for t in got] == [t.stride() for t in told], pass_
    return got


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_one_graph_under_compile_forward_and_backward(op: Op) -> None:
    args = _leaves(op, True)
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]

    def program(*values: Any) -> Tensor:
        outputs = flat_outputs(op(*[v * 1.0 if isinstance(v, Tensor) and is_inexact(v.dtype) else v for v in values]))
        return sum(as_parts(o).float().square().sum() for o in outputs)

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    got, want = compiled(*args), program(*args)
    assert torch.allclose(got, want, rtol=1e-5)
    gradients = [torch.autograd.grad(loss, leaves, allow_unused=True) for loss in (got, want)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, rtol=1e-4, atol=1e-5)


CPP_KERNELS = [(op, kernel) for op, kernel in runnable_kernels() if op.kernel(kernel).source is not None]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fuzz_values(data: st.DataObject) -> None:
    op, kernel = data.draw(st.sampled_from(CPP_KERNELS), label="kernel")
    case = data.draw(st.sampled_from(op.contract.cases), label="case")
    dtype = data.draw(st.sampled_from(case.dtypes), label="dtype")
    seed = data.draw(st.integers(1, 2**31), label="seed")
    failures = [p for p in parities(op, kernel, case, dtype, seed) if not p.ok]
    assert not failures, failures[0].message


def test_every_op_has_a_public_function_that_rejects_bad_input() -> None:
    import kernelworks as kw

    for name, op in OPS.items():
        public = getattr(kw, name)
        assert "Raises" in (public.__doc__ or ""), name
        assert len(op.contract.errors) >= 4, name


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_no_argument_has_the_name_of_a_parameter_of_inductor(op: Op) -> None:
    """Inductor hands an operator's arguments on by name beside its own: one of the same name ends the lowering."""
    from torch._inductor.ir import FallbackKernel

    taken = {
        name for make in (FallbackKernel.create, FallbackKernel.process_kernel) for name in signature(make).parameters
    }
    assert "kernel" in taken
    for pass_ in op.passes.values():
        arguments = torch._C.parse_schema(pass_.schema).arguments
        assert not {argument.name for argument in arguments} & taken, pass_.schema
