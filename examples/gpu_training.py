"""One training step of a Llama-shaped model of 1.2 billion weights on a GPU: bfloat16, 8 sequences of 2048 tokens.

    python examples/gpu_training.py
    kernelworks diagnose examples/gpu_training.py:step --fix

Random weights cost the same time as trained ones and need no download; the loss means nothing. Needs a GPU with about
60 GB of memory.
"""

from __future__ import annotations

import functools
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is fetched

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SEQUENCES, TOKENS, VOCABULARY = 8, 2048, 128256


@functools.cache
def model() -> LlamaForCausalLM:
    """The model, built once: 16 layers, 1.24 billion weights, 2.5 GB."""
    if not torch.cuda.is_available():
        sys.exit("this example needs a CUDA GPU, and torch.cuda.is_available() is False here; on the CPU try minilm.py")
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
        max_position_embeddings=TOKENS,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # never a float32 copy of the weights
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(default)


@functools.cache
def optimizer() -> torch.optim.Optimizer:
    """AdamW as torch makes it by default."""
    return torch.optim.AdamW(model().parameters(), lr=1e-5)


@functools.cache
def batch() -> torch.Tensor:
    """Token ids [8, 2048], the labels too."""
    return torch.randint(0, VOCABULARY, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(1)).cuda()


def step() -> torch.Tensor:
    """Forward, backward and optimiser. Returns the loss, still on the GPU."""
    step_of, ids = optimizer(), batch()
    loss = model()(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    step_of.step()
    step_of.zero_grad(set_to_none=True)
    return loss.detach()


def main() -> None:
    step()  # the first call builds the model and the optimiser's state
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    loss = step().item()
    elapsed = time.perf_counter() - start
    memory = torch.cuda.max_memory_allocated() / 1e9
    print(f"{SEQUENCES} x {TOKENS} tokens in {elapsed * 1e3:.0f} ms, loss {loss:.3f}, at most {memory:.1f} GB")


if __name__ == "__main__":
    main()
