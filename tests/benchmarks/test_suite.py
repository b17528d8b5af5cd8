"""The suite of programs: each can be found, run again and again, and handed to torch.compile."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelworks.diagnose.fix.plan_fields import VERSION
from kernelworks.measure.clock.noise import Noise
from kernelworks.report import programs as report

PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "programs"
QUICK = ("input_bound", "overhead_bound", "recommender")  # a second together; all of them take half a minute


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    known = set(sys.modules)
    try:
        return importlib.import_module("suite")
    finally:
        for name in set(sys.modules) - known:  # `speech` and the like are no names to leave behind
            if (PROGRAMS / f"{name}.py").is_file():
                del sys.modules[name]


def test_every_program_has_its_model_and_its_file(suite: ModuleType) -> None:
    assert len(suite.PAIRS) == 18
    for name, getter in suite.PAIRS.items():
        assert callable(getattr(suite, name)), name
        assert callable(getattr(suite, getter).cache_clear), f"{getter}: a model is made once"
        assert (PROGRAMS / suite.FILES[name]).is_file(), name
    files = {path.stem for path in PROGRAMS.glob("*.py")}
    assert files == {name.removesuffix(".py") for name in suite.FILES.values()} | {"suite", "place", "resnet"}


@pytest.mark.parametrize("name", QUICK)
def test_a_program_does_its_whole_work_again(suite: ModuleType, name: str) -> None:
    one, other = getattr(suite, name)(), getattr(suite, name)()
    assert all(torch.isfinite(torch.as_tensor(answer)).all() for answer in (one, other))
    assert isinstance(getattr(suite, suite.PAIRS[name])()[0], torch.nn.Module)


# ---------------------------------------------------------------- the runner


@pytest.fixture
def variant(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS.parent))
    return importlib.import_module("program_variant")


@pytest.mark.parametrize(
    ("answer", "other", "expected"),
    [
        (torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.0]), 0.0),
        (2.2, 2.0, 0.1),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5]), 0.25),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2]), 1.0),
    ],
)
def test_how_far_answers_are_apart(variant: ModuleType, answer: object, other: object, expected: float) -> None:
    assert variant.apart(answer, other) == pytest.approx(expected)


def test_variants_take_turns_and_the_model_is_compiled_in_one_of_them(variant: ModuleType) -> None:
    model, seen = torch.nn.Linear(2, 2), []
    compiled = lambda x: (seen.append("compiled"), x)[1]  # noqa: E731
    model.register_forward_hook(lambda *_: seen.append("eager"))
    model._compiled_call_impl = compiled
    found = variant.measured(lambda: model(torch.ones(1, 2)), lambda: variant.called_by(model, None))
    assert model._compiled_call_impl is compiled
    assert seen[:4] == ["compiled", "eager", "eager", "compiled"]
    assert seen.count("compiled") == seen.count("eager") >= found["rounds"] >= variant.LEAST_ROUNDS
    assert set(seen) == {"compiled", "eager"}


def test_turns_that_others_disturbed_are_left_out(variant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(1000))  # every other one is loud, and takes three times as long
    monkeypatch.setattr(variant, "seconds", lambda run: 1.0 if (turn := next(turns) // 2) % 2 else 3.0 + turn)
    loud = iter(range(1000))
    monkeypatch.setattr(variant, "noise_between", lambda *_: Noise(share=0.0 if next(loud) % 2 else 0.5))
    monkeypatch.setattr(variant, "MOST_ROUNDS", 6)
    found = variant.measured(lambda: None, contextlib.nullcontext)
    assert (found["ms"], found["share"], found["spread"], found["loud"], found["rounds"]) == (1000, 1, 0, False, 6)
    monkeypatch.setattr(variant, "noise_between", lambda *_: Noise(share=0.5))
    monkeypatch.setattr(variant, "MEASURING_S", 0.0)
    found = variant.measured(lambda: None, contextlib.nullcontext)
    assert found["loud"] and found["rounds"] == variant.LEAST_ROUNDS


def test_a_run_before_the_clock_has_ended_when_it_starts(variant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU goes on by itself: what is waited for is counted."""
    seen: list[str] = []
    monkeypatch.setattr(variant.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(variant.torch.cuda, "synchronize", lambda: seen.append("waited"))
    monkeypatch.setattr(variant, "MEASURING_S", 0.0)
    variant.measured(lambda: seen.append("ran"), contextlib.nullcontext, warming_up=True)
    assert seen[::2] == ["ran"] * (len(seen) // 2) and seen[1::2] == ["waited"] * (len(seen) // 2)


def test_a_run_that_compiles_again_is_waited_for(variant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    left, took = [0.05, 0.03, 0.002, 0.002, 0.002], list[float]()

    def run() -> float:
        took.append(left.pop(0))
        return took[-1]

    monkeypatch.setattr(variant, "seconds", lambda call: (call(), took[-1])[1])
    compiling, first = variant.warmed(run)
    assert first == 0.05 and compiling == pytest.approx(0.084 - 4 * 0.002)
    assert len(took) == 4  # the fourth run took as long as the third: no fifth


def test_time_for_which_a_process_is_halted_is_no_time_of_a_run(
    variant: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = time.perf_counter()
    took = variant.seconds(lambda: Path(variant.HALTED).write_text("1000.5\n"))
    assert -1000.5 < took <= time.perf_counter() - begin - 1000.5


def test_a_process_that_nobody_waits_for_any_more_ends(variant: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(SystemExit, match="nobody is left"):
        variant.timed(lambda: None, contextlib.nullcontext, warming_up=False)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS.parent))
    return importlib.import_module("programs")


def test_a_process_per_program_and_mode_shares_the_cores(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    (tmp_path / "program_variant.py").write_text(
        "import json, os, sys\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "found = {'argv': sys.argv[1:3], 'threads': os.environ.get('TORCHINDUCTOR_COMPILE_THREADS')}\n"
        "found['beside'] = open('plan.json').read() if os.path.exists('plan.json') else ''\n"
        "json.dump(found, open(sys.argv[4], 'w'))\n"
    )
    told: dict[object, object] = {}
    tasks = [("a", "default"), ("b", "default")]
    runner.run_variants(tasks, tmp_path, 60.0, time.monotonic() + 600, told.__setitem__, together=8)
    assert told == {(n, "default"): {"argv": [n, "default"], "threads": "4", "beside": ""} for n in "ab"}
    given = {"a": {"plan.json": {}}}
    runner.run_variants(tasks[:1], tmp_path, 60.0, time.monotonic() + 600, told.__setitem__, given=given)
    assert told["a", "default"] == {"argv": ["a", "default"], "threads": None, "beside": "{}"}


def test_few_programs_at_a_time_have_all_that_is_theirs(runner: ModuleType, suite: ModuleType) -> None:
    tasks = [(name, mode) for mode in ("default", "fix", "reduce-overhead", "plan") for name in "abc"]
    del tasks[0]  # default of a is on record
    assert runner.in_groups(tasks, ["a", "b", "c"], 2) == [
        [("b", "default"), ("a", "reduce-overhead"), ("b", "reduce-overhead")],
        [("a", "fix")], [("b", "fix")], [("a", "plan")], [("b", "plan")],
        [("c", "default"), ("c", "reduce-overhead")], [("c", "fix")], [("c", "plan")],
    ]  # fmt: skip
    assert runner.left(tasks[:4]) == "default of b, c; fix of a, b"
    assert sorted(runner.QUICKEST) == sorted(suite.PAIRS)


PLAN = {
    "kernelworks_plan": VERSION, "roots": ["torch.nn.modules.linear.Linear"],
    "candidates": [
        {
            "optimization": "torch.compile", "says": "compiled whole", "code": "", "changes": "",
            "site": {
                "kind": "module", "root": "torch.nn.modules.linear.Linear", "number": 0, "path": "",
                "type": "torch.nn.modules.linear.Linear",
            },
            "options": {"backend": "eager"},
        }
    ],
}  # fmt: skip


def test_a_plan_is_put_in_place_ahead_of_the_first_run_and_timed_beside_the_program_without_it(
    variant: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variant, "MOST_ROUNDS", 5)
    monkeypatch.setattr(variant, "noise_between", lambda *_: Noise(share=0.0))  # no turn is taken again
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    Path("plan.json").write_text(json.dumps(PLAN))
    Path("switches.json").write_text(json.dumps(["default"]))
    monkeypatch.setitem(variant.MODES, "default", {"backend": "eager"})
    monkeypatch.setitem(variant.MODES, "reduce-overhead", {"backend": "none of that name"})
    model, called = torch.nn.Linear(2, 2), list[object]()
    kept = Path("answer.pt")
    torch.save(torch.zeros(2), kept)

    def program() -> torch.Tensor:
        answer = model(torch.zeros(1, 2))[0] - model.bias
        called.append(model._compiled_call_impl)
        return answer.detach()

    found = variant.replanned(program, kept, model)
    plan, times = called[0], {impl: called.count(impl) for impl in called}
    assert plan is not None and times[None] == 1 + 2 * found["rounds"], "each turn has a run to warm up"
    assert len(times) == 3 and times[plan] >= 2 * found["rounds"], "the plan, torch's switch, and neither"
    assert found["switches"].keys() == {"default"} and "raised" not in found
    assert found["differs"] == 0 and found["compile_s"] > 0 and found["apply_s"] >= 0
    called.clear()
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    Path("plan.json").unlink()
    found = variant.replanned(program, kept, model)
    assert len(set(called)) == 2 and found["switches"], "the program as it is, and torch's switch"
    Path("switches.json").write_text(json.dumps(["default", "reduce-overhead"]))
    assert variant.replanned(program, kept, model) == {"raised": ["reduce-overhead"]}, "nothing is measured beside one"
    Path("plan.json").write_text(json.dumps({**PLAN, "roots": ["torch.nn.modules.linear.Identity"]}))
    with pytest.raises(RuntimeError, match=r"not applied: torch\.compile: compiled whole"):
        variant.replanned(program, kept)


def test_a_plan_is_that_of_the_fix_on_record_and_is_measured_again_with_the_next(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record, seen = runner.Record(tmp_path / "record.json"), {}
    record.keep("a", "fix", {**fixed("a", 0.1, 0.1), "plan": PLAN})
    assert json.loads(record.path.read_text())["rows"][0]["plan"] == PLAN
    for row in (ran("a", "default", 0.8), {"program": "a", "mode": "reduce-overhead", "failed": "too long"}):
        record.keep("a", str(row["mode"]), row)
    wanted = [("a", "fix"), ("a", "plan")]
    assert runner.to_do(record, wanted, again=False) == ([("a", "plan")], [])
    entry = planned("a", 0.52, switches={"default": 1 / 3})

    def variants(tasks: list[tuple[str, str]], *limits: object, given: dict[str, object]) -> None:
        seen.update(given)
        limits[-1](tasks[0], entry)  # type: ignore[operator]

    monkeypatch.setattr(runner, "run_variants", variants)
    options = argparse.Namespace(seconds=1e9, limit=1.0)
    record.keep("c", "fix", fixed("c", 0.2, 0.0))
    assert runner.measure(record, [[("c", "plan")]], {}, tmp_path, options) == []
    assert seen.pop("c") == {"switches.json": list(runner.UNTRIED)}, "nothing was found, no switch was tried"
    del record.rows["c", "fix"], record.rows["c", "plan"]
    assert runner.measure(record, [[("a", "plan")], [("b", "plan")]], {}, tmp_path, options) == []
    assert seen == {"a": {"plan.json": PLAN, "switches.json": ["default"]}}
    assert record.rows["a", "plan"]["then"] == 0.5 and record.rows["a", "plan"]["switches"] == {"default": 0.33333}
    assert runner.to_do(record, wanted, again=False) == ([], [])
    record.rows["a", "fix"]["date"] = "later"
    assert runner.to_do(record, wanted, again=False) == ([("a", "plan")], [])
    del record.rows["a", "plan"]
    entries = [{"raised": ["default"]}, planned("a", 0.5, switches={})]
    monkeypatch.setattr(runner, "run_variants", lambda *_, given: (seen.update(given), _[-1](_[0][0], entries.pop(0))))
    assert runner.measure(record, [[("a", "plan")]], {}, tmp_path, options) == []
    assert seen["a"]["switches.json"] == [] and record.rows["a", "plan"]["raised"] == ["default"] and not entries
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_what_the_time_does_not_reach_is_left_and_not_recorded(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record, given = runner.Record(tmp_path / "record.json"), argparse.Namespace(seconds=1.0, limit=9.0)
    monkeypatch.setattr(runner, "run_variants", lambda *_: pytest.fail("begun with no time left"))
    groups = [[("a", "default")], [("a", "fix")]]
    assert runner.measure(record, groups, {}, tmp_path, given) == [("a", "default"), ("a", "fix")]
    assert record.rows == {} and not record.path.exists()


# ---------------------------------------------------------------- the table


def ran(program: str, mode: str, share: float) -> dict[str, object]:
    times = {"ms": 100 * share, "eager_ms": 100.0, "share": share, "spread": 0.01, "compile_s": 3.0, "differs": 0.0}
    return {"program": program, "mode": mode, **times}


def fixed(program: str, after: float, predicted: float | None) -> dict[str, object]:
    times = {"before_s": 0.2, "after_s": after, "gain_s": 0.2 - after, "predicted_gain_s": predicted, "took_s": 9.0}
    return {"program": program, "mode": "fix", **times}


ROWS = [
    ran("a", "default", 0.8), ran("a", "max-autotune-no-cudagraphs", 0.5), fixed("a", 0.08, 0.10),
    ran("b", "default", 1.3), fixed("b", 0.2, 0.0), ran("b", "kernelworks", 1.0),
    {"program": "c", "mode": "default", "failed": "took more than 9 s"}, fixed("c", 0.1, 0.01),
    ran("d", "default", 0.9),
]  # fmt: skip


def test_the_table_says_what_was_measured_and_what_is_missing() -> None:
    lines = report.table(ROWS, programs=("a", "b", "c", "d", "e"), modes=("default", "fix", "reduce-overhead"))
    assert lines[2:6] == [
        "| a | 100 ms | 2.00x max-autotune-no-cudagraphs | 2.50x | **1.25x** | 100 ms, 120 ms |",
        "| b | 100 ms | none | 1.00x | **1.00x** | 0, 0 |",
        "| c | 200 ms | none | 2.00x | **2.00x** | 10.0 ms, 100 ms |",
        "| d | 100 ms | 1.11x default |  |  |  |",
    ]
    text = "\n".join(lines)
    for said in (
        "The fix over torch's best switch: geometric mean 1.36x, least 1.00x, of 3",  # (1.25 * 1 * 2) ** (1 / 3)
        "over eager: geometric mean 1.71x",
        '`backend="kernelworks"` over inductor: geometric mean 1.30x',
        "2 of 3 predictions held",
    ):
        assert said in text, said
    assert "Failed: default of c." in text
    assert "Not measured yet: e." in text
    assert "Not measured yet under `fix`: d." in text
    assert "Not measured yet under `reduce-overhead`: any of them." in text
    assert "rough" not in text and "~" not in text


def planned(program: str, share: float, **more: object) -> dict[str, object]:
    return {**ran(program, "plan", share), "apply_s": 2.5, **more}


def test_the_budgets_of_fixes_are_said() -> None:
    fixes = [{**fixed("a", 0.1, 0.1), "budget_s": 90.0}, {**fixed("b", 0.1, 0.1), "budget_s": 60.0}]
    assert "each fix had a budget of 60 to 90 s" in report.summary(fixes)
    assert "each fix had a budget of 90 s" in report.summary(fixes[:1]) and "budget" not in report.summary(ROWS)


def test_plans_of_other_processes_are_held_against_their_fixes() -> None:
    rows = [
        planned("a", 0.52, then=0.5), planned("b", 0.54, then=0.5, apply_s=4.0),
        {"program": "c", "mode": "plan", "then": 0.5, "failed": "not applied: swap"},
    ]  # fmt: skip
    assert report.summary([*ROWS, *rows]).endswith(
        "1 of 3 plans gained the same within 5% in another process, in place in 4.00 s at the most beside compilers"
    )
    assert "1.92x +-1% (2.00x by the fix), in place in 2.50 s, compiling 3 s" in report.line(rows[0])


def test_a_plan_is_held_against_torchs_switches_of_its_own_process() -> None:
    rows = [*ROWS, planned("a", 0.5, then=0.4, switches={"default": 0.9, "max-autotune-no-cudagraphs": 0.6})]
    lines = report.table([*rows, planned("c", 0.5, then=0.5)])
    assert lines[0].endswith("| `--fix` | over torch's best | in one process | gain predicted, got |")
    assert [line.count("|") for line in lines[:6]] == [8] * 6
    assert lines[2].endswith("| **1.25x** | 1.20x | 100 ms, 120 ms |")
    assert lines[3].endswith("| **1.00x** | 1.00x | 0, 0 |"), "a fix that found nothing leaves eager, which had turns"
    assert lines[4].endswith("| **2.00x** |  | 10.0 ms, 100 ms |"), "no switch had turns with it"
    assert "its plan over that in one process: geometric mean 1.10x, least 1.00x, of 2" in lines[-2]
    assert "default 1.11x, max-autotune-no-cudagraphs 1.67x" in report.line(rows[-1])


def test_a_reader_is_told_what_one_process_says_if_it_says_it_of_all() -> None:
    """The fix's own process was slow before it: 5x there, 2x in turns with the switches."""
    rows = [ran("a", "default", 0.4), fixed("a", 0.04, 0.1), ran("b", "default", 1.3), fixed("b", 0.2, 0.0)]
    whole = [*rows, planned("a", 0.5, then=0.2, switches={"default": 0.45})]
    assert "| a | 100 ms | 40.0 ms (default) | 20.0 ms | " in report.chart({"": rows}, {"": 2}, {})[2].replace(": ", "")
    assert report.chart({"": whole}, {"": 2}, {})[-1].endswith(
        "| 45.0 ms (default) | 50.0 ms | ███████ 0.900x as fast: slower |"
    )
    assert "0.949x as fast as that mode (geometric mean), 1 slower" in report.result(whole)
    more = [*whole, ran("c", "default", 0.5), fixed("c", 0.1, 0.1)]  # whose plan was not measured beside switches
    assert "2.00x as fast: slower" not in "".join(report.chart({"": more}, {"": 3}, {}))
    assert "1.26x as fast as that mode" in report.result(more)  # (2 * 1 * 1) ** (1 / 3)


def test_a_fix_and_its_plan_are_a_whole_record() -> None:
    """No switch had a process of its own. The fix of ``b`` found nothing, and one switch raised beside it."""
    rows = [
        fixed("a", 0.08, 0.1), planned("a", 0.5, then=0.4, switches={"default": 0.9, "reduce-overhead": 0.6}),
        fixed("b", 0.2, 0.0), planned("b", 1.02, then=1.0, switches={"default": 0.8}, raised=["reduce-overhead"]),
    ]  # fmt: skip
    neither = [fixed("c", 0.1, 0.1), planned("c", 0.5, then=0.5, switches={}, raised=["default", "reduce-overhead"])]
    assert "| c | 100 ms | none | 2.00x | **2.00x** | 2.00x |" in report.table(neither)[2]
    lines = report.table(rows, modes=("default", "reduce-overhead", "max-autotune-no-cudagraphs"))
    assert lines[2] == "| a | 100 ms | 1.67x reduce-overhead | 2.50x | **1.20x** | 1.20x | 100 ms, 120 ms |"
    assert lines[3] == "| b | 100 ms | 1.25x default | 1.00x | **0.800x** | 0.800x | 0, 0 |"
    assert "Failed: reduce-overhead of b." in lines[-2]
    assert "Not measured yet under `max-autotune-no-cudagraphs`: any of them." in lines[-2]
    assert "`default`" not in lines[-2] and "`reduce-overhead`" not in lines[-2]
    assert "0.980x as fast as that mode (geometric mean), 1 slower" in report.result(rows)
    assert report.chart({"": rows}, {"": 2}, {})[-1].endswith(
        "| 80.0 ms (default) | 100 ms | ██████ 0.800x as fast: slower |"
    )
    beside = [*rows, ran("c", "default", 0.5), fixed("c", 0.1, 0.1)]  # whose plan had no turns with the switches
    assert "| 60.0 ms (reduce-overhead) | 50.0 ms |" in "".join(report.chart({"": beside}, {"": 3}, {}))


def test_figures_of_a_busy_machine_are_marked() -> None:
    wide = [{**ran("a", "default", 0.8), "spread": 0.3}, {**fixed("a", 0.1, 0.1), "noise_s": 0.05}]
    lines = report.table(wide)
    assert lines[2] == "| a | ~100 ms | ~1.25x default | ~2.00x | **1.60x** | 100 ms, 100 ms |"
    assert "2 of 2 figures are rough" in lines[-2] and "~: other processes used the machine" in lines[-2]
    assert report.is_rough(wide[0]) and not report.is_rough(ROWS[0]) and not report.is_rough(ROWS[6])


def test_a_line_of_each_row_says_what_came_of_it() -> None:
    assert "1.25x" in report.line(ROWS[0])
    assert "predicted 100 ms, got 120 ms" in report.line(ROWS[2])
    assert "predicted nothing" in report.line(fixed("a", 0.1, None))
    assert report.line(ROWS[6]).endswith("FAILED: took more than 9 s")


def test_why_something_failed_is_kept_without_where_files_lie(runner: ModuleType, tmp_path: Path) -> None:
    record = runner.Record(tmp_path / "record.json")
    said = 'Stack trace: File "/home/me/of/loops.py", line 84, and 3/4 of and/or; /srv/site/torch/x.py:7: took 1/2 s'
    record.keep("a", "default", {"failed": said})
    (row,) = json.loads(record.path.read_text())["rows"]
    assert "/home" not in row["failed"] and "/srv" not in row["failed"]
    assert 'loops.py", line 84, and 3/4 of and/or; x.py:7: took 1/2 s' in row["failed"]
