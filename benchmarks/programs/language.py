"""Language models of transformers with random weights: an encoder, a decoder's prefill and its decoding, translation
with beams, a mixture of experts, a state-space model."""

from __future__ import annotations

import functools
from typing import Any

import torch
from place import DEVICE, sized
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

PAIRS = {
    "encoder": "classifier",
    "prefill": "gemma",
    "decode": "qwen",
    "translate": "t5",
    "moe": "experts",
    "state_space": "mamba",
}


def _prompt(vocabulary: int, rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, (rows, length), device=DEVICE)


@functools.cache
def classifier() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """BERT with a head for two labels, and a batch of sentences of many lengths, padded."""
    torch.manual_seed(0)
    small = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
    with torch.device(DEVICE):
        model = BertForSequenceClassification(BertConfig(**sized(cpu=small, gpu={}))).eval()
    if DEVICE == "cuda":
        model = model.half()
    rows, length = sized(cpu=(8, 128), gpu=(32, 512))
    lengths = torch.randint(length // 4, length + 1, (rows, 1), device=DEVICE)
    lengths[0] = length
    mask = (torch.arange(length, device=DEVICE) < lengths).long()
    ids = _prompt(model.config.vocab_size, rows, length) * mask
    return model, {"input_ids": ids, "attention_mask": mask}


@torch.inference_mode()
def encoder() -> torch.Tensor:
    """The probabilities of the labels."""
    model, batch = classifier()
    return model(**batch).logits.softmax(-1)


@functools.cache
def gemma() -> tuple[torch.nn.Module, torch.Tensor]:
    """Gemma 2: capped logits, every other layer with a window, heads of 256 on a GPU."""
    torch.manual_seed(0)
    small = {
        "vocab_size": 16000, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "sliding_window": 128,
        "query_pre_attn_scalar": 128,
    }  # fmt: skip
    with torch.device(DEVICE):
        model = Gemma2ForCausalLM(Gemma2Config(**sized(cpu=small, gpu={})))
    model = model.to(sized(cpu=torch.float32, gpu=torch.bfloat16)).eval()
    return model, _prompt(model.config.vocab_size, 1, sized(cpu=512, gpu=2048))


@torch.no_grad()
def prefill() -> torch.Tensor:
    """A prompt is read; the token that follows it."""
    model, prompt = gemma()
    out = model(input_ids=prompt, use_cache=True)
    return out.logits[:, -1].argmax(-1)


@functools.cache
def qwen() -> tuple[Any, torch.Tensor]:
    """Qwen3, in the 0.6B's sizes on a GPU."""
    torch.manual_seed(0)
    small = {
        "vocab_size": 16000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    }  # fmt: skip
    large = {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    }  # fmt: skip
    with torch.device(DEVICE):
        model = Qwen3ForCausalLM(Qwen3Config(**sized(cpu=small, gpu=large)))
    model = model.to(torch.bfloat16).eval()
    return model, _prompt(model.config.vocab_size, *sized(cpu=(2, 64), gpu=(8, 256)))


def decode() -> torch.Tensor:
    """Greedy generation."""
    model, prompt = qwen()
    more = sized(cpu=16, gpu=32)
    return model.generate(prompt, max_new_tokens=more, min_new_tokens=more, do_sample=False)


@functools.cache
def t5() -> tuple[Any, dict[str, torch.Tensor]]:
    """T5: small on a CPU, base on a GPU."""
    torch.manual_seed(0)
    small = {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 4, "vocab_size": 16128}
    base = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    with torch.device(DEVICE):
        model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **sized(cpu=small, gpu=base)))
    model = model.to(sized(cpu=torch.float32, gpu=torch.bfloat16)).eval()
    rows, length = sized(cpu=(2, 64), gpu=(8, 256))
    mask = torch.ones(rows, length, dtype=torch.long, device=DEVICE)
    mask[1:, -length // 4 :] = 0
    return model, {"input_ids": _prompt(model.config.vocab_size, rows, length), "attention_mask": mask}


def translate() -> torch.Tensor:
    """Generation with four beams."""
    model, source = t5()
    more = sized(cpu=12, gpu=32)
    return model.generate(**source, num_beams=4, max_new_tokens=more, min_new_tokens=more)


@functools.cache
def experts() -> tuple[torch.nn.Module, torch.Tensor]:
    """Qwen3-MoE: each token goes to a few of many experts."""
    torch.manual_seed(0)
    small = {
        "vocab_size": 16000, "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 512,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16,
        "num_experts_per_tok": 4,
    }  # fmt: skip
    large = {"num_hidden_layers": 6, "head_dim": 128, "vocab_size": 32000}
    with torch.device(DEVICE):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sized(cpu=small, gpu=large)))
    model = model.to(sized(cpu=torch.float32, gpu=torch.bfloat16)).eval()
    return model, _prompt(model.config.vocab_size, 1, sized(cpu=512, gpu=2048))


@torch.inference_mode()
def moe() -> torch.Tensor:
    """A prompt is read; the logits of the token that follows it."""
    model, prompt = experts()
    return model(prompt, logits_to_keep=1).logits


@functools.cache
def mamba() -> tuple[torch.nn.Module, torch.Tensor]:
    """Mamba-2 as transformers writes it in torch, which is what runs where the package mamba-ssm is not installed."""
    torch.manual_seed(0)
    small = {
        "vocab_size": 16000, "hidden_size": 256, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 64,
        "state_size": 64, "n_groups": 1, "chunk_size": 64,
    }  # fmt: skip
    large = {"hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24, "head_dim": 64, "n_groups": 1}
    with torch.device(DEVICE):
        model = Mamba2ForCausalLM(Mamba2Config(**sized(cpu=small, gpu=large)))
    model = model.to(sized(cpu=torch.float32, gpu=torch.bfloat16)).eval()
    return model, _prompt(model.config.vocab_size, *sized(cpu=(1, 1024), gpu=(4, 1024)))


@torch.inference_mode()
def state_space() -> torch.Tensor:
    """A prompt is read; the logits of the token that follows it."""
    model, prompt = mamba()
    return model(prompt).logits[:, -1]
