"""gated_delta_rule: what its contract cannot say. It is transformers' own, in its functions and in a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as modeling

import kernelworks as kw
from kernelworks.ops.scan.gated_delta_rule.cases import make
from kernelworks.ops.scan.gated_delta_rule.contract import reference
from kernelworks.ops.scan.gated_delta_rule.torch_kernels import composite


def _made(steps: int, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    return make(torch.Generator().manual_seed(steps), dtype, 2, steps, 1, 2, 8, 6, **options)


@pytest.mark.parametrize(("steps", "kernel"), [(1, None), (70, None), (1, "avx2"), (70, "avx2"), (70, "avx2_chunked")])
def test_it_is_what_transformers_computes(steps: int, kernel: str | None) -> None:
    args = _made(steps, raw=True)
    named = {
        name: args[name] for name in ("g", "beta", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel")
    }
    for theirs in (modeling.torch_chunk_gated_delta_rule, modeling.torch_recurrent_gated_delta_rule):
        want = theirs(args["q"], args["k"], args["v"], **named)
        for got, wanted in zip(kw.gated_delta_rule(**args, kernel=kernel), want, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 65])
def test_gradients_are_those_of_the_definition(steps: int) -> None:
    args = _made(steps, raw=True)
    names = [name for name, value in args.items() if isinstance(value, Tensor)]

    def gradients(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        given = {n: v.to(dtype).requires_grad_() if n in names else v for n, v in args.items()}
        outputs = function(**given)
        flows = [torch.linspace(-1, 1, o.numel(), dtype=torch.float64).reshape(o.shape).to(o) for o in outputs]
        return torch.autograd.grad(outputs, [given[n] for n in names], flows)

    want = gradients(reference, torch.float64)
    for got, right, ours in zip(
        gradients(composite, torch.float64), want, gradients(kw.gated_delta_rule, torch.float32), strict=True
    ):
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(ours.double(), right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kernel", ["scalar", "avx2", "avx2_chunked"])
def test_a_value_that_is_not_finite_is_not_seen_before_its_step_nor_in_another_column(kernel: str) -> None:
    args = _made(70)
    args["v"][0, 37, 1, 2] = torch.nan
    output, state = kw.gated_delta_rule(**args, kernel=kernel)
    lost = torch.zeros_like(output, dtype=torch.bool)
    lost[0, 37:, 1, 2] = True
    assert torch.equal(output.isnan(), lost)
    assert state is not None
    assert state.isnan()[0, 1, :, 2].all() and state.isnan().sum() == state.shape[2]


def test_without_the_state_there_is_none() -> None:
    args = _made(9) | {"output_final_state": False}
    output, state = kw.gated_delta_rule(**args)
    assert state is None
    torch.testing.assert_close(output, kw.gated_delta_rule(**args | {"output_final_state": True})[0])


def test_packed_sequences_are_refused_with_words() -> None:
    with pytest.raises(ValueError, match="cu_seqlens must be None"):
        kw.gated_delta_rule(**_made(9), cu_seqlens=torch.tensor([0, 4, 9]))


def test_a_model_runs_and_generates_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = modeling.Qwen3NextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=0, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = modeling.Qwen3NextForCausalLM(config).eval()
    ids = torch.randint(0, 64, (2, 21))
    with torch.no_grad():
        want, tokens = model(ids).logits, model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    calls: list[int] = []

    def ours(query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        calls.append(query.shape[1])
        asked = {name: named[name] for name in ("g", "beta", "initial_state", "output_final_state", "cu_seqlens")}
        assert named["use_qk_l2norm_in_kernel"]
        return kw.gated_delta_rule(query, key, value, **asked, use_qk_l2norm_in_kernel=True, kernel="avx2")

    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        monkeypatch.setattr(modeling, name, ours)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-4)
        assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0), tokens)
    assert set(calls) == {21, 1}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_takes_our_gradients(compiled: bool) -> None:
    args = _made(70, raw=True)
    leaves = {name: value.clone().requires_grad_() for name, value in args.items() if isinstance(value, Tensor)}

    def step(kernel: str, **given: Any) -> Tensor:
        output, state = kw.gated_delta_rule(**args | given, kernel=kernel)
        assert state is not None
        return output.square().sum() + state.square().sum()

    run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
    want = torch.autograd.grad(step("reference", **leaves), list(leaves.values()))
    for got, right in zip(
        torch.autograd.grad(run("avx2_backward", **leaves), list(leaves.values())), want, strict=True
    ):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_only_the_gradients_that_are_wanted_are_made() -> None:
    args = _made(20) | {"output_final_state": False}
    args["k"] = args["k"].clone().requires_grad_()
    (ours,) = torch.autograd.grad(kw.gated_delta_rule(**args, kernel="avx2_backward")[0].sum(), args["k"])
    (right,) = torch.autograd.grad(kw.gated_delta_rule(**args, kernel="reference")[0].sum(), args["k"])
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)
