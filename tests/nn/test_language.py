"""A causal language model's loss from the hidden states: transformers' loss and gradients, without the logits."""

from __future__ import annotations

import copy
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import forked
import pytest
import torch
from decoders import DECODER, llama, qwen3
from torch import nn
from transformers import GemmaConfig, GemmaForCausalLM

from kernelworks.nn import language
from kernelworks.nn.compiled_loss import loss_with_gradients
from kernelworks.nn.swap import swap
from kernelworks.ops.reduction.linear_cross_entropy import linear_cross_entropy


def gemma() -> nn.Module:
    return GemmaForCausalLM(GemmaConfig(**DECODER, head_dim=16))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fused(monkeypatch) -> list[int]:
    """Counts the losses that were computed from hidden states, with the op's kernel for any device."""
    monkeypatch.setattr(language, "_taken", lambda *a: True)
    ran: list[int] = []
    original = language.linear_cross_entropy
    monkeypatch.setattr(language, "linear_cross_entropy", lambda *a, **k: (ran.append(1), original(*a, **k))[1])
    return ran


def batch(rows: int = 2, length: int = 16) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 300, (rows, length), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :5] = -100
    return {"input_ids": ids, "labels": labels}


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """float32 through two layers of width 64: a few hundred roundings of numbers near one."""
    assert not a.isnan().any()
    assert (a - b).abs().max() <= 500 * 2.0**-24 * max(1.0, float(b.abs().max()))


def step(model: nn.Module, **given) -> tuple[object, dict[str, torch.Tensor]]:
    model.zero_grad()
    output = model(**given)
    output.loss.backward()
    return output, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", [llama, qwen3, gemma])
@pytest.mark.parametrize(
    "extra", [{}, {"num_items_in_batch": 13}, {"num_items_in_batch": torch.tensor(40)}, {"ignore_index": 7}]
)
def test_loss_and_gradients_without_logits(make, extra, fused) -> None:
    model = make().train()
    given = batch() | extra
    if "ignore_index" in extra:
        given["labels"] = given["labels"].clamp_min(7)
    want, gradients = step(model, **given)
    with swap(model, verbose=False) as swapped:
        assert "language model's loss" in {r.kind for r in swapped.replaced}
        got, found = step(model, **given)
        assert got.logits is None and got.loss.dtype is torch.float32
        assert len(fused) == 1
    close(got.loss.detach(), want.loss.detach())
    assert gradients.keys() == found.keys()
    for name, gradient in gradients.items():
        close(found[name], gradient)
    assert step(model, **given)[0].logits is not None and len(fused) == 1


def test_left_to_torch_where_the_op_has_no_other_row() -> None:
    model, given = llama().train(), batch()
    with swap(model, verbose=False):
        assert model(**given).logits is not None


def test_labels_shifted_by_the_caller(fused) -> None:
    model, given = llama().train(), batch()
    shifted = torch.nn.functional.pad(given["labels"], (0, 1), value=-100)[..., 1:]
    want = model(**given).loss
    with swap(model, verbose=False):
        close(model(**given, shift_labels=shifted).loss.detach(), want.detach())
    assert len(fused) == 1


def test_nothing_to_learn_from(fused) -> None:
    model, given = llama().train(), batch()
    given["labels"][:] = -100
    with swap(model, verbose=False):
        assert model(**given).loss.isnan()
        output, gradients = step(model, **given, num_items_in_batch=4)
        assert output.loss == 0 and len(fused) == 2
        assert all(not g.any() for g in gradients.values())


def test_evaluation_and_plain_calls_keep_the_logits(fused) -> None:
    model, given = llama().eval(), batch()
    want = model(**given)
    with swap(model, verbose=False):
        got = model(**given)
        close(got.logits.detach(), want.logits.detach())
        close(got.loss.detach(), want.loss.detach())
        model.train()
        assert model(given["input_ids"]).logits.shape == (2, 16, 300)
        assert model(given["input_ids"], logits_to_keep=1).logits.shape == (2, 1, 300)
        assert model(**given, return_dict=False)[0].dim() == 0
    assert len(fused) == 1


def test_what_else_the_head_or_the_loss_may_be(fused) -> None:
    given = batch()

    def runs(change) -> bool:
        model = llama().train()
        with swap(model, verbose=False):
            change(model)
            before = len(fused)
            model(**given).loss.backward()
            return len(fused) > before

    assert runs(lambda m: None)
    assert runs(lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True))
    assert not runs(lambda m: m.lm_head.register_forward_hook(lambda *a: None))
    assert not runs(lambda m: setattr(m, "lm_head", nn.Sequential(m.lm_head)))
    assert not runs(lambda m: setattr(m, "loss_function", lambda logits, labels, **k: logits.sum()))
    assert not runs(lambda m: m.lm_head.__dict__.update(forward=lambda x: x @ m.lm_head.weight.T))


