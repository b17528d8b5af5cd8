"""What a search found, put in place again where modules and optimizers are first met, and taken out without a trace."""

from __future__ import annotations

import copy
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.diagnose.fix.plan import MOST_FRESH, AppliedPlan, as_plan, candidates_of
from kernelworks.diagnose.fix.plan_fields import VERSION
from kernelworks.diagnose.optimization import (
    EVERYWHERE,
    PROCESS,
    Candidate,
    Change,
    Impossible,
    Promise,
    Scene,
    Site,
    kind_name,
    same_kind,
)
from kernelworks.diagnose.optimizations import OPTIMIZATIONS
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.swap import OPTIMIZATION as SWAP
from kernelworks.diagnose.optimizations.torch_compile import OPTIMIZATION as COMPILE
from kernelworks.diagnose.sites.modules import Roots, find_roots
from kernelworks.records import Peaks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


X = torch.randn(4, 8)


class Marks:
    """An optimization that says where it is in place by an attribute."""

    name = "marks"

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        yield Candidate(self.name, EVERYWHERE, "marked")

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return Promise(0.5)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        things = scene.roots.modules if candidate.site.kind == "everywhere" else (scene.at(candidate.site),)

        def put() -> Callable[[], None]:
            for thing in things:
                thing.__dict__["marked"] = candidate.says
            return lambda: [thing.__dict__.pop("marked") for thing in things] and None

        return Change(put)


def planned(*candidates: Candidate, roots: tuple[nn.Module, ...] | None = None) -> dict[str, Any]:
    """Of a program that calls these modules; makes them anew at each run, where there are none."""
    called = (Net(),) if roots is None else roots
    plan = as_plan(candidates, Roots(called, (), fresh=not called), program="p", kind="k", saves=0.5)
    return json.loads(json.dumps(plan))  # type: ignore[no-any-return]


def applied(plan: dict[str, Any], *modules: nn.Module) -> AppliedPlan:
    return AppliedPlan(plan, modules, optimizations=(Marks(), SWAP, COMPILE))


INNER = Site("module", kind_name(Net()), 0, "blocks.1", kind_name(Block()))


def test_modules_of_several_sizes_are_each_compiled_for_theirs() -> None:
    """What dynamo has seen it keeps by code, and all modules are called by one code of torch's."""
    shapes: list[int | torch.SymInt] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        shapes.extend(size for t in inputs for size in (t.shape if isinstance(t, Tensor) else (t,)))
        return graph.forward

    given = [
        (torch.randn(size, 8), kind()) for size, kind in ((2, Block), (3, Block), (4, lambda: nn.Sequential(Block())))
    ]
    scene = Scene(find_roots(lambda: [module(x) for x, module in given]))
    for x, module in given:
        candidate = Candidate("torch.compile", scene.site(module), "", options=(("backend", backend),))
        with COMPILE.apply(scene, candidate):
            expected = module(x)
        torch.testing.assert_close(module(x), expected)
    assert shapes and all(type(size) is int for size in shapes)


def test_a_module_is_found_by_path_and_type_as_it_is_first_called() -> None:
    call, first, second = nn.Module.__call__, Net(), Net()
    with applied(planned(Candidate("marks", INNER, "yes"))) as found:
        assert found.waiting and not found.done
        nn.Linear(8, 8)(X)
        assert found.waiting
        first(X)
        assert vars(first.blocks[1])["marked"] == "yes" and found.done and not found.waiting
        assert nn.Module.__call__ is call  # nobody else is waited for
        second(X)
        assert "marked" not in vars(second.blocks[1])
    assert "marked" not in vars(first.blocks[1]) and not found.active


def test_a_module_that_is_given_is_changed_at_once() -> None:
    net, call = Net(), nn.Module.__call__
    with applied(planned(Candidate("marks", INNER, "yes")), net) as found:
        assert vars(net.blocks[1])["marked"] == "yes" and not found.waiting
        assert nn.Module.__call__ is call


