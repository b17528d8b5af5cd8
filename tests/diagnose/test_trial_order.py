"""In which order optimizations are tried, on stand-ins of known gain and cost, which spend seconds without a clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_fix_search import WALL, Stand, fixed, in_place, inside, model, nothing_in_place
from torch import nn

from kernelworks.diagnose.fix import order, result
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.order import (
    BY_COST,
    CUDA_GRAPHS,
    FEW_RUNS,
    LAST,
    TRIALS,
    UNKNOWN,
    Trial,
    trial_of,
)
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Promise, Scene
from kernelworks.diagnose.optimizations import OPTIMIZATIONS, torch_compile
from kernelworks.diagnose.sites.modules import Roots, find_roots
from kernelworks.profile.budget import Budget
from kernelworks.profile.calls import Call
from kernelworks.records.fix import NOT_TRIED, Fix

__all__ = ["model", "nothing_in_place"]  # fixtures

BUDGET_S = 40.0


@dataclasses.dataclass
class Planted(Stand):
    """Takes so many seconds of the budget to be predicted, and tells beforehand that it ``expects`` so many."""

    takes_s: float = 0.0
    expects_s: float = 0.0
    seen: list[tuple[str, Sequence[str]]] = dataclasses.field(default_factory=list)

    def expected_s(self, scene: Scene, candidate: Candidate) -> float:
        return self.expects_s or self.takes_s

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        assert scene.budget is not None
        scene.budget.ask("compiling", self.expected_s(scene, candidate))
        with scene.in_place():
            self.seen.append((self.name, tuple(inside)))
        scene.budget.begun -= self.takes_s
        return super().predict(scene, candidate)


def searched(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, table: dict[str, Trial], *planted: Planted, gpu: bool = False,
    budget_s: float = BUDGET_S,
) -> tuple[Fix, list[tuple[str, Sequence[str]]]]:  # fmt: skip
    """The fix, and what was predicted in its order, each with what was in place then."""
    seen: list[tuple[str, Sequence[str]]] = []
    for one in planted:
        one.seen = seen
    monkeypatch.setattr(order, "TRIALS", table)
    monkeypatch.setattr(Scene, "on_gpu", property(lambda scene: gpu))
    monkeypatch.setattr(Scene, "device", "cpu")
    return fixed(model, monkeypatch, *planted, budget_s=budget_s), seen


def trial(turn: int, share: float = 0.2) -> Trial:
    return Trial(turn, share, 1.0, 0, "planted")


def test_what_takes_a_few_runs_is_measured_before_anything_is_compiled(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler gains most, is listed first, and takes all that is left: the two that are cheap are kept."""
    table = {"compiler": trial(BY_COST, 0.9), "allocator": trial(FEW_RUNS), "optimizer": trial(FEW_RUNS)}
    found, seen = searched(
        model, monkeypatch, table, Planted("compiler", 0.8, takes_s=60.0, expects_s=8.0),
        Planted("allocator", 0.5, takes_s=0.5), Planted("optimizer", 0.6, takes_s=0.5),
    )  # fmt: skip
    assert sorted(in_place(found)) == ["allocator", "optimizer"]
    names = [name for name, _ in seen]
    assert names[-1] == "compiler" and names.count("compiler") == 1
    assert sorted(seen[-1][1]) == ["allocator", "optimizer"]


def test_compilers_come_by_what_a_second_of_each_is_expected_to_bring(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"slow": trial(BY_COST, 0.4), "quick": trial(BY_COST, 0.3), "tuned": trial(LAST, 0.9)}
    planted = [
        Planted("tuned", 0.1, takes_s=1.0), Planted("slow", 0.1, takes_s=12.0), Planted("quick", 0.1, takes_s=3.0),
    ]  # fmt: skip
    found, seen = searched(model, monkeypatch, table, *planted)
    assert seen == [("quick", ()), ("slow", ("quick",)), ("tuned", ("quick", "slow"))]  # each measured before the next
    assert in_place(found) == ["tuned", "slow", "quick"]
    _, seen = searched(model, monkeypatch, table | {"slow": trial(BY_COST, 4.0)}, *planted)
    assert [name for name, _ in seen] == ["slow", "quick", "tuned"]


@pytest.mark.parametrize(
    ("gpu", "takes_s", "first"),
    [(True, 20.0, "torch.compile"), (True, 45.0, "allocator"), (False, 20.0, "allocator")],
)
def test_on_a_gpu_the_switch_comes_first_if_it_fits_the_budget(
    gpu: bool, takes_s: float, first: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"torch.compile reduce-overhead": trial(BY_COST), "allocator": trial(FEW_RUNS, 0.5)}
    switch = {"options": (("mode", "reduce-overhead"),)}
    found, seen = searched(
        model, monkeypatch, table, Planted("allocator", 0.3),
        Planted("torch.compile", 0.4, candidate=switch, takes_s=takes_s), gpu=gpu,
    )  # fmt: skip
    assert seen[0][0] == first
    compiled = next(one for one in found.optimizations if one.optimization == "torch.compile")
    assert compiled.applied == (takes_s < BUDGET_S)
    assert compiled.applied or (compiled.outcome == NOT_TRIED and compiled.needs_s > BUDGET_S)


