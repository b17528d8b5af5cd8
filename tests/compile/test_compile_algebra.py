"""Products of matrices that need none: which are made simpler, and that they stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, leaves_of
from torch import Tensor, fx

import kernelworks as kw
from kernelworks.compile import backend
from kernelworks.compile.algebra import simplify_products
from kernelworks.compile.calls import value_of

X = torch.linspace(-2, 2, 4 * 6 * 16).double().sin().view(4, 6, 16)
W = torch.linspace(-3, 3, 24 * 16).double().cos().view(24, 16)
B = torch.linspace(-1, 1, 24).double()
P = torch.linspace(-2, 2, 2 * 16 * 9 * 9).double().sin().view(2, 16, 9, 9)
K = torch.linspace(-3, 3, 24 * 16 * 9).double().cos().view(24, 16, 3, 3)
V = torch.linspace(0.5, 2, 16).double()

# name -> (program, its arguments, how many products are gone)
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "summed": (lambda x, w, b: F.linear(x, w, b).sum(-1), (X, W, B), 1),
    "summed in a method's words": (lambda x, w: torch.sum((x @ w.t()) / 2, dim=2, keepdim=True) * 1.5, (X, W), 1),
    "the mean of all": (lambda x, w, b: torch.mean(F.linear(x, w, b) * 3.0), (X, W, B), 1),
    "two dimensions, kept": (lambda x, w, b: F.linear(x, w, b).mean((0, -1), keepdim=True), (X, W, B), 1),
    "two in a row": (lambda x, w, b: F.linear(x, w, b).sum(-1) + F.linear(x, 2 * w, b).mean(-1), (X, W, B), 2),
    "vectors between": (lambda x, w, b: (((F.linear(x, w, b) - b) / 4) + 2 * b).mean(-1), (X, W, B), 1),
    "a matrix between": (lambda x, w: (x @ w.t() + x @ w.t().exp()).sum(-1), (X, W), 0),
    "rows between": (lambda x, w: (x @ w.t() - x[:, :, :1]).sum(-1), (X, W), 0),
    "channels": (lambda x, w: F.conv2d(x, w).sum(1), (P, K), 0),  # of one channel no library has a good convolution
    "a diagonal ahead": (lambda v, a: torch.diag(v) @ a, (V, W.t().contiguous()), 1),
    "a diagonal behind": (lambda a, v: torch.matmul(a, v.diag_embed()), (X, V), 1),
    "a diagonal that is read": (lambda v, a: torch.diag(v) @ a + torch.diag(v).sum(), (V, W.t().contiguous()), 1),
    "rows summed": (lambda x, w: (x @ w.t()).sum(1), (X, W), 0),
    "read by another": (lambda x, w: (y := x @ w.t()).sum(-1) + y.amax(-1), (X, W), 0),
    "no factor between": (lambda x, w, b: (F.linear(x, w, b) * b).sum(-1), (X, W, B), 0),
    "a sum in another dtype": (lambda x, w: (x @ w.t()).sum(-1, dtype=torch.float32), (X, W), 0),
    "the diagonal of a matrix": (lambda a, x: x[0] @ torch.diag(a)[:, None], (W[:16], X), 0),
    "batches on both sides": (lambda x, y: (x @ y.transpose(1, 2)).sum(-1), (X, X.flip(1)), 0),
    "16 bits": (lambda x, w: (x @ w.t()).sum(-1), (X.bfloat16(), W.bfloat16()), 0),
    "nonlinear between": (lambda x, w: (x @ w.t()).relu().sum(-1), (X, W), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_products_are_gone_and_answers_and_gradients_are_the_same(name: str) -> None:
    program, args, gone = CASES[name]
    given = leaves_of(args)
    ((graph, inputs),) = graphs(program, *given)
    assert len(simplify_products(graph.graph)) == gone
    graph.graph.lint()
    graph.recompile()
    want, got = program(*given), graph(*inputs)[0]
    assert want.dtype is got.dtype
    close = {"rtol": 2e-2, "atol": 2e-2} if args[0].dtype is torch.bfloat16 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(got, want, **close)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape).to(want.dtype)
    for ours, theirs in zip(*(torch.autograd.grad(t, given, flow) for t in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)


def _written(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w.t()
    x.mul_(2)
    return y.sum(-1)


def test_where_something_is_written_nothing_is_moved() -> None:
    ((graph, _),) = graphs(_written, X.clone(), W)
    assert not simplify_products(graph.graph)


class Shapes(fx.Interpreter):
    """What each node returns is what the graph says of it."""

    def run_node(self, n: fx.Node) -> Any:
        made, said = super().run_node(n), value_of(n)
        if isinstance(said, Tensor):
            assert (made.shape, made.dtype) == (said.shape, said.dtype), n.format_node()
        return made


@pytest.mark.parametrize("name", [name for name, (_, _, gone) in CASES.items() if gone])
def test_what_each_node_returns_is_known(name: str) -> None:
    """As whoever looks at the graph next asks."""
    program, args, _ = CASES[name]
    ((graph, inputs),) = graphs(program, *args)
    simplify_products(graph.graph)
    graph.recompile()
    Shapes(graph).run(*inputs)


def test_the_backend_says_what_is_gone() -> None:
    torch._dynamo.reset()
    before = len(kw.compile_report())
    with torch.no_grad():
        compiled = torch.compile(CASES["summed"][0], backend=backend, options={"kernelworks.budget_s": 0})
        torch.testing.assert_close(compiled(X, W, B), F.linear(X, W, B).sum(-1), rtol=1e-5, atol=1e-5)
    (graph,) = tuple(kw.compile_report())[before:]
    assert graph.simpler == 1 and any("24 columns are summed" in note for note in graph.notes)
