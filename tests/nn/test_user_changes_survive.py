"""What a user put there is kept: before the swap, while it holds, and after it."""

from __future__ import annotations

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import gelu
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from kernelworks.nn.swap import swap

HERE = sys.modules[__name__]


def bent(x: torch.Tensor) -> torch.Tensor:
    return gelu(x) + 1


class Act(nn.Module):
    def act(self, x):
        return F.gelu(x)

    def forward(self, x):
        return self.act(x) * 2


class Imported(nn.Module):
    def forward(self, x):
        return gelu(x) * 2


class Dotted(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x) * 2


class Helped(nn.Module):
    def forward(self, x):
        return bent(x) * 2


X = torch.linspace(-2, 2, 9)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(9))

    @staticmethod
    def bend(x):
        return F.gelu(x)

    def act(self, x):
        return F.gelu(x)

    def forward(self, x):
        return self.act(x) + self.bend(x) + F.gelu(x * self.scale)


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


@pytest.mark.parametrize(
    ("name", "function"),
    [("forward", lambda self, x: x * 3), ("act", lambda self, x: x * 3), ("bend", staticmethod(lambda x: x * 3))],
)
def test_what_is_set_on_the_class_that_a_parametrization_makes_is_what_runs(name, function) -> None:
    model = nn.Sequential(Scaled())
    with swap(model, verbose=False) as swapped:
        assert swapped.replaced
        nn.utils.parametrize.register_parametrization(model[0], "scale", Doubled())
        setattr(type(model[0]), name, function)
        got = model(X)
    torch.testing.assert_close(got, model(X))
    assert (got - nn.Sequential(Scaled())(X)).abs().max() > 0.5


class Louder(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 3


@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.down_proj"])
def test_a_part_of_a_layer_is_what_its_class_has_become(part) -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=1, **SIZES)).eval()
    ids = torch.arange(6)[None]
    with torch.no_grad(), swap(model, verbose=False) as swapped:
        assert any(r.kind == "decoder layer in one piece" for r in swapped.replaced)
        before = model(ids).logits
        model.model.layers[0].get_submodule(part).__class__ = Louder
        got = model(ids).logits
        swapped.undo()
        want = model(ids).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert (want - before).abs().max() > 1e-3


@pytest.mark.parametrize("when", ["before", "while swapped"])
def test_a_method_of_the_instance_is_what_runs(when) -> None:
    module = Act()

    def mine(x):
        return x * 0 + 1

    if when == "before":
        module.act = mine
    with swap(module, verbose=False):
        if when != "before":
            module.act = mine
        assert torch.equal(module(X), torch.full_like(X, 2))
        assert module.act is mine
    assert module.act is mine
    assert torch.equal(module(X), torch.full_like(X, 2))


# what is put where, for each name under which a forward may find the function
PATCHES = [
    (Act, F, "gelu"),
    (Dotted, F, "gelu"),
    (Dotted, torch.nn, "functional"),
    (Act, HERE, "F"),
    (Imported, HERE, "gelu"),
    (Helped, HERE, "gelu"),
    (Helped, HERE, "bent"),
    (Act, Act, "act"),
    (Act, Act, "forward"),
    (Imported, Imported, "forward"),
    (nn.GELU, nn.GELU, "forward"),
    (nn.GELU, F, "gelu"),
    (lambda: nn.Linear(9, 9), F, "linear"),
    (lambda: nn.Linear(9, 9), nn.Linear, "forward"),
    (lambda: nn.LayerNorm(9), F, "layer_norm"),
    (lambda: nn.RMSNorm(9), F, "rms_norm"),
    (lambda: nn.Softmax(-1), F, "softmax"),
    (lambda: nn.LayerNorm(9), nn.LayerNorm, "forward"),
]


class Everything:
    """Stands in for a module whose every function is mine."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: torch.full((9,), 7.0)


def mine(*args, **kwargs):
    return torch.full((9,), 7.0)


@pytest.mark.parametrize("when", ["before", "while swapped"])
@pytest.mark.parametrize(("make", "place", "name"), PATCHES)
def test_a_patched_function_is_called(make, place, name, when, monkeypatch) -> None:
    module = make()
    plain = module(X)
    patch = Everything() if name in ("F", "functional") else mine
    if when == "before":
        monkeypatch.setattr(place, name, patch)
        want = module(X)
        with swap(module, verbose=False):
            assert torch.equal(module(X), want)
            monkeypatch.undo()
            torch.testing.assert_close(module(X), plain)
    else:
        with swap(module, verbose=False):
            torch.testing.assert_close(module(X), plain)
            monkeypatch.setattr(place, name, patch)
            got = module(X)
        assert torch.equal(got, module(X))
        assert not torch.equal(got, plain)
    monkeypatch.undo()
    assert torch.equal(module(X), plain)


def test_a_forward_set_while_swapped_stays() -> None:
    module = nn.Sequential(nn.Linear(9, 9), nn.GELU())
    with swap(module, verbose=False):
        module[0].forward = lambda x: x + 1
        torch.testing.assert_close(module(X), gelu(X + 1))
    assert torch.equal(module(X), gelu(X + 1))


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=50)).eval()


@pytest.mark.parametrize("name", ["eager", "sdpa", "kernelworks"])
@torch.no_grad()
def test_an_attention_asked_for_while_swapped_stays(name) -> None:
    model, ids = llama(), torch.arange(6)[None]
    want = model(ids).logits
    with swap(model, verbose=False):
        model.set_attn_implementation(name)
        assert model.config._attn_implementation == name
        torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-5)
    # ours is nobody's to ask for when nothing is swapped
    assert model.config._attn_implementation == ("sdpa" if name == "kernelworks" else name)
    torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(  # while swapped, the configuration names ours, and nobody asks the registry for sdpa
    ("when", "where"), [("before", "torch"), ("while swapped", "torch"), ("before", "the registry")]
)
@torch.no_grad()
def test_another_attention_in_place_of_sdpa_is_called(when, where, monkeypatch) -> None:
    model, ids = llama(), torch.arange(6)[None]
    original = F.scaled_dot_product_attention

    def doubled(module, query, key, value, mask, **kwargs):
        return 2 * original(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)).transpose(1, 2), None

    def patch():
        if where == "torch":
            monkeypatch.setattr(
                F, "scaled_dot_product_attention", lambda *args, **kwargs: 2 * original(*args, **kwargs)
            )
        else:
            monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", doubled)

    if when == "before":
        patch()
    with swap(model, verbose=False):
        if when != "before":
            patch()
        got = model(ids).logits
    torch.testing.assert_close(got, model(ids).logits, rtol=1e-4, atol=1e-5)
