"""validate: outputs, greedy runs and a training step against float64."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from kernelworks.nn.validate import output_tensor, relative_error, validate


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen3Config(**sizes, num_key_value_heads=2, head_dim=16, vocab_size=300)
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


def test_a_decoder(model) -> None:
    ids = torch.randint(1, 300, (1, 12), generator=torch.Generator().manual_seed(1))
    gradients = [p.grad for p in model.parameters()]

    def loss(output):
        return nn.functional.cross_entropy(output.logits.flatten(0, 1).float(), ids.flatten())

    found = validate(model, ids, greedy_tokens=40, loss=loss)
    assert found.no_worse and found.undo_exact
    assert 0 < found.error_after < 0.02
    assert found.greedy is not None and found.greedy.tokens == 40
    assert found.greedy.right_after >= found.greedy.right_before - 4
    assert found.training is not None
    assert found.training.gradient_error_after <= 1.5 * found.training.gradient_error_before
    assert model.training and [p.grad for p in model.parameters()] == gradients
    assert found.replaced and found.left
    assert not any("forward" in vars(m) for m in model.modules())


def test_keyword_inputs(model) -> None:
    ids = torch.randint(1, 300, (2, 12))
    found = validate(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert found.no_worse and found.greedy is None and found.training is None


def test_errors_see_nan() -> None:
    reference = torch.ones(4, dtype=torch.float64)
    assert relative_error(reference * (1 + 1e-6), reference) == pytest.approx(1e-6, rel=1e-3)
    assert relative_error(reference * float("nan"), reference) == float("inf")


def test_what_a_model_may_return() -> None:
    x = torch.ones(2)
    assert output_tensor(x) is x
    assert output_tensor((None, x)) is x
    assert output_tensor({"a": x}) is x
    with pytest.raises(TypeError, match="got int"):
        output_tensor(3)
