"""swap on a small Gemma 2, whose scores are capped, and a small gpt-oss, which has sinks: transformers runs them on
``eager`` alone."""

from __future__ import annotations

import copy
import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoders import DECODER, close, ids, trains_as_before
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from kernelworks.dispatch.op import OPS
from kernelworks.nn.attention import configurations
from kernelworks.nn.swap import swap

WORDS = list[tuple[Any, ...]]


def gemma2(**changed: Any) -> nn.Module:
    """Every second layer looks back on 6 tokens; scores reach past the cap."""
    options = {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0}
    options |= {"attn_implementation": "eager"}  # which older ones of transformers have to be asked for
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**DECODER, **(options | changed))).eval()
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            parameter.data *= 10
    return model


def gpt_oss() -> nn.Module:
    """The same of layers; sinks about as large as scores."""
    options = {"head_dim": 16, "sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**DECODER, **options)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> WORDS:
    """(causal, window, whether there is a mask, softcap) of each call of the op."""
    OPS["attention"].entry.ensure_native()  # which the first call would do
    found, original = [], OPS["attention"].call

    def recorded(*args: Any) -> Any:
        found.append((args[3], args[4], args[6] is not None, args[8]))
        return original(*args)

    monkeypatch.setattr(OPS["attention"], "call", recorded)
    return found


@torch.no_grad()
def test_same_answers_by_our_op_and_undo_to_the_bit(said: WORDS) -> None:
    model = gemma2()
    assert model.config._attn_implementation == "eager"
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :5] = 0
    before, padded = model(ids()).logits, model(ids(), attention_mask=mask).logits
    far = gemma2(attn_logit_softcapping=1e6)(ids()).logits
    assert (before - far).abs().max() > 1e-2, "the cap matters here"
    with swap(model, verbose=False) as swapped:
        assert sum(r.kind == "attention" for r in swapped.replaced) == 2
        assert copy.deepcopy(model.config)._attn_implementation == "eager"
        close(model(ids()).logits, before)
        assert set(said) == {("top_left", None, False, 3.0), ("bottom_right", 6, False, 3.0)}
        said.clear()
        close(model(ids(), attention_mask=mask).logits, padded)  # what sees no key too: eager's own
        assert not said
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(ids()).logits, before)
    assert torch.equal(model(ids(), attention_mask=mask).logits, padded)


@torch.no_grad()
def test_sinks_are_our_ops(said: WORDS) -> None:
    model = gpt_oss()
    assert model.config._attn_implementation == "eager"
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :5] = 0
    before, padded = model(ids()).logits, model(ids(), attention_mask=mask).logits
    with swap(model, verbose=False) as swapped:
        assert sum(r.kind == "attention" for r in swapped.replaced) == 2
        close(model(ids()).logits, before)
        assert set(said) == {("top_left", None, False, None), ("bottom_right", 6, False, None)}
        close(model(ids(), attention_mask=mask).logits[mask.bool()], padded[mask.bool()])
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(ids()).logits, before)


@pytest.mark.parametrize("make", [gemma2, gpt_oss])
@torch.no_grad()
def test_generate(make: Callable[[], nn.Module]) -> None:
    model = make()
    options = {"max_new_tokens": 12, "do_sample": False}
    want = model.generate(ids(2, 6), **options)
    with swap(model, verbose=False):
        assert torch.equal(model.generate(ids(2, 6), **options), want)


@pytest.mark.parametrize("make", [gemma2, gpt_oss])
def test_a_training_step(make: Callable[[], nn.Module]) -> None:
    trains_as_before(make().train())


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_weights_that_are_asked_for_are_the_models_own(padded: bool, said: WORDS) -> None:
    """By its eager function, for which the mask is made to add."""
    model = gemma2()
    given: dict[str, Any] = {"output_attentions": True}
    if padded:
        given["attention_mask"] = torch.ones(2, 16, dtype=torch.long)
        given["attention_mask"][0, :5] = 0
    want = model(ids(), **given)
    with swap(model, verbose=False):
        found = model(ids(), **given)
        assert not said
    rows = slice(5 if padded else 0, None)
    assert len(found.attentions) == 2
    for ours, theirs in zip(found.attentions, want.attentions, strict=True):
        torch.testing.assert_close(ours[:, :, rows], theirs[:, :, rows])
    close(found.logits[:, rows], want.logits[:, rows])


def test_dropout_is_the_models_own(said: WORDS) -> None:
    model = gemma2(attention_dropout=0.5).train()
    torch.manual_seed(1)
    want = model(ids()).logits
    with swap(model, verbose=False):
        torch.manual_seed(1)
        close(model(ids()).logits.detach(), want.detach())
    assert not said


def test_a_cap_that_sdpa_ignores_is_not_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.0 to 5.17 run Gemma 2 on sdpa, which there has no cap: the answers stay the program's."""
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    for cap, said in ((3.0, "'sdpa' ignores the cap of its scores"), (None, "")):
        model = gemma2(attn_implementation="sdpa", attn_logit_softcapping=cap)
        reasons = {reason for _, reason in configurations(model)}
        assert all(said in reason for reason in reasons) if said else reasons == {""}
        with swap(model, verbose=False) as swapped:
            assert any(r.kind == "attention" for r in swapped.replaced) is not bool(said)
            assert (model.config._attn_implementation == "sdpa") is bool(said)


def test_eager_without_a_cap_stays() -> None:
    model = gemma2(attn_logit_softcapping=None)
    assert model.config._attn_implementation == "eager"
    with swap(model, verbose=False) as swapped:
        assert model.config._attn_implementation == "eager"
        assert not any("attention" in r.ops for r in swapped.replaced)


@torch.no_grad()
def test_torch_compile() -> None:
    torch._dynamo.reset()
    model = gemma2()
    before = model(ids(), use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with swap(model, verbose=False):
        close(compiled(ids(), use_cache=False).logits, before)