def test_an_optimizer_is_found_as_it_steps() -> None:
    net = Net()
    kept, other = torch.optim.AdamW(net.parameters()), torch.optim.SGD(net.parameters())
    with applied(planned(Candidate("marks", Site("optimizer", type=kind_name(kept)), "yes"))) as found:
        for optimizer in (other, kept):
            net(X).sum().backward()
            optimizer.step()
        assert "marked" in vars(kept) and "marked" not in vars(other) and not found.waiting
    assert "marked" not in vars(kept)


def test_what_is_everywhere_is_in_each_outermost_module_as_it_comes() -> None:
    nets = [Net(), Net()]
    with applied(planned(Candidate("marks", EVERYWHERE, "yes"), roots=(Net(), Net()))):
        for net in nets:
            nn.Linear(8, 8)(X)  # a stranger: the plan's program calls none
            net(X)
            assert "marked" in vars(net) and "marked" not in vars(net.blocks[0])
        third = Net()
        third(X)
        assert "marked" not in vars(third)
    assert not any("marked" in vars(net) for net in nets)


def test_a_plan_steps_aside_and_is_back_as_it_was() -> None:
    first, second = Net(), Net()
    with applied(planned(Candidate("marks", EVERYWHERE, "yes"), roots=(Net(), Net()))) as found:
        first(X)
        with found.aside():
            second(X)
            assert not any("marked" in vars(net) for net in (first, second))
            with found.aside():
                assert "marked" not in vars(first)
            assert "marked" not in vars(first)
        assert "marked" in vars(first) and "marked" not in vars(second)
        second(X)
        assert "marked" in vars(second)
        with found.aside():
            found.undo()
        assert not found.active
    assert not any("marked" in vars(net) for net in (first, second))


def test_modules_that_are_made_anew_are_let_go_again() -> None:
    nets = [Net() for _ in range(MOST_FRESH + 3)]
    plan = planned(Candidate("marks", EVERYWHERE, "yes"), roots=())
    with applied(plan) as found:
        for net in nets:
            net(X)
        assert ["marked" in vars(net) for net in nets] == [False] * 3 + [True] * MOST_FRESH
        assert found.done == ["marks: yes (all modules)"]
        seen = weakref.ref(nets.pop(0))
        del net
        gc.collect()
        assert seen() is None
    assert not any("marked" in vars(net) for net in nets)


def test_a_part_that_is_called_ahead_of_its_whole_is_left_to_it() -> None:
    """``generate`` calls an encoder by itself, and then the model that holds it."""
    net, call = Net(), nn.Module.__call__
    with applied(planned(Candidate("marks", EVERYWHERE, "yes"))):
        net.blocks[0](X)
        assert "marked" not in vars(net.blocks[0]) and nn.Module.__call__ is not call
        net(X)
        assert "marked" in vars(net) and nn.Module.__call__ is call


def test_a_part_of_a_module_that_is_made_anew_is_left_to_it_too() -> None:
    net = Net()
    with applied(planned(Candidate("marks", EVERYWHERE, "yes"), roots=())):
        net.blocks[0](X)
        assert "marked" in vars(net.blocks[0])
        net(X)
        net.blocks[1](X)
        assert ["marked" in vars(m) for m in (net, *net.blocks)] == [True, False, False, False]
    assert "marked" not in vars(net)


def test_a_class_of_the_file_that_is_run_is_the_one_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """``kernelworks diagnose file.py:step`` makes the plan, and ``python file.py`` applies it; or the other way."""
    plan = planned(Candidate("marks", INNER, "yes"), Candidate("marks", EVERYWHERE, "all"))
    for kind in (Net, Block):
        monkeypatch.setattr(kind, "__module__", "__main__")
    turned = planned(Candidate("marks", Site("module", kind_name(Net()), 0, "", kind_name(Net())), "yes"))
    net = Net()
    with applied(plan) as found:
        net(X)
        assert vars(net.blocks[1])["marked"] == "yes" and "marked" in vars(net) and not found.waiting
    monkeypatch.undo()
    with applied(turned):
        net(X)
        assert "marked" in vars(net)
    assert not same_kind("__main__.Net", "file.OtherNet") and not same_kind("a.Net", "b.Net")
    assert not same_kind("__main__.Net", "__main__.Other")


