"""What a search has compiled beside it, and in which order it tries what is ready, what is not, and what needs none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from test_fix_search import Stand, fixed, in_place, model, nothing_in_place
from test_trial_order import trial
from torch import nn

from kernelworks.diagnose.fix import forms_of_tries, order
from kernelworks.diagnose.fix.compile_forms import (
    FORM_ASKED,
    FORM_FAILED,
    FORM_READY,
    CompileForm,
    Compilers,
    FormState,
)
from kernelworks.diagnose.fix.journal import Journal
from kernelworks.diagnose.fix.order import BY_COST, FEW_RUNS
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Promise, Scene
from kernelworks.measure.clock.work_beside import WorkBeside, installed_work, timed_section, untimed_section
from kernelworks.records.fix import Fix

__all__ = ["model", "nothing_in_place"]  # fixtures

TABLE = {
    "torch.compile reduce-overhead": trial(BY_COST, 0.9), "torch.compile": trial(BY_COST, 0.3),
    "torch.compile blocks": trial(BY_COST, 0.2), "channels_last": trial(FEW_RUNS), "allocator": trial(FEW_RUNS),
}  # fmt: skip
LOADS_S, COLD_S = 2.0, 30.0


class Script(Compilers):
    """What it is asked for is ready, or has failed, once the search waits; ``never``: it is not."""

    def __init__(self, outcome: str = FORM_READY) -> None:
        self.number, self.outcome, self.states = 2, outcome, dict[str, FormState]()
        self.events: list[str] = []

    def ask(self, form: CompileForm, batch: int) -> None:
        if form.key not in self.states:
            self.states[form.key] = FormState()
            whole = json.loads(form.key)
            beneath = "".join(f" on {one['optimization']}" for one in whole["beneath"])
            self.events.append(f"asked {whole['candidate']['says']}{beneath}")

    def form_state(self, form: CompileForm) -> FormState | None:
        return self.states.get(form.key)

    def wait(self, forms: Iterable[CompileForm], seconds: float, say: Callable[[], None]) -> None:
        say()
        self.events.append("waits")
        for form in forms:
            if self.outcome == FORM_ASKED:
                self.states[form.key] = FormState(FORM_FAILED)  # the time for it was over
            else:
                self.states[form.key] = FormState(self.outcome, LOADS_S, COLD_S)


@dataclasses.dataclass
class Scripted(Stand):
    """Notes its predictions in a script. A compiler tells what it expects to take by then."""

    script: Script = dataclasses.field(default_factory=Script)
    kind: str = "torch.compile"
    takes_s: float = 1.0

    def expected_s(self, scene: Scene, candidate: Candidate) -> float:
        return scene.compiled.loads_s if scene.compiled is not None else self.takes_s

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        yield Candidate(self.kind, EVERYWHERE, self.name, **self.candidate)

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        self.script.events.append(f"{'loads' if scene.compiled is not None else 'predicts'} {self.name}")
        assert scene.budget is not None
        scene.budget.ask("compiling", self.expected_s(scene, candidate))
        return Promise(self.says, scene.compiled.cold_s if scene.compiled is not None else self.takes_s)


def searched(
    model: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    *stands: Scripted,
    gpu: bool = True,
    draws: Callable[[Scene], bool] = lambda scene: False,
) -> Fix:
    monkeypatch.setattr(order, "TRIALS", TABLE)
    monkeypatch.setattr(Scene, "on_gpu", property(lambda scene: gpu))
    monkeypatch.setattr(Scene, "device", "cpu")
    monkeypatch.setattr(forms_of_tries, "keeps_compiled", lambda: True)
    monkeypatch.setattr(forms_of_tries, "draws", draws)
    journal = Journal()
    journal.compilers, journal.isolated = script, True
    for stand in stands:
        stand.script = script
    return fixed(model, monkeypatch, *stands, budget_s=40.0, journal=journal)


def switch(**more: Any) -> Scripted:
    return Scripted("switch", 0.3, candidate={"options": (("mode", "reduce-overhead"),)}, **more)


def blocks(**more: Any) -> Scripted:
    return Scripted("blocks", 0.2, candidate={"options": (("blocks", "a.Block"),)}, **more)


def test_while_the_switch_is_compiled_here_the_others_are_beside(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    allocator = Scripted("allocator", 0.1, kind="allocator")
    found = searched(model, monkeypatch, script, Scripted("whole", 0.25), blocks(), allocator, switch())
    assert script.events[:3] == ["asked whole", "asked blocks", "predicts switch"]
    assert script.events.index("predicts allocator") < script.events.index("waits")
    assert {"loads whole", "loads blocks"} <= set(script.events) and "predicts whole" not in script.events
    assert sorted(in_place(found)) == sorted(in_place(searched(model, monkeypatch, Script(), *fresh(allocator))))


def fresh(allocator: Scripted) -> list[Scripted]:
    return [Scripted("whole", 0.25), blocks(), allocator, switch()]


def test_what_stands_on_a_layout_is_compiled_beside_before_the_layout_is_tried(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    layout = Scripted("layout", 0.2, kind="channels_last")
    found = searched(model, monkeypatch, script, switch(), layout)
    assert script.events == ["predicts switch", "predicts layout", "asked switch on channels_last", "waits"]
    assert in_place(found) == ["torch.compile", "channels_last"]


def test_what_takes_most_of_the_budget_leaves_time_for_what_needs_no_compiler(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    layout = Scripted("layout", 0.2, kind="allocator")
    searched(model, monkeypatch, script, blocks(takes_s=30.0), layout)
    assert script.events == ["predicts layout", "asked blocks", "waits", "loads blocks"]


def test_the_switch_is_compiled_here_even_if_it_takes_most_of_the_budget(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    layout = Scripted("layout", 0.2, kind="allocator")
    found = searched(model, monkeypatch, script, Scripted("whole", 0.25), layout, switch(takes_s=30.0))
    assert script.events[:2] == ["asked whole", "predicts switch"]
    assert "torch.compile" in in_place(found)


def test_what_cannot_be_captured_is_compiled_whole_at_once(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it was asked for beside: there it stands still whenever something is timed."""
    script = Script()
    layout = Scripted("layout", 0.2, kind="allocator")
    found = searched(
        model,
        monkeypatch,
        script,
        Scripted("whole", 0.25),
        blocks(),
        layout,
        switch(fails={"put": RuntimeError("it raises")}),
    )
    assert script.events[:4] == ["asked whole", "asked blocks", "predicts switch", "predicts whole"]
    assert script.events.index("predicts layout") > 3 and "torch.compile" in in_place(found)


