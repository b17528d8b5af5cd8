"""swap on transformers' models: same answers, undo to the bit, what is left and why, hooks, weights, caches."""

from __future__ import annotations

import copy
import functools
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from decoders import MODELS, bert, close, ids, llama, phi3, qwen3, qwen3_sliding, trains_as_before
from torch import nn
from torch._dynamo.utils import common_constant_types

from kernelworks.dispatch.op import OPS
from kernelworks.nn import attention, decoder
from kernelworks.nn.swap import swap


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("make", MODELS)
@torch.no_grad()
def test_same_answers_and_undo_to_the_bit(make) -> None:
    model = make().eval()
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :5] = 0
    before, padded = model(ids())[0], model(ids(), attention_mask=mask)[0]
    attributes = {path: dict(vars(m)) for path, m in model.named_modules()}
    swapped = swap(model, verbose=False)
    close(model(ids())[0], before)
    close(model(ids(), attention_mask=mask)[0][mask.bool()], padded[mask.bool()])
    swapped.undo()
    assert torch.equal(model(ids())[0], before)
    assert torch.equal(model(ids(), attention_mask=mask)[0], padded)
    for path, m in model.named_modules():
        assert vars(m).keys() == attributes[path].keys()
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("make", MODELS)
def test_what_is_replaced_and_what_is_left(make, capsys) -> None:
    model = make().eval()
    swapped = swap(model)
    printed = capsys.readouterr().out
    kinds = {r.kind for r in swapped.replaced}
    assert {"linear", "attention"} <= kinds
    assert ("layer norm" if make is bert else "rms norm") in kinds
    assert ("gelu" if make is bert else "gated MLP") in kinds
    if make is not bert:
        rope = {r.ops for r in swapped.replaced if r.kind == "attention"}
        assert rope == {("attention", "rope")}
    assert all(item.reason for item in swapped.left)
    assert any(item.type == "Embedding" and "memory" in item.reason for item in swapped.left)
    computing = {p for p, m in model.named_modules() if not list(m.children())}
    listed = {r.path for r in swapped.replaced} | {item.path for item in swapped.left}
    assert {p for p in computing - listed if not p.endswith("act_fn") and not p.endswith("activation_fn")} == set()
    assert "replaced" in printed and "left as they are" in printed and printed.strip() == str(swapped)
    swapped.undo()


def test_quiet(capsys) -> None:
    with swap(bert(), verbose=False) as swapped:
        assert swapped.active
    assert not swapped.active
    assert capsys.readouterr().out == ""


def test_weights_stay_the_same_objects() -> None:
    model = qwen3()
    parameters = {n: id(p) for n, p in model.named_parameters()}
    state = list(model.state_dict())
    with swap(model, verbose=False):
        assert {n: id(p) for n, p in model.named_parameters()} == parameters
        assert list(model.state_dict()) == state
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_second_swap_says_so() -> None:
    model = qwen3()
    swapped = swap(model, verbose=False)
    with pytest.raises(RuntimeError, match="swapped already"):
        swap(model, verbose=False)
    with pytest.raises(RuntimeError, match="swapped already"):
        swap(nn.Sequential(model), verbose=False)
    swapped.undo()
    swapped.undo()
    swap(model, verbose=False).undo()


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got str"):
        swap("qwen3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ops must be names of ops, got 'normal'"):
        swap(bert(), ops=["gelu", "normal"])


@pytest.mark.parametrize("asked", [["gelu"], ["layer_norm", "linear"], ["attention"], []])
def test_some_ops_alone(asked) -> None:
    model = bert().eval()
    inputs = ids()
    with torch.no_grad():
        expected = model(inputs).last_hidden_state
        with swap(model, verbose=False, ops=asked) as swapped:
            assert {op for r in swapped.replaced for op in r.ops} == set(asked)
            assert any(left.reason == "its ops are not among those that were asked for" for left in swapped.left)
            close(model(inputs).last_hidden_state, expected)
        assert torch.equal(model(inputs).last_hidden_state, expected)


@torch.no_grad()
def test_two_models_at_once() -> None:
    a, b = qwen3().eval(), llama().eval()
    want = b(ids())[0]
    first, second = swap(a, verbose=False), swap(b, verbose=False)
    first.undo()
    close(b(ids())[0], want)
    second.undo()
    assert torch.equal(b(ids())[0], want)


