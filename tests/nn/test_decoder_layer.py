"""A decoder layer in one piece keeps calls bound to what it met first: what comes later may lie otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from eligible import KERNELS, only
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from kernelworks.nn.swap import swap

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=50, num_hidden_layers=2, max_position_embeddings=64, **SIZES)
    made: nn.Module = LlamaForCausalLM(config).eval()
    return made


def as_original(model: nn.Module, program: Callable[[], list[Any]]) -> None:
    with torch.no_grad():
        want = program()
        with only(KERNELS[-1]), swap(model, verbose=False):
            got = program()
    for have, true in zip(got, want, strict=True):
        if isinstance(true, type):
            assert have is true
        else:
            torch.testing.assert_close(have, true, rtol=1e-4, atol=1e-5, equal_nan=True)


def steps(model: Any, cache: Any) -> list[Tensor]:
    prompt, token = torch.arange(12).view(2, 6), torch.ones(2, 1, dtype=torch.long)
    return [model(t, past_key_values=cache).logits for t in (prompt, token, token, token)]


def apart(x: Tensor) -> Tensor:
    return torch.stack((x, x), -1).flatten(-2)[..., ::2]


LIES = {
    "transposed": lambda p: p.t().contiguous().t() if p.dim() == 2 else p,
    "apart": apart,
    "negative": lambda p: torch._neg_view(-p),
    "again": lambda p: p.clone(),
}


@pytest.mark.parametrize("lie", LIES)
def test_parameters_are_given_other_memory(lie: str, model: nn.Module) -> None:
    held = [(p, p.data) for p in model.parameters()]

    def program() -> list[Any]:
        found = steps(model, DynamicCache())
        for p, data in held:
            p.data = LIES[lie](data)
        found += steps(model, DynamicCache())
        for p, data in held:
            p.data = data
        return found

    as_original(model, program)


class Told(DynamicCache):
    """A cache that hands back something else than it was given."""

    def __init__(self, tell: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.tell = tell

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **named: Any) -> Any:
        found = super().update(key, value, layer, *args, **named)
        return tuple(map(self.tell, found))


CACHES = {
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "negative": lambda x: torch._neg_view(-x),
    "half": lambda x: x.half(),
    "one sequence": lambda x: x[:1],
    "a window": lambda x: x[..., -4:, :],
}


@pytest.mark.parametrize("kind", CACHES)
def test_another_kind_of_cache_after_a_plain_one(kind: str, model: nn.Module) -> None:
    def program() -> list[Any]:
        found: list[Any] = list(steps(model, DynamicCache()))
        try:
            return [*found, *steps(model, Told(CACHES[kind]))]
        except RuntimeError:
            return [*found, RuntimeError]

    as_original(model, program)


def test_tables_and_hidden_states_of_other_kinds(model: Any) -> None:
    layer = model.model.layers[0]
    half = torch.randn(2, 2, 6, 4)
    cos, sin = torch.cat((half, half), -1)
    tables = [
        (cos, sin), (cos, sin.transpose(1, 2).contiguous().transpose(1, 2)), (cos[:1], sin), (cos[:1], sin[:1]),
        (cos, torch._neg_view(-sin)), (cos.double(), sin.double()), (cos.bfloat16(), sin.bfloat16()),
        (cos[..., :4], sin[..., :4]), (cos[:, :1], sin[:, :1]), (cos[0], sin[0]),
    ]  # fmt: skip
    x = torch.randn(2, 6, 32)
    inputs = [x, apart(x), x.transpose(0, 1).contiguous().transpose(0, 1), torch._neg_view(-x), x[:0], x[0], x.double()]

    def run(hidden: Tensor, *table: Tensor) -> Any:
        try:
            return layer(hidden, position_embeddings=table)
        except RuntimeError:
            return RuntimeError

    as_original(model, lambda: [run(x, *t) for t in tables] + [run(h, cos, sin) for h in inputs])


def test_angles_that_are_learned(model: Any) -> None:
    layer, x = model.model.layers[0], torch.randn(2, 6, 32)
    half = torch.randn(2, 1, 6, 4)

    def program() -> list[Any]:
        table = [t.clone().requires_grad_() for t in torch.cat((half, half), -1)]
        with torch.enable_grad():
            return list(torch.autograd.grad(layer(x, position_embeddings=table).square().sum(), table))

    as_original(model, program)
