"""Greedy decoding on a GPU with a Llama-shaped model of 1.2 billion weights: bfloat16, batch 1 or 32, a prefix of 512.

    python examples/gpu_decode.py
    kernelworks diagnose examples/gpu_decode.py:decode_1 --fix
    kernelworks diagnose examples/gpu_decode.py:decode_32 --fix

Random weights cost the same time as trained ones and need no download; the text they write means nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is fetched

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

PREFIX, TOKENS, VOCABULARY = 512, 16, 128256


@functools.cache
def model() -> LlamaForCausalLM:
    """The model, built once: 16 layers, 1.24 billion weights, 2.5 GB."""
    if not torch.cuda.is_available():
        sys.exit(
            "this example needs a CUDA GPU, and torch.cuda.is_available() is False here; on the CPU try qwen3_decode.py"
        )
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # never a float32 copy of the weights
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)


@functools.cache
def prefix(sequences: int) -> tuple[DynamicCache, torch.Tensor]:
    """The keys and values of 512 tokens, computed once, and the tokens that follow them."""
    device = model().device
    ids = torch.randint(0, VOCABULARY, (sequences, PREFIX), generator=torch.Generator().manual_seed(2)).to(device)
    with torch.inference_mode():
        out = model()(ids, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1:].argmax(-1)


@torch.inference_mode()
def decode(sequences: int, tokens: int = TOKENS) -> torch.Tensor:
    """Greedy decoding of ``tokens`` tokens after the prefix. Returns them, [sequences, tokens]."""
    past, token = prefix(sequences)
    if past.get_seq_length() > PREFIX:
        past.crop(PREFIX - past.get_seq_length())  # what an earlier call decoded
    chosen = []
    for _ in range(tokens):
        out = model()(token, past_key_values=past, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        chosen.append(token)
    return torch.cat(chosen, 1)


def decode_1() -> torch.Tensor:
    """One sequence."""
    return decode(1)


def decode_32() -> torch.Tensor:
    """32 sequences."""
    return decode(32)


def main() -> None:
    for sequences in (1, 32):
        decode(sequences)  # the first call builds the model and reads the prefix
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = decode(sequences).tolist()
        elapsed = time.perf_counter() - start
        print(f"batch {sequences}: {TOKENS} tokens after {PREFIX}, {elapsed / TOKENS * 1e3:.2f} ms a token")
        print("tokens:", *tokens[0])


if __name__ == "__main__":
    main()
