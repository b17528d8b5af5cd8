"""torch.compile's backend: what it finds in a graph, what it puts in, and that inductor has the rest.

Graphs are dynamo's own, of small programs, and run as they are (inductor takes seconds for one): what races say is put
in their place here.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, leaves_of
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernelworks as kw
from kernelworks.compile import choice, inductor
from kernelworks.compile import race as region_race
from kernelworks.compile.calls import OpCall, find_op_calls, states, value_of
from kernelworks.compile.choice import Races, choose_kernels
from kernelworks.compile.inductor import compile_graph, races_within
from kernelworks.compile.progress import heard_by
from kernelworks.compile.race import RegionRaceResult
from kernelworks.compile.region import region_of
from kernelworks.compile.replace import replace_call
from kernelworks.compile.report import CompileReport, Graph
from kernelworks.dispatch.choose import Choice

WON = RegionRaceResult(120.0, 100.0, (1.2, 1.2), 0.01, False)
LARGE = torch.linspace(-2, 2, 512 * 64).view(512, 64)  # work that is worth a race
LOST = RegionRaceResult(100.0, 120.0, (0.8, 0.8), 0.01, False)
NOISY = RegionRaceResult(120.0, 100.0, (1.2, 1.2), 0.5, True)

X = torch.linspace(-2, 2, 6 * 64).view(6, 64)
W, B = torch.linspace(0.5, 1.5, 64), torch.linspace(-1, 1, 64)
Q = torch.linspace(-1, 1, 2 * 4 * 16 * 32).view(2, 4, 16, 32)
SEEN = torch.ones(2, 1, 16, 16, dtype=torch.bool).tril()


def half(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.softmax(F.linear(x, x), -1)


# name -> (program, its arguments, the ops that are found in it)
PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], list[str]]] = {
    "function": (lambda x: F.softmax(x, -1), (X,), ["softmax"]),
    "method": (lambda x: x.softmax(dim=-1), (X,), ["softmax"]),
    "torch's name": (lambda x: torch.softmax(x, -1), (X,), ["softmax"]),
    "norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), (X, W, B), ["layer_norm"]),
    "norm of a root": (lambda x, w: F.rms_norm(x, (64,), w, 1e-6), (X, W), ["rms_norm"]),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (Q,), ["attention"]),
    "masked": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (Q, SEEN), ["attention"]),
    "mask of few dimensions": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (Q, SEEN[0, 0]), ["attention"]),
    "autocast": (half, (X,), ["linear", "softmax"]),
    "dropout": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), (Q,), []),
    "another dtype": (lambda x: F.softmax(x, -1, dtype=torch.float64), (X,), []),
    "something else": (lambda x: x.sin().sort(-1)[0], (X,), []),
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(region_race.environment, "cache_dir", lambda kind: tmp_path / kind)
    monkeypatch.setattr(region_race, "forward_speedup", lambda call, kernel: 1.0)
    CompileReport.clear()
    torch.compiler.reset()
    yield
    CompileReport.clear()


def calls(graph: fx.GraphModule) -> list[OpCall]:
    return list(find_op_calls(graph.graph, lambda op, node, why: None))


# ---------------------------------------------------------------- what is found, and put in


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_are_found_however_they_are_written(name: str) -> None:
    program, args, ops = PROGRAMS[name]
    ((graph, _),) = graphs(program, *args)
    assert [call.op.name for call in calls(graph)] == ops


@pytest.mark.parametrize("name", [name for name, (_, _, ops) in PROGRAMS.items() if ops])
@pytest.mark.parametrize("kernel", ["torch", "reference"])
def test_a_replaced_call_gives_what_it_gave(name: str, kernel: str) -> None:
    """With gradients: autograd records the operator as it recorded torch's function."""
    program, args, _ = PROGRAMS[name]
    given = leaves_of(args)
    ((graph, inputs),) = graphs(program, *given)
    now: dict[fx.Node, fx.Node] = {}
    for call in calls(graph):
        assert call.wanted
        now.update(replace_call(call, kernel, lambda node: now.get(node, node)))
    graph.recompile()
    floats = [t for t in given if t.requires_grad]
    want, got = program(*given), graph(*inputs)[0]
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    close = {"rtol": 2e-2, "atol": 2e-2} if name == "autocast" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, **close)
    flow = torch.linspace(-1, 1, want.numel()).view(want.shape).to(want.dtype)
    for ours, theirs in zip(*(torch.autograd.grad(t, floats, flow) for t in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)


def test_attention_that_is_decomposed_is_benchmarked_as_one() -> None:
    """In 16 bits torch's formula goes through float32, of which autocast knows nothing."""
    with sdpa_kernel(SDPBackend.MATH):
        ((graph, _),) = graphs(lambda q: F.scaled_dot_product_attention(q, q, q), Q.bfloat16())
        (call,) = calls(graph)
        assert len(call.parts) > 1
        assert choice._ways(call)[-1] == (choice.TORCH_KERNEL, choice.TORCH_KERNEL)
        assert {a.dtype for a in call.args[:3]} == {torch.bfloat16}


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_casts_what_is_not_cast_yet(inside: bool) -> None:
    """Of two products with one weight the second finds it cast already."""

    def twice(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.linear(x, w), w)

    def within(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return twice(x, w)

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        ((graph, _),) = graphs(within if inside else twice, X, torch.ones(64, 64).requires_grad_())
        found_calls = calls(graph)
    assert [call.args[1].dtype for call in found_calls] == [torch.bfloat16] * 2


def test_sizes_that_vary_are_those_that_were_seen() -> None:
    """A call is read, timed and described by the sizes of the first call, and serves others when it is replaced."""

    def program(x: Tensor) -> Tensor:
        return F.softmax(x.view(-1, x.shape[1] * 2) * x.shape[0], -1)

    ((graph, inputs),) = graphs(program, X, dynamic=True)
    (call,) = calls(graph)
    assert call.args[0].shape == (3, 128)
    region = region_of(call, states(graph.graph), {})
    assert not isinstance(region, str)
    assert [list(value_of(n).shape) for n in region.inputs] == [[6, 64]]
    torch.testing.assert_close(region.module(X)[0], program(X))
    replace_call(call, "torch", lambda node: node)
    graph.recompile()
    held = {id(t) for t in inputs if isinstance(t, Tensor)}
    assert len(held) == 1 and not any(node.target is F.softmax for node in graph.graph.nodes)
    other = torch.linspace(-1, 1, 4 * 32).view(4, 32)
    sizes = iter((4, 32))
    given = [other if isinstance(t, Tensor) else next(sizes) for t in inputs]
    torch.testing.assert_close(graph(*given)[0], program(other))


def test_a_number_that_varies_is_no_argument_of_an_op() -> None:
    told = []
    ((graph, _),) = graphs(lambda q: F.scaled_dot_product_attention(q, q, q, scale=1 / q.shape[2]), Q, dynamic=True)
    assert not list(find_op_calls(graph.graph, lambda op, node, why: told.append((op, why))))
    assert told == [("attention", "one of its arguments is a number that varies between calls")]


# ---------------------------------------------------------------- the region


def test_a_region_ends_at_products() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        y = F.gelu(x @ w) * 2
        return (F.softmax(y, -1) + 1) @ w

    ((graph, _),) = graphs(block, X, torch.ones(64, 64))
    (call,) = [c for c in calls(graph) if c.op.name == "softmax"]
    region = region_of(call, states(graph.graph), {})
    assert not isinstance(region, str)
    assert len(region.inputs) == 1
    assert len(region.copies) == 5  # gelu, mul, softmax, add, and what they read
    x = torch.randn(6, 64)
    torch.testing.assert_close(region.module(x)[0], F.softmax(F.gelu(x) * 2, -1) + 1)


def test_casts_and_views_lie_in_the_region() -> None:
    """What a product made in 16 bits is cast and shaped for a loss: inductor would do all of it at once."""

    def loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
        logits = (x @ w).float().contiguous()
        return F.cross_entropy(logits.view(-1, 8).to(x.device), target.view(-1)) * 2

    given = torch.ones(2, 3, 4).bfloat16(), torch.ones(4, 8).bfloat16(), torch.zeros(2, 3, dtype=torch.long)
    ((graph, _),) = graphs(loss, *given)
    (call,) = [c for c in calls(graph) if c.op.name == "cross_entropy"]
    region = region_of(call, states(graph.graph), {})
    assert not isinstance(region, str)
    assert {node.target for node in region.copies} >= {"float", "contiguous", "view", "to"}
    assert len(region.module(*(n.meta["example_value"] for n in region.inputs))) == 1


def test_like_regions_have_one_key() -> None:
    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.softmax(x * 2, -1) + 1, F.softmax(y * 2, -1) + 1, F.softmax(y * 3, -1) + 1

    ((graph, _),) = graphs(twice, X, X + 1)
    regions = [region_of(c, states(graph.graph), {}) for c in calls(graph)]
    assert [len({r.key for r in part}) for part in (regions[:2], regions)] == [1, 2]


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(("race", "taken"), [(WON, True), (LOST, False), (NOISY, False)])
def test_a_kernel_goes_in_if_its_region_won(
    race: RegionRaceResult, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((graph, inputs),) = graphs(lambda x: F.softmax(x, -1) + F.softmax(2 * x, -1), LARGE)
    monkeypatch.setattr(choice, "_ways", lambda call: [("reference", "reference")])
    monkeypatch.setattr(region_race, "race_region", lambda *args: race)
    told = Graph("graph", 4)
    choose_kernels(graph, Races(10.0, {}), told)
    ours = [n for n in graph.graph.nodes if n.target is torch.ops.kernelworks.softmax.default]
    assert len(ours) == (2 if taken else 0)
    assert [(c.kernel, c.count) for c in told.calls] == [("reference" if taken else "", 2)]
    torch.testing.assert_close(graph(*inputs)[0], F.softmax(LARGE, -1) + F.softmax(2 * LARGE, -1))
    (line,) = str(told).splitlines()[1:]
    assert line.count("reference") == 1  # the kernel, taken or not, once
    told.drop_kernels()
    assert str(told).count("reference") == 1 and ("reference was not taken: " in str(told)) == taken


def test_a_call_signature_that_lost_twice_is_not_benchmarked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [F.softmax(torch.sin(x * n), -1) for n in (2, 3, 4, 5)]

    benchmarked = []
    ((graph, _),) = graphs(program, LARGE)
    monkeypatch.setattr(choice, "_ways", lambda call: [("reference", "reference")])
    monkeypatch.setattr(region_race, "race_region", lambda *args: benchmarked.append(args) or LOST)
    told = Graph("graph", 4)
    choose_kernels(graph, Races(10.0, {}), told)
    assert len(benchmarked) == 2
    assert told.calls[-1].why.endswith("like 2 others in this graph, the best of them at 0.80x inductor")


@pytest.mark.parametrize(("function", "benchmarked"), [(F.relu, False), (F.gelu, True), (F.log_softmax, True)])
def test_what_has_no_record_is_benchmarked_unless_fusing_it_is_sure_to_pay(
    function: Callable[..., Tensor], benchmarked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((graph, _),) = graphs((lambda x: function(x, -1)) if function is F.log_softmax else function, LARGE)
    (call,) = calls(graph)
    no_record = Choice(call.op.kernel("torch"), (), "no tuning record", native=True)
    monkeypatch.setattr(type(call.op), "choice", lambda *args: no_record)
    monkeypatch.setattr(choice, "eligible_ways", lambda *args: ({"ours": ()}, {}))
    assert bool(choice._ways(call)) == benchmarked


def test_a_kernel_without_hope_is_not_benchmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    ((graph, _),) = graphs(lambda x: F.softmax(x, -1), LARGE)
    monkeypatch.setattr(choice, "_ways", lambda call: [("reference", "reference")])
    monkeypatch.setattr(region_race, "forward_speedup", lambda call, kernel: 0.5)
    monkeypatch.setattr(region_race, "race_region", lambda *args: pytest.fail("benchmarked"))
    told = Graph("graph", 1)
    choose_kernels(graph, Races(10.0, {}), told)
    assert [c.why for c in told.calls] == [
        "reference: not benchmarked in its region: alone it has 0.50x torch's function"
    ]


def test_races_begin_with_the_most_work_and_leave_out_what_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [F.softmax(x[:8], -1), F.softmax(x[:256], -1), F.softmax(x, -1), F.softmax(x[:512], -1)]

    benchmarked = []
    ((graph, _),) = graphs(program, torch.ones(1024, 64))
    monkeypatch.setattr(choice, "_ways", lambda call: [("reference", "reference")])
    monkeypatch.setattr(region_race, "race_region", lambda call, *args: benchmarked.append(len(call.args[0])) or WON)
    told = Graph("graph", 4)
    choose_kernels(graph, Races(10.0, {}), told)
    assert benchmarked == [1024, 512, 256]
    assert [c.why for c in told.calls if not c.kernel] == [
        "so small that inductor's loops are done before a kernel is called"
    ]


def test_no_race_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ((graph, _),) = graphs(lambda x: F.softmax(x, -1), LARGE)
    monkeypatch.setattr(choice, "_ways", lambda call: [("reference", "reference")])
    monkeypatch.setattr(region_race, "race_region", lambda *args: pytest.fail("benchmarked"))
    told = Graph("graph", 1)
    choose_kernels(graph, Races(0.0, {}), told)
    assert [c.why for c in told.calls] == ["reference: not benchmarked: the time budget is 0"]


def test_races_of_all_graphs_within_a_bound_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def spending(graph: object, races: Races, told: Graph) -> None:
        given.append(races.budget_s)
        told.seconds = 3.0

    monkeypatch.setattr(inductor, "choose_kernels", spending)
    monkeypatch.setattr(inductor, "_by_inductor", lambda *args: None)
    monkeypatch.setattr(inductor, "MANY", 1)

    def compile(times: int) -> None:
        for _ in range(times):
            ((graph, inputs),) = graphs(lambda x: F.softmax(x, -1), LARGE)
            compile_graph(graph, inputs, None, {})

    with races_within(5.0):
        compile(3)
    compile(1)
    assert given == [5.0, 2.0, -1.0, inductor.BUDGET_S]


def test_what_a_compile_says_is_heard() -> None:
    said: list[str] = []
    with heard_by(said.append), races_within(0.0):
        ((graph, inputs),) = graphs(lambda x: torch.exp(x) + 1, LARGE)
        compile_graph(graph, inputs, None, {})
    assert said == [f"compiling a graph of {len(graph.graph.nodes)} operators"]


def test_a_race_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked is whether a race is kept, so nothing here hangs on the clock: its variants and its outcome are
    given, without noise (a noisy outcome is not kept)."""
    monkeypatch.setattr(region_race, "forward_speedup", lambda call, kernel: 1.0)
    monkeypatch.setattr(region_race, "_compile_variant", lambda module, inputs, *how: lambda: module(*inputs))
    monkeypatch.setattr(
        region_race, "_duel", lambda *args: region_race.RegionRaceResult(2.0, 1.0, (2.0, 1.9), 0.01, False)
    )
    monkeypatch.setattr(choice, "_ways", lambda call: [("reference", "reference")])
    told = []
    for _ in range(2):
        ((graph, inputs),) = graphs(lambda x: F.softmax(x, -1), LARGE)
        torch.compiler.reset()
        races = Races(10.0, {}, dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True)))
        told.append(Graph("graph", 1))
        choose_kernels(graph, races, told[-1])
        monkeypatch.setattr(region_race, "race_region", lambda *args: pytest.fail("benchmarked again"))
    first, second = (graph.calls for graph in told)
    assert first[0].ratio == 1.9, first[0].why
    assert first == second


# ---------------------------------------------------------------- as torch calls it


def test_torch_finds_the_backend_by_its_name() -> None:
    root = Path(__file__).resolve().parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = declared["torch_dynamo_backends"]["kernelworks"].partition(":")
    assert getattr(__import__(module, fromlist=[name]), name) is kw.compile.backend


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernelworks.budget": 1}, "unexpected option kernelworks.budget"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"max_autotune": "yes"}, "max_autotune"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], said: str) -> None:
    graph = fx.symbolic_trace(nn.Identity())
    with pytest.raises(RuntimeError, match=said):
        compile_graph(graph, [X], None, options)


@pytest.mark.parametrize(
    ("how", "name", "value"),
    [
        ({"mode": "max-autotune-no-cudagraphs"}, "max_autotune", True),
        ({"options": {"kernelworks.budget_s": 0, "max_fusion_size": 7}}, "max_fusion_size", 7),
    ],
)
def test_modes_and_options_are_inductors(
    how: dict[str, Any], name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx

    seen = []

    def stand_in(graph: fx.GraphModule, inputs: list[Any], **more: Any) -> Callable[..., Any]:
        seen.append(more["config_patches"])
        return graph.forward

    monkeypatch.setattr(compile_fx, "compile_fx", stand_in)
    torch.compile(lambda x: x + 1, backend=kw.compile.backend, **how)(X)
    assert [patches[name] for patches in seen] == [value]
    assert [graph.nodes for graph in kw.compile_report()] == [3]


class Mixed(nn.Module):
    """Calls of torch's, and one of an op of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(kw.gelu(self.up(x), approximate="tanh"))


def test_a_model_compiles_and_says_what_was_done() -> None:
    """The one test here that waits for inductor."""
    net = Mixed()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="kernelworks: inductor failed")
        how = {"fullgraph": True, "options": {"kernelworks.budget_s": 0}}
        got = torch.compile(net, backend=kw.compile.backend, **how)(X)
        torch.testing.assert_close(got, net(X))
    (graph,) = kw.compile_report()
    assert [call.op for call in graph.calls] == ["linear", "layer_norm"]
    assert "layer_norm(x f32[6,32]; weight f32[32]; bias f32[32]): inductor: " in str(kw.compile_report())


def test_a_graph_that_cannot_be_read_is_inductors(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    def odd(*args: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr("kernelworks.compile.inductor.choose_kernels", odd)
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **more: graph.forward)
    got = torch.compile(lambda x: F.softmax(x, -1), backend=kw.compile.backend)(X)
    torch.testing.assert_close(got, F.softmax(X, -1))
    assert [graph.notes for graph in kw.compile_report()] == [["nothing was replaced: KeyError: 'odd'"]]


# ---------------------------------------------------------------- what inductor cannot compile


class Blocks(nn.Module):
    """Six like blocks, three of them with a call that the stand-in for inductor fails on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            y = F.gelu(layer(x)) * 2
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(y).float()
            x = x + torch.tanh(y.cumsum(1) if place % 2 else y).sigmoid()
        return x


def test_what_inductor_cannot_compile_runs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    attempts = []

    def stand_in(graph: fx.GraphModule, inputs: list[Any], **more: Any) -> Callable[..., Any]:
        attempts.append(len(graph.graph.nodes))
        if graph.graph.find_nodes(op="call_method", target="cumsum"):
            raise AssertionError("no scan today\nand more")
        return graph.forward

    monkeypatch.setattr(compile_fx, "compile_fx", stand_in)
    monkeypatch.setattr(choice, "_ways", lambda call: [])
    net, x = Blocks(), X[:, :16].detach().requires_grad_()
    compiled_net = torch.compile(net, backend=kw.compile.backend)
    with pytest.warns(RuntimeWarning, match=r"inductor failed on the whole graph \(AssertionError: no scan today\)"):
        got = compiled_net(x)
    tried = len(attempts)
    torch.testing.assert_close(compiled_net(x), got)
    assert len(attempts) == tried < 20  # the second block like the first is not searched anew
    torch.testing.assert_close(got, net(x))
    want, found = (torch.autograd.grad(out.sum(), x)[0] for out in (net(x), got))
    torch.testing.assert_close(found, want)
    ((note,),) = [graph.notes for graph in kw.compile_report()]
    assert "nodes run as they were written (" in note and "cumsum" in note


def test_an_error_of_the_programs_own_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What neither compiles nor runs raises what running it raises."""
    from torch._inductor import compile_fx

    def stand_in(graph: fx.GraphModule, inputs: list[Any], **more: Any) -> Callable[..., Any]:
        raise AssertionError("nothing compiles")

    monkeypatch.setattr(compile_fx, "compile_fx", stand_in)
    ((graph, _),) = graphs(lambda x: torch.tanh(x).view(6, 64).exp(), X)
    run = compile_graph(graph, [X], None, {})
    with pytest.raises(RuntimeError, match="shape"):
        run(X[:5])