class Refuses(Marks):
    kind: type[Exception] = Impossible  # it says that it cannot be put in place here, or raises

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        raise self.kind("a norm is another one here")


@pytest.mark.parametrize("kind", [Impossible, RuntimeError])
def test_what_cannot_be_put_in_place_is_said_and_the_program_goes_on(kind: type[Exception]) -> None:
    net, plan, refuses = Net(), planned(Candidate("marks", INNER, "yes")), Refuses()
    refuses.kind = kind
    with AppliedPlan(plan, optimizations=(refuses,)) as found:
        with pytest.warns(RuntimeWarning, match="not applied: marks: yes .*: a norm is another"):
            net(X)
        net(X)
        assert not found.done and not found.waiting and "another one here" in str(found)


def test_modules_that_two_threads_call_at_once_are_changed_once() -> None:
    """A module that is being changed is not met again by a second thread."""
    placed: list[nn.Module] = []
    begun, go = threading.Event(), threading.Event()

    class Slow(Marks):
        def apply(self, scene: Scene, candidate: Candidate) -> Change:
            placed.append(scene.roots.modules[0])
            begun.set()
            go.wait(300)
            return super().apply(scene, candidate)

    net = Net()
    with AppliedPlan(planned(Candidate("marks", EVERYWHERE, "yes")), optimizations=(Slow(),)):
        threads = [threading.Thread(target=net, args=(X,)) for _ in range(2)]
        threads[0].start()
        assert begun.wait(300)
        threads[1].start()
        go.set()
        for thread in threads:
            thread.join()
    assert placed == [net] and "marked" not in vars(net)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({}, "must be one of version"), ({"kernelworks_plan": VERSION}, "must be one of version"),
        ({"kernelworks_plan": 1, "offers": []}, f"plan is of version 1, .*reads version {VERSION}: run fix again"),
        ({"kernelworks_plan": 9, "candidates": []}, "must be one of version"),
        ({"kernelworks_plan": VERSION, "candidates": [{"optimization": 3}]}, r"candidates.0.\.site must be a mapping"),
        (planned(Candidate("gone", PROCESS, "x")), "names 'gone', which this version of kernelworks lacks: it has"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused_in_words(plan: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kw.apply(plan)


def test_every_optimization_says_what_a_plan_may_say_of_it() -> None:
    assert all(isinstance(getattr(optimization, "takes", None), Takes) for optimization in OPTIMIZATIONS)


GOOD: dict[str, Candidate] = {
    "swap": Candidate("swap", EVERYWHERE, "", options=(("ops", ["layer_norm"]),)),
    "threads": Candidate("threads", PROCESS, "", options=(("number", torch.get_num_threads()),)),
    "gradient clipping": Candidate("gradient clipping", PROCESS, "", options=(("how", "foreach"),)),
    "fused optimizer": Candidate(
        "fused optimizer", Site("optimizer", type="torch.optim.adamw.AdamW"), "", options=(("how", "fused"),)
    ),
    "folded norms": Candidate("folded norms", INNER, "", options=(("pairs", [["linear", "norm"]]),)),
    "merged projections": Candidate("merged projections", INNER, "", options=(("groups", [["q", "k"]]),)),
    "fewer bits": Candidate("fewer bits", EVERYWHERE, "", changes="bf16", options=(("bits", "bf16"),)),
    "CUDA graph": Candidate("CUDA graph", INNER, "", options=(("parts", "blocks.0"),)),
    "torch.compile": Candidate("torch.compile", INNER, "", options=(("mode", "default"), ("backend", "eager"))),
}
WRONG: tuple[Any, ...] = ("?", "", 0, 0.5, -1, True, None, [], [[]], ["?", 3], [["a"]], {}, {"a": 1}, [[1, 2]])


def everywhere_in(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all that a plan holds."""
    if where:
        yield where
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from everywhere_in(item, (*where, key))


def changed_at(plan: Any, where: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(plan)
    inner = made
    for key in where[:-1]:
        inner = inner[key]
    if value is ABSENT:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    return made


ABSENT = object()


@pytest.mark.parametrize("name", GOOD)
def test_a_field_that_is_not_as_it_may_be_is_named_before_anything_is_in_place(name: str) -> None:
    """Every field of a plan with every wrong value: it is taken for what it says, or refused with its name."""
    plan = planned(Candidate("threads", PROCESS, "", options=(("number", 1),)), GOOD[name])
    threads = torch.get_num_threads()
    candidates_of(plan)
    refused = 0
    for where in everywhere_in(plan):
        for value in (*WRONG, ABSENT):
            try:
                candidates_of(changed_at(plan, where, value))
            except ValueError as error:
                refused += 1
                named = next(str(key) for key in reversed(where) if isinstance(key, str))
                assert named in str(error) or "version" in str(error), (where, value, error)
                with pytest.raises(ValueError, match="plan"):
                    kw.apply(changed_at(plan, where, value), Net())
        if isinstance(where[-1], str):
            more = changed_at(plan, (*where[:-1], "unknown"), "x")
            with pytest.raises(ValueError, match="'unknown'"):
                candidates_of(more)
    assert refused > 100 and torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("name", "where", "value", "says"),
    [
        ("threads", ("site", "kind"), "nowhere", "site.kind must be one of 'module', 'function'.*got 'nowhere'"),
        ("threads", ("site", "kind"), "everywhere", "kind must be one of 'process' for 'threads', got 'everywhere'"),
        ("gradient clipping", ("options", "how"), "?", "options.how must be one of 'scaled if clipped', 'foreach'"),
        ("gradient clipping", ("options",), {}, "options.how must be one of.*got nothing"),
        ("threads", ("options", "number"), "2", "options.number must be a whole number from 1 on .*got '2'"),
        ("swap", ("options", "ops"), ["gone"], r"options.ops must be a list of names of ops .*got \['gone'\]"),
        ("torch.compile", ("options", "mode"), "quick", "options.mode must be one of 'default', .*got 'quick'"),
        ("torch.compile", ("options", "backend"), "gone", "options.backend must be one of 'kernelworks', 'inductor'"),
        ("fewer bits", ("options", "bits"), 16, "options.bits must be one of 'tf32', 'bf16', 'int8' .*got 16"),
        ("folded norms", ("options", "pairs"), [["a", "b", "c"]], "options.pairs must be a list of lists of 2 paths"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_with_what_is_accepted(name: str, where: Any, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kw.apply(changed_at(planned(GOOD[name]), ("candidates", 0, *where), value))


def test_a_plan_that_is_too_deep_to_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is no plan"):
        kw.apply(path)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="candidates"):
        kw.apply({"kernelworks_plan": VERSION, "candidates": deep})


def test_the_record_of_a_fix_or_of_a_diagnosis_holds_its_plan(tmp_path: Path) -> None:
    plan, path = planned(Candidate("swap", EVERYWHERE, "ops")), tmp_path / "fix.json"
    for record in ({"before_s": 1.0, "plan": plan}, {"wall_s": 1.0, "fix": {"plan": plan}}):
        path.write_text(json.dumps(record))
        with kw.apply(path, Net()) as found:
            assert found.done == ["swap: ops (all modules)"]
    path.write_text(json.dumps({"fix": None, "plan": {}}))
    with pytest.raises(ValueError, match="must be one of version"):
        kw.apply(path)


def test_a_file_is_read_and_none_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(OSError, match=r"plan\.json"):
        kw.apply(path)
    path.write_bytes(b"\xff{")
    with pytest.raises(ValueError, match="is no plan"):
        kw.apply(path)
    path.write_text(json.dumps(planned(Candidate("swap", EVERYWHERE, "ops"))))
    net = Net()
    with kw.apply(path, net) as found:
        assert found.done == ["swap: ops (all modules)"]
        assert "forward" in vars(net.blocks[0].linear)
    assert "forward" not in vars(net.blocks[0].linear)
    with pytest.raises(TypeError, match=r"must be torch\.nn\.Module, got str"):
        kw.apply(path, "net")  # type: ignore[arg-type]


def test_candidates_go_through_a_plan_as_they_are() -> None:
    net = Net()
    with torch.no_grad():
        roots = find_roots(lambda: net(X))
    scene = Scene(roots, walls=(1e-9,))
    candidates = [candidate for optimization in (SWAP, COMPILE) for candidate in optimization.candidates(scene)]
    assert {candidate.says for candidate in candidates} >= {"each Block compiled", "compiled whole"}
    for (optimization, back), candidate in zip(candidates_of(planned(*candidates)), candidates, strict=True):
        assert (back.site, dict(back.options)) == (candidate.site, dict(candidate.options))
        assert optimization.name == candidate.optimization


def test_blocks_are_compiled_and_no_more_once_it_is_undone() -> None:
    net = Net()
    candidate = Candidate("torch.compile", Site("module", kind_name(net), type=kind_name(net)), "", options=(
        ("blocks", kind_name(Block())), ("backend", "eager"),
    ))  # fmt: skip
    with torch.no_grad():
        want = net(X)
        with applied(planned(candidate)):
            assert torch.equal(net(X), want)
            assert all(block._compiled_call_impl is not None for block in net.blocks)
            assert net._compiled_call_impl is None
        assert all(block._compiled_call_impl is None for block in net.blocks)


@pytest.mark.parametrize("make", [Net, lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), lambda: nn.Linear(8, 8)])
def test_what_is_compiled_reaches_the_compiler_torchs_own_modules_too(make: Callable[[], nn.Module]) -> None:
    graphs, net = [], make()

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    site = Site("module", kind_name(net), type=kind_name(net))
    candidate = Candidate("torch.compile", site, "", options=(("backend", compiler),))
    with torch.no_grad(), COMPILE.apply(Scene(Roots((net,), (), fresh=False)), candidate):
        net(X)
    assert len(graphs) == 1


PROGRAM = """
import sys, json
import torch, kernelworks as kw
sys.path[:0] = {folders!r}
from test_plan import Net, X
net = Net()
with kw.apply(json.loads({plan!r})) as found, torch.no_grad():
    net(X)
    print(*found.done, "forward" in vars(net.blocks[0].linear))
"""


def test_a_fix_stays_in_place_until_it_is_undone_and_its_plan_goes_to_another_process(
    ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelworks.diagnose.forecast.forecaster import Forecaster
    from kernelworks.diagnose.forecast.predict import Forecast
    from kernelworks.profile.program import Program

    net = Net()
    seconds = lambda program: 0.5 if "forward" in vars(net.blocks[0].linear) else 1.0  # noqa: E731
    monkeypatch.setattr(Program, "seconds", seconds)
    monkeypatch.setattr(Forecaster, "forecast", lambda *given: Forecast(0.5, 0))
    monkeypatch.setattr(type(COMPILE), "candidates", lambda self, scene: ())  # which takes its time
    with torch.no_grad():
        found = kw.fix(net, X, budget_s=600.0, peaks=ceilings, rough=True)
    assert found.active and found.fn is net and "forward" in vars(net.blocks[0].linear), str(found)
    assert found.code == "kernelworks.swap(model)" and found.plan["saves"] == 0.5
    assert "applied: swap" in str(found) and found.record().gain_s == 0.5
    found.undo()
    assert not found.active and "forward" not in vars(net.blocks[0].linear)
    folders = [str(Path(file).parent) for file in (__file__, forked.__file__)]
    text = PROGRAM.format(folders=folders, plan=json.dumps(found.plan))
    ran = forked.python(code=text)
    assert ran.stdout.strip() == f"swap: {found.plan['candidates'][0]['says']} (all modules) True", ran.stderr
