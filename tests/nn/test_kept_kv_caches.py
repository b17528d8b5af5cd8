"""What a program keeps of a cache of keys and values stays as it was: torch's cache is copied at every token, and
nobody can tell that a swapped model's grows in place."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from eligible import KERNELS, only
from torch import Tensor
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
)

import kernelworks as kw
from kernelworks.nn import attention

Keep = Callable[[Any], Any]


def made() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


def step(model: Any, cache: Any, rows: int = 1) -> Tensor:
    return model(torch.full((rows, 1), 7), past_key_values=cache).logits  # type: ignore[no-any-return]


def prompted(model: Any, rows: int = 1) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    model(torch.arange(1, 9).repeat(rows, 1), past_key_values=cache)
    return cache


# what a program may keep of a layer: a tensor, a view of one, or what shares its memory in another library
KEPT: dict[str, Keep] = {
    "keys": lambda layer: layer.keys,
    "values": lambda layer: layer.values,
    "a slice of the keys": lambda layer: layer.keys[:, :, 2:4],
    "numpy": lambda layer: torch.from_numpy(layer.values.numpy()),
    "dlpack": lambda layer: torch.from_dlpack(layer.keys),
    "its memory": lambda layer: torch.empty(0).set_(layer.keys.untyped_storage())[:3],
    "detached": lambda layer: layer.values.detach(),
    "of a copy of the layer": lambda layer: copy.copy(layer).keys,
}
WRITTEN: dict[str, Callable[[Any, Tensor], Any]] = {
    "the current keys": lambda cache, kept: cache.layers[0].keys.mul_(2),
    "the current values": lambda cache, kept: cache.layers[0].values.zero_(),
    "what was kept": lambda cache, kept: kept.neg_(),
    "all, by reset": lambda cache, kept: cache.reset(),
    "nothing": lambda cache, kept: None,
}


def kept_and_written(model: Any, keep: Keep, write: Callable[[Any, Tensor], Any]) -> list[Tensor]:
    cache = prompted(model)
    found = [step(model, cache), step(model, cache)]
    kept = keep(cache.layers[0])
    found += [step(model, cache), step(model, cache)]
    write(cache, kept)
    found += [kept.clone(), step(model, cache), kept.clone()]
    return [*found, *(t.clone() for layer in cache.layers for t in (layer.keys, layer.values))]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("kept", KEPT)
@torch.no_grad()
def test_what_is_kept_of_a_cache_is_as_with_torchs(kept: str, written: str) -> None:
    model = made()
    want = kept_and_written(model, KEPT[kept], WRITTEN[written])
    with only(KERNELS[-1]), kw.swap(model, verbose=False):
        got = kept_and_written(model, KEPT[kept], WRITTEN[written])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def on_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


CHANGED: dict[str, Callable[[Any], Any]] = {
    "crop": lambda cache: cache.crop(-2),
    "reorder": lambda cache: cache.reorder_cache(torch.tensor([1, 0])),
    "repeat": lambda cache: (cache.batch_repeat_interleave(2), cache)[1],
    "select": lambda cache: cache.batch_select_indices(torch.tensor([1])),
    "the first of two": lambda cache: [
        setattr(layer, name, getattr(layer, name)[:1]) for layer in cache.layers for name in ("keys", "values")
    ],
    "without the last": lambda cache: [
        setattr(layer, name, getattr(layer, name)[:, :, :-1]) for layer in cache.layers for name in ("keys", "values")
    ],
    "other keys alone": lambda cache: setattr(cache.layers[1], "keys", cache.layers[1].keys * 0.5),
    "deepcopy": copy.deepcopy,
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
    "file": on_file,
}


@pytest.mark.parametrize("changed", CHANGED)
@torch.no_grad()
def test_a_cache_that_was_changed_goes_on_as_torchs(changed: str) -> None:
    model = made()

    def run() -> list[Tensor]:
        cache = prompted(model, 2)
        step(model, cache, 2)
        before = CHANGED[changed](cache)
        other = before if isinstance(before, DynamicCache) else cache
        found = []
        for each in dict.fromkeys((other, cache)):  # a copy first, and then what it was copied from
            rows = each.layers[0].keys.shape[0]
            found += [step(model, each, rows), step(model, each, rows)]
            found += [t.clone() for layer in each.layers for t in (layer.keys, layer.values)]
        return found

    want = run()
    with only(KERNELS[-1]), kw.swap(model, verbose=False):
        got = run()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@torch.no_grad()
def test_tokens_that_do_not_fit_leave_the_cache_as_it_was() -> None:
    model = made()
    with kw.swap(model, verbose=False):
        cache = prompted(model)
        step(model, cache)
        layer, kept = cache.layers[0], cache.layers[0].keys.clone()
        for shape in ((1, 2, 1, 9), (2, 2, 1, 8), (1, 3, 1, 8)):
            with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
                attention.growing_view(cache).update(torch.zeros(shape), torch.zeros(shape), 0)
            assert torch.equal(layer.keys, kept)


@torch.no_grad()
def test_a_file_of_a_cache_names_nothing_of_ours() -> None:
    model = made()
    with kw.swap(model, verbose=False):
        cache = prompted(model)
        step(model, cache)
        assert b"kernelworks.nn" not in pickle.dumps(cache)


@torch.no_grad()
def test_a_cache_of_which_nobody_keeps_anything_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, capacities = made(), []
    make = attention._with_capacity
    monkeypatch.setattr(attention, "_with_capacity", lambda *args: capacities.append(args[2]) or make(*args))
    with kw.swap(model, verbose=False):
        model.generate(torch.arange(1, 9)[None], max_new_tokens=60, do_sample=False)
        assert len(capacities) == 2  # one for each layer
        for _ in range(2):  # called by module, as where a hook watches the layers
            handle = model.model.layers[0].register_forward_hook(lambda *args: None)
            model.generate(torch.arange(1, 9)[None], max_new_tokens=60, do_sample=False)
            handle.remove()
    assert len(capacities) == 6


@torch.no_grad()
def test_beams_static_caches_and_cross_attention_generate_as_before() -> None:
    model, prompt = made(), torch.arange(1, 9)[None]
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 50}
    crossed = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()

    def run() -> list[Tensor]:
        static = StaticCache(config=model.config, max_cache_len=24)
        steps = [model(prompt, past_key_values=static).logits, step(model, static), step(model, static)]
        long = {"max_new_tokens": 9, "min_new_tokens": 9}
        beams = model.generate(prompt, num_beams=3, do_sample=False, **long)
        return [*steps, beams, crossed.generate(prompt, num_beams=2, do_sample=False, **long)]

    want = run()
    with kw.swap(model, verbose=False), kw.swap(crossed, verbose=False):
        got = run()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
