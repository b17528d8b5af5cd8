"""Mixtures of experts: ``moe_mlp`` beside a loop over tokens, and transformers' experts by ours beside their own."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers
from eligible import KERNELS, only
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, batched_mm_experts_forward

import kernelworks as kw
from kernelworks.nn import experts
from kernelworks.nn.experts import moe_mlp, sort_by_expert
from kernelworks.ops.routing.router_topk import router_topk

E, H, INNER = 5, 24, 18


def made(tokens: int, k: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(tokens)
    indices = torch.stack([torch.randperm(E)[:k] for _ in range(tokens)]) if tokens else torch.empty(0, k).long()
    return {
        "x": torch.randn(tokens, H).to(dtype), "weights": torch.rand(tokens, k).to(dtype), "indices": indices,
        "gate_up": (torch.randn(E, 2 * INNER, H) * 0.2).to(dtype), "down": (torch.randn(E, H, INNER) * 0.2).to(dtype),
    }  # fmt: skip


def by_token(x: Tensor, weights: Tensor, indices: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The definition, one choice of one token after the other, in float64."""
    rows = []
    for t in range(x.shape[0]):
        total = x.new_zeros(x.shape[1], dtype=torch.float64)
        for weight, e in zip(weights[t], indices[t].tolist(), strict=True):
            if 0 <= e < gate_up.shape[0]:
                gate, up = (gate_up[e].double() @ x[t].double()).chunk(2)
                total = total + weight.double() * (down[e].double() @ (F.silu(gate) * up))
        rows.append(total)
    return torch.stack(rows) if rows else x.new_zeros(x.shape, dtype=torch.float64)


@pytest.mark.parametrize("kernel", ["torch", *KERNELS])
def test_every_count_of_tokens_is_the_definition(kernel: str) -> None:
    with only(kernel):
        for tokens in (0, 1, 2, 3, 7, 8, 15, 16, 31, 33, 64, 127, 128):
            args = made(tokens, 2)
            torch.testing.assert_close(moe_mlp(**args).double(), by_token(**args), rtol=1e-4, atol=1e-5)


def test_a_token_has_one_expert_or_all_of_them() -> None:
    for k in (1, E):
        args = made(9, k)
        torch.testing.assert_close(moe_mlp(**args).double(), by_token(**args), rtol=1e-4, atol=1e-5)


