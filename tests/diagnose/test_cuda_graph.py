"""A module behind captured graphs, on a recorder that runs again what it recorded: which calls are served and which are
not, and that values, gradients and buffers are the module's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.remedies.cuda_graph import REMEDY, Graphed, Recorder
from kernelworks.diagnose.remedies.remedy import Scene
from kernelworks.diagnose.roots import find


class Again(Recorder):
    """What was recorded runs again, and its results are written where the first ones lie."""

    replays = 0

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def record(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        self.run = run
        self.kept = [t if t is None else t.detach().clone() for t in run()]
        return self.kept

    def replay(self) -> None:
        Again.replays += 1
        with torch.enable_grad():
            found = self.run()
        for kept, value in zip(self.kept, found, strict=True):
            if kept is not None:
                kept.copy_(value.detach())

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        return True

    @staticmethod
    def pools() -> Any:
        return None

    @staticmethod
    def warm(run: Callable[[], Any]) -> None:
        for _ in range(3):
            run()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        y = self.linear(self.norm(x))
        return {"out": y * scale, "ids": y.argmax(-1), "count": 3, "none": None}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    Again.replays = 0
    return Net()


def gradients(net: Net, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    found = call(x)
    return [*torch.autograd.grad(found["out"].square().sum(), [x, *net.parameters()]), found["ids"]]


def test_a_training_call_gives_the_modules_own_values_gradients_and_buffers(net: Net) -> None:
    import copy

    other, graphed = copy.deepcopy(net), Graphed(net, Again)
    for seed in range(3):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        for mine, want in zip(gradients(net, graphed, x), gradients(other, other, x), strict=True):
            torch.testing.assert_close(mine, want)
        torch.testing.assert_close(dict(net.named_buffers()), dict(other.named_buffers()))
    assert Again.replays == 6 and graphed(torch.ones(16, 8))["count"] == 3


def test_gradients_that_are_kept_are_not_written_by_the_next_call(net: Net) -> None:
    graphed, x = Graphed(net, Again), torch.randn(16, 8)
    for _ in range(2):  # accumulated
        graphed(x)["out"].sum().backward()
    (want,) = torch.autograd.grad(2 * net(x)["out"].sum(), [net.linear.bias])
    assert net.linear.bias.grad is not None
    torch.testing.assert_close(net.linear.bias.grad, want)


def test_a_call_whose_predecessor_waits_for_its_backward_runs_as_ever(net: Net) -> None:
    graphed, x, y = Graphed(net, Again), torch.randn(16, 8), torch.randn(16, 8)
    first = graphed(x)["out"].square().sum()
    before = Again.replays
    second = graphed(y)["out"].square().sum()
    assert Again.replays == before
    (mine,) = torch.autograd.grad(first, [net.linear.weight])
    (want,) = torch.autograd.grad(net(x)["out"].square().sum(), [net.linear.weight])
    torch.testing.assert_close(mine, want)
    del second, first
    graphed(x)
    assert Again.replays > before + 1


def test_other_sizes_modes_and_values_are_other_graphs_and_what_is_none_runs_as_ever(net: Net) -> None:
    graphed = Graphed(net, Again)
    with torch.no_grad():
        for size in (4, 5, 4):
            torch.testing.assert_close(graphed(torch.ones(size, 8))["out"], net(torch.ones(size, 8))["out"])
        net.eval()
        x = torch.randn(4, 8)
        for scale in (1.0, 2.0, 3.0, 4.0):  # the last two are more than are captured
            torch.testing.assert_close(graphed(x, scale=scale)["out"], net(x, scale=scale)["out"])
        assert len(graphed.graphs) == 4
        with torch.inference_mode():
            assert graphed(x)["out"].is_inference()
    net.linear.weight.data = net.linear.weight.data * 2  # it lies elsewhere now
    with torch.no_grad():
        torch.testing.assert_close(graphed(x)["out"], net(x)["out"])


def test_what_cannot_be_captured_says_why_and_runs() -> None:
    odd = nn.Module()
    odd.forward = lambda x: (x, object())  # type: ignore[method-assign]
    graphed = Graphed(odd, Again)
    x = torch.ones(2)
    assert graphed(x)[0] is x and "more than tensors" in graphed.why
    assert graphed(object())[0] is not None and len(graphed.graphs) == 1


def test_a_tensor_that_is_another_one_is_read_where_it_lies(net: Net) -> None:
    graphed, x = Graphed(net.eval(), Again), torch.randn(4, 8)
    with torch.no_grad():
        graphed(x)
        net.linear.weight = nn.Parameter(torch.ones(4, 8))
        torch.testing.assert_close(graphed(x)["out"], net(x)["out"])
        net.norm.running_mean = torch.ones(8)
        torch.testing.assert_close(graphed(x)["out"], net(x)["out"])


@pytest.mark.parametrize("registered", [True, False])
def test_a_module_that_holds_another_tensor_after_each_call_is_not_captured(registered: bool) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if registered:
                self.register_buffer("seen", torch.zeros(()))
            else:
                self.seen = torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + 1
            return x * self.seen

    model = Counts()
    graphed = Graphed(model, Again)
    with torch.no_grad():
        found = [float(graphed(torch.ones(()))) for _ in range(3)]
    assert "puts another tensor in the place" in graphed.why
    assert found == [1.0, 2.0, 3.0]


def test_what_a_first_call_makes_and_keeps_is_read_where_it_lies() -> None:
    class Lazy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "table"):
                self.table = torch.arange(4.0)
            return x * self.table

    model, x = Lazy(), torch.ones(4)
    graphed = Graphed(model, Again)
    with torch.no_grad():
        assert torch.equal(graphed(x), torch.arange(4.0)) and Again.replays
    (graph,) = graphed.graphs.values()
    assert graph is not None and [name for _, name, _, _ in graph.held] == ["table"]


def test_what_the_host_computes_is_in_no_graph(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Again, "takes", staticmethod(Recorder.takes))
    graphed = Graphed(net, Again)
    for given in ((torch.ones(2, 8),), ()):
        with contextlib.suppress(TypeError):
            graphed(*given)
    assert not any(graphed.graphs.values()) and not Again.replays


def test_on_a_cpu_nothing_is_offered(net: Net) -> None:
    scene = Scene(find(lambda: net(torch.ones(4, 8))), walls=(1e-9,))
    assert not list(REMEDY.offers(scene))
