"""A module behind captured graphs, on a recorder that plays again what it recorded: which calls are served and which
are not, and that values, gradients and buffers are the module's own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import taped
import torch
from taped import Taped
from torch import Tensor, nn

from kernelworks.diagnose.graphs import graphed_module as graphed_calls
from kernelworks.diagnose.graphs.graphed_module import GraphedModule, Pools
from kernelworks.diagnose.graphs.host_values import HostMade
from kernelworks.diagnose.graphs.recorder import Recorder
from kernelworks.diagnose.optimization import Candidate, Impossible, Scene, Site, kind_name
from kernelworks.diagnose.optimizations import cuda_graph
from kernelworks.diagnose.optimizations.cuda_graph import OPTIMIZATION
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.profile.budget import Budget


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        y = self.linear(self.norm(x))
        return {"out": y * scale, "ids": y.argmax(-1), "count": 3, "none": None}


@pytest.fixture(autouse=True)
def nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # torch for CPUs has none


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    Taped.replays = 0
    return Net()


def gradients(net: Net, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    found = call(x)
    return [*torch.autograd.grad(found["out"].square().sum(), [x, *net.parameters()]), found["ids"]]


def test_a_training_call_gives_the_modules_own_values_gradients_and_buffers(net: Net) -> None:
    import copy

    other, graphed = copy.deepcopy(net), GraphedModule(net, Taped)
    graphed(torch.ones(16, 8, requires_grad=True))
    Taped.replays = 0
    net.load_state_dict(other.state_dict())
    for seed in range(3):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        for mine, want in zip(gradients(net, graphed, x), gradients(other, other, x), strict=True):
            torch.testing.assert_close(mine, want)
        torch.testing.assert_close(dict(net.named_buffers()), dict(other.named_buffers()))
    assert Taped.replays == 6 and graphed(torch.ones(16, 8))["count"] == 3


def test_gradients_that_are_kept_are_not_written_by_the_next_call(net: Net) -> None:
    graphed, x = GraphedModule(net, Taped), torch.randn(16, 8)
    for _ in range(2):  # accumulated
        graphed(x)["out"].sum().backward()
    (want,) = torch.autograd.grad(2 * net(x)["out"].sum(), [net.linear.bias])
    assert net.linear.bias.grad is not None
    torch.testing.assert_close(net.linear.bias.grad, want)


def test_a_call_whose_predecessor_waits_for_its_backward_runs_as_ever(net: Net) -> None:
    graphed, x, y = GraphedModule(net, Taped), torch.randn(16, 8), torch.randn(16, 8)
    first = graphed(x)["out"].square().sum()
    before = Taped.replays
    second = graphed(y)["out"].square().sum()
    assert Taped.replays == before
    (mine,) = torch.autograd.grad(first, [net.linear.weight])
    (want,) = torch.autograd.grad(net(x)["out"].square().sum(), [net.linear.weight])
    torch.testing.assert_close(mine, want)
    del second, first
    graphed(x)
    assert Taped.replays == before + 2  # the first one's backward, and this


def test_other_sizes_modes_and_values_are_other_graphs_and_what_is_none_runs_as_ever(net: Net) -> None:
    graphed = GraphedModule(net, Taped)
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
    graphed = GraphedModule(odd, Taped)
    x = torch.ones(2)
    assert graphed(x)[0] is x and "more than tensors" in graphed.reason
    assert graphed(object())[0] is not None and len(graphed.graphs) == 1


def test_a_tensor_that_is_another_one_is_read_where_it_lies(net: Net) -> None:
    graphed, x = GraphedModule(net.eval(), Taped), torch.randn(4, 8)
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
    graphed = GraphedModule(model, Taped)
    with torch.no_grad():
        found = [float(graphed(torch.ones(()))) for _ in range(3)]
    assert "puts another tensor in the place" in graphed.reason
    assert found == [1.0, 2.0, 3.0]


def test_what_a_first_call_makes_and_keeps_is_read_where_it_lies() -> None:
    class Lazy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "table"):
                self.table = torch.arange(4.0)
            return x * self.table

    model, x = Lazy(), torch.ones(4)
    graphed = GraphedModule(model, Taped)
    with torch.no_grad():
        assert torch.equal(graphed(x), torch.arange(4.0)) and Taped.replays
    (graph,) = graphed.graphs.values()
    assert graph is not None and "table" in [name for _, name, _, _ in graph.held.places]


def test_what_the_host_computes_is_in_no_graph(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Taped, "takes", staticmethod(Recorder.takes))
    graphed = GraphedModule(net, Taped)
    for given in ((torch.ones(2, 8),), ()):
        with contextlib.suppress(TypeError):
            graphed(*given)
    assert not any(graphed.graphs.values()) and not Taped.replays


class Deciding(nn.Module):
    """Half of it waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.front(x)
        for block in self.blocks:
            x = block(x) / (1 + float(x.detach().abs().max()))
        return x


