"""The next token of a small language model in bfloat16: twelve layers of Qwen3's kind after 256 tokens.

    python examples/small_decode.py
    kernelworks diagnose examples/small_decode.py:decode --fix

Random weights cost the same time as trained ones and need no download; the text they write means nothing.
"""

from __future__ import annotations

import functools
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is fetched

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

PREFIX, VOCABULARY = 256, 16384


@functools.cache
def model() -> Qwen3ForCausalLM:
    """The model, built once: 175 million weights, 350 MB."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


@functools.cache
def prefix() -> tuple[DynamicCache, torch.Tensor]:
    """The keys and values of the first tokens, computed once, and the token that follows them."""
    ids = torch.randint(0, VOCABULARY, (1, PREFIX), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        out = model()(ids, use_cache=True, logits_to_keep=1)
        return out.past_key_values, out.logits[:, -1:].argmax(-1)


@torch.inference_mode()
def decode() -> torch.Tensor:
    """Decodes one token after the prefix. Returns the logits of the one that follows, float32 [1, vocabulary]."""
    past, token = prefix()
    logits = model()(token, past_key_values=past, use_cache=True).logits
    past.crop(PREFIX - past.get_seq_length())  # forgets the token, so that each call does the same
    return logits[:, -1].float()


def main() -> None:
    decode()  # the first call builds the model and reads the prefix
    start = time.perf_counter()
    logits = decode()
    elapsed = time.perf_counter() - start
    print(f"a token after {PREFIX} in {elapsed * 1e3:.1f} ms on {torch.get_num_threads()} threads")
    print("the next token:", logits.argmax(-1).item())


if __name__ == "__main__":
    main()
