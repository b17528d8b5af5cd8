"""kw.nn's modules stand where torch's stood: same arguments, state, repr, pickles, results."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.dispatch.hooks import watch_calls

ids = torch.tensor([[1, 0, 3], [2, 3, 1]])
x = torch.randn(2, 3, 8)
logits, target = torch.randn(5, 7), torch.tensor([0, 6, 3, -100, 2])

# class, arguments, inputs
MODULES: tuple[tuple[str, tuple[Any, ...], dict[str, Any], tuple[Tensor, ...]], ...] = (
    ("Linear", (8, 4), {}, (x,)),
    ("Linear", (8, 4), {"bias": False, "dtype": torch.float64}, (x.double(),)),
    ("Linear", (8, 4), {"dtype": torch.bfloat16}, (x.bfloat16(),)),
    ("LayerNorm", (8,), {}, (x,)),
    ("LayerNorm", ((3, 8),), {"eps": 1e-3}, (x,)),
    ("LayerNorm", (8,), {"bias": False}, (x,)),
    ("LayerNorm", (8,), {"elementwise_affine": False}, (x,)),
    ("RMSNorm", (8,), {}, (x,)),
    ("RMSNorm", ([8],), {"eps": 1e-3, "elementwise_affine": False}, (x,)),
    ("GELU", (), {}, (x,)),
    ("GELU", ("tanh",), {}, (x,)),
    ("ReLU", (), {}, (x,)),
    ("Softmax", (), {"dim": 1}, (x,)),
    ("Softmax2d", (), {}, (x,)),
    ("LogSoftmax", (), {}, (x,)),
    ("LogSoftmax", (-1,), {}, (x,)),
    ("Embedding", (4, 8), {}, (ids,)),
    ("Embedding", (4, 8), {"padding_idx": 1, "max_norm": 1.0, "scale_grad_by_freq": True}, (ids,)),
    ("Embedding", (4, 8), {"padding_idx": -1}, (ids,)),
    ("Embedding", (4, 8), {"sparse": True, "dtype": torch.float64}, (ids,)),
    ("CrossEntropyLoss", (), {}, (logits, target)),
    ("CrossEntropyLoss", (), {"label_smoothing": 0.1, "weight": torch.rand(7), "reduction": "sum"}, (logits, target)),
    ("CrossEntropyLoss", (), {"ignore_index": 3, "reduction": "none"}, (logits, target.clamp(0))),
)


def results(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The output, and gradients by the input and the parameters."""
    inputs = tuple(t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in inputs)
    output = module(*inputs)
    leaves = [t for t in (*inputs, *module.parameters()) if t.requires_grad]
    if not leaves:
        return [output]
    module.zero_grad()
    output.backward(torch.linspace(0, 1, output.numel()).reshape(output.shape).to(output.dtype))
    return [output, *(t.grad.to_dense() for t in leaves if t.grad is not None)]


