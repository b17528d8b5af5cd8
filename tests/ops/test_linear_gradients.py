"""Hopper's gradients of linear where there is no GPU: what they take, how tiles are dealt out, what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelworks.build import cuda
from kernelworks.contract import Request, TensorSpec, shape_only_spec
from kernelworks.dispatch.op import OPS
from kernelworks.ops.linear.linear import sm90
from kernelworks.verify.parity import makes_gradients

BF16 = torch.bfloat16
WAY = (True, True, True)


def _of(*shape: int, dtype: torch.dtype = BF16, stride: tuple[int, ...] = ()) -> TensorSpec:
    return TensorSpec(shape, dtype, stride or tuple(torch.empty(shape, device="meta").stride()), "cuda")


def _asked(m: int, n: int, k: int, needs: tuple[bool, ...] = WAY, **other: TensorSpec) -> Request:
    args = {"grad_output": _of(m, n), "x": _of(m, k), "weight": _of(n, k), "needs": needs, **other}
    return Request("linear", "backward", args)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (_asked(16384, 2048, 6144), None),
        (_asked(257, 8, 264), None),
        (_asked(255, 2048, 2048), "256 rows"),
        (_asked(4096, 2044, 2048), "multiple of 8"),
        (_asked(4096, 2048, 2044), "whole 16 bytes"),
        (_asked(4096, 2048, 0), "1 to 2^31"),
        (_asked(4096, 64, 64, x=_of(4096, 64, dtype=torch.float32)), "bfloat16 and float16"),
        (_asked(4096, 64, 64, weight=_of(64, 64, stride=(1, 64))), "K on end"),
        (_asked(4096, 64, 64, (False, True, True), weight=shape_only_spec(_of(64, 64))), None),
        (_asked(4096, 64, 64, (True, False, False), x=shape_only_spec(_of(4096, 64))), None),
    ],
)
def test_guard(request_: Request, reason: str | None) -> None:
    said = sm90.guard(request_)
    assert said is None if reason is None else said is not None and reason in said


def test_a_forward_of_few_rows_is_served_and_its_gradients_are_not() -> None:
    op = OPS["linear"]
    for rows, able in ((16, False), (255, False), (256, True)):
        args = (torch.empty(rows, 64, dtype=BF16, device="meta"), torch.empty(64, 64, dtype=BF16, device="meta"), None)
        assert sm90.guard(op.request("forward", args)) is None
        request = op.backward_of(op.request("training", args, ("x", "weight")))
        assert (sm90.guard(request) is None) == able
    few = tuple(t.cpu() if t is not None else t for t in (torch.ones(3, 8), torch.ones(8, 8), None))
    assert makes_gradients(op, "scalar", few, ("x", "weight"))
    assert not makes_gradients(op, "sm90_middle", few, ("x", "weight"))


def test_constants_are_those_of_the_source(tmp_path: Path) -> None:
    same = {"SUM_COLUMNS": sm90.SUM_COLUMNS, "ADDED": sm90.ADDED, "SUM_THREADS": 256, "64 * 64 * 2": sm90.PANEL**2 * 2}
    source = tmp_path / "same.cu"
    checks = "\n".join(f"static_assert({name} == {value});" for name, value in same.items())
    header = sm90.SOURCE.with_name("column_sums.cuh")
    source.write_text(f'#include "{header}"\n{checks}\nextern "C" __global__ void none() {{}}')
    assert cuda.cubin(source)


@pytest.mark.parametrize("dtype", sm90.DTYPES)
@pytest.mark.parametrize("needs", [[True] * 3, [True, False, False], [False, True, False], [False, False, True]])
def test_gradients_are_laid_out_as_their_inputs_are_shaped(dtype: torch.dtype, needs: list[bool]) -> None:
    x, weight, grad = (torch.empty(s, dtype=dtype, device="meta") for s in ((2, 150, 264), (520, 264), (2, 150, 520)))
    strided = torch.empty(2, 150, 1040, dtype=dtype, device="meta")[..., :520]
    for flows in (grad, strided, grad.new_empty(()).expand(grad.shape), grad[:1, :1].expand(grad.shape)):
        made = sm90.backward(flows, x, weight, needs)
        for found, like, needed in zip(made, (x, weight, weight[:, 0]), needs, strict=True):
            assert found.shape == (like.shape if needed else (0,)) and found.dtype == dtype and found.is_contiguous()


def test_only_what_the_copy_engine_cannot_read_is_copied() -> None:
    plain = torch.ones(6, 8, 64, dtype=BF16)
    for kept in (plain, plain[0], plain[:, 0], torch.ones(6, 8, 128, dtype=BF16)[..., :64]):
        assert sm90._aligned(kept).data_ptr() == kept.data_ptr() and sm90._lies(kept)
    odd = torch.ones(6, 68, dtype=BF16)[:, :64]
    for strange in (odd, plain[0].T, plain[0, :1].expand(8, 64), torch.ones((), dtype=BF16).expand(8, 64)):
        assert sm90._aligned(strange).is_contiguous() and torch.equal(sm90._aligned(strange), strange)
        assert not sm90._lies(strange)


def test_gradients_of_a_training_step_keep_all_multiprocessors_busy() -> None:
    """At 16384 rows: of 132 multiprocessors no weight leaves more than a tenth idle, though one has only 32 tiles."""
    for n, k in ((2048, 2048), (1024, 2048), (6144, 2048), (2048, 6144)):
        for rows, columns, over in ((16384, k, n), (n, k, 16384)):
            _, blocks, streamed = sm90._blocked(rows, columns, over, BF16, torch.device("meta"), "grad_x", share=True)
            tiles, steps, clusters = rows // 256 * (columns // 256), over // 64, blocks // sm90.CLUSTER
            took = (tiles - streamed) // clusters * steps + streamed * steps / clusters + (10 if streamed else 0)
            assert tiles * steps / 66 > 0.89 * took, (n, k, rows)
