"""What the op templates of rows make: wrong expressions are caught, launches are as written, and an op package's parts
are told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from wrong_expressions import caught

from kernelworks.dispatch.op import OPS
from kernelworks.templates.description import derived_parts
from kernelworks.templates.launches import norm_text

# What stands in log_softmax's rowwise.cpp, what stands there instead, and what a verification says.
WRONG = {
    "nothing": ("", "", ""),
    "no logarithm": ("return kw::log(sum)", "return sum", "elements off"),
    "added": ("distance - log_sum", "distance + log_sum", "elements off"),
    "of the exponentials": ("OF_EXP = false", "OF_EXP = true", "elements off"),
    "a gradient's sum left out": ("return sum + g;", "return sum;", "gradient of x"),
    "the output for its exponential": ("-kw::exp_nonpositive(y)", "-y", "gradient of x"),
}


def test_a_wrong_expression_is_caught(tmp_path: Path) -> None:
    launches = '{"forward": op.template._forward, "backward": op.template._backward}'
    caught(tmp_path, "log_softmax", "rowwise.cpp", WRONG, launches, ("N=33", "dim 1 of [3, 17, 5]", "nan N=33"))


LAUNCH = """
def bind(library):
    kernel = library.rms_norm
    def forward(x, weight, eps, residual, out=None):
        if weight is not None and not weight.is_contiguous():
            weight = weight.contiguous()
        run, threads = shared(kernel, x.numel())

        if residual is None:
            output = empty(x.shape, dtype=x.dtype) if out is None else out
            run(output, None, as_rows(x), None, weight, None, eps, threads)
            return output

        made = (empty(x.shape, dtype=x.dtype), empty(x.shape, dtype=x.dtype)) if out is None else out
        run(*made, as_rows(x), as_rows(residual), weight, None, eps, threads)
        return made

    return forward
"""


def test_a_norms_launch_as_it_is_written() -> None:
    assert norm_text("rms_norm", ("x", "weight", "eps", "residual"), optional=True) == LAUNCH


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm"])
def test_what_was_derived_is_told(name: str) -> None:
    said = derived_parts(OPS[name])
    assert {"check", "refused calls", "cost", "dims", "cases", "kernels", "mutants", "forward", "backward"} <= set(said)
    assert "short tile" in said["mutants"] and "rowwise.cpp" in said["kernels"]


def test_what_was_derived_of_a_product_is_told() -> None:
    said = derived_parts(OPS["linear"])
    assert said["dims"] == "M, N, K" and "[N, K] of x's dtype" in said["check"]
    assert "weight of another size of dimension 1" in said["refused calls"] and "overlapping blocks" in said["mutants"]
    assert "avx512_bf16: simd.cpp" in said["kernels"] and "linear(x, weight, bias)" in said["torch's operators"]


NEEDS = [(True, True, True), (True, False, False), (False, True, False), (False, False, True), (False, False, False)]


@pytest.mark.parametrize("needs", NEEDS, ids=str)
@pytest.mark.parametrize("kernel", ["scalar", "torch", "reference"])
def test_a_product_makes_the_gradients_that_are_asked_for(kernel: str, needs: tuple[bool, ...]) -> None:
    """The others are empty: neither computed nor allocated."""
    x, weight, grad = torch.randn(5, 7), torch.randn(3, 7), torch.randn(5, 3)
    want = (grad @ weight, grad.T @ x, grad.sum(0))
    found = OPS["linear"].kernel(kernel).load("backward")(grad, x, weight, list(needs))
    for needed, got, right in zip(needs, found, want, strict=True):
        torch.testing.assert_close(got, right if needed else torch.empty(0))
