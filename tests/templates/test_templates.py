"""What op templates make: launches as written, torch's operators found, an op package's own parts told, wrong
expressions caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from wrong_expressions import caught

from kernelworks.build import native
from kernelworks.contract.arguments import Word, check_of, errors_of, right_of
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import InputOperand, program
from kernelworks.dispatch.op import OPS
from kernelworks.templates.aten_trace import aten_of, text
from kernelworks.templates.description import derived_parts
from kernelworks.templates.launches import written_backward, written_forward
from kernelworks.templates.pointwise import Pointwise, Work

GATED = {"gate": T("..."), "up": T("...", like="gate"), "approximate": Word("none", "tanh")}

# ---------------------------------------------------------------- a wrong expression

# What stands in relu's pointwise.cpp, what stands there instead, and what a verification says.
WRONG = {
    "nothing": ("", "", ""),
    "the other half": ("max(0.0f, x)", "min(0.0f, x)", "elements off"),
    "NaN is dropped": ("max(0.0f, x)", "max(x, 0.0f)", "elements off"),
    "infinities are cut": ("max(0.0f, x)", "min(3.0e38f, max(0.0f, x))", "elements off"),
    "a gradient at 0": ("x <= 0.0f", "x < 0.0f", "gradient of x"),
    "a gradient that does not flow": ("0.0f : grad", "0.0f : x", "gradient of x"),
}


def test_a_wrong_expression_is_caught(tmp_path: Path) -> None:
    launches = (
        '{"forward": forward_of("relu", op.template.arguments), "backward": backward_of("relu", op.template.arguments)}'
    )
    caught(tmp_path, "relu", "pointwise.cpp", WRONG, launches, ("N=33", "zeros N=33", "inf N=33", "nan N=33"))


# ---------------------------------------------------------------- what is derived

FORWARD = """
def bind(library):
    kernel = {'none': library.gate_none, 'tanh': library.gate_tanh}
    def forward(gate, up, approximate, out=None):
        output = empty_like(gate) if out is None else out
        run, threads = shared(kernel[approximate], gate.numel())
        run(output, gate, up, threads)
        return output
    return forward
"""

BACKWARD = """
def bind(library):
    kernel = library.half_backward
    def backward(grad, x, needs, out=None):
        grad_x = (empty_like(x)) if out is None else out
        run, threads = shared(kernel, x.numel())
        run(grad_x, grad, x, threads)
        return grad_x
    return backward
"""


def test_launches_are_written_out() -> None:
    assert written_forward("gate", GATED) == FORWARD
    assert written_backward("half", {"x": T("...")}) == BACKWARD


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: F.silu(x) * y, "mul.Tensor(silu(x), y)"),
        (lambda x, y: F.gelu(x, approximate="tanh"), "gelu(x, approximate='tanh')"),
        (lambda x, y: F.linear(x, y), "mm(x, t(y))"),  # which autocast would take in bfloat16
        (lambda x, y: x / (1 + y.abs()), "div.Tensor(x, add.Scalar(abs(y), 1))"),
        (lambda x, y: x.clone().add_(y), None),  # writes
        (lambda x, y: x.max(-1).values, None),  # an operator with two results
        (lambda x, y: torch.cat([x, y]), None),  # a list of tensors
        (lambda x, y: x + torch.ones(3, device=x.device), None),  # what nothing was given for
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_operators_of_a_function_are_found(function: Any, expected: str | None, autocast: bool) -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = aten_of(function)(InputOperand(0, x), InputOperand(1, y))
    assert (None if found is None else text(found, ("x", "y"))) == expected


@pytest.mark.parametrize("function", [lambda x, y: x / (1 + y.abs()), lambda x, y: 2 * y - x * 0.5])
def test_the_operators_that_were_found_compute_the_function(function: Any) -> None:
    given = torch.randn(2, 3), torch.randn(2, 3)
    run = program(native.build(), aten_of(function), given)
    assert run is not None and torch.equal(run(*given), function(*given))


@pytest.mark.parametrize("index", range(len(errors_of(GATED))), ids=[what for what, *_ in errors_of(GATED)])
def test_a_refused_call_raises_as_is_said(index: int) -> None:
    _, make, kind, words = errors_of(GATED)[index]
    with pytest.raises(kind) as raised:
        check_of(GATED)(**make())
    assert words in str(raised.value)
    check_of(GATED)(**right_of(GATED))


def _halved(folder: Path) -> Pointwise:
    return Pointwise(
        op_package=str(folder / "halved" / "__init__.py"), formula="x / 2", source="a test", arguments={"x": T("...")},
        reference=lambda x: x / 2, work=Work(1, 1), sweeps={},
    )  # fmt: skip


def test_an_op_package_has_its_own_where_it_says_so(tmp_path: Path) -> None:
    template, own = _halved(tmp_path), ("avx2.cpp", "simd.cpp", "scalar.cpp")
    (tmp_path / "halved").mkdir()
    assert {template._source(t) for t in ("avx512", "avx2", "scalar")} == {"pointwise.cpp"}
    for name in own:
        (tmp_path / "halved" / name).touch()
    assert [template._source(t) for t in ("avx512", "avx2", "scalar")] == ["simd.cpp", "avx2.cpp", "scalar.cpp"]
    relu = OPS["relu"]
    changed = SimpleNamespace(**vars(relu) | {"contract": replace(relu.contract, dims=lambda request: {"K": 1})})
    changed.request = relu.request
    assert derived_parts(relu)["dims"] == "M, N" and derived_parts(changed)["dims"] == "K (the op package's own)"
    assert derived_parts(OPS["rope"]) == {}


def test_an_exact_op_has_no_slack(tmp_path: Path) -> None:
    contract, x = _halved(tmp_path).contract, torch.ones(3, dtype=torch.float64)
    (bound,) = contract.bound({"x": x}, (x / 2,), torch.bfloat16)
    assert isinstance(bound, Tensor) and not bound.any()