def test_where_the_host_waits_is_said_and_the_module_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_calls, "FOLDERS", (*graphed_calls.FOLDERS, Path(taped.__file__)))
    model, x = Deciding(), torch.randn(4, 8)
    state, numbers = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    graphed, failed = GraphedModule(model, Taped), Taped.failed
    assert torch.equal(graphed(x), model(x)) and torch.equal(torch.get_rng_state(), numbers)
    assert (
        "the host waits" in graphed.reason
        and "test_cuda_graph.py" in graphed.reason
        and "abs().max()" in graphed.reason
    )
    assert Taped.failed == failed + 1 and not any(graphed.graphs.values())  # the capture decided
    torch.testing.assert_close(dict(model.state_dict()), state)


def test_a_capture_that_fails_midway_leaves_everything_as_it_was(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Tensor) -> Tensor:
        net.norm.running_mean += 1
        net.calls = getattr(net, "calls", 0) + 1
        if Taped.inside:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        return x.argmax(-1)

    monkeypatch.setattr(net.linear, "forward", lambda x: fails(x) + nn.functional.linear(x, net.linear.weight).T)
    before, spaces = {k: v.clone() for k, v in net.state_dict().items()}, [dict(vars(m)) for m in net.modules()]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        graphed = GraphedModule(net, Taped)
        graphed._captured(net, (torch.randn(16, 8),), {})
        assert torch.is_autocast_cache_enabled()
    assert "previous error during capture" in graphed.reason
    torch.testing.assert_close(dict(net.state_dict()), before)
    assert all(vars(m) == space for m, space in zip(net.modules(), spaces, strict=True))
    linear = nn.Linear(8, 4)
    other = GraphedModule(linear, Taped)
    with torch.no_grad():
        other(torch.ones(2, 8))
    assert any(other.graphs.values())


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """As transformers does: where no graph is captured, the mask is left out where it hides nothing."""
    if not torch.cuda.is_current_stream_capturing() and bool(mask.all()):
        return x.softmax(-1)
    return x.masked_fill(~mask, -torch.inf).softmax(-1)


class Called(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.call = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def test_a_mask_that_is_looked_at_where_no_graph_is_captured_is_no_hindrance() -> None:
    model, x = Called(masked), torch.randn(4, 8)
    graphed, before = GraphedModule(model, Taped), Taped.failed
    every, some = torch.ones(4, 8, dtype=torch.bool), torch.rand(4, 8) > 0.3
    with torch.no_grad():
        for mask in (every, some, every):
            torch.testing.assert_close(graphed(x, mask), masked(x, mask))
    assert any(graphed.graphs.values()) and Taped.failed == before and not graphed.reason


def test_what_is_decided_by_data_outside_of_captures_alone_is_found_on_other_data() -> None:
    scale = [1.0]

    def scaled(x: Tensor) -> Tensor:
        if not torch.cuda.is_current_stream_capturing():
            scale[0] = float(x.abs().max())
        return x / scale[0]

    model = Called(scaled)
    graphed = GraphedModule(model, Taped)
    with torch.no_grad():
        for x in torch.randn(3, 4, 8):
            torch.testing.assert_close(graphed(x), x / x.abs().max())
    assert "other data" in graphed.reason and not any(graphed.graphs.values())


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda x: x * random.random(), "random numbers"),
        (lambda x: x.add_(1), "writes into its inputs"),
        (lambda x: (x, (lambda: x)), "more than tensors"),
        (lambda x: 3, "no tensor"),
    ],
)
def test_what_no_graph_may_serve(forward: Callable[..., Any], why: str) -> None:
    model = Called(forward)
    graphed = GraphedModule(model, Taped)
    with torch.no_grad():
        graphed(torch.ones(3))
    assert why in graphed.reason and not any(graphed.graphs.values())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.calls, self.kept = 2.0, 0, list[Tensor]()
        self.mode = "plain"

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == "counts":
            self.calls += 1
        if self.mode == "keeps":
            self.kept.append(x)
        return x * self.scale


