"""What a search puts in place beneath what, and what it tries last, on stand-ins."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

import pytest
import torch
from test_fix_search import WALL, Stand, fixed, in_place, inside, model, nothing_in_place
from torch import nn

from kernelworks.diagnose.fix import calibrate, guarded_trial, search
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Promise, Rejected, Scene
from kernelworks.machine.float32_products import Float32Products
from kernelworks.measure.clock import noise as quiet
from kernelworks.profile.process_state import read_settings
from kernelworks.records import history
from kernelworks.records.fix import APPLIED, REJECTED
from kernelworks.records.predictions import prediction_accuracy
from kernelworks.report import predictions

__all__ = ["model", "nothing_in_place"]  # fixtures


def test_what_moves_weights_comes_beneath_what_is_compiled_which_is_made_anew(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, ...]] = []

    class Compiler(Stand):
        def apply(self, scene: Scene, candidate: Candidate) -> Change:
            made.append(scene.beneath)
            return super().apply(scene, candidate)

    put: list[list[str]] = []

    def noted(held: nn.Module) -> Callable[[], None]:
        put.append(list(inside))
        return lambda: None

    compiler = Compiler("torch.compile", 0.5, does=noted)
    layout = Stand("channels_last", 0.0, really=0.2, candidate={"again": True})
    found = fixed(model, monkeypatch, compiler, layout)
    assert [each["optimization"] for each in found.plan["candidates"]] == ["channels_last", "torch.compile"]
    assert [len(names) for names in made] == [0, 1] and "channels_last" in made[1][0]
    assert all(before in ([], ["channels_last"]) for before in put) and ["channels_last"] in put


def test_a_layout_that_gains_nothing_beneath_a_compiler_leaves_it_as_it_was(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Stand("torch.compile", 0.5)
    layout = Stand("channels_last", 0.0, really=-0.3, candidate={"again": True})
    found = fixed(model, monkeypatch, compiler, layout)
    assert in_place(found) == ["torch.compile"]
    assert [each["optimization"] for each in found.plan["candidates"]] == ["torch.compile"]


@pytest.mark.parametrize("really", [(0.30, 0.42), (0.30, 0.28)])
@pytest.mark.parametrize("step", [False, True])
def test_what_may_be_better_than_what_is_in_place_is_never_dropped_by_a_guess(
    really: tuple[float, float], step: bool, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What blocks save was unknown on this machine, or a race of modules cannot tell a step from its modules: the
    whole, which is predicted to save about as much, is raced with them, or measured."""
    raced: list[str] = []

    def duel(scene: Scene, one: Try, rivals: Sequence[Try], beside: Sequence[Try]) -> float:
        raced.append(one.candidate.says)
        return 1 - (1 - really[1]) / (1 - really[0])

    def unknown(promise: Promise, turns: object, rivals: object) -> Promise:
        return dataclasses.replace(promise, saves=None)

    monkeypatch.setattr(search, "duel", duel)
    monkeypatch.setattr(calibrate, "calibrated_promise", unknown)
    more = {"options": (("step", "SGD"),)} if step else {}
    blocks = Stand("blocks", 0.30, really=really[0], candidate={"group": "place", **more})
    found = fixed(
        model,
        monkeypatch,
        blocks,
        Stand("whole", 0.28, really=really[1], candidate={"group": "place"}),
        calibrates=True,
    )
    assert in_place(found) == ["whole" if really[1] > really[0] else "blocks"] and raced == ([] if step else ["whole"])