@torch.no_grad()
def test_hooks_keep_working() -> None:
    model = qwen3().eval()
    seen = []
    watched = ("q_proj", "act_fn", "mlp", "input_layernorm", "self_attn")
    for path, module in model.named_modules():
        if path.startswith("model.layers.0.") and path.endswith(watched):
            module.register_forward_hook(lambda m, args, out, path=path: seen.append(path))
    want = model(ids())[0]
    calls, seen[:] = list(seen), []
    with swap(model, verbose=False):
        close(model(ids())[0], want)
    assert seen == calls and len(seen) == len(watched)


@torch.no_grad()
def test_hidden_states_can_still_be_asked_for() -> None:
    model = qwen3().eval()
    want = model(ids(), output_hidden_states=True).hidden_states
    with swap(model, verbose=False):
        got = model(ids(), output_hidden_states=True).hidden_states
    assert len(got) == len(want) == 3
    for a, b in zip(got, want, strict=True):
        close(a, b)


@torch.no_grad()
def test_other_dtypes_after_the_swap() -> None:
    model = qwen3().eval()
    with swap(model, verbose=False):
        model.double()
        in_float64 = model(ids())[0]
        assert in_float64.dtype is torch.float64
        model.float()
        close(model(ids())[0], in_float64.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(ids())[0].dtype is torch.bfloat16


def test_a_deep_copy_of_a_swapped_model_is_its_own() -> None:
    model = qwen3().eval()
    with torch.no_grad(), swap(model, verbose=False):
        other = copy.deepcopy(model)
        want = model(ids())[0]
        for p in other.parameters():
            p.zero_()
        assert float(other(ids())[0].abs().max()) == 0.0
        assert torch.equal(model(ids())[0], want)


def test_an_instance_with_its_own_forward_is_left() -> None:
    model = bert().eval()
    model.pooler.dense.forward = lambda x: x
    with swap(model, verbose=False) as swapped:
        reasons = {item.path: item.reason for item in swapped.left}
    assert "somebody else" in reasons["pooler.dense"]
    assert model.pooler.dense.forward(3) == 3


def test_eager_attention_is_left() -> None:
    model = llama()
    model.set_attn_implementation("eager")
    with swap(model, verbose=False) as swapped:
        assert model.config._attn_implementation == "eager"
        assert {r.ops for r in swapped.replaced if "self_attn" in r.path and r.type == "LlamaAttention"} == {("rope",)}
    assert model.config._attn_implementation == "eager"


@torch.inference_mode()
def test_masks_become_words_where_words_say_it(monkeypatch) -> None:
    said = []
    OPS["attention"].entry.ensure_native()  # which the first call would do
    original = OPS["attention"].call

    def recorded(*args):
        said.append((args[3], args[4], args[6] is not None))
        return original(*args)

    monkeypatch.setattr(OPS["attention"], "call", recorded)
    monkeypatch.setattr(decoder.BoundCalls, "decoding_kernel", lambda *args: None)  # it calls the op's kernel directly

    def words(run) -> set:
        said.clear()
        run()
        return set(said)

    model, sliding, encoder = qwen3().eval(), qwen3_sliding().eval(), bert().eval()
    for m in (model, sliding, encoder):
        swap(m, verbose=False)
    mask = torch.ones(2, 16, dtype=torch.long)
    assert words(lambda: model(ids())) == {("top_left", None, False)}
    assert words(lambda: model(ids(), attention_mask=mask)) == {("top_left", None, False)}
    past = model(ids()[:, :10]).past_key_values
    assert words(lambda: model(ids()[:, 10:], past_key_values=past)) == {("bottom_right", None, False)}
    assert words(lambda: model(ids()[:, :1], past_key_values=past)) == {(None, None, False)}
    assert words(lambda: sliding(ids())) == {("bottom_right", 6, False)}
    assert words(lambda: encoder(ids())) == {(None, None, False)}
    mask[0, :5] = 0
    assert words(lambda: model(ids(), attention_mask=mask)) == {(None, None, True)}
    assert words(lambda: sliding(ids(), attention_mask=mask)) == {(None, None, True)}
    assert words(lambda: encoder(ids(), attention_mask=mask)) == {(None, None, True)}


@torch.no_grad()
def test_generate() -> None:
    model = llama().eval()
    options = {"max_new_tokens": 12, "do_sample": False}
    want = model.generate(ids(2, 6), **options)
    with swap(model, verbose=False):
        assert torch.equal(model.generate(ids(2, 6), **options), want)
        beams = model.generate(ids(2, 6), num_beams=3, **options)
    assert torch.equal(model.generate(ids(2, 6), num_beams=3, **options), beams)


# ---------------------------------------------------------------- training and compiling


@pytest.mark.parametrize("make", [llama, qwen3, phi3])
def test_a_training_step(make) -> None:
    trains_as_before(make().train())


@pytest.mark.parametrize("make", [qwen3, bert])
@torch.no_grad()
def test_torch_compile(make) -> None:
    torch._dynamo.reset()
    model = make().eval()
    before = model(ids())[0]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    options = {} if make is bert else {"use_cache": False}
    with swap(model, verbose=False):
        name = model.config._attn_implementation
        assert name == "kernelworks" and type(name) in common_constant_types  # else torch 2.11 knows nothing of it
        close(compiled(ids(), **options)[0], before)
    assert torch.equal(model(ids())[0], before)
    close(compiled(ids(), **options)[0], before)


def test_no_mask_is_made_of_keys_that_all_are_seen(monkeypatch) -> None:
    """transformers 5.17 makes one where a graph is captured or compiled, which keeps torch from its quick kernels."""
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda *args, **kwargs: torch.ones(1, 1, 8, 8, dtype=torch.bool))
    made = functools.partial(attention.mask_function, 1, 8, 8, 0, 0, masking_utils.bidirectional_mask_function)
    assert made(None, allow_is_bidirectional_skip=True) is None
    assert made(None, 16, allow_is_bidirectional_skip=True) is None
    for given in (made(None), made(None, 8, allow_is_bidirectional_skip=True)):
        assert given is not None and given.all()
    assert made(torch.ones(1, 8, dtype=torch.bool), allow_is_bidirectional_skip=True) is not None


