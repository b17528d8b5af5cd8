"""swap in decoding: caches that grow in place, steps that write where the step before did, threads."""

from __future__ import annotations

import copy
import os
from concurrent.futures import ThreadPoolExecutor

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from decoders import DECODERS, close, ids, llama, qwen3
from torch import nn
from transformers import DynamicCache, StaticCache

from kernelworks.nn.swap import swap


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def decode(model: nn.Module, past: DynamicCache, tokens: int = 72) -> torch.Tensor:
    token, logits = torch.tensor([[7]]), []
    for _ in range(tokens):
        out = model(token, past_key_values=past, use_cache=True)
        logits.append(out.logits[:, -1])
        token = logits[-1].argmax(-1, keepdim=True)
    return torch.cat(logits)


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_decoding_with_a_growing_cache(make, mode) -> None:
    model = make().eval()
    with mode():
        past = model(ids(1, 8), use_cache=True).past_key_values
        same = copy.deepcopy(past)
        want = decode(model, past)
        with swap(model, verbose=False):
            got = decode(model, same)
        close(got, want)
        assert same.get_seq_length() == past.get_seq_length() == 80
        for a, b in zip(same.layers, past.layers, strict=True):
            assert a.keys.shape == b.keys.shape
            close(a.keys, b.keys)
            close(a.values, b.values)


@torch.inference_mode()
def test_caches_stay_independent() -> None:
    """Copies, cropped and reordered caches that share storage with another never write into it."""
    model = qwen3().eval()
    with swap(model, verbose=False):
        past = model(ids(1, 8), use_cache=True).past_key_values
        decode(model, past, 3)
        fork = copy.copy(past)
        fork.layers = [copy.copy(layer) for layer in past.layers]
        snapshot = [layer.keys.clone() for layer in past.layers]
        a = decode(model, past, 5)
        b = decode(model, fork, 5)
        assert torch.equal(a, b)
        past.crop(-5)
        for layer, keys in zip(past.layers, snapshot, strict=True):
            assert torch.equal(layer.keys, keys)
        held = [layer.keys for layer in fork.layers]
        kept = [k.clone() for k in held]
        assert torch.equal(decode(model, past, 5), a)
        past.reorder_cache(torch.tensor([0]))
        decode(model, past, 2)
        decode(model, fork, 2)
        assert all(torch.equal(k, c) for k, c in zip(held, kept, strict=True))


def test_a_cache_from_inference_mode_is_not_written_outside_it() -> None:
    model = qwen3().eval()
    with swap(model, verbose=False):
        with torch.inference_mode():
            past = model(ids(1, 8), use_cache=True).past_key_values
            decode(model, past, 2)
        with torch.no_grad():
            decode(model, past, 2)
    assert past.get_seq_length() == 12


class Keeping(DynamicCache):
    """A cache that keeps what it is given, as it is."""

    def __init__(self, config) -> None:
        super().__init__(config=config)
        self.given: list[torch.Tensor] = []

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        self.given += [key_states, value_states]
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


@pytest.mark.parametrize("make", [llama, qwen3])
@torch.inference_mode()
def test_what_a_cache_keeps_is_not_written_again(make) -> None:
    """Steps of one token write their intermediate results where the step before did; a cache may have kept those."""
    model = make().eval()
    with swap(model, verbose=False):
        decode(model, model(ids(1, 8), use_cache=True).past_key_values, 4)
        past = Keeping(model.config)
        want = decode(model, DynamicCache(config=model.config), 6)
        assert torch.equal(decode(model, past, 6), want)
    for i in range(4):
        kept = torch.cat(past.given[i::4], 2)
        layer = past.layers[i // 2]
        assert torch.equal(kept, (layer.keys, layer.values)[i % 2])


def test_threads_decode_at_once() -> None:
    model = qwen3().eval()

    def run(seed: int) -> torch.Tensor:
        with torch.inference_mode():
            prompt = torch.randint(1, 300, (1, 8), generator=torch.Generator().manual_seed(seed))
            return decode(model, model(prompt, use_cache=True).past_key_values, 40)

    with swap(model, verbose=False), ThreadPoolExecutor(4) as pool:
        want = [run(seed) for seed in range(8)]
        for a, b in zip(pool.map(run, range(8)), want, strict=True):
            assert torch.equal(a, b)


@torch.no_grad()
def test_prefill_in_two_parts_and_a_static_cache() -> None:
    model = qwen3().eval()
    whole = model(ids(1, 16))[0]
    with swap(model, verbose=False):
        out = model(ids(1, 16)[:, :10], use_cache=True)
        close(out.logits, whole[:, :10])
        close(model(ids(1, 16)[:, 10:], past_key_values=out.past_key_values).logits, whole[:, 10:])
        static = StaticCache(config=model.config, max_cache_len=32)
        out = model(ids(1, 16), past_key_values=static, use_cache=True)
        close(out.logits, whole)