@pytest.mark.parametrize("case", range(len(MODULES)))
def test_a_module_stands_for_torchs(case: int) -> None:
    name, args, named, inputs = MODULES[case]
    torch.manual_seed(0)
    torchs = getattr(nn, name)(*args, **named)
    torch.manual_seed(0)
    ours = getattr(kw.nn, name)(*args, **named)
    assert isinstance(ours, type(torchs)) and repr(ours) == repr(torchs)
    assert inspect.signature(type(ours)) == inspect.signature(type(torchs))
    for a, b in zip(torchs.state_dict().values(), ours.state_dict().values(), strict=True):
        assert torch.equal(a, b)  # made by the same random numbers
    again = type(ours)(*args, **named)
    again.load_state_dict(torchs.state_dict())
    for module in (ours, again, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(module) is type(ours)
        for got, want in zip(results(module, inputs), results(torchs, inputs), strict=True):
            assert got.dtype is want.dtype
            torch.testing.assert_close(got, want, rtol=2e-2 if got.dtype is torch.bfloat16 else 2e-5, atol=2e-5)


def test_modules_compile_whole_and_cast_as_torchs() -> None:
    class Program(nn.Module):
        def __init__(self, of: Any) -> None:
            super().__init__()
            self.table, self.norm, self.up = of.Embedding(4, 8), of.LayerNorm(8), of.Linear(8, 16)
            self.act, self.last, self.soft = of.GELU(), of.RMSNorm(16, eps=1e-5), of.Softmax(-1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.soft(self.last(self.act(self.up(self.norm(self.table(ids))))))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    torchs = Program(nn)
    ours = Program(kw.nn)
    ours.load_state_dict(torchs.state_dict())
    want = torchs(ids)
    torch.testing.assert_close(torch.compile(ours, fullgraph=True, backend="eager")(ids), want)
    for model in (torchs, ours):
        model.double()
    torch.testing.assert_close(ours(ids), torchs(ids), rtol=0, atol=0)
    for model in (torchs, ours):
        model.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(ids).dtype is torchs(ids).dtype


@pytest.mark.parametrize(
    ("module", "shown", "activation"),
    [
        (kw.nn.SiluMul(), "SiluMul()", nn.SiLU()),
        (kw.nn.GeluMul(), "GeluMul(approximate='none')", nn.GELU()),
        (kw.nn.GeluMul("tanh"), "GeluMul(approximate='tanh')", nn.GELU("tanh")),
    ],
)
def test_the_gates(module: nn.Module, shown: str, activation: nn.Module) -> None:
    gate, up = torch.randn(3, 4, 8).unbind(0)[:2]
    assert repr(module) == shown and not module.state_dict()
    torch.testing.assert_close(module(gate, up), activation(gate) * up)


padded = torch.tensor([[False, False, True], [False, False, False]])
ATTENDED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({}, {"need_weights": False}),
    ({"batch_first": True}, {"need_weights": False, "attn_mask": torch.ones(3, 3).triu(1).bool()}),
    ({"batch_first": True, "bias": False}, {"need_weights": False, "key_padding_mask": padded}),
    ({"batch_first": True}, {"average_attn_weights": False, "attn_mask": torch.randn(3, 3)}),
    ({"add_bias_kv": True, "add_zero_attn": True, "dtype": torch.float64}, {"need_weights": False}),
    ({"kdim": 8, "vdim": 8, "dropout": 0.5}, {"need_weights": False}),
)


@pytest.mark.parametrize("case", range(len(ATTENDED)))
@pytest.mark.parametrize("training", [True, False])
def test_attention_of_many_heads_stands_for_torchs(case: int, training: bool) -> None:
    made, asked = ATTENDED[case]
    torch.manual_seed(0)
    torchs = nn.MultiheadAttention(8, 2, **made).train(training)
    ours = kw.nn.MultiheadAttention(8, 2, **made).train(training)
    ours.load_state_dict(torchs.state_dict())
    assert repr(ours) == repr(torchs)
    found = []
    for module in (torchs, ours):
        given = x.detach().to(made.get("dtype", torch.float32)).requires_grad_(training)
        torch.manual_seed(1)  # dropout
        output, weights = module(given, given, given, **asked)
        gradients = torch.autograd.grad(output.square().sum(), [given, *module.parameters()]) if training else ()
        found.append((output, *([] if weights is None else [weights]), *gradients))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_attention_of_many_heads_calls_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    module, called = kw.nn.MultiheadAttention(8, 2), []
    with watch_calls(lambda op, *call: called.append(op.name)):
        module(x, x, x, need_weights=False)
        module(x, x, x)
    assert {"linear", "attention", "softmax"} <= set(called)


def test_a_swap_leaves_them_as_they_are() -> None:
    swapped = kw.swap(nn.Sequential(kw.nn.Linear(4, 4), kw.nn.GELU()), verbose=False)
    assert {item.reason for item in swapped.left} == {"a module of kernelworks' own"}
    swapped.undo()
