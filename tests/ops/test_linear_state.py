"""linear_attention and ssd: what their contracts cannot say. They are others' formulas, and compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.mamba2 import modeling_mamba2

import kernelworks as kw
from kernelworks.nn.originals import unwrap_decorators


def _ssd(steps: int, batch: int = 2) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(steps)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    return {
        "x": normal(batch, steps, 4, 6), "dt": normal(batch, steps, 4).sigmoid(), "A": -normal(4).exp(),
        "B": normal(batch, steps, 2, 8), "C": normal(batch, steps, 2, 8), "D": normal(4),
        "initial_states": normal(batch, 4, 6, 8),
    }  # fmt: skip


def _steps(args: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Mamba-2's selective_state_update, one step after the other."""
    x, dt, state, outputs = args["x"], args["dt"], args["initial_states"], []
    for t in range(x.shape[1]):
        b, c = (args[n][:, t].repeat_interleave(2, 1) for n in ("B", "C"))
        decay = (args["A"] * dt[:, t]).exp()[..., None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, :, None, :]
        outputs.append((state * c[:, :, None, :]).sum(-1) + args["D"][:, None] * x[:, t])
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("kernel", [None, "avx2", "avx2_chunked", "scalar"])
@pytest.mark.parametrize("steps", [1, 70])
def test_ssd_is_mamba2s_recurrence(steps: int, kernel: str | None) -> None:
    args = _ssd(steps)
    for got, want in zip(kw.ssd(**args, return_final_states=True, kernel=kernel), _steps(args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["avx2", "avx2_chunked"])
def test_sequences_of_a_row_are_calls_of_their_own_in_each_row_of_the_batch(kernel: str) -> None:
    args, cuts = _ssd(90), ((20, 69), (0, 65))
    seq_idx = torch.stack([(torch.arange(90) > a).int() + (torch.arange(90) > b).int() for a, b in cuts])
    got = kw.ssd(**args, seq_idx=seq_idx, kernel=kernel)
    for row, (a, b) in enumerate(cuts):
        begin = 0
        for end in (a + 1, b + 1, 90):
            own = {n: t[row : row + 1, begin:end] if n in ("x", "dt", "B", "C") else t for n, t in args.items()}
            own["initial_states"] = args["initial_states"][row : row + 1] if not begin else None
            want = kw.ssd(**own, kernel=kernel)
            torch.testing.assert_close(got[row : row + 1, begin:end], want, rtol=1e-4, atol=1e-5)
            begin = end


def test_a_step_forgets_another_sequence_even_where_it_is_no_number() -> None:
    args = _ssd(12)
    args["x"][0, 3] = torch.nan
    seq_idx = (torch.arange(12) > 5).int().expand(2, 12).contiguous()
    got = kw.ssd(**args, seq_idx=seq_idx, kernel="avx2")
    assert got[0, 3:6].isnan().any() and not got[0, 6:].isnan().any() and not got[1].isnan().any()


def test_linear_attention_is_masked_scores_times_values() -> None:
    q, k, v = (torch.randn(2, 75, 3, 8) for _ in range(3))
    scores = torch.einsum("bthd,bshd->bhts", q, k).tril() * 8**-0.5
    want = torch.einsum("bhts,bshd->bthd", scores, v)
    for kernel in (None, "avx2", "avx2_chunked"):
        output, state = kw.linear_attention(q, k, v, kernel=kernel)
        assert state is None
        torch.testing.assert_close(output, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="cu_seqlens must be None"):
        kw.linear_attention(q, k, v, cu_seqlens=torch.tensor([0, 4]))  # type: ignore[arg-type]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_takes_our_gradients(compiled: bool) -> None:
    args = {name: value.requires_grad_() for name, value in _ssd(70).items()}

    def step(kernel: str, **given: Any) -> Tensor:
        output, states = kw.ssd(**given, return_final_states=True, kernel=kernel)
        return output.square().sum() + states.square().sum()

    run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
    want = torch.autograd.grad(step("reference", **args), list(args.values()))
    for got, right in zip(torch.autograd.grad(run("avx2_chunked", **args), list(args.values())), want, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("steps", [1, 37])
def test_ssd_is_transformers_scan_of_mamba2(steps: int) -> None:
    args = _ssd(steps)
    theirs = unwrap_decorators(modeling_mamba2.mamba2_chunk_scan, "transformers")
    want = theirs(**{"hidden_states" if n == "x" else n: t for n, t in args.items()}, chunk_size=16,
                  return_final_states=True)  # fmt: skip
    for got, right in zip(kw.ssd(**args, return_final_states=True, kernel="avx2_chunked"), want, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)