@pytest.mark.parametrize("really", [0.3, -0.1])
def test_parts_of_what_torchs_switch_holds_are_not_looked_for(
    really: float, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are put off until it was measured, and then only where it was not kept."""
    looked: list[list[str]] = []

    class Graph(Stand):
        def _parts(self) -> list[Candidate]:
            looked.append([*inside])
            return [Candidate(self.name, EVERYWHERE, self.less, group="place")]

        def predict(self, scene: Scene, candidate: Candidate) -> Promise:
            if candidate.says == self.less:
                return Promise(0.2)
            raise Rejected("it cannot be captured", Promise(None, less=self._parts))

    measured: list[str] = []

    def noted(held: nn.Module) -> Callable[[], None]:
        assert not looked
        measured.append("switch")
        return lambda: None

    how = {"group": "place", "options": (("mode", "reduce-overhead"),)}
    switch = Stand("torch.compile", 0.3, really=really, candidate=how, does=noted)
    found = fixed(model, monkeypatch, Graph("graph", 0.0, less="parts", candidate={"group": "place"}), switch)
    assert measured and looked == ([] if really > 0 else [[]])
    assert [one.says for one in found.optimizations if one.applied] == ["torch.compile" if really > 0 else "parts"]


# ---------------------------------------------------------------- what may break the process


def test_in_the_users_own_process_what_may_break_it_comes_last(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Noted(Stand):
        def predict(self, scene: Scene, candidate: Candidate) -> Promise:
            asked.append(self.name)
            return super().predict(scene, candidate)

    risky = Noted("graph", 0.6, candidate={"risky": True})
    fixed(model, monkeypatch, risky, Noted("a", 0.1), Noted("b", 0.2))
    assert asked[:2] == ["a", "b"] and asked[-1] == "graph" and asked.count("graph") == 1


def _leaves(what: str) -> Callable[[nn.Module], Callable[[], None]]:
    """Puts nothing in place, and sets something of the process for good."""
    acts: dict[str, Callable[[], object]] = {
        "the default dtype": lambda: torch.set_default_dtype(torch.float64),
        "gradients": lambda: torch.set_grad_enabled(False),
        "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
        "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        "the working folder": lambda: os.chdir("/"),
        "the program's input": lambda: os.close(0),
        "the program's errors": lambda: os.dup2(1, 2),
    }

    def does(model: nn.Module) -> Callable[[], None]:
        acts[what]()
        return lambda: None

    return does


@pytest.mark.parametrize(
    "what",
    ["the default dtype", "gradients", "deterministic algorithms", "the number of threads", "the working folder",
     "the program's input", "the program's errors"],
)  # fmt: skip
def test_what_a_trial_leaves_behind_is_put_back_and_costs_that_trial(
    what: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before, streams = read_settings(), [os.fstat(number).st_ino for number in range(3)]
    left = Stand("leaves", 0.5, does=_leaves(what))
    found = fixed(model, monkeypatch, left, Stand("works", 0.2))
    assert in_place(found) == ["works"]
    (one,) = (each for each in found.optimizations if each.optimization == "leaves")
    assert one.outcome == REJECTED and f"it leaves {what} as it should not" in one.why
    assert read_settings() == before and [os.fstat(number).st_ino for number in range(3)] == streams


def test_what_the_program_sets_itself_no_trial_has_left(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    was, on = Float32Products.of_process(), ["high", "medium"]

    def sets(module: nn.Module, args: object) -> None:
        torch.set_float32_matmul_precision(on[0])
        on.reverse()

    model.register_forward_pre_hook(sets)
    try:
        assert in_place(fixed(model, monkeypatch, Stand("works", 0.2))) == ["works"]
    finally:
        was.restore()


def test_what_cannot_be_undone_ends_the_search_in_this_process(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stays(held: nn.Module) -> Callable[[], None]:
        return lambda: {}["no way back"]

    found = fixed(model, monkeypatch, Stand("stays", 0.5, does=stays), Stand("works", 0.2), Stand("first", 0.6))
    assert in_place(found) == ["first"] and "the search ended early" in found.ended
    (one,) = (each for each in found.optimizations if each.optimization == "stays")
    assert one.outcome == REJECTED and "it cannot be undone: KeyError: 'no way back'" in one.why


def test_a_lost_device_ends_the_search_and_is_told_of_the_trial_that_lost_it_alone(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    class Losing(Stand):
        def predict(self, scene: Scene, candidate: Candidate) -> Promise:
            lost.append("CUDA error: an illegal memory access was encountered")
            return super().predict(scene, candidate)

    monkeypatch.setattr(guarded_trial, "device_fault", lambda: lost[0] if lost else "")
    found = fixed(
        model, monkeypatch, Losing("graph", 0.6, candidate={"risky": True}), Stand("a", 0.3), Stand("z", None)
    )
    outcomes = {one.optimization: (one.outcome, one.why) for one in found.optimizations}
    assert outcomes["graph"][0] == REJECTED and "the device was lost" in outcomes["graph"][1]
    assert outcomes["a"][0] == APPLIED and in_place(found) == ["a"]
    assert "the device was lost" in found.ended


def test_what_was_measured_on_a_busy_machine_is_told_and_nothing_is_learnt_of_it(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = quiet.SampledWindows((((WALL, 0.6 * WALL),) * 4,), (quiet.Noise(0.5),), 0, True)
    monkeypatch.setattr(search, "alternate", lambda *args, **more: turns)
    fixed(model, monkeypatch, Stand("it", 0.4))
    assert history.read_outcomes() == [] and len(history.read_outcomes(loud=True)) == 1
    known = prediction_accuracy()
    assert known.outcome_count == 0 and known.loud_count == 1
    assert "1 measured here, and none of them counts" in predictions.sentence(known)