@pytest.mark.parametrize(("mode", "why"), [("counts", "another number (calls)"), ("keeps", "keeps something")])
def test_a_module_that_remembers_its_calls_is_not_captured(mode: str, why: str) -> None:
    model = Counting()
    model.mode = mode
    graphed = GraphedModule(model, Taped)
    with torch.no_grad():
        graphed(torch.ones(3))
        graphed(torch.ones(3))
    assert why in graphed.reason and (model.calls, len(model.kept)) == ((2, 0) if mode == "counts" else (0, 2))


def test_another_number_or_part_is_another_module() -> None:
    model = Counting()
    model.part = nn.Linear(3, 3)
    graphed, x = GraphedModule(model, Taped), torch.ones(3)
    with torch.no_grad():
        assert float(graphed(x)[0]) == 2 and any(graphed.graphs.values())
        model.scale, before = 3.0, Taped.replays
        assert float(graphed(x)[0]) == 3 and Taped.replays == before
        model.scale = 2.0
        assert float(graphed(x)[0]) == 2 and Taped.replays == before + 1
        model.part = nn.Linear(3, 3)
        graphed(x)
    assert Taped.replays == before + 1


class Cache:
    """As transformers' caches: an object of the program's, with others and tensors in it."""

    def __init__(self, x: Tensor, config: dict[str, int]) -> None:
        self.config, self.layers, self.seen = config, [{"keys": x * 2}, {"keys": x * 3}], x.shape[0]


def test_an_object_that_a_call_makes_is_its_callers() -> None:
    config = {"a": 1}
    model = Called(lambda x: {"out": x + 1, "cache": Cache(x, config)})
    graphed, before = GraphedModule(model, Taped), Taped.replays
    with torch.no_grad():
        first, second = graphed(torch.ones(2)), graphed(torch.full((2,), 5.0))
    assert any(graphed.graphs.values()) and Taped.replays > before
    assert [layer["keys"][0].item() for made in (first, second) for layer in made["cache"].layers] == [2, 3, 10, 15]
    assert isinstance(second["cache"], Cache) and second["cache"].config is config and second["cache"].seen == 2


def test_what_returns_what_it_keeps_is_not_captured() -> None:
    kept = Cache(torch.ones(3), {})

    def forward(x: Tensor) -> Cache:
        kept.layers = [{"keys": x * 2}]
        return kept

    model = Called(forward)
    graphed = GraphedModule(model, Taped)
    with torch.no_grad():
        assert graphed(torch.ones(3)) is kept
    assert "more than tensors (Cache)" in graphed.reason


def test_graphs_of_one_program_read_their_inputs_in_one_place_and_trained_ones_do_not() -> None:
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    pools, x = Pools(Taped), torch.randn(4, 8)
    graphed = [GraphedModule(block, Taped, pools) for block in blocks]
    with torch.no_grad():
        y = x
        for each in graphed:
            y = each(y)
    graphs = [next(iter(each.graphs.values())) for each in graphed]
    assert len({id(graph.inputs[0]) for graph in graphs if graph}) == 1 and len(pools.inputs) == 1
    want = x
    for block in blocks:
        want = block(want)
    torch.testing.assert_close(y, want)
    graphed[0](x), graphed[1](x)
    assert len(pools.inputs) == 1


