"""What a rewriting puts into a graph lies as what it stands for did: what a program makes of it next hangs on that."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs
from torch import Tensor, fx

import kernelworks as kw
from kernelworks.compile import algebra, backend, choice, inductor, layouts, replace
from kernelworks.compile.choice import Races, choose_kernels
from kernelworks.compile.layouts import check, laid_as, lie_alike, outputs_of
from kernelworks.compile.report import Graph


def root_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def written_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def t(*sizes: int) -> Tensor:
    torch.manual_seed(len(sizes))
    return torch.randn(*sizes)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "outer turned": lambda x: x.transpose(0, -2).contiguous().transpose(0, -2),
    "turned": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
}
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu": (F.gelu, (t(4, 6, 8),)),
    "gate": (lambda x, g: F.silu(g) * x, (t(4, 6, 8), t(4, 6, 8))),
    "softmax": (lambda x: x.softmax(-1), (t(4, 6, 8),)),
    "softmax down": (lambda x: x.softmax(1), (t(4, 6, 8),)),
    "log_softmax": (lambda x: x.log_softmax(-1), (t(4, 8),)),
    "root norm": (root_norm, (t(4, 6, 8),)),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), (t(4, 6, 8),)),
    "linear": (F.linear, (t(4, 6, 8), t(5, 8))),
    "written attention": (written_attention, (t(2, 3, 5, 16), t(2, 3, 7, 16), t(2, 3, 7, 16))),
    "attention": (F.scaled_dot_product_attention, (t(2, 3, 5, 16), t(2, 3, 7, 16), t(2, 3, 7, 16))),
    "rotary": (lambda x, c, s: rotated(x, c, s), (t(2, 3, 5, 16), t(5, 16), t(5, 16))),
    "sum": (lambda x: x.sum(-1), (t(4, 6, 8),)),
    "a diagonal ahead": (lambda v, a: torch.diag(v[0]) @ a, (t(1, 6), t(6, 8))),
    "a diagonal behind": (lambda a, v: a @ torch.diag(v[0]), (t(8, 6), t(1, 6))),
    "diagonals in a batch": (lambda a, v: torch.bmm(a, torch.diag_embed(v)), (t(3, 8, 6), t(3, 6))),
    "a summed product": (lambda x, w: (x @ w.t()).sum(-1), (t(4, 6, 8), t(5, 8))),
    "a mean of all": (lambda x, w: F.linear(x, w).mean((0, -1), keepdim=True), (t(4, 6, 8), t(5, 8))),
}


@pytest.fixture
def always_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_decided", lambda call, region, races: ("reference", "", 1.2))


def strides(value: Any) -> list[Any]:
    return [layouts._steps(each) for each in (value if isinstance(value, tuple) else (value,))]


def pairs(whole: bool) -> list[tuple[str, str]]:
    """How two arguments may lie: each in every way beside a plain one, both alike, and each other pair if all are."""
    found = list(itertools.product(WAYS, WAYS))
    return [pair for pair in found if whole or "plain" in pair or len(set(pair)) == 1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_put_in_lies_as_what_it_stands_for(
    name: str, always_ours: None, request: pytest.FixtureRequest
) -> None:
    program, args = PROGRAMS[name]
    for ways in pairs(request.config.getoption("--all")) if len(args) > 1 else [(way,) for way in WAYS]:
        given = tuple(WAYS[way](x) for way, x in itertools.zip_longest(ways, args, fillvalue="plain"))
        ((graph, inputs),) = graphs(program, *given)
        before = outputs_of(graph, inputs)
        assert before is not None
        gone, told = algebra.simplify_products(graph.graph), Graph("graph", 9)
        choose_kernels(graph, Races(10.0, {}), told)
        graph.recompile()
        want, got = program(*given), graph(*inputs)[0]
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
        assert strides(got) == strides(want), (name, ways, gone, told.replaced_count)
        check(graph, inputs, before)
        torch._dynamo.reset()


FOLLOWED: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda y: y.view(-1), "turned and flat": lambda y: y.t().reshape(-1), "one more": lambda y: y.view(8, 2, -1)
}  # fmt: skip


@pytest.mark.parametrize("after", FOLLOWED)
def test_a_view_of_a_product_with_a_diagonal_is_what_it_was(after: str) -> None:
    w, x = t(16), t(128, 16)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.diag(w) @ x.t()
        return y, FOLLOWED[after](y)

    want, got = program(x), torch.compile(program, backend=backend)(x)
    assert strides(got) == strides(want)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got[0].view(-1), want[0].view(-1))
    assert "became elementwise" in str(kw.compile_report())


@pytest.mark.parametrize(
    "was",
    [
        t(3, 4), t(3, 4).t(), t(2, 3, 4, 5).to(memory_format=torch.channels_last), t(2, 3, 4).permute(2, 0, 1),
        t(1, 3, 1).transpose(0, 1), t(4, 1).t(), t(0, 3).t(),
    ],
)  # fmt: skip
def test_a_layout_is_made_as_it_was(was: Tensor) -> None:
    for given in (t(*was.shape), *(WAYS[way](t(*was.shape)) for way in ("transposed", "turned") if was.dim() > 1)):
        graph = fx.Graph()
        graph.output(laid_as(graph, graph.placeholder("x"), was))
        made = fx.GraphModule({}, graph)(given)
        assert lie_alike(made, was) and torch.equal(made, given)


def test_a_rewriting_that_lays_what_is_returned_otherwise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph goes to inductor as it was."""
    for module in (algebra, replace):
        monkeypatch.setattr(module, "laid_as", lambda graph, node, was: node)
    w, x = t(16), t(32, 16)
    program = lambda x: torch.diag(w) @ x.t()  # noqa: E731
    told: list[Graph] = []
    monkeypatch.setattr(inductor.CompileReport, "add", told.append)
    torch._dynamo.reset()
    got = torch.compile(program, backend=backend)(x)
    assert got.stride() == program(x).stride()
    assert any(
        "nothing was replaced: LaidOtherwise: what it returns would lie otherwise" in n for n in told[0].notes
    ), told


def test_what_cannot_be_played_is_not_judged() -> None:
    def program(x: Tensor) -> Tensor:
        return x * x.shape[0]

    found = graphs(program, t(4, 3), dynamic=True)
    assert [outputs_of(graph, inputs) for graph, inputs in found] == [None]
