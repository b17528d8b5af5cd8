"""Ops that a program writes out in smaller functions, in graphs of dynamo's: found by what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, leaves_of
from torch import Tensor, fx

from kernelworks.compile.calls import states
from kernelworks.compile.decomposed_ops import by_hand
from kernelworks.compile.replace import replace_call

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


# name -> (program, its arguments, the calls that it writes out: the op, its arguments that are no tensors)
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
    "another factor": (lambda x: x * torch.sigmoid(1.7 * x), (X,), []),
    "another activation": (lambda x: x * torch.sigmoid(1.702 * x), (X,), [("quick_gelu", ())]),
    "an activation by its parts": (lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), (X,), [("mish", ())]),
    "torch's own functions": (lambda x: F.gelu(torch.tanh(x)) + F.silu(x.sigmoid()), (X,), []),
    "another mean": (lambda x: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6), (X,), []),
    "sums and products": (lambda x, g: (x + g) * x - g / 2, (X, G), []),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_ops_are_known_however_they_are_written(name: str) -> None:
    """Found with their numbers, and replaced: as right as before, with gradients."""
    program, args, wanted = BY_HAND[name]
    given = leaves_of(args)
    ((graph, inputs),) = graphs(program, *given)
    found = list(by_hand(graph.graph, states(graph.graph)))
    numbers = [tuple(a for a in call.args if not isinstance(a, Tensor)) for call in found]
    assert [(call.op.name, its) for call, its in zip(found, numbers, strict=True)] == wanted
    now: dict[fx.Node, fx.Node] = {}
    for call in found:
        now.update(replace_call(call, "torch", lambda node: now.get(node, node)))
    graph.graph.lint()
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    close = {"rtol": 2e-2, "atol": 2e-2} if args[0].dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, **close)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape).to(want.dtype)
    for ours, theirs in zip(*(torch.autograd.grad(t, given, flow) for t in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
