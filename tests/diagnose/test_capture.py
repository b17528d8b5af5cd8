"""A model's calls behind captured graphs: steps that decode with a cache of fixed size, on a recorder that plays again
what it recorded."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from taped import Taped
from torch import Tensor, nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)

import kernelworks as kw
from kernelworks.diagnose.capture import CapturedModel
from kernelworks.nn import decoder
from kernelworks.nn.swap import swap_beside

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "vocab_size": 60, "pad_token_id": 0,
}  # fmt: skip
PROMPT, NEW = 5, 6


def qwen3(**more: Any) -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **more))


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def gemma() -> Any:
    return GemmaForCausalLM(GemmaConfig(**SIZES))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=60, n_positions=64))


def sliding() -> Any:
    return qwen3(use_sliding_window=True, sliding_window=8, max_window_layers=0)


@pytest.fixture(autouse=True)
def on_a_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    Taped.replays = 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # torch for CPUs has none


def cache_of(model: Any) -> StaticCache:
    """With room for the tokens and not one more."""
    return StaticCache(config=model.config, max_cache_len=PROMPT + NEW)


def decode(model: Any, cache: Any = None, rows: int = 2) -> Tensor:
    ids = torch.randint(1, 60, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    logits = []
    for _ in range(1 + NEW):
        made = model(input_ids=ids, past_key_values=cache, use_cache=True)
        assert cache is None or made.past_key_values is cache or not logits
        cache, ids = made.past_key_values, made.logits[:, -1:].argmax(-1)
        logits.append(made.logits[:, -1])
    return torch.stack(logits)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [qwen3, llama, gemma, gpt2])
def test_steps_with_a_cache_of_fixed_size_are_replayed(make: Callable[[], Any], mode: Callable[[], Any]) -> None:
    model = make().eval()
    with mode():
        want, plain = decode(model), cache_of(model)
        decode(model, plain)
        for around in (contextlib.nullcontext(), swap_beside(model, frozenset(), every=True)):
            with around, CapturedModel(model, Taped) as captured:
                first, second = cache_of(model), cache_of(model)
                for cache in (first, second, first):  # two at a time, and one that is emptied
                    if cache.get_seq_length():
                        cache.reset()
                    before = Taped.replays
                    close(decode(model, cache), want)
                    assert Taped.replays - before >= NEW - 1, captured.reason
                assert captured.graph_count == 2
                for layer, other in zip(first.layers, plain.layers, strict=True):
                    close(layer.keys, other.keys)
                    close(layer.values, other.values)
                    assert int(layer.cumulative_length) == PROMPT + NEW
                close(decode(model), want)  # a cache that grows


@torch.no_grad()
def test_a_graph_goes_with_its_cache_and_makes_room() -> None:
    model = llama().eval()
    want = decode(model)
    with CapturedModel(model, Taped) as captured:
        gone = []
        for _ in range(6):
            cache = cache_of(model)
            Taped.replays = 0
            close(decode(model, cache), want)
            assert Taped.replays >= NEW - 1
            gone.append(weakref.ref(cache))
            del cache
            gc.collect()
        assert not any(ref() is not None for ref in gone)
        assert captured.graph_count == 1
    assert not captured.active and captured.graph_count == 0


def test_generate_with_a_static_cache_is_served() -> None:
    model, ids = llama().eval(), torch.tensor([[3, 7, 4], [5, 9, 8]])
    greedy = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    want = model.generate(ids, **greedy)
    with swap_beside(model, frozenset(), every=True), CapturedModel(model, Taped) as captured:
        for _ in range(2):
            Taped.replays = 0
            got = model.generate(ids, cache_implementation="static", disable_compile=True, **greedy)
            assert torch.equal(got, want) and Taped.replays >= 6, captured.reason


@torch.no_grad()
def test_a_cache_that_counts_on_the_host_is_none_for_a_graph() -> None:
    model = sliding().eval()
    want = decode(model)
    with CapturedModel(model, Taped) as captured:
        close(decode(model, cache_of(model)), want)
        assert Taped.replays == 0 and "into what it is given (StaticCache)" in captured.reason


@torch.no_grad()
def test_a_cache_that_holds_other_tensors_by_now_is_served_by_the_model() -> None:
    model, ids = llama().eval(), torch.tensor([[3], [4]])
    cache, twin = cache_of(model), cache_of(model)
    with CapturedModel(model, Taped):
        for each in (cache, twin):
            for _ in range(3):
                made = model(input_ids=ids, past_key_values=each, use_cache=True)
        for layer in cache.layers:
            layer.keys = layer.keys.clone()
        Taped.replays = 0
        found = model(input_ids=ids, past_key_values=cache, use_cache=True)
        assert Taped.replays == 0
        made = model(input_ids=ids, past_key_values=twin, use_cache=True)
        assert Taped.replays == 1
        close(found.logits, made.logits)


class Writing(nn.Module):
    """Adds up what it is given, in an object of the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, sums: Any) -> Tensor:
        sums.total.add_(x.detach())
        return sums.total * self.weight


class Sums:
    def __init__(self) -> None:
        self.total = torch.zeros(3)


def test_what_a_capture_writes_is_put_back_and_gradients_are_made() -> None:
    module, sums = Writing(), Sums()
    with CapturedModel(module, Taped) as captured:
        for number in range(1, 5):
            module(torch.ones(3), sums).sum().backward()
            assert sums.total.tolist() == [number] * 3
        assert captured.graph_count == 1 and Taped.replays > 4, captured.reason
    assert module.weight.grad is not None and module.weight.grad.tolist() == [1.0 + 2 + 3 + 4] * 3


class _Recorded:
    """Stands in for streams: what is called beside what, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def fork(self) -> None:
        self.said.append("fork")

    @contextlib.contextmanager
    def stream_context(self, number: int) -> Any:
        self.said.append(f"beside {number}")
        yield

    def join(self) -> None:
        self.said.append("join")


@torch.no_grad()
def test_a_captured_token_stands_on_branches_and_keeps_no_memory_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, branches = qwen3().eval(), _Recorded()
    want, ids, cache = decode(model), torch.tensor([[3], [4]]), cache_of(model)
    with swap_beside(model, frozenset(), every=True):
        monkeypatch.setattr(decoder, "capturing", lambda device: True)
        monkeypatch.setattr(decoder, "branches", lambda device: branches)
        close(decode(model, cache), want)
        one = ["fork", "beside 0", "beside 1", "join", "fork", "beside 0", "beside 1", "join"]
        assert branches.said == one * NEW * 2
        bound = [b for layer in model.model.layers for b, _, _ in layer.__dict__["_kernelworks_parts"].bound.values()]
        assert not any(b.steady for b in bound)
        branches.said.clear()
        monkeypatch.setattr(decoder, "capturing", lambda device: False)
        cache.reset()
        close(decode(model, cache), want)
        model(input_ids=ids, use_cache=True)
        assert not branches.said


def test_what_can_be_captured_is_a_module_on_a_gpu_that_nobody_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int"):
        kw.capture(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model must have its parameters on a CUDA device, got cpu"):
        kw.capture(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="got none"):
        kw.capture(nn.ReLU())
    model = nn.Linear(2, 2)
    with CapturedModel(model, Taped) as captured:
        monkeypatch.setattr(nn.Module, "parameters", lambda self: iter([torch.empty(1, device="meta").to("meta")]))
        with pytest.raises(ValueError, match="got meta"):
            kw.capture(model)
        assert "0 call signatures captured" in str(captured)
