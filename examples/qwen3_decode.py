"""Greedy decoding with a model of the shape of Qwen3-0.6B: bfloat16, seeded random weights, a prefix of 512 tokens.

    python examples/qwen3_decode.py
    kernelworks diagnose examples/qwen3_decode.py:decode --fix

Random weights cost the same time as trained ones and need no download; the text they write means nothing.
"""

from __future__ import annotations

import functools
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is fetched

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

PREFIX, TOKENS = 512, 8


@functools.cache
def model() -> Qwen3ForCausalLM:
    """The model, built once: 28 layers, 596 million weights, 1.19 GB."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # never a float32 copy of the weights
    try:
        return Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)


@functools.cache
def prefix() -> tuple[DynamicCache, torch.Tensor]:
    """The keys and values of the 512 tokens, computed once, and the token that follows them."""
    ids = torch.randint(0, 150_000, (1, PREFIX), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        out = model()(ids, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1:].argmax(-1)


@torch.inference_mode()
def decode(tokens: int = TOKENS) -> torch.Tensor:
    """Greedy decoding of ``tokens`` tokens after the prefix. Returns their logits, float32 [tokens, vocabulary]."""
    past, token = prefix()
    if past.get_seq_length() > PREFIX:
        past.crop(PREFIX - past.get_seq_length())  # what an earlier call decoded
    logits = []
    for _ in range(tokens):
        out = model()(token, past_key_values=past, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        logits.append(out.logits[:, -1].float())
    return torch.cat(logits)


def main() -> None:
    decode(2)  # the first call builds the model and reads the prefix
    start = time.perf_counter()
    logits = decode()
    elapsed = time.perf_counter() - start
    print(
        f"{TOKENS} tokens after {PREFIX}: {elapsed / TOKENS * 1e3:.1f} ms a token on {torch.get_num_threads()} threads"
    )
    print("tokens:", *logits.argmax(-1).tolist())


if __name__ == "__main__":
    main()