def test_one_hot_expert_and_an_expert_named_twice() -> None:
    args = made(40, 2) | {"indices": torch.full((40, 2), 3)}
    torch.testing.assert_close(moe_mlp(**args).double(), by_token(**args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropped", [-1, E, E + 7, 2**31 - 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_what_is_of_no_expert_is_dropped(dropped: int, dtype: torch.dtype) -> None:
    args = made(11, 3)
    args["indices"] = args["indices"].to(dtype)
    args["indices"][2, 1] = args["indices"][7] = args["indices"][0, 0] = dropped
    for name in ("x", "weights", "gate_up", "down"):
        args[name].requires_grad_()
    torch.testing.assert_close(moe_mlp(**args).double(), by_token(**args), rtol=1e-4, atol=1e-5)
    moe_mlp(**args).sum().backward()
    assert not args["x"].grad[7].any() and not args["weights"].grad[7].any()
    assert all(args[name].grad.isfinite().all() for name in ("x", "weights", "gate_up", "down"))


def test_gradients_of_all_are_the_definitions() -> None:
    args = made(13, 3)
    leaves = [args[name].requires_grad_() for name in ("x", "weights", "gate_up", "down")]
    flow = torch.randn(13, H)
    got = torch.autograd.grad(moe_mlp(**args), leaves, flow)
    want = torch.autograd.grad(by_token(**args), leaves, flow.double())
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


def test_the_same_bits_for_any_number_of_threads() -> None:
    args = made(200, 3, torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(moe_mlp(**args))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("activation", list(experts.ACTIVATIONS))
def test_an_activation_is_torchs(activation: str) -> None:
    args = made(1, 1)
    args["weights"] = torch.ones(1, 1)
    e = int(args["indices"])
    gate, up = (args["gate_up"][e] @ args["x"][0]).chunk(2)
    acted = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu, "gelu_tanh": lambda g: F.gelu(g, approximate="tanh")}
    want = args["down"][e] @ (acted[activation](gate) * up)
    torch.testing.assert_close(moe_mlp(**args, activation=activation)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"x": torch.ones(2, 2, H)}, ValueError, "x must have shape"),
        ({"weights": torch.ones(3, 2)}, ValueError, "weights must have shape"),
        ({"indices": torch.ones(4, 2)}, TypeError, "indices must have dtype"),
        ({"indices": torch.ones(4, 1).long()}, ValueError, "indices must have weights' shape"),
        ({"gate_up": torch.ones(E, 7, H)}, ValueError, "gate_up must have shape"),
        ({"down": torch.ones(E, H, 7)}, ValueError, "down must have shape"),
        ({"down": None}, TypeError, "down must be a torch.Tensor"),
        ({"activation": "swish"}, ValueError, "activation must be one of"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        kw.moe_mlp(**(made(4, 2) | changed))


def test_rows_are_sorted_by_expert_in_the_tokens_order() -> None:
    indices = torch.tensor([[2, 0], [0, 9], [-1, 2], [2, 1]])
    order, places, offsets = sort_by_expert(indices, 4)
    assert order.tolist() == [1, 2, 7, 0, 5, 6, 3, 4] and offsets.tolist() == [2, 3, 6, 6]
    assert places.shape == (4, 2) and places.flatten().tolist() == [3, 0, 1, -1, -1, 4, 5, 2]


# ---------------------------------------------------------------- the choice


def test_the_choice_is_that_of_mixtral_qwen_and_deepseek() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 12)
    probabilities = logits.softmax(-1)
    want, at = probabilities.topk(3)
    weights, indices = router_topk(logits, 3)
    torch.testing.assert_close(weights, want)
    assert torch.equal(indices, at)
    torch.testing.assert_close(router_topk(logits, 3, norm_topk_prob=True)[0], want / want.sum(-1, keepdim=True))
    scores, at = logits.sigmoid().topk(3)
    weights, indices = router_topk(logits, 3, scoring="sigmoid", norm_topk_prob=True, scale=2.5)
    torch.testing.assert_close(weights, 2.5 * scores / scores.sum(-1, keepdim=True))
    assert torch.equal(indices, at)


def test_scores_that_round_to_the_same_number_are_told_apart() -> None:
    logits = torch.tensor([[30.0, 40.0, 35.0, -200.0]])
    weights, indices = router_topk(logits, 2, scoring="sigmoid")
    assert indices.tolist() == [[1, 2]] and weights.tolist() == [[1.0, 1.0]]
    weights, indices = router_topk(logits.half(), 4)
    assert indices.tolist() == [[1, 2, 0, 3]] and weights.dtype is torch.float16


def test_ties_name_no_expert_twice_and_all_may_be_chosen() -> None:
    weights, indices = router_topk(torch.zeros(6, 7), 7)
    assert all(row.sort().values.tolist() == list(range(7)) for row in indices)
    torch.testing.assert_close(weights, torch.full((6, 7), 1 / 7))
    assert router_topk(torch.zeros(0, 7), 2)[0].shape == (0, 2)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_gradients_of_the_choice(scoring: str, norm: bool) -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, 9, requires_grad=True)
    weights, indices = router_topk(logits, 3, scoring=scoring, norm_topk_prob=norm)
    scores = (logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()).gather(1, indices)
    want = scores / scores.sum(-1, keepdim=True) if norm else scores
    flow = torch.randn(5, 3)
    torch.testing.assert_close(
        torch.autograd.grad(weights, logits, flow), torch.autograd.grad(want, logits, flow), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("args", "kind", "text"),
    [
        ((torch.ones(2, 3), 4), ValueError, r"k must be in \[1, 3\]"),
        ((torch.ones(2, 3), 0), ValueError, r"k must be in \[1, 3\]"),
        ((torch.ones(3), 1), ValueError, "logits must have shape"),
        ((torch.ones(2, 3).long(), 1), TypeError, "logits must have dtype"),
    ],
)
def test_a_choice_that_cannot_be_is_named(args: tuple[Any, ...], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        router_topk(*args)
    with pytest.raises(ValueError, match="scoring must be"):
        router_topk(torch.ones(2, 3), 1, scoring="softplus")


# ---------------------------------------------------------------- transformers

SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip


def model(name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    found = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.dim() == 3:
                parameter.normal_(std=0.2)
    return found


NAMES = ("Mixtral", "Qwen3Moe", "GptOss")


@pytest.mark.parametrize("name", NAMES)
def test_a_swap_answers_as_the_model_does(name: str) -> None:
    plain = model(name)
    swapped, ids = copy.deepcopy(plain), torch.randint(0, 40, (2, 11))
    swap = kw.swap(swapped, verbose=False, ops=["grouped_linear"])
    mine = [r for r in swap.replaced if r.kind == experts.KIND]
    assert len(mine) == 2 and all(r.ops == ("grouped_linear",) for r in mine)
    plain.set_experts_implementation("eager")
    want, got = plain(ids, labels=ids), swapped(ids, labels=ids)
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
    want.loss.backward(), got.loss.backward()
    for (of, a), b in zip(plain.named_parameters(), swapped.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-6, msg=of)
    swap.undo()
    assert not any("forward" in m.__dict__ for m in swapped.modules())


def test_experts_of_a_transformers_that_knows_no_norm_behind_them_answer_as_before() -> None:
    swapped, ids = model("Qwen3Moe"), torch.randint(0, 40, (2, 11))
    with kw.swap(swapped, verbose=False, ops=["grouped_linear"]):
        want = swapped(ids).logits
        for module in swapped.modules():
            vars(module).pop("has_post_expert_norm", None)
        assert torch.equal(swapped(ids).logits, want)


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_knows_our_name(name: str) -> None:
    mine, ids = model(name), torch.randint(0, 40, (1, 7))
    mine.set_experts_implementation("eager")
    want = mine(ids).logits
    experts.register()
    mine.set_experts_implementation(experts.IMPLEMENTATION)
    asked = []
    with kw_asked(asked):
        got = mine(ids).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert asked.count("grouped_linear") == 4  # two products of two layers


def kw_asked(asked: list[str]) -> Any:
    """Notes the names of the ops that are called."""
    found = experts.grouped_linear

    def noted(*args: Any, **named: Any) -> Any:
        asked.append("grouped_linear")
        return found(*args, **named)

    return mock.patch.object(experts, "grouped_linear", noted)


def test_another_implementation_that_is_named_later_is_theirs() -> None:
    swapped, ids = model("Mixtral"), torch.randint(0, 40, (1, 7))
    with kw.swap(swapped, verbose=False, ops=["grouped_linear"]):
        want, asked = swapped(ids).logits, []
        ALL_EXPERTS_FUNCTIONS.register("somebody's", batched_mm_experts_forward)
        swapped.set_experts_implementation("somebody's")
        with kw_asked(asked):
            torch.testing.assert_close(swapped(ids).logits, want, rtol=1e-4, atol=1e-5)
        assert not asked


def test_another_dtype_than_the_weights_is_transformers() -> None:
    swapped, ids = model("Mixtral"), torch.randint(0, 40, (1, 7))
    swapped.set_experts_implementation("eager")
    with torch.autocast("cpu", torch.bfloat16):
        want = swapped(ids).logits
        with kw.swap(swapped, verbose=False, ops=["grouped_linear"]):
            assert torch.equal(swapped(ids).logits, want)
