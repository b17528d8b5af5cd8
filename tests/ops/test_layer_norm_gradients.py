"""Hopper's gradients of layer_norm where there is no GPU: what they take, how a block is laid out, what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from op_kernels import thorough_if_certified

from kernelworks.build import cuda
from kernelworks.contract import Request, TensorSpec
from kernelworks.ops.norm.layer_norm import sm90_backward


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((4096, 16384), torch.bfloat16, None),
        ((2, 3, 4104), torch.float16, None),
        ((4096, 16384), torch.float32, "bfloat16 and float16"),
        ((4096, 4096), torch.bfloat16, "rows of"),
        ((4096, 16392), torch.bfloat16, "rows of"),
        ((4096, 5124), torch.bfloat16, "whole 16 bytes"),
        ((0, 8192), torch.bfloat16, "1 to 2^31 rows"),
        ((2**31, 8192), torch.bfloat16, "1 to 2^31 rows"),
    ],
)
def test_guard(shape: tuple[int, ...], dtype: torch.dtype, reason: str | None) -> None:
    strides = tuple(torch.empty(shape, device="meta").stride())
    said = sm90_backward.guard(Request("layer_norm", "backward", {"x": TensorSpec(shape, dtype, strides, "cuda")}))
    assert said is None if reason is None else said is not None and reason in said


@thorough_if_certified("layer_norm", "sm90_backward")
def test_constants_are_those_of_the_source(tmp_path: Path) -> None:
    m = sm90_backward
    same = {
        "THREADS": m.THREADS, "WARPS": m.WARPS, "EACH": m.EACH, "MOST_STAGES": m.MOST_STAGES, "WEIGHT": m.WEIGHT,
        "sizeof(Measures)": m.MEASURES, "COLUMNS": m.COLUMNS, "SUM_THREADS": m.SUM_THREADS,
    }  # fmt: skip
    source = tmp_path / "same.cu"
    checks = "\n".join(f"static_assert({name} == {value});" for name, value in same.items())
    source.write_text(f'#include "{m.SOURCE}"\n{checks}\n')
    assert cuda.cubin(source)
    made = {name for name in cuda.resources(m.SOURCE) if name.startswith("gradients")}
    types = [str(d).removeprefix("torch.") for d in m.DTYPES]
    assert made == {f"gradients_{name}_{pieces}" for name in types for pieces in m.PIECES}


def test_a_block_holds_what_it_works_on() -> None:
    """Of a row only the last piece may be missing. Three rows are on their way, two of which make way for the sums at
    the end: two float32 of every column of a group."""
    for n in range(sm90_backward.SHORTEST, sm90_backward.LONGEST + 1, sm90_backward.EACH):
        pieces, warps, stages, shared = sm90_backward._shape(n)
        span, groups = warps * 32 * sm90_backward.EACH, sm90_backward.WARPS // warps
        assert groups >= 1 and span * (pieces - 1) < n <= span * pieces, n
        assert stages >= 3 and shared <= sm90_backward.SHARED_BYTES, n


def test_sums_stay_short() -> None:
    device = torch.device("meta")
    for m in (1, 131, 132, 4096, 10**5, 10**7):
        for warps in (5, 16):
            blocks, groups = sm90_backward._blocks(m, warps, device), sm90_backward.WARPS // warps
            assert min(m, 132) <= blocks and -(-m // (blocks * groups)) <= sm90_backward.LONGEST_SUM


@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_are_shaped_as_what_they_are_of(weight: bool, bias: bool) -> None:
    x = torch.empty(5, 7, 8200, dtype=torch.bfloat16, device="meta")
    parameter = torch.empty(8200, dtype=torch.bfloat16, device="meta")
    given = parameter if weight else None, parameter if bias else None
    made = sm90_backward.backward(x, x, *given, 1e-5, [True] * 3)
    assert [t.shape for t in made] == [x.shape, (8200 * weight,), (8200 * bias,)]
