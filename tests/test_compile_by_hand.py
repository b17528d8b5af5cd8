"""Ops that a program spells out, in the graphs that dynamo makes of it: found by what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from compiled_graphs import graphs, leaves_of
from kernelworks.compile.by_hand import by_hand
from kernelworks.compile.calls import states
from kernelworks.compile.region import region_of, with_copy
from kernelworks.compile.replace import replaced
from kernelworks.compile.scores import attentions

X = torch.linspace(-2, 2, 6 * 64).view(6, 64)
W, B = torch.linspace(0.5, 1.5, 64), torch.linspace(-1, 1, 64)
G = torch.linspace(-3, 3, 6 * 64).view(6, 64).flip(1)


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def root_norm(x: Tensor, w: Tensor) -> Tensor:
    """As language models write it: in float32, then rounded, then scaled."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def mean_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return w * (centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)) + b


def softmax(x: Tensor) -> Tensor:
    shifted = torch.exp(x - x.max(dim=-1, keepdim=True)[0])
    return shifted / shifted.sum(dim=-1, keepdim=True)


# name -> (program, its arguments, the calls that it spells out: the op, its arguments that are no tensors)
BY_HAND: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], list[tuple[str, tuple[object, ...]]]]] = {
    "gelu by tanh": (tanh_gelu, (X,), [("gelu", ("tanh",))]),
    "gelu by erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2))), (X,), [("gelu", ("none",))]),
    "gate": (lambda x, g: F.silu(g) * x, (X, G), [("silu_mul", ())]),
    "gate by sigmoid": (lambda x, g: g * torch.sigmoid(g) * x, (X, G), [("silu_mul", ())]),
    "gate of products": (lambda x, g: F.silu(g @ g.T) * (x @ x.T), (X, G), [("silu_mul", ())]),
    "gate of sums": (lambda x, g: F.gelu(g) * (x + g), (X, G), [("gelu_mul", ("none",))]),
    "root norm": (root_norm, (X, W), [("rms_norm", (1e-6, None))]),
    "root norm in 16 bits": (root_norm, (X.bfloat16(), W.bfloat16()), [("rms_norm", (1e-6, None))]),
    "root norm, 1 + w": (lambda x, w: root_norm(x, 1 + w), (X, W), [("rms_norm", (1e-6, None))]),
    "norm of a sum": (lambda x, w, g: root_norm(x + g, w), (X, W, G), [("rms_norm", (1e-6,))]),
    "norm of a sum that is read": (
        lambda x, w, g: root_norm(h := x + g, w) * torch.sin(h),
        (X, W, G),
        [("rms_norm", (1e-6, None))],
    ),
    "norm": (mean_norm, (X, W, B), [("layer_norm", (1e-5,))]),
    "softmax": (softmax, (X,), [("softmax", (-1,))]),
    "softmax and more": (lambda x: softmax(tanh_gelu(x) * 3) * 2, (X,), [("softmax", (-1,)), ("gelu", ("tanh",))]),
    "another constant": (lambda x: 0.5 * x * (1 + torch.tanh(0.79 * (x + 0.044715 * x**3))), (X,), []),
    "another mean": (lambda x: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6), (X,), []),
    "sums and products": (lambda x, g: (x + g) * x - g / 2, (X, G), []),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_ops_are_known_however_they_are_spelled_out(name: str) -> None:
    """Found with their numbers, and replaced: as right as before, with gradients."""
    program, args, wanted = BY_HAND[name]
    given = leaves_of(args)
    ((graph, inputs),) = graphs(program, *given)
    spelled = list(by_hand(graph.graph, states(graph.graph)))
    numbers = [tuple(a for a in call.args if not isinstance(a, Tensor)) for call in spelled]
    assert [(call.op.name, its) for call, its in zip(spelled, numbers, strict=True)] == wanted
    now: dict[fx.Node, fx.Node] = {}
    for call in spelled:
        now[call.node] = replaced(call, "torch", lambda node: now.get(node, node))
    graph.graph.lint()
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    close = {"rtol": 2e-2, "atol": 2e-2} if args[0].dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, **close)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape).to(want.dtype)
    for ours, theirs in zip(*(torch.autograd.grad(t, given, flow) for t in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)


# ---------------------------------------------------------------- attention

Q, K, V = (torch.linspace(-n, n, 2 * 3 * 8 * 16).sin().view(2, 3, 8, 16) for n in (3, 5, 7))
TRIL = torch.ones(1, 1, 8, 8).tril()


def masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(bias[:, :, :8, :8] == 0, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), 0.1, training=False) @ v


