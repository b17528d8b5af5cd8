"""What ``backend="kernelworks"`` does otherwise than torch, each with a call that shows it; the table is in
``limits.py``."""

from __future__ import annotations

import math

import torch
from limit import Limit, heads
from torch import Tensor

import kernelworks as kw
from kernelworks.compile.calls import states
from kernelworks.compile.decomposed_ops import by_hand
from kernelworks.compile.replace import replace_call

__all__ = ["COMPILED"]


def sees_nothing() -> str:
    """The gradient of the values, by the op and by a softmax, of rows that all see something."""
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., 2, :] = False
    q, k, v = (each.clone().requires_grad_() for each in heads())
    scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -math.inf)
    said = []
    for made in (kw.attention(q, k, v, mask=mask, scale=1.0), scores.softmax(-1) @ v):
        (gradient,) = torch.autograd.grad(made[:, :, :2].sum(), v)
        said.append("a number" if bool(gradient.isfinite().all()) else "NaN")
    return f"{said[0]} beside torch's {said[1]}"


def without_a_maximum() -> str:
    """A quotient of exponentials, as the graph has it once it is known, and as torch computes it."""
    from compiled_graphs import graphs  # the page is written without it

    def program(x: Tensor) -> Tensor:
        e = x.exp()
        return e / e.sum(-1, keepdim=True)

    given = torch.tensor([[100.0, 99.0, 0.0]])
    ((graph, inputs),) = graphs(program, given)
    (call,) = by_hand(graph.graph, states(graph.graph))
    replace_call(call, "reference", lambda node: node)
    graph.recompile()
    ours = "the softmax" if torch.allclose(graph(*inputs)[0], given.softmax(-1)) else "something else"
    return f"{ours} beside torch's {'NaN' if bool(program(given).isnan().any()) else 'numbers'}"


COMPILED = [
    Limit(
        "Attention that a program writes in smaller functions gives NaN if a query sees nothing, as its softmax does; "
        "the gradient of the values is that of the other queries, while torch's is NaN for all of them.",
        sees_nothing,
        says="a number beside torch's NaN",
    ),
    Limit(
        "A softmax that a program writes without subtracting the maximum is taken for a softmax: if its "
        "exponentials are infinite it gives the softmax, while torch's quotient is NaN.",
        without_a_maximum,
        says="the softmax beside torch's NaN",
    ),
]
