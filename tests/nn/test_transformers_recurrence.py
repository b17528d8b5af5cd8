"""transformers' recurrent layers by ours beside their own: prompts, steps on a cache, gradients, what stays theirs."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from eligible import KERNELS, only
from torch import Tensor
from transformers.models.mamba import modeling_mamba
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

import kernelworks as kw
from kernelworks.nn import transformers_recurrence
from kernelworks.nn.originals import unwrap_decorators
from kernelworks.nn.transformers_recurrence import known_recurrence

DELTA_OPS = ("causal_conv1d", "causal_conv1d_update", "gated_delta_rule", "softplus")
SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3Next": {
        "num_hidden_layers": 4, "intermediate_size": 24, "moe_intermediate_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 16,
    },
    "Mamba": {"state_size": 4},
    "Mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    "Lfm2": {
        "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
        "layer_types": ["conv", "full_attention", "conv"],
    },
}  # fmt: skip


def model(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | CONFIGS[name])
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def ids(steps: int) -> Tensor:
    return torch.randint(0, SIZES["vocab_size"], (2, steps), generator=torch.Generator().manual_seed(steps))


def steps_of(run: Any, prompt: Tensor, more: Tensor) -> list[Tensor]:
    """The logits of a prompt, and of token after token on its cache."""
    cache, found = None, []
    name = "cache_params" if "Mamba" in type(run).__name__ else "past_key_values"
    with torch.no_grad():
        for tokens in (prompt, *more.split(1, 1)):
            made = run(tokens, use_cache=True, **{name: cache})
            cache = made[name]
            found.append(made.logits)
    return found


@pytest.mark.parametrize("kernel", ["torch", "avx2_chunked", *KERNELS])
def test_a_prompt_and_steps_on_its_cache_are_the_models(kernel: str) -> None:
    if not KERNELS:
        kernel = "torch"
    plain = model("Qwen3Next")
    swapped = copy.deepcopy(plain)
    with only(kernel) as taken, kw.swap(swapped, verbose=False, ops=DELTA_OPS) as swap:
        if kernel in KERNELS:
            mine = [r for r in swap.replaced if r.type == "Qwen3NextGatedDeltaNet"]
            assert len(mine) == 3 and all(r.ops == DELTA_OPS for r in mine)
        for steps in (1, 7, 70):
            want = steps_of(plain, ids(steps), ids(3))
            for got, logits in zip(steps_of(swapped, ids(steps), ids(3)), want, strict=True):
                torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    if kernel in KERNELS:
        assert {(op, "forward") for op in DELTA_OPS} <= taken
    assert not any("forward" in m.__dict__ for m in swapped.modules())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_tokens_are_generated(name: str) -> None:
    plain = model(name)
    swapped = copy.deepcopy(plain)
    want = plain.generate(ids(9), max_new_tokens=8, do_sample=False)
    with only(KERNELS[-1] if KERNELS else "torch") as taken, kw.swap(swapped, verbose=False):
        assert torch.equal(swapped.generate(ids(9), max_new_tokens=8, do_sample=False), want)
    if KERNELS:
        assert ("causal_conv1d", "forward") in taken and ("causal_conv1d_update", "forward") in taken


def test_a_training_step_has_the_models_gradients() -> None:
    plain = model("Qwen3Next").train()
    swapped = copy.deepcopy(plain)
    with only(KERNELS[-1] if KERNELS else "torch"), kw.swap(swapped, verbose=False, ops=DELTA_OPS):
        for run in (plain, swapped):
            run(ids(11), labels=ids(11)).loss.backward()
    for (of, a), b in zip(plain.named_parameters(), swapped.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-6, msg=of)


@pytest.mark.parametrize("train", [False, True])
def test_a_prompt_of_mamba2_is_the_models(train: bool) -> None:
    plain = model("Mamba2")
    swapped, kernel = copy.deepcopy(plain), next((k for k in ("avx512", "avx2") if k in KERNELS), "torch")
    named = "torch" if kernel == "torch" else f"{kernel}_chunked"
    with only(named) as taken, kw.swap(swapped, verbose=False), torch.set_grad_enabled(train):
        got, want = (run(ids(37), labels=ids(37)) for run in (swapped, plain))
        torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
        if train:
            got.loss.backward()
            want.loss.backward()
            for (of, a), b in zip(plain.named_parameters(), swapped.named_parameters(), strict=True):
                if a.grad is not None:
                    torch.testing.assert_close(b[1].grad, a.grad, rtol=1e-3, atol=1e-6, msg=of)
    assert named == "torch" or ("ssd", "forward") in taken


def test_a_function_that_somebody_sets_later_is_theirs() -> None:
    swapped = model("Qwen3Next")
    with only(KERNELS[-1] if KERNELS else "torch"), kw.swap(swapped, verbose=False, ops=DELTA_OPS), torch.no_grad():
        with mock.patch.object(
            qwen, "torch_chunk_gated_delta_rule", side_effect=qwen.torch_chunk_gated_delta_rule
        ) as set_:
            swapped(ids(5))
        assert set_.call_count == 3


def test_packed_sequences_are_transformers_to_refuse() -> None:
    x, gate = torch.randn(1, 6, 2, 4), torch.rand(1, 6, 2)
    found = known_recurrence(qwen.torch_chunk_gated_delta_rule)
    assert found is not None and found[0] == "gated_delta_rule"
    with pytest.raises(ValueError, match="packed sequences"):
        found[1](x, x, x, -gate, gate, cu_seqlens=torch.tensor([0, 6]))
    convolution = known_recurrence(modeling_mamba.causal_conv1d_fn)
    assert convolution is not None
    with pytest.raises(ValueError, match="packed sequences"):
        convolution[1](torch.randn(1, 4, 6), torch.randn(4, 3), seq_idx=torch.zeros(1, 6))


def test_other_dtypes_and_sizes_are_transformers() -> None:
    """A key longer than the op takes, and float64."""
    found = known_recurrence(qwen.torch_recurrent_gated_delta_rule)
    assert found is not None
    for dim, dtype in ((300, torch.float32), (4, torch.float64)):
        x, gate = torch.randn(1, 1, 2, dim, dtype=dtype), torch.rand(1, 1, 2, dtype=dtype)
        args, named = (x, x, x, -gate, gate), {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        want = qwen.torch_recurrent_gated_delta_rule(*args, **named)
        for got, theirs in zip(found[1](*args, **named), want, strict=True):
            assert torch.equal(got, theirs)


def test_what_has_the_name_and_other_values_is_left() -> None:
    def torch_chunk_gated_delta_rule(query: Tensor, *rest: Any, **named: Any) -> Any:
        return query, None

    assert known_recurrence(torch_chunk_gated_delta_rule) is None  # of no file of transformers'

    def other(*args: Any, **named: Any) -> Any:
        made, state = own(*args, **named)
        return made * 1.01, state

    own = unwrap_decorators(qwen.torch_chunk_gated_delta_rule, "transformers")
    assert transformers_recurrence._is_delta_rule(own) and not transformers_recurrence._is_delta_rule(other)
