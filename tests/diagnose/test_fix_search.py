"""The search over optimizations, on stand-ins: a clock that knows what each saves, and what each may do wrong."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.account.account import UNEXPLAINED, USEFUL
from kernelworks.diagnose.fix import calibrate, search
from kernelworks.diagnose.fix import predict as predictions
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.journal import Journal, as_state
from kernelworks.diagnose.fix.search import Search
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Impossible, Promise, Rejected, Scene
from kernelworks.diagnose.sentence import sentence
from kernelworks.measure.clock import noise as quiet
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.profile.program import Program
from kernelworks.records import Fix
from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED, CompilerReport
from kernelworks.report import fix as fix_report

WALL = 0.100
inside: list[str] = []  # what is in place


@dataclasses.dataclass
class Foretold:
    """A side that measures little."""

    most_rounds: int = 3

    def with_sync(self, program: Program) -> Program:
        return program


@dataclasses.dataclass
class Stand:
    """An optimization that is said to save a share of the wall clock, and saves ``really``; ``does`` what it likes to
    the model while it is in place."""

    name: str
    says: float | None
    really: float | None = None
    does: Callable[[nn.Module], Callable[[], None]] | None = None
    candidate: dict[str, Any] = dataclasses.field(default_factory=dict)
    fails: dict[str, Exception] = dataclasses.field(default_factory=dict)
    upon: dict[str, float] = dataclasses.field(default_factory=dict)  # what it is said to save with another in place
    less: str = ""  # the candidate in its place, which saves a fifth
    compiles: float = 0.0  # seconds that its prediction takes, or until the budget is over
    asks: float = 0.0  # seconds without which it does not begin

    def _may_fail(self, at: str) -> None:
        if at in self.fails:
            raise self.fails[at]

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        self._may_fail("candidates")
        yield Candidate(self.name, EVERYWHERE, self.name, code=f"{self.name}()", **self.candidate)

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        self._may_fail("predict")
        if candidate.says == self.less:
            return Promise(0.2)
        assert scene.budget is not None
        scene.budget.ask("compiling", self.asks)
        begin = time.perf_counter()
        while time.perf_counter() - begin < self.compiles:
            scene.budget.ask("compiling")
        with scene.in_place():
            says = next((says for name, says in self.upon.items() if name in inside), self.says)
        return Promise(says, less=(lambda: [Candidate(self.name, EVERYWHERE, self.less)]) if self.less else None)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        self._may_fail("apply")
        name = candidate.says

        def put() -> Callable[[], None]:
            self._may_fail("put")
            back = self.does(scene.roots.modules[0]) if self.does else lambda: None
            inside.append(name)

            def out() -> None:
                inside.remove(name)
                back()

            return out

        return Change(put)


@pytest.fixture(autouse=True)
def nothing_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    inside.clear()
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))  # with a history of its own
    yield
    assert not inside


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(16, 16).eval()


def fixed(model: nn.Module, monkeypatch: pytest.MonkeyPatch, *stands: Stand, **more: Any) -> Fix:
    """A fix whose clock reads what the stand-ins in place really leave of the wall clock. Predictions have held here,
    unless it ``calibrates`` them."""
    if not more.pop("calibrates", False):
        monkeypatch.setattr(calibrate, "holds_here", lambda one, outcomes: True)
    x = torch.randn(4, 16)

    def program() -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    def seconds(program: Program) -> float:
        left = WALL
        for stand in stands:
            if stand.less and stand.less in inside:
                left *= 0.8
            if stand.name in inside:
                alone = stand.says or 0.0 if stand.really is None else stand.really
                left *= 1 - next((says for name, says in stand.upon.items() if name in inside), alone)
        return left

    monkeypatch.setattr(Program, "seconds", seconds)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    side: Any = Foretold()
    more = {"budget_s": 20.0, **more}
    walls = more.pop("walls", (WALL, 1.01 * WALL, 0.99 * WALL))
    found = Search(Program("p", program), walls, side, say=lambda line: None, optimizations=stands, **more).fix()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    return found


def in_place(found: Fix) -> list[str]:
    return [one.optimization for one in found.optimizations if one.applied]


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (0.015, "predicted to save 1.5 ms +- 2 ms, not significant"),
        (-0.01, "predicted to cost 1 ms +- 2 ms, not significant"),
        (-0.2, "predicted to cost 20 ms +- 2 ms"),
        (-210.0, "the program is predicted to take 2 times as long, or more"),
    ],
)
def test_what_is_predicted_to_bring_nothing_is_not_applied(
    share: float, says: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fixed(model, monkeypatch, Stand("it", share, really=0.5))  # it would be had by chance
    assert found.rounds == 0 and found.before_s == found.after_s and found.gain_s == 0.0
    assert found.notes[0].startswith("no optimization makes this program faster here") and not found.refused
    (one,) = found.optimizations
    assert says in one.why and one.gain_s is None and one.outcome == NOT_TRIED


@pytest.mark.parametrize(
    ("really", "why"),
    [
        (0.4, "it saves 40.0% +- 2.0% of the time"), (0.01, "it saves 1.0% +- 2.0% of the time, not significant"),
        (-0.015, "it costs 1.5% +- 2.0% of the time, not significant"), (-0.3, "it costs 30.0% +- 2.0% of the time"),
    ],
)  # fmt: skip
def test_what_is_measured_decides(really: float, why: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fixed(model, monkeypatch, Stand("it", 0.5, really=really))
    (one,) = found.optimizations
    assert one.outcome == (APPLIED if really == 0.4 else REJECTED) and why in one.why
    assert one.predicted_gain_s == pytest.approx(0.5 * WALL) and one.gain_s == pytest.approx(really * WALL)
    assert found.gain_s == pytest.approx(one.gain_s if one.applied else 0.0) and found.agrees and not found.refused
    first = sentence({USEFUL: 0.5, UNEXPLAINED: 0.0}, (), 1.0, found)
    assert ("was predicted to bring 50 ms" in first) == one.applied


@pytest.mark.parametrize("loud", [False, True])
@pytest.mark.parametrize("cores", [True, False])
def test_how_many_cores_are_used_is_not_judged_while_others_use_them(
    cores: bool, loud: bool, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two threads is quicker for as long as others hold a core, whatever the program."""
    noise = quiet.Noise(0.5 if loud else 0.0)
    turns = quiet.SampledWindows((((WALL, 0.6 * WALL),) * 4,), (noise,), 0, loud)
    monkeypatch.setattr(search, "alternate", lambda *args, **more: turns)
    found = fixed(model, monkeypatch, Stand("it", 0.5, candidate={"cores": cores}))
    assert found.optimizations[0].applied == (not loud or not cores)
    assert found.optimizations[0].rough == loud
    verdict = fix_report.verdict_text(found.optimizations[0])
    assert verdict == found.optimizations[0].outcome + ", rough" * loud