@pytest.mark.parametrize(("budget_s", "first"), [(300.0, "blocks"), (60.0, "whole"), (30.0, "blocks")])
def test_the_whole_comes_before_its_blocks_where_the_budget_holds_no_more(
    budget_s: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 300 s both have enough, of 30 s the whole has not."""
    monkeypatch.setattr(order, "TRIALS", {"torch.compile": trial(BY_COST), "torch.compile blocks": trial(BY_COST)})
    monkeypatch.setattr(Scene, "on_gpu", property(lambda scene: False))
    scene = Scene(Roots((), (), fresh=False), walls=(WALL,), budget=Budget(budget_s, WALL))
    tries = [
        Try(
            Planted("torch.compile", 0.2, takes_s=takes_s),
            Candidate("torch.compile", EVERYWHERE, kind, options=options, group="m"),
        )
        for kind, takes_s, options in (("whole", 25.0, ()), ("blocks", 6.0, (("blocks", "net.Block"),)))
    ]
    groups = order.groups_of_tries(scene, tries, isolated=True)
    assert next(one.candidate.says for group in groups for one in group) == first and len(groups) == 2


def test_what_could_not_be_measured_any_more_is_not_compiled(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is left when it is compiled, less than its trial takes."""
    table = {"first": trial(BY_COST, 0.9), "second": trial(BY_COST, 0.1)}
    found, seen = searched(
        model, monkeypatch, table, Planted("first", 0.3, takes_s=20.0), Planted("second", 0.9, takes_s=19.0)
    )
    assert [name for name, _ in seen] == ["first"] and in_place(found) == ["first"]
    second = found.optimizations[1]
    assert second.outcome == NOT_TRIED and "budget" in second.why and second.needs_s > BUDGET_S


@pytest.mark.parametrize(("runs", "first"), [(7, "runs"), (200, "compiler")])
def test_what_takes_a_large_share_of_the_budget_in_runs_is_not_cheap(
    runs: int, first: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runs(Planted):
        expected_s = None  # type: ignore[assignment]  # the table says it

    table = {"runs": Trial(FEW_RUNS, 0.2, 0.0, runs, "planted"), "compiler": trial(BY_COST)}
    monkeypatch.setattr(Runs, "predict", Stand.predict)
    noted: list[str] = []
    monkeypatch.setattr(Stand, "_may_fail", lambda self, at: noted.append(self.name) if at == "apply" else None)
    searched(model, monkeypatch, table, Runs("runs", 0.3), Planted("compiler", 0.3, takes_s=5.0))
    assert noted[0] == first


@pytest.mark.parametrize("wall", [0.001, 0.1, 0.5, 5.0])
@pytest.mark.parametrize("compiling_s", [3.0, 12.0, 60.0])
def test_torchs_default_is_compiled_before_what_takes_longer(compiling_s: float, wall: float) -> None:
    """The best plan so far is at least torch's switch; ours gain beyond that what is left then."""
    waits = {"": 1.0, "backend": 2.5}

    class Compiler(Planted):
        def expected_s(self, scene: Scene, candidate: Candidate) -> float:
            return next(factor for name, factor in waits.items() if bool(name) == bool(candidate.options)) * compiling_s

    def one(*options: tuple[str, str]) -> Try:
        return Try(Compiler("torch.compile", 0.1), Candidate("torch.compile", EVERYWHERE, "it", options=options))

    scene = Scene(Roots((), (), fresh=False), walls=(wall,), budget=Budget(BUDGET_S, wall))
    default, ours = one(), one(("backend", "kernelworks"))
    assert [group[0] for group in order.groups_of_tries(scene, [ours, default], isolated=True)] == [default, ours]


@pytest.mark.parametrize(("mode", "share"), [("reduce-overhead", order.OTHER_MODE), ("", 1.0)])
def test_ours_is_expected_to_save_less_in_a_mode_that_has_lost(mode: str, share: float) -> None:
    """Uncaptured, if what is kept is captured. Captured it is tried last: it seldom gains beyond torch's graphs."""

    def one(**options: str) -> Try:
        made = Candidate("torch.compile", EVERYWHERE, "it", options=tuple(options.items()), group="compile it")
        return Try(Planted("torch.compile", 0.1, takes_s=8.0), made)

    plain, captured = one(backend="kernelworks"), one(backend="kernelworks", mode="reduce-overhead")
    kept = [one(mode=mode) if mode else one()]
    scene = Scene(Roots((), (), fresh=False), walls=(0.01,), budget=Budget(BUDGET_S, 0.01))
    assert order.expected_gain(scene, plain, kept) == pytest.approx(share * trial_of(plain.candidate).share)
    (found, *_), (after, *_) = order.groups_of_tries(scene, [captured, plain], kept, isolated=True)
    assert [found, after] == [plain, captured]


@pytest.mark.parametrize("gpu", [True, False])
def test_ours_is_captured_on_a_gpu_alone(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scene, "runs_on_gpu", lambda scene, root: gpu)
    monkeypatch.setattr(torch_compile, "missing_compiler", lambda: "")
    net = nn.Linear(4, 4)
    scene = Scene(find_roots(lambda: net(torch.ones(2, 4))), walls=(1e-6,), budget=Budget(BUDGET_S, 1e-6))
    found = [dict(one.options) for one in torch_compile.OPTIMIZATION.candidates(scene)]
    ours = {"backend": "kernelworks"}
    assert ours in found and ({**ours, "mode": "reduce-overhead"} in found) == gpu


def test_what_loads_on_the_cpu_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    net, loads = nn.Linear(4, 4), nn.Softmax(-1)
    monkeypatch.setattr(Scene, "runs_on_gpu", lambda scene, root: root is net)
    scene = Scene(find_roots(lambda: net(loads(torch.ones(2, 4)))), walls=(1e-6,), budget=Budget(BUDGET_S, 1e-6))
    found = [(scene.at(one.site), one.option("mode")) for one in torch_compile.OPTIMIZATION.candidates(scene)]
    assert scene.on_gpu and {root for root, _ in found} == {net, loads}
    assert {root for root, mode in found if mode == CUDA_GRAPHS} == {net}


def test_each_optimization_has_its_turn_and_the_reason() -> None:
    names = {one.name for one in OPTIMIZATIONS}
    assert names <= set(TRIALS) and {key.partition(" ")[0] for key in TRIALS if key.startswith("torch.")} <= names
    assert all(each.reason and each.share >= 0 and each.seconds >= 0 for each in TRIALS.values())
    free_of_compilers = {"allocator", "threads", "fused optimizer"}
    assert all(TRIALS[name].turn == FEW_RUNS for name in free_of_compilers)
    assert all(each.turn != FEW_RUNS for name, each in TRIALS.items() if name.startswith("torch.compile"))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "torch.compile"), ({"mode": "reduce-overhead"}, "torch.compile reduce-overhead"),
        ({"backend": "kernelworks"}, "torch.compile kernelworks"), ({"blocks": "a.Block"}, "torch.compile blocks"),
        ({"mode": "max-autotune-no-cudagraphs"}, "torch.compile max-autotune"), ({"part": "f()"}, "torch.compile part"),
        ({"mode": "reduce-overhead", "step": "SGD"}, "torch.compile step"),
        ({"backend": "kernelworks", "mode": "reduce-overhead"}, "torch.compile kernelworks reduce-overhead"),
    ],
)  # fmt: skip
def test_each_way_to_compile_has_an_entry(options: dict[str, str], key: str) -> None:
    made = Candidate("torch.compile", EVERYWHERE, "it", options=tuple(options.items()))
    assert trial_of(made) is TRIALS[key]
    assert trial_of(dataclasses.replace(made, optimization="of somebody else")) is UNKNOWN