def in_float32(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.matmul(q / 4, k.transpose(2, 3))
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def chosen_by(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.where(bias > 0, q @ k.transpose(3, 2), -math.inf).softmax(-1) @ v


ATTENTIONS: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "masked": (masked, True),
    "in float32": (in_float32, True),
    "chosen by": (chosen_by, True),
    "a low score": (lambda q, k, v, b: (q @ k.transpose(2, 3)).masked_fill(b == 0, -1e4).softmax(-1) @ v, False),
    "another dimension": (lambda q, k, v, b: (q @ k.transpose(2, 3)).softmax(-2) @ v, False),
    "without a softmax": (lambda q, k, v, b: (q @ k.transpose(2, 3)) @ v, False),
    "dropout": (lambda q, k, v, b: F.dropout((q @ k.transpose(2, 3)).softmax(-1), 0.5) @ v, False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_known_however_it_is_spelled_out(name: str, dtype: torch.dtype) -> None:
    """And replaced, in its region too: as right as before, with gradients."""
    program, known = ATTENTIONS[name]
    given = (*leaves_of(tuple(t.to(dtype) for t in (Q, K, V))), TRIL)
    ((graph, inputs),) = graphs(program, *given)
    found = list(attentions(graph.graph, states(graph.graph)))
    assert len(found) == known
    for call in found:
        region = region_of(call, states(graph.graph), {})
        assert not isinstance(region, str)
        changed, twins = with_copy(region)
        replaced(call, "torch", twins.__getitem__)
        changed.graph.lint()
        replaced(call, "torch", lambda node: node)
        assert not any(node.target in (F.softmax, "softmax") for node in (*changed.graph.nodes, *graph.graph.nodes))
    if not known:
        return
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, **close)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape).to(dtype)
    for ours, theirs in zip(*(torch.autograd.grad(t, given[:3], flow) for t in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.parametrize("program", [masked, chosen_by])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_sees_nothing_gives_nan_as_its_softmax_does(
    program: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    """The op makes 0 of it."""
    mask = TRIL.clone()
    mask[..., 2, :] = 0
    given = (*(t.to(dtype) for t in (Q, K, V)), mask)
    ((graph, inputs),) = graphs(program, *given)
    (call,) = attentions(graph.graph, states(graph.graph))
    made = replaced(call, "torch", lambda node: node)
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    assert want[:, :, 2].isnan().all() and not want[:, :, 1].isnan().any() and got.dtype == dtype
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, equal_nan=True, **close)
    assert isinstance(made, torch.fx.Node) and got.stride() == want.stride()


def roped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def test_attention_behind_rotary_embeddings_is_known() -> None:
    cos, sin = torch.linspace(0, 3, 8 * 16).view(8, 16).cos(), torch.linspace(0, 3, 8 * 16).view(8, 16).sin()

    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return masked(roped(q, cos, sin), roped(k, cos, sin), v, bias)

    ((graph, inputs),) = graphs(program, Q, K, V, TRIL)
    (call,) = attentions(graph.graph, states(graph.graph))
    replaced(call, "torch", lambda node: node)
    graph.recompile()
    torch.testing.assert_close(graph(*inputs)[0], program(Q, K, V, TRIL), rtol=1e-4, atol=1e-5)