# ---------------------------------------------------------------- layers in one piece


@pytest.fixture
def pieces(monkeypatch) -> list[int]:
    """Counts the layers that run in one piece."""
    ran: list[int] = []
    original = decoder._in_one_piece
    monkeypatch.setattr(decoder, "_in_one_piece", lambda *a, **k: (ran.append(1), original(*a, **k))[1])
    return ran


@torch.no_grad()
def test_a_layer_runs_in_one_piece_until_something_watches(pieces) -> None:
    model = qwen3().eval()
    want = model(ids())[0]
    with swap(model, verbose=False) as swapped:
        assert [r.path for r in swapped.replaced if r.kind == "decoder layer in one piece"] == [
            "model.layers.0", "model.layers.1"
        ]  # fmt: skip

        def layers() -> int:
            pieces.clear()
            close(model(ids())[0].detach(), want)
            return len(pieces)

        assert layers() == 2
        hook = model.model.layers[0].mlp.up_proj.register_forward_hook(lambda m, args, out: None)
        assert layers() == 1
        hook.remove()
        assert layers() == 2
        everywhere = nn.modules.module.register_module_forward_hook(lambda m, args, out: None)
        assert layers() == 0
        everywhere.remove()
        part = model.model.layers[1].self_attn
        original = part.o_proj
        part.o_proj = nn.Sequential(original)
        assert layers() == 1
        part.o_proj = original
        assert layers() == 2
        installed = original.forward
        original.forward = lambda x: installed(x)
        assert layers() == 1
        original.forward = installed
        model.set_attn_implementation("sdpa")
        assert layers() == 0
        model.set_attn_implementation("kernelworks")
        assert layers() == 2
        with torch.enable_grad():
            assert layers() == 2
            hook = model.model.layers[1].mlp.register_full_backward_hook(lambda m, *args: None)
            assert layers() == 1
            hook.remove()
        other = copy.deepcopy(model)
        pieces.clear()
        other(ids())
        assert not pieces
        with swap(other, verbose=False):
            other.model.layers[0].mlp.up_proj.register_forward_hook(lambda m, args, out: None)
            assert layers() == 2
            pieces.clear()
            other(ids())
            assert len(pieces) == 1
    assert layers() == 0


@torch.no_grad()
def test_a_layer_of_mixed_dtypes_runs_its_own_forward(pieces) -> None:
    model = qwen3().to(torch.bfloat16).eval()
    model.model.layers[0].input_layernorm.float()
    model.model.layers[0].self_attn.q_proj.float()
    model.model.layers[0].self_attn.k_proj.float()
    model.model.layers[0].self_attn.v_proj.float()
    with swap(model, verbose=False):
        with pytest.raises(RuntimeError):
            model(ids())  # as without the swap: attention in float32 meets a bfloat16 projection
        assert not pieces