def test_a_search_that_ends_early_tells_the_gain_of_the_turns_and_not_of_another_minute(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs before the search were twice as fast as any of it: they do not turn a gain into a loss."""
    stands = Stand("first", 0.5), Stand("second", 0.2)
    monkeypatch.setattr(result, "_fits", lambda search: False)
    found = fixed(model, monkeypatch, *stands, walls=(0.4 * WALL, 0.41 * WALL, 0.39 * WALL))
    assert in_place(found) == ["first", "second"] and found.ended
    assert [found.before_s, found.after_s] == pytest.approx([WALL, 0.4 * WALL])
    assert found.predicted_gain_s == pytest.approx(0.6 * WALL) and found.gain_s == pytest.approx(0.6 * WALL)


def test_on_a_gpu_tuning_takes_as_long_as_there_are_products_of_other_weights() -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)).eval(), torch.ones(3, 8)
    with torch.no_grad():
        roots = find_roots(lambda: model(x))
    products = [
        Call("aten::linear", 0, 1, children=[Call("aten::addmm", 0, 1, shapes=[[4], [rows, 8], [8, 4], [], []])])
        for rows in (3, 5)
    ]
    products += [Call("aten::addmm", 0, 1, shapes=[[2], [3, 4], [4, 2], [], []]), Call("aten::bmm", 0, 1, shapes=[[1]])]
    forecaster: Any = SimpleNamespace(timeline=SimpleNamespace(calls=products))
    seconds = {}
    for on_gpu in (False, True):
        kind = type("Placed", (Scene,), {"on_gpu": on_gpu})
        scene = kind(roots, walls=(1e-9,), budget=Budget(600.0, 1e-9), forecaster=forecaster)
        every = {
            one.option("mode"): one for one in torch_compile.OPTIMIZATION.candidates(scene) if not one.option("backend")
        }
        seconds[on_gpu] = [
            torch_compile.OPTIMIZATION.expected_s(scene, every[mode]) for mode in (None, "max-autotune-no-cudagraphs")
        ]
    assert seconds[False][1] == pytest.approx(3 * seconds[False][0])
    assert seconds[True][1] - seconds[True][0] == pytest.approx(10 + 10 + 3)