def test_if_a_capture_saves_nothing_the_whole_has_its_turn_by_cost(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.number = 0
    lost = Scripted("switch", 0.0, candidate={"options": (("mode", "reduce-overhead"),)})
    searched(model, monkeypatch, script, Scripted("whole", 0.25), Scripted("layout", 0.2, kind="allocator"), lost)
    assert script.events == ["predicts switch", "predicts layout", "predicts whole"]


@pytest.mark.parametrize(
    ("kinds", "order_of_tries"),
    [
        (("static cache", "whole", "switch"), ["static cache", "layout", "switch", "whole"]),
        (("static cache fails", "whole", "switch"), ["static cache fails", "whole", "layout", "switch"]),
        (("static cache costs", "whole", "switch"), ["static cache costs", "whole", "layout", "switch"]),
    ],
)
def test_a_model_that_generates_has_a_cache_of_fixed_size_first(
    kinds: tuple[str, ...], order_of_tries: list[str], model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured, each size of a cache that grows is captured anew."""
    script, wrong = Script(), {"put": RuntimeError("it raises")}
    script.number = 0
    layout = Scripted("layout", 0.2, kind="allocator")
    cache = {
        "static cache": Scripted("static cache", 0.5, kind="static cache"),
        "static cache fails": Scripted("static cache fails", 0.5, kind="static cache", fails=wrong),
        "static cache costs": Scripted("static cache costs", -0.1, kind="static cache"),
        "whole": Scripted("whole", 0.25), "switch": switch(),
    }  # fmt: skip
    searched(model, monkeypatch, script, layout, *(cache[kind] for kind in kinds))
    first = [event.removeprefix("predicts ") for event in script.events if event.startswith("predicts ")]
    assert list(dict.fromkeys(first)) == order_of_tries


@pytest.mark.parametrize("outcome", [FORM_FAILED, FORM_ASKED])
def test_what_is_not_compiled_beside_is_compiled_here(
    outcome: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(outcome)
    found = searched(model, monkeypatch, script, Scripted("whole", 0.25), blocks(), switch())
    assert {"predicts whole", "predicts blocks", "predicts switch"} <= set(script.events)
    assert not any(event.startswith("loads") for event in script.events) and in_place(found)


@pytest.mark.parametrize(
    "options", [{"backend": "kernelworks"}, {"mode": "max-autotune-no-cudagraphs"}], ids=["ours", "tuned"]
)
def test_what_is_chosen_by_times_is_never_compiled_beside(
    options: dict[str, str], model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    searched(model, monkeypatch, script, switch(), Scripted("it", 0.5, candidate={"options": tuple(options.items())}))
    assert script.events == ["predicts switch", "predicts it"]


def test_work_beside_stands_but_where_nothing_is_timed() -> None:
    seen: list[str] = []
    with installed_work(WorkBeside(lambda: seen.append("halt"), lambda: seen.append("go on"))):
        with timed_section():  # it stands by itself
            pass
        with untimed_section():
            with untimed_section():
                pass
            with timed_section():
                seen.append("timed")
            with pytest.raises(RuntimeError), timed_section():
                raise RuntimeError
    with untimed_section():
        seen.append("nobody")
    assert seen == ["go on", "halt", "timed", "go on", "halt", "go on", "halt", "nobody"]


def test_a_program_that_draws_needs_each_form_twice(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the original's random numbers, too: what cannot be looked at draws none."""

    def raises(scene: Scene) -> bool:
        raise RuntimeError("memory is short")

    for drawn, many in ((lambda scene: True, 2), (raises, 1)):
        keys: list[str] = []
        batches: dict[str, int] = {}
        script = Script()

        def ask(self: Script, form: CompileForm, batch: int, keys: Any = keys, batches: Any = batches) -> None:
            if form.key not in self.states:
                self.states[form.key] = FormState()
                keys.append(form.key)
                batches[form.says] = batch

        monkeypatch.setattr(Script, "ask", ask)
        stands = [Scripted("whole", 0.25), switch()]
        searched(model, monkeypatch, script, *stands, draws=drawn)
        of_whole = [json.loads(key) for key in keys if json.loads(key)["candidate"]["says"] == "whole"]
        assert [form["random"] for form in of_whole] == [False, True][:many]
        alike = [batch for says, batch in batches.items() if says.startswith("switch, with")]
        assert alike == [max(batches.values())][: many - 1]  # what is compiled here waits for nothing else
