"""Constant weights: what may be one, what is seen of a change, and that the graph then runs as it would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs
from torch import Tensor, fx, nn

from kernelworks.build import digest
from kernelworks.compile import race as region_race
from kernelworks.compile.frozen_weights import Weights, freeze_if_faster, weights_of
from kernelworks.compile.race import RegionRaceResult
from kernelworks.compile.report import Graph

WON = RegionRaceResult(120.0, 100.0, (1.2, 1.2), 0.01, False)
LOST = RegionRaceResult(100.0, 120.0, (0.8, 0.8), 0.01, False)


def tensors() -> list[Tensor]:
    """Sizes round the lanes and blocks of the digest; one that is transposed, one that starts inside its storage."""
    sizes = (1, 63, 64, 65, 16384, 16385, 50001)
    made = [torch.arange(n, dtype=torch.float32) + 1 for n in sizes]
    return [
        *made,
        torch.rand(30, 50).t(),
        torch.rand(99)[7:],
        torch.rand(33).bfloat16(),
        torch.rand(9, 9),
        torch.empty(0),
    ]


def swapped(t: Tensor) -> None:
    t.data[:2] = t[:2].flip(0).clone()


CHANGES: dict[str, Callable[[list[Tensor]], object]] = {
    "in place": lambda ts: ts[3].add_(1),
    "through data": lambda ts: ts[6].data[49999].add_(0.01),
    "the last element": lambda ts: ts[5].data[-1].neg_(),
    "the sign of a zero": lambda ts: ts[4].data[0].sub_(1).neg_(),
    "through NumPy": lambda ts: ts[4].numpy().__setitem__(7, -1.0),
    "of a transposed one": lambda ts: ts[7].data[49, 29].add_(1),
    "of one inside its storage": lambda ts: ts[8].data[-1].add_(1),
    "two elements swapped": lambda ts: swapped(ts[2]),
    "16 bits": lambda ts: ts[9].data[32].neg_(),
    "transposed in its memory": lambda ts: setattr(ts[10], "data", ts[10].data.t()),
    "negative in its memory": lambda ts: setattr(ts[3], "data", torch._neg_view(ts[3].data)),
    "other memory": lambda ts: setattr(ts[0], "data", ts[0].clone()),
    "another tensor": lambda ts: ts.__setitem__(1, ts[1].clone()),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_change_is_seen(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "GRAIN", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    given = tensors()
    weights = Weights(given)
    assert weights.same(given)
    CHANGES[name](given)
    assert not weights.same(given)


def test_what_is_not_a_weights_may_change() -> None:
    """The rest of a storage of which a weight is a part."""
    whole = torch.zeros(100)
    part = whole[10:20]
    weights = Weights([part])
    whole.data[20] = 1
    assert weights.same([part])
    whole.data[19] = 1
    assert not weights.same([part])


# ---------------------------------------------------------------- what may be constant


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Handing(nn.Linear):
    """Returns its weight beside what it makes: a caller may write there."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), self.weight.view(-1)


class Normed(nn.Module):
    """A batch norm by its function alone: it counts no batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.conv(x), self.mean, self.var, training=True)  # type: ignore[arg-type]


IMAGE = torch.linspace(-1, 1, 3 * 64).view(1, 3, 8, 8)


def graph_of(module: nn.Module, x: Tensor, *, grad: bool = False) -> tuple[fx.GraphModule, list[Any]]:
    torch.compiler.reset()
    with torch.set_grad_enabled(grad):
        (seen,) = graphs(module, x)
    return seen


@pytest.mark.parametrize(
    ("why", "module", "grad", "count"),
    [
        ("constants", Small().eval(), False, 6),
        ("gradients are recorded", Small().eval(), True, 0),
        ("statistics learn", Small().train(), False, 4),
        ("statistics learn, though no schema says so", Normed(), False, 2),
        ("no product takes a weight", nn.LayerNorm(8), False, 0),
        ("it hands one on", Handing(8, 8), False, 0),
    ],
)
def test_which_inputs_may_be_constant(why: str, module: nn.Module, grad: bool, count: int) -> None:
    graph, inputs = graph_of(module, IMAGE, grad=grad)
    with torch.set_grad_enabled(grad):
        assert len(weights_of(graph, inputs)) == count, why


class _Settings:
    """In inductor's place: a graph runs as it was written."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.made: list[dict[str, Any]] = []

    def __call__(self, graph: fx.GraphModule, inputs: list[Any], **more: Any) -> Any:
        self.made.append(more)
        assert len(graph.graph.find_nodes(op="placeholder")) == len(inputs)
        return graph.forward


@pytest.mark.parametrize("kind", [Small, Normed])
def test_a_race_moves_no_statistics_and_a_call_does(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def race_graph(ours: Any, theirs: Any, inputs: Any) -> RegionRaceResult:
        ours(*inputs), theirs(*inputs)
        return WON

    monkeypatch.setattr(region_race.environment, "cache_dir", lambda kind: tmp_path / kind)
    monkeypatch.setattr(region_race, "race_graph", race_graph)
    module, alike = kind().train(), kind().train()
    graph, inputs = graph_of(module, IMAGE)
    alike.load_state_dict(module.state_dict())
    with torch.no_grad():
        run = freeze_if_faster(graph, inputs, weights_of(graph, inputs), _Settings(), 10.0, Graph("graph", 3))
        assert run is not None
        torch.testing.assert_close(module.state_dict(), alike.state_dict(), rtol=0, atol=0)
        torch.testing.assert_close(run(*inputs)[0], alike(IMAGE))
    torch.testing.assert_close(module.state_dict(), alike.state_dict())


@pytest.mark.parametrize(("race", "constant"), [(WON, True), (LOST, False)])
def test_weights_are_constants_where_that_won(
    race: RegionRaceResult, constant: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_race.environment, "cache_dir", lambda kind: tmp_path / kind)
    monkeypatch.setattr(region_race, "race_graph", lambda *args: race)
    module = Small().eval()
    for time_left in (10.0, 0.0):  # the second time by what was kept
        graph, inputs = graph_of(module, IMAGE)
        settings, told = _Settings(), Graph("graph", 3)
        with torch.no_grad():
            run = freeze_if_faster(graph, inputs, weights_of(graph, inputs), settings, time_left, told)
        assert (run is not None) is constant
        assert len(settings.made) == (2 if time_left else constant)
    if run is None:
        return
    with torch.no_grad():
        torch.testing.assert_close(run(*inputs)[0], module(IMAGE))
        assert len(settings.made) == 1
        module.conv.weight.data[0, 0, 0, 0] += 1
        module.norm.running_mean.data[1] += 1
        for _ in range(2):
            torch.testing.assert_close(run(*inputs)[0], module(IMAGE))
    assert settings.made == [{"config_patches": {"freezing": True}}, {}]
    assert told.notes[-1] == "weights have changed: since then the graph runs without constant weights"
