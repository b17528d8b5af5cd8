"""Products with an epilogue: gradients, which no kernel of ours makes yet, and the kernels for Hopper without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.tuning_records import bucket_of
from kernelworks.ops.linear.linear_add import sm90 as added
from kernelworks.ops.linear.linear_gelu import sm90 as with_gelu
from kernelworks.ops.linear.linear_silu_mul import sm90 as pair
from kernelworks.ops.linear.rms_norm_linear import sm90 as normed

NAMES = ("linear_add", "linear_gelu", "linear_silu_mul", "rms_norm_linear")


def _drawn(op: Op) -> dict[str, Any]:
    made = next(c for c in op.contract.cases if c.name.endswith("M=7 N=64 K=509")).make(
        torch.Generator().manual_seed(3), torch.float32
    )
    return {name: made[name] for name in op.passes["forward"].names}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_definitions(name: str) -> None:
    op = OPS[name]
    made = _drawn(op)
    exact = {n: v.double().requires_grad_() if isinstance(v, torch.Tensor) else v for n, v in made.items()}
    (output,) = op.contract.reference(**exact)
    flow = torch.randn(output.shape, generator=torch.Generator().manual_seed(4)).double()
    output.backward(flow)
    ours = {n: v.clone().requires_grad_() if isinstance(v, torch.Tensor) else v for n, v in made.items()}
    op(*ours.values()).backward(flow.float())
    for n, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert value.grad is not None and exact[n].grad is not None
            off = (value.grad.double() - exact[n].grad).norm() / exact[n].grad.norm()
            assert float(exact[n].grad.norm()) > 0 and float(off) < 1e-5, n


@pytest.mark.parametrize("name", NAMES)
def test_a_call_has_a_bucket(name: str) -> None:
    """Tuning records are kept and found by it."""
    op = OPS[name]
    assert bucket_of(op.contract, op.request("forward", tuple(_drawn(op).values()))).endswith("aligned=1")


def test_what_hopper_declines() -> None:
    op = OPS["linear_gelu"]

    def asked(dtype: torch.dtype, m: int, n: int, k: int) -> str | None:
        args = (torch.empty(m, k, dtype=dtype), torch.empty(n, k, dtype=dtype), None, "tanh")
        return with_gelu.guard(op.request("forward", args))

    assert asked(torch.bfloat16, 3, 24, 40) is None
    assert "bfloat16 and float16" in str(asked(torch.float32, 3, 24, 40))
    assert "16 bytes" in str(asked(torch.bfloat16, 3, 24, 41))
    assert "16 bytes" in str(asked(torch.bfloat16, 3, 20, 40))
    assert "sizes" in str(asked(torch.bfloat16, 0, 24, 40))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_launches_without_data(dtype: torch.dtype) -> None:
    """Nothing runs: outputs of the right shape, whatever the strides."""

    def empty(*sizes: int) -> torch.Tensor:
        return torch.empty(*sizes, dtype=dtype, device="meta")

    x, turned, weight, bias = empty(3, 50, 136), empty(50, 3, 136).transpose(0, 1), empty(264, 136), empty(264)
    for rows in (x, turned, empty(3, 50, 137)[..., :136]):
        assert with_gelu.forward(rows, weight, bias, "none").shape == (3, 50, 264)
        assert with_gelu.forward(rows, weight, None, "tanh").shape == (3, 50, 264)
        assert pair.forward(rows, weight, empty(528, 136)[264:]).shape == (3, 50, 264)
        assert added.forward(rows, weight, empty(264, 3, 50).permute(1, 2, 0), bias).shape == (3, 50, 264)
        assert normed.forward(rows, weight, None, 1e-6).shape == (3, 50, 264)