def test_a_copy_uses_its_own_head(fused) -> None:
    model, given = llama().train(), batch()
    with swap(model, verbose=False):
        other = copy.deepcopy(model)
        other.lm_head.weight.data.zero_()
        close(other(**given).loss.detach(), torch.tensor(300.0).log())
        assert not fused
        with swap(other, verbose=False):
            close(other(**given).loss.detach(), torch.tensor(300.0).log())
            assert len(fused) == 1


def test_autocast(fused) -> None:
    model, given = llama().train(), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want, gradients = step(model, **given)
        with swap(model, verbose=False):
            got, found = step(model, **given)
    assert len(fused) == 1 and got.logits is None
    assert abs(got.loss - want.loss) <= 2.0**-8 * want.loss
    for name, gradient in gradients.items():
        assert found[name].dtype is torch.float32
        assert (found[name] - gradient).norm() <= 0.05 * gradient.norm()


def test_checkpointing_and_several_steps(fused) -> None:
    """Three steps of the optimiser: parameters stay as close as the arithmetic allows."""
    model = qwen3().train()
    twin = copy.deepcopy(model)
    model.gradient_checkpointing_enable()
    with swap(model, verbose=False):
        for each in (model, twin):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
            for _ in range(3):
                step(each, **batch())
                optimizer.step()
    assert len(fused) == 3
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        close(a.detach(), b.detach())


def test_torch_compile(fused, monkeypatch) -> None:
    torch._dynamo.reset()
    seen = []
    original = language.loss_with_gradients
    monkeypatch.setattr(language, "loss_with_gradients", lambda *a: (seen.append(1), original(*a))[1])
    model, given = qwen3().train(), batch()
    want, gradients = step(model, **given)
    with swap(model, verbose=False):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        model.zero_grad()
        got = compiled(**given, use_cache=False)
        got.loss.backward()
        assert got.logits is None and seen and not fused
    close(got.loss.detach(), want.loss.detach())
    for name, parameter in model.named_parameters():
        close(parameter.grad, gradients[name])


@pytest.mark.parametrize("frozen", [(), ("x",), ("weight",)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_loss_and_gradients_as_one_operator(frozen, with_bias) -> None:
    generator = torch.Generator().manual_seed(0)
    made = {"x": (6, 32), "weight": (50, 32)} | ({"bias": (50,)} if with_bias else {})
    given = {n: torch.randn(*s, generator=generator).requires_grad_(n not in frozen) for n, s in made.items()}
    target = torch.tensor([3, 49, -100, 0, 7, 7])
    leaves = [t for n, t in given.items() if n not in frozen]
    x, weight, bias = given["x"], given["weight"], given.get("bias")
    want = linear_cross_entropy(x, weight, target, bias)
    got = loss_with_gradients(x, weight, target, bias, -100)
    assert torch.equal(got, want)
    for a, b in zip(torch.autograd.grad(3 * got, leaves), torch.autograd.grad(3 * want, leaves), strict=True):
        close(a, b)
    needs = [t is not None and t.requires_grad for t in (x, weight, bias)]
    operator = torch.ops.kernelworks.linear_cross_entropy_with_gradients.default
    result = torch.library.opcheck(operator, (x, weight, target, bias, -100, needs))
    assert set(result.values()) == {"SUCCESS"}


OF_A_GPU = """
import torch
from kernelworks.nn.compiled_loss import OP, loss_with_gradients
from kernelworks.ops.reduction.linear_cross_entropy import triton
OP.training_passes = lambda args, kernel, wanted: (triton.training, triton.resumed)
g = torch.Generator().manual_seed(0)
x, weight = (torch.randn(n, 32, generator=g).bfloat16().requires_grad_() for n in (6, 50))
target = torch.tensor([3, 49, -100, 0, 7, 7])
loss = loss_with_gradients(x, weight, target, None, -100)
want = torch.nn.functional.cross_entropy((x @ weight.mT).float(), target)
torch.testing.assert_close(loss, want, rtol=1e-2, atol=1e-2)
for got, of in zip(torch.autograd.grad(loss, (x, weight)), torch.autograd.grad(want, (x, weight)), strict=True):
    torch.testing.assert_close(got, of, rtol=5e-2, atol=2e-2)
print("all hold")
"""


def test_one_operator_of_a_kernel_that_makes_gradients_with_its_loss() -> None:
    """A GPU's kernel, interpreted: what it keeps between both is its own affair."""
    done = forked.python(code=OF_A_GPU, TRITON_INTERPRET="1")
    assert done.stdout.endswith("all hold\n"), done.stderr[-3000:]


def test_the_operator_under_transforms_and_differentiated_twice() -> None:
    x, weight, target = torch.randn(6, 8), torch.randn(5, 8), torch.arange(6) % 5

    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return loss_with_gradients(x, weight, target, None, -100)

    def theirs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x @ weight.mT, target)

    for transform in (
        lambda f: torch.func.grad(f, (0, 1))(x, weight),
        lambda f: torch.func.jvp(f, (x, weight), (x, weight)),
        lambda f: torch.vmap(f, (0, None))(torch.stack((x, -x)), weight),
    ):
        torch.testing.assert_close(transform(ours), transform(theirs))
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(ours(x, weight), x, create_graph=True)