@pytest.mark.parametrize(("last", "kept"), [(0.8, ["first", "second"]), (1.0, []), (1.3, [])])
def test_what_gains_nothing_in_the_end_is_not_kept(
    last: float, kept: list[str], model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gained beside what was kept before it, and all of it is measured once more."""
    left = iter([0.9, 0.9, last])
    monkeypatch.setattr(
        search,
        "alternate",
        lambda *args, **more: quiet.SampledWindows((((WALL, WALL * next(left)),) * 4,), (quiet.QUIET,), 0, False),
    )
    found = fixed(model, monkeypatch, Stand("first", 0.1), Stand("second", 0.1))
    assert in_place(found) == kept and bool(found.plan) == bool(kept)
    assert found.gain_s == pytest.approx(0.2 * WALL if kept else 0.0)
    assert kept or all(
        "the gain of the whole is not significant" in one.why and one.outcome == REJECTED for one in found.optimizations
    )


def _halves_the_weight(model: nn.Module) -> Callable[[], None]:
    with torch.no_grad():
        model.weight.mul_(0.5)  # type: ignore[operator]

    def back() -> None:
        with torch.no_grad():
            model.weight.mul_(2.0)  # type: ignore[operator]

    return back


def test_an_optimization_that_is_wrong_is_rejected_whatever_it_gains(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fixed(model, monkeypatch, Stand("wrong", 0.9, does=_halves_the_weight), Stand("right", 0.1))
    assert in_place(found) == ["right"] and found.after_s == pytest.approx(0.9 * WALL)
    wrong = found.optimizations[0]
    assert "its outputs are worse" in wrong.why and wrong.error_after > 0.1 and wrong.gain_s is None
    assert wrong.outcome == REJECTED


def test_the_largest_first_and_each_on_top_of_the_others(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fixed(model, monkeypatch, Stand("a tenth", 0.1), Stand("half", 0.5), Stand("hoped for", 0.2, really=0.0))
    assert in_place(found) == ["a tenth", "half"]
    assert found.after_s == pytest.approx(0.5 * 0.9 * WALL) and found.predicted_gain_s == pytest.approx(0.55 * WALL)
    assert [one.gain_s for one in found.optimizations] == pytest.approx([0.05 * WALL, 0.5 * WALL, 0.0])
    assert found.code == "half()\na tenth()"


def test_each_is_predicted_of_the_program_as_it_is_by_then(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps memory and what writes less of it save the same page faults."""
    stands = Stand("keeps", 0.6), Stand("fuses", 0.5, upon={"keeps": 0.2}), Stand("lays", 0.4, upon={"keeps": 0.0})
    found = fixed(model, monkeypatch, *stands)
    assert in_place(found) == ["keeps", "fuses"]
    assert [found.predicted_gain_s, found.gain_s] == pytest.approx([(1 - 0.4 * 0.8) * WALL] * 2)
    assert "not significant" in found.optimizations[2].why and found.optimizations[2].gain_s is None


@pytest.mark.parametrize(("again", "kept"), [(True, ["compiled", "layout"]), (False, ["compiled"])])
def test_what_brings_nothing_by_itself_is_asked_again_on_top_of_what_is_kept(
    again: bool, kept: list[str], model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    touches = {"touches": frozenset({"ops"})}
    layout = Stand("layout", -0.1, upon={"compiled": 0.4}, candidate={"again": again, **touches})
    compiled = Stand("compiled", 0.3, candidate=touches)
    found = fixed(model, monkeypatch, layout, compiled)
    assert sorted(in_place(found)) == kept
    assert found.after_s == pytest.approx(WALL * 0.7 * (0.6 if again else 1.0))


def test_of_one_group_one_is_in_place(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [Stand(name, share, candidate={"group": "mode"}) for name, share in (("first", 0.2), ("second", 0.4))]
    found = fixed(model, monkeypatch, *modes)
    assert in_place(found) == ["second"] and "in its place" in found.optimizations[0].why


@pytest.mark.parametrize(
    ("said", "really", "kept"),
    [
        ((0.40, 0.45), (0.42, 0.30), "first"),  # the second is predicted to be better, and is not
        ((0.40, 0.45), (0.30, 0.42), "second"),
        ((0.40, 0.35), (0.30, 0.42), "second"),  # as good, but for the noise of two benchmarks
        ((0.40, 0.10), (0.30, 0.42), "first"),  # too far behind to be asked again
        ((0.40, 0.40), (0.40, 0.41), "first"),
    ],
)
def test_two_that_are_predicted_to_be_about_as_good_are_benchmarked_in_turns(
    said: tuple[float, float], really: tuple[float, float], kept: str, model: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    names = ("first", "second")
    modes = [
        Stand(n, s, really=r, candidate={"group": "mode"}) for n, s, r in zip(names, said, really, strict=True)
    ]  # fmt: skip
    benchmarked: list[list[str]] = []

    def duel(scene: Scene, one: Try, rivals: Sequence[Try], beside: Sequence[Try]) -> float:
        benchmarked.append(
            [
                one.candidate.says,
                *(rival.candidate.says for rival in rivals),
                *(other.candidate.says for other in beside),
            ]
        )
        ours, theirs = (really[names.index(each.candidate.says)] for each in (one, *rivals))
        return 1 - (1 - ours) / (1 - theirs)

    monkeypatch.setattr(search, "duel", duel)
    found = fixed(model, monkeypatch, *modes)
    assert in_place(found) == [kept] and bool(benchmarked) == (said[1] > 0.3)
    assert all(one.why for one in found.optimizations)
    out = next(one for one in found.optimizations if not one.applied)
    if benchmarked and not out.gain_s:
        assert "saves as much in a direct benchmark" in out.why and out.how.startswith("benchmarked in turns with")
    applied = next(one for one in found.optimizations if one.applied)
    assert found.predicted_gain_s is not None and applied.predicted_gain_s is not None


@pytest.mark.parametrize("at", ["candidates", "predict", "apply", "put"])
@pytest.mark.parametrize(
    "error",
    [Impossible("not here"), Rejected("other numbers"), BudgetExceeded("a budget of 9 s would do"), KeyError("own")],
)
def test_whatever_goes_wrong_with_one_is_said_and_the_others_go_on(
    at: str, error: Exception, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at == "candidates" and isinstance(error, BudgetExceeded):
        return
    found = fixed(model, monkeypatch, Stand("fails", 0.5, fails={at: error}), Stand("works", 0.2))
    assert in_place(found) == ["works"] and not found.refused
    (one,) = (one for one in found.optimizations if one.optimization == "fails")
    assert str(error).strip("'") in one.why
    if at != "candidates":
        failed = at == "put" or isinstance(error, (Rejected, KeyError))  # else it was never in place
        assert one.outcome == (REJECTED if failed else NOT_TRIED)


def test_where_nothing_fits_the_budget_the_fix_is_refused(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fixed(model, monkeypatch, Stand("slow", 0.5, fails={"predict": BudgetExceeded("a budget of 9 s would do")}))
    assert "the budget was too small: a budget of 9 s would do" in found.ended


def test_a_prediction_that_takes_long_leaves_what_is_promising_its_try(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fixed(model, monkeypatch, Stand("quick", 0.5), Stand("slow", 0.9, compiles=60.0), budget_s=6.0)
    assert in_place(found) == ["quick"] and not found.refused
    assert "its share of the budget of 6 s was over before the end of compiling" in found.optimizations[1].why
    asked = fixed(model, monkeypatch, Stand("quick", 0.5), Stand("slow", 0.9, asks=25.0), budget_s=40.0)
    assert in_place(asked) == ["quick", "slow"]  # again, with more of the budget, when the first had had its try


@pytest.mark.parametrize(("soon_s", "promised"), [(0.0, 1), (1e9, 0), (0.0, 0)])
def test_what_promises_much_is_tried_before_more_is_predicted(
    soon_s: float, promised: int, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers would keep it waiting for minutes."""
    predicted, predict = list[tuple[str, int]](), Stand.predict

    def seen(self: Stand, scene: Scene, candidate: Candidate) -> Promise:
        predicted.append((self.name, len(scene.taken)))
        return predict(self, scene, candidate)

    monkeypatch.setattr(Stand, "predict", seen)
    monkeypatch.setattr(predictions, "SOON_S", soon_s)
    found = fixed(model, monkeypatch, Stand("quick", 0.3 if promised else 0.05), Stand("slow", 0.6))
    assert in_place(found) == ["quick", "slow"]
    assert predicted[:2] == [("quick", 0), ("slow", promised)]


def test_how_many_cores_are_used_is_not_asked_while_others_use_them(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Foretold, "timeline", SimpleNamespace(loud=True, surveyed=1, calls=[]), raising=False)
    found = fixed(model, monkeypatch, Stand("it", 0.5, candidate={"cores": True}), Stand("other", 0.2))
    assert in_place(found) == ["other"]
    assert (
        found.optimizations[0].why.startswith("ambiguous: other processes use the machine")
        and not found.optimizations[0].cost_s
    )
    assert found.optimizations[0].predicted_gain_s is None


def test_what_changes_numbers_must_be_allowed_and_advice_is_only_said(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands: Sequence[Stand] = (
        Stand("narrow", 0.5, candidate={"changes": "tf32"}), Stand("told", 0.9, candidate={"advice": "pad it"}),
    )  # fmt: skip
    plain = fixed(model, monkeypatch, *stands)
    assert (
        not in_place(plain) and "allow tf32" in plain.optimizations[0].why and plain.optimizations[1].advice == "pad it"
    )
    assert in_place(fixed(model, monkeypatch, *stands, allow=("tf32",))) == ["narrow"]


@pytest.mark.parametrize(("says", "really"), [(0.3, -0.1), (-0.3, -0.3), (0.01, 0.01), (0.3, 0.3)])
def test_where_all_of_it_gains_nothing_some_of_it_is_tried(
    says: float, really: float, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fixed(model, monkeypatch, Stand("all", says, really=really, less="some"))
    assert [one.says for one in found.optimizations if one.applied] == (["all"] if really == 0.3 else ["some"])
    touching = {"touches": frozenset({"ops"})}
    rival = Stand("other", 0.5, candidate=touching)
    both = fixed(model, monkeypatch, Stand("all", 0.1, really=-0.1, less="some", candidate=touching), rival)
    assert [one.says for one in both.optimizations if one.applied] == ["other", "some"]  # on top of what took its place


def _rounds_the_weight(model: nn.Module, by: float = 1e-3) -> Callable[[], None]:
    weight: Tensor = model.weight  # type: ignore[assignment]
    was = weight.detach().clone()
    with torch.no_grad():
        weight.add_(by * torch.linspace(-1, 1, weight.numel()).view_as(weight))

    def back() -> None:
        with torch.no_grad():
            weight.copy_(was)

    return back


def test_what_comes_on_top_of_an_allowed_change_is_held_against_that(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands = (
        Stand("narrow", 0.5, does=_rounds_the_weight, candidate={"changes": "bf16"}), Stand("as exact", 0.2),
        Stand("wrong", 0.3, does=lambda model: _rounds_the_weight(model, 1e-2)),
    )  # fmt: skip
    found = fixed(model, monkeypatch, *stands, allow=("bf16",))
    assert in_place(found) == ["narrow", "as exact"]
    assert "its outputs are worse" in found.optimizations[2].why
    assert in_place(fixed(model, monkeypatch, *stands)) == ["as exact"]


@pytest.mark.parametrize(
    ("gains", "applied"),
    [
        ((0.04,) * 5, True), ((0.01,) * 5, False),  # of turns of 1 s: 2% is seen at the least
        ((0.03, 0.05, 0.04, 0.06, 0.04), True),  # the turns agree, however far they lie apart
        ((0.3, -0.2, 0.05, 0.25, -0.15), False),
    ],
)  # fmt: skip
def test_a_gain_is_held_against_what_its_turns_differ_by(
    gains: Sequence[float], applied: bool, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def turns(*args: Any, most: int) -> quiet.SampledWindows[tuple[float, float]]:
        asked.append(most)
        before = [1.0, 1.5, 1.2, 1.4, 1.1]  # runs that are too noisy
        return quiet.SampledWindows(
            (tuple((b, b - gain) for b, gain in zip(before, gains, strict=True)),), (quiet.QUIET,), 0, False
        )

    monkeypatch.setattr(search, "alternate", turns)
    found = fixed(model, monkeypatch, Stand("it", 0.5))
    assert found.optimizations[0].applied == applied
    assert len(asked) == (1 if applied or gains[0] == 0.01 else 2)  # where it is open, more turns are taken


def test_a_gain_smaller_than_the_noise_of_the_first_runs_is_tried(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (search, predictions):
        monkeypatch.setattr(module, "far_apart", lambda walls: False)
    found = fixed(model, monkeypatch, Stand("it", 0.05), walls=(0.7 * WALL, WALL, 1.4 * WALL))
    assert in_place(found) == ["it"]


def test_where_others_used_the_machine_the_figures_are_ambiguous(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = quiet.Noise(0.5, 0.5, 1.0)
    monkeypatch.setattr(quiet, "noise_between", lambda before, after: noise)
    found = fixed(model, monkeypatch, Stand("it", 0.5))
    assert found.ambiguous == str(noise) and not found.refused
    said = sentence({USEFUL: 0.5, UNEXPLAINED: 0.0}, (), 1.0, found)
    assert said.startswith("ambiguous: the fix was measured")


def test_what_is_compiled_and_wrong_elsewhere_is_not_applied(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    report = CompilerReport("torch.compile() gives other values", "print()\n")
    states: list[Any] = []

    def checked(scene: Scene, one: Try, *more: Any) -> tuple[str, CompilerReport | None]:
        return ("what is compiled is wrong on zeros", report) if one.candidate.says == "wrong" else ("", None)

    class Kept(Journal):
        def note_outcome(self, search: Search) -> None:
            states.append(as_state(search))

    monkeypatch.setattr(search, "check_compiled", checked)
    found = fixed(model, monkeypatch, Stand("wrong", 0.9), Stand("right", 0.2), journal=Kept())
    assert in_place(found) == ["right"] and found.compiler_reports == (report,)
    assert found.optimizations[0].outcome == REJECTED and "wrong on zeros" in found.optimizations[0].why
    assert states[-1]["reports"] == [dataclasses.asdict(report)]