def test_no_forward_is_replayed_over_what_a_later_graph_saved() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    pools, x = Pools(Taped), torch.randn(4, 8)
    a, b = GraphedModule(first, Taped, pools), GraphedModule(second, Taped, pools)
    a(x), b(x)
    later = b(x)
    before = Taped.replays
    earlier = a(x)  # its memory may be what b's graph saved in
    assert Taped.replays == before
    torch.autograd.grad(later.sum(), second.weight)
    del earlier
    a(x)
    assert Taped.replays == before + 2


def test_what_the_host_makes_stands_ready_ahead_of_the_capture() -> None:
    mode = HostMade("meta")
    x = torch.ones(3, device="meta")

    def made(number: float) -> list[Tensor]:
        one, two = torch.tensor([number, 2.0], device="meta"), torch.tensor(number).to(x.device, torch.float64)
        return [one, two, x.new_tensor([number]), torch.zeros(2, device="meta").copy_(torch.tensor([number, number]))]

    with mode:
        want = made(1.5)
        assert len(mode.kept) == 4
        mode.learning = False
        again = made(1.5)
        with pytest.raises(Impossible, match="other numbers"):
            made(2.5)
        assert torch.tensor([1.0]).device.type == "cpu" and torch.ones(2).to(torch.float16).dtype is torch.float16
    assert [(t.shape, t.dtype, t.device) for t in again] == [(t.shape, t.dtype, t.device) for t in want]


# ---------------------------------------------------------------- candidates


def scene_on_gpu(run: Callable[[], Any]) -> Scene:
    class OnGpu(Scene):
        on_gpu = True  # type: ignore[assignment]

    return OnGpu(find_roots(run), walls=(1e-9,), budget=Budget(600.0, 1e-9))


def test_parts_are_a_candidate_if_the_whole_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "share_saved", lambda *args: (0.5, 0.0))
    optimization, model, x = cuda_graph._Optimization(), Deciding(), torch.randn(4, 8)
    optimization.recorder = Taped
    want = model(x)
    with torch.no_grad():
        scene = scene_on_gpu(lambda: model(x))
    (candidate,) = optimization.candidates(scene)
    with pytest.raises(Impossible, match="the host waits") as refused:
        optimization.predict(scene, candidate)
    assert refused.value.instead is not None and refused.value.instead.less is not None
    (parts,) = refused.value.instead.less()
    assert parts.option("parts") == "front blocks.0 blocks.1 blocks.2" and parts.site == candidate.site
    assert "4 parts captured" in parts.says and "*model.blocks" in parts.code
    assert optimization.predict(scene, parts).saves == 0.5
    before, change = Taped.replays, optimization.apply(scene, parts)
    with change, torch.no_grad():
        torch.testing.assert_close(model(x), want)
        torch.testing.assert_close(model(x * 2), model.forward(x * 2))
    assert Taped.replays >= before + 8 and not any("_compiled_call_impl" in vars(m) for m in model.modules())
    with pytest.raises(Impossible, match=r"no part blocks\.9"):
        optimization.apply(scene, Candidate(optimization.name, candidate.site, "", options=(("parts", "blocks.9"),)))


def test_a_whole_that_is_captured_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "share_saved", lambda *args: (0.25, 0.0))
    optimization, model = cuda_graph._Optimization(), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    optimization.recorder = Taped
    with torch.no_grad():
        scene = scene_on_gpu(lambda: model(torch.ones(4, 8)))
    (candidate,) = optimization.candidates(scene)
    assert candidate.site == Site("module", kind_name(model), type=kind_name(model)) and not candidate.options
    assert optimization.predict(scene, candidate).saves == 0.25


def test_on_a_cpu_there_is_no_candidate(net: Net) -> None:
    scene = Scene(find_roots(lambda: net(torch.ones(4, 8))), walls=(1e-9,))
    assert not list(OPTIMIZATION.candidates(scene))
