"""Tiny models of transformers, tokens for them, and how close float32 answers must be."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kernelworks.nn.swap import swap

DECODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "pad_token_id": 0,
}


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**DECODER))


def qwen3() -> nn.Module:
    return Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=16, tie_word_embeddings=True))


def qwen3_sliding() -> nn.Module:
    sliding = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}
    return Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=16, **sliding))


def phi3() -> nn.Module:
    return Phi3ForCausalLM(Phi3Config(**DECODER))


def bert() -> nn.Module:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertModel(BertConfig(**sizes, vocab_size=300))


MODELS = [llama, qwen3, qwen3_sliding, phi3, bert]
DECODERS = [llama, qwen3, qwen3_sliding, phi3]


def ids(rows: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(1, 300, (rows, length), generator=torch.Generator().manual_seed(1))


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """float32 through two layers of width 64: a few hundred roundings of numbers near one."""
    assert not a.isnan().any()
    assert (a - b).abs().max() <= 500 * 2.0**-24 * max(1.0, float(b.abs().max()))


def trains_as_before(model: nn.Module) -> None:
    """A step's loss and gradients are those of the model as it was."""
    want = model(ids(), labels=ids()).loss
    want.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    with swap(model, verbose=False):
        loss = model(ids(), labels=ids()).loss
        loss.backward()
    close(loss.detach(), want.detach())
    for name, p in model.named_parameters():
        close(p.grad, gradients[name])
