"""Products with a kernel's matrix that a program writes out: found however they are written, as right as before; and
look-alikes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled_graphs import graphs, leaves_of
from torch import Tensor

from kernelworks.compile import choice
from kernelworks.compile.calls import OpCall, states
from kernelworks.compile.choice import Races, choose_kernels
from kernelworks.compile.pairwise import kernel_products
from kernelworks.compile.region import region_of, with_copy
from kernelworks.compile.replace import misfit, replace_call
from kernelworks.compile.report import Graph
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.templates import pairwise

GENERATOR = torch.Generator().manual_seed(11)
X, Y, V = (torch.randn(*shape, generator=GENERATOR) for shape in ((30, 3), (40, 3), (40, 2)))
SCALE = torch.tensor(1.3)
Program = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

WRITTEN: dict[str, tuple[Program, float | None]] = {  # and the length scale, where it is a number
    "cdist": (lambda x, y, v, s: torch.exp(-(torch.cdist(x, y) ** 2) / (2 * 1.7**2)) @ v, 1.7),
    "cdist, a tensor": (lambda x, y, v, s: torch.exp(-torch.cdist(x, y).pow(2) / (2 * s**2)) @ v, None),
    "a whole number": (lambda x, y, v, s: torch.mm((torch.cdist(x, y).square() * -0.125).exp(), v), 2.0),
    "differences": (
        lambda x, y, v, s: torch.exp(-0.5 * (x[:, None] - y[None]).square().sum(-1) / s**2).matmul(v),
        None,
    ),
    "unsqueezed": (
        lambda x, y, v, s: torch.exp(-((x.unsqueeze(1) - y.unsqueeze(0)) ** 2).sum(2) * 0.3) @ v,
        (1 / 0.6) ** 0.5,
    ),
    "over the length scale first": (lambda x, y, v, s: torch.exp(-0.5 * torch.cdist(x / s, y / s) ** 2) @ v, None),
    "the same points": (lambda x, y, v, s: torch.exp(-0.5 * torch.cdist(y, y) ** 2) @ v, 1.0),
}
OTHER_KERNELS: dict[str, Program] = {
    "matern12_matmul": lambda x, y, v, s: torch.exp(-torch.cdist(x, y) / s) @ v,
    "matern32_matmul": lambda x, y, v, s: (lambda z: ((1 + z) * torch.exp(-z)) @ v)(3**0.5 * torch.cdist(x, y) / s),
    "matern52_matmul": lambda x, y, v, s: (lambda z: ((1 + z + z**2 / 3) * torch.exp(-z)) @ v)(
        5**0.5 * torch.cdist(x, y) / s
    ),
}
# Products with matrices that are no K of ours, or are wanted for something else.
LOOK_ALIKES: dict[str, Program] = {
    "a distance over a row's scale": lambda x, y, v, s: torch.exp(-torch.cdist(x, y) / x[:, :1].abs()) @ v,
    "a Matern kernel without its last term": lambda x, y, v, s: (lambda z: ((1 + z) * torch.exp(-z)) @ v)(
        5**0.5 * torch.cdist(x, y) / s
    ),
    "a positive exponent": lambda x, y, v, s: torch.exp(0.1 * torch.cdist(x, y) ** 2) @ v,
    "of sums": lambda x, y, v, s: torch.exp(-0.5 * (x[:, None] + y[None]).square().sum(-1)) @ v,
    "a scale": lambda x, y, v, s: (3.0 * torch.exp(-0.5 * torch.cdist(x, y) ** 2)) @ v,
    "normalised": lambda x, y, v, s: (lambda k: k / k.sum(1, keepdim=True))(torch.exp(-(torch.cdist(x, y) ** 2))) @ v,
    "with noise": lambda x, y, v, s: (torch.exp(-(torch.cdist(y, y) ** 2)) + torch.eye(40)) @ v,
    "read besides": lambda x, y, v, s: (lambda k: k @ v + k.sum())(torch.exp(-(torch.cdist(x, y) ** 2))),
    "other distances": lambda x, y, v, s: torch.exp(-(torch.cdist(x, y, p=1.0) ** 2)) @ v,
    "a scale a row": lambda x, y, v, s: torch.exp(-(torch.cdist(x, y) ** 2) / x[:, :1] ** 2) @ v,
    "some coordinates": lambda x, y, v, s: torch.exp(-(torch.cdist(x[:, :2], y[:, :2]) ** 2)) @ v,
    "written to": lambda x, y, v, s: torch.cdist(x, y).square_().neg_().exp_() @ v,
    "a softmax": lambda x, y, v, s: torch.softmax(-(torch.cdist(x, y) ** 2), -1) @ v,
}


def found_in(graph: torch.fx.GraphModule) -> list[OpCall]:
    return list(kernel_products(graph.graph, states(graph.graph)))


@pytest.mark.parametrize("name", WRITTEN)
def test_products_are_known_however_they_are_written(name: str) -> None:
    """And replaced, in their region too: as right as before against float64, with gradients."""
    program, number = WRITTEN[name]
    given = leaves_of((X, Y, V, SCALE))
    ((graph, inputs),) = graphs(program, *given)
    (call,) = found_in(graph)
    assert call.op is OPS["kernel_matmul"] and not misfit(call)
    scale = call.sources[3]
    assert (number is not None) is bool(scale.steps)  # type: ignore[union-attr]
    if number is not None:
        assert scale.steps[0][1][0] == pytest.approx(number, rel=1e-12)  # type: ignore[union-attr]
    region = region_of(call, states(graph.graph), {})
    assert not isinstance(region, str)
    changed, twins = with_copy(region)
    replace_call(call, "torch", twins.__getitem__)
    changed.graph.lint()
    replace_call(call, "scalar", lambda node: node)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    assert not any("cdist" in str(node.target) for node in graph.graph.nodes)
    want, got = program(*(t.double() for t in given)), graph(*inputs)
    (got,) = got if isinstance(got, tuple) else (got,)
    assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-5)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape)
    ours, theirs = (
        torch.autograd.grad(t, given, flow.to(t.dtype), allow_unused=True, retain_graph=True) for t in (got, want)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) is (other is None) and (one is None or torch.allclose(one, other, rtol=1e-4, atol=1e-4))


@pytest.mark.parametrize("name", OTHER_KERNELS)
def test_products_of_other_kernels_are_known(name: str) -> None:
    ((graph, _),) = graphs(OTHER_KERNELS[name], X, Y, V, SCALE)
    (call,) = found_in(graph)
    assert call.op is OPS[name] and not misfit(call)


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes_are_left_alone(name: str) -> None:
    for graph, _ in graphs(LOOK_ALIKES[name], X, Y, V, SCALE):
        assert found_in(graph) == []


def test_a_program_whose_matrix_does_not_fit_takes_ours_without_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: None)
    monkeypatch.setattr(pairwise, "ALWAYS", 100)
    monkeypatch.setattr(pairwise, "_free_bytes", lambda device: 1000)
    monkeypatch.setattr(choice, "_race_result", lambda *asked: pytest.fail("raced"))
    OPS["kernel_matmul"].forget()
    ((graph, inputs),) = graphs(WRITTEN["cdist"][0], X, Y, V, SCALE)
    report = Graph("graph", len(graph.graph.nodes))
    choose_kernels(graph, Races(0.0, {}), report)
    (call,) = report.calls
    assert call.op == "kernel_matmul" and call.kernel and "would be stored" in call.why
    (node,) = [node for node in graph.graph.nodes if "kernel_matmul" in str(node.target)]
    made = graph(*inputs)
    (made,) = made if isinstance(made, tuple) else (made,)
    assert node is not None and torch.allclose(made, WRITTEN["cdist"][0](X, Y, V, SCALE), rtol=1e-4, atol=1e-5)
