"""Training through torch.compile's backend: what stands in the forward and in the backward that AOTAutograd makes of a
graph with ops of ours, and which pass of a call is whose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, leaves_of
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from kernelworks.compile import choice
from kernelworks.compile import race as region_race
from kernelworks.compile.calls import find_op_calls
from kernelworks.compile.choice import Races, choose_kernels
from kernelworks.compile.race import RegionRaceResult
from kernelworks.compile.replace import replace_call
from kernelworks.compile.report import Graph
from kernelworks.compile.split_passes import INDUCTOR, in_halves

WON = RegionRaceResult(120.0, 100.0, (1.2, 1.2), 0.01, False)
LOST = RegionRaceResult(100.0, 120.0, (0.8, 0.8), 0.01, False)
X = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
W, B = torch.linspace(0.5, 1.5, 64), torch.linspace(-1, 1, 64)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(region_race.environment, "cache_dir", lambda kind: tmp_path / kind)
    torch.compiler.reset()
    yield


def partitioned(graph: fx.GraphModule, inputs: list[Any]) -> tuple[Callable[..., Any], dict[str, set[str]]]:
    """A graph as inductor would be handed it: in a forward and a backward, decomposed; and ours and torch's operators
    in either."""
    held: dict[str, set[str]] = {}

    def keep(name: str) -> Callable[..., Any]:
        def compiler(module: fx.GraphModule, example: list[Any]) -> Any:
            held[name] = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
            return make_boxed_func(module.forward)

        return compiler

    run = aot_module_simplified(
        graph, inputs, fw_compiler=keep("forward"), bw_compiler=keep("backward"),
        decompositions=select_decomp_table(), partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    return run, held


def root_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x, (64,), w, 1e-6)


PROGRAMS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": lambda x, w, b: F.layer_norm(torch.sin(x), (64,), w, b).cos(),
    "rms_norm": lambda x, w, b: root_norm(x * 2, w, b) + b,
    "softmax": lambda x, w, b: F.softmax(x * w, -1) * b,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("way", ["reference+reference", f"reference+{INDUCTOR}", f"{INDUCTOR}+reference"])
def test_either_pass_of_a_call_is_ours_or_inductors(name: str, way: str) -> None:
    """As right as before against float64, in both passes."""
    program = PROGRAMS[name]
    given = leaves_of((X, W, B))
    ((graph, inputs),) = graphs(program, *given)
    (call,) = find_op_calls(graph.graph, lambda op, node, why: None)
    replace_call(call, way, lambda node: node)
    graph.recompile()
    run, held = partitioned(graph, inputs)
    got, want = run(*inputs)[0], program(*given)
    exact = program(*(doubled := leaves_of(tuple(t.detach().double() for t in given))))
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape)
    ours, theirs, true = (
        torch.autograd.grad(result, leaves, flow.to(result.dtype), allow_unused=True)
        for result, leaves in ((got, given), (want, given), (exact, doubled))
    )
    for one, other, exactly in zip((got, *ours), (want, *theirs), (exact, *true), strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            least = 2.0**-20 * exactly.abs().max()
            assert (one - exactly).abs().max() <= 2 * (other - exactly).abs().max() + least
    assert (f"kernelworks.{name}.default" in held["forward"]) == way.startswith("reference")
    assert (f"kernelworks.{name}_backward.default" in held["backward"]) == way.endswith("reference")


class Block(nn.Module):
    """As nanoGPT has it, its attention written out."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.register_buffer("bias", torch.ones(length, length).tril()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).split(x.shape[2], dim=2)
        q, k, v = (t.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (k.shape[-1] ** -0.5)
        weights = F.softmax(scores.masked_fill(self.bias[:, :, : x.shape[1], : x.shape[1]] == 0, -torch.inf), dim=-1)
        return x + (F.dropout(weights, 0.0) @ v).transpose(1, 2).reshape(x.shape)


def test_training_under_autocast_runs_our_ops_in_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block, x = Block(64, 4, 32), torch.randn(2, 32, 64)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = block(x)
        return F.cross_entropy(y.float().flatten(0, 1), torch.arange(64) % 64)

    monkeypatch.setattr(choice, "_ways", lambda call: [("torch", "torch")])
    monkeypatch.setattr(choice, "SMALL", 0)
    monkeypatch.setattr(region_race, "forward_speedup", lambda call, kernel: 1.0)
    monkeypatch.setattr(region_race, "pass_speedups", lambda *args: (1.0, 1.0))
    monkeypatch.setattr(region_race, "race_region", lambda *args: WON)
    ((graph, inputs),) = graphs(step, x)
    told = Graph("graph", len(graph.graph.nodes))
    choose_kernels(graph, Races(100.0, {}), told)
    run, held = partitioned(graph, inputs)
    run(*inputs)[0].backward()
    for op in ("attention", "layer_norm", "linear", "cross_entropy"):
        assert f"kernelworks.{op}.default" in held["forward"], held
        assert f"kernelworks.{op}_backward.default" in held["backward"], held
    for names in held.values():
        assert not [name for name in names if "bmm" in name or "softmax" in name]
    ours = {name: p.grad for name, p in block.named_parameters()}
    block.zero_grad()
    step(x).backward()
    for name, p in block.named_parameters():
        assert p.grad is not None and ours[name] is not None
        assert (ours[name] - p.grad).abs().max() <= 2e-2 * p.grad.abs().max(), name


@pytest.mark.parametrize(
    ("alone", "whole", "halves"),
    [
        ((1.5, 0.8), True, ["forward"]),
        ((0.8, 1.5), True, ["backward"]),
        ((1.5, 1.5), True, []),  # then both together
        ((1.5, 1.5), False, ["forward", "backward"]),
        ((0.9, 1.05), True, []),
    ],
)
def test_a_pass_goes_in_alone_where_it_alone_is_quicker(
    alone: tuple[float, float], whole: bool, halves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"forward": f"ours+{INDUCTOR}", "backward": f"{INDUCTOR}+ours"}
    benchmarked: list[str] = []

    def race(call: object, region: object, kernel: str, *args: object) -> RegionRaceResult:
        benchmarked.append(kernel)
        return WON if INDUCTOR in kernel else LOST

    monkeypatch.setattr(choice, "_parts_of", lambda call: ("ours", "ours"))
    monkeypatch.setattr(choice, "_ways", lambda call: [("ours+ours", "ours+ours or torch")] if whole else [])
    monkeypatch.setattr(region_race, "forward_speedup", lambda call, kernel: 1.0)
    monkeypatch.setattr(region_race, "recall_race", lambda *args: None)
    monkeypatch.setattr(region_race, "pass_speedups", lambda *args: alone)
    monkeypatch.setattr(region_race, "race_region", race)
    ((graph, _),) = graphs(lambda x: F.softmax(x, -1), X.clone().requires_grad_())
    told = Graph("graph", 1)
    choose_kernels(graph, Races(100.0, {}), told)
    assert benchmarked == ["ours+ours or torch"] * whole + [f"{ways[half]} or torch" for half in halves]
    (call,) = told.calls
    assert call.kernel == (ways[halves[0]] if halves else "")
    targets = [node.target for node in graph.graph.nodes]
    assert (in_halves in targets) == bool(halves)


def test_kernels_are_tried_alone_in_both_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = leaves_of((X, W, B))
    ((graph, _),) = graphs(PROGRAMS["layer_norm"], *given)
    (call,) = find_op_calls(graph.graph, lambda op, node, why: None)
    first = region_race.pass_speedups(call, ("torch", "torch"), "words")
    assert all(ratio > 0 for ratio in first)
    monkeypatch.setattr(region_race, "duel", lambda *args: pytest.fail("tried again"))
    assert region_race.pass_speedups(call, ("torch", "torch"), "words") == first


def test_gradients_that_nobody_asked_for_are_not_made() -> None:
    x = X.clone().requires_grad_()
    ((graph, _),) = graphs(PROGRAMS["layer_norm"], x, W, B)
    (call,) = find_op_calls(graph.graph, lambda op, node, why: None)
    assert call.wanted == ("x",)
    for way in (f"reference+{INDUCTOR}", f"{INDUCTOR}+reference"):
        made = in_halves("layer_norm", way, x, W, B, 1e-5)
        want = F.layer_norm(x, (64,), W, B)
        ours, theirs = (torch.autograd.grad(t, x, torch.ones_like(t) * X)[0] for t in (made, want))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
