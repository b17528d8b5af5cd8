"""A fix of a file runs in worker processes: whatever a trial does to one of them, the diagnosis and the plan stand."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import types
from pathlib import Path

import forked
import pytest
import torch

from kernelworks.diagnose import diagnose_script
from kernelworks.diagnose.fix import supervisor, worker_limit
from kernelworks.diagnose.fix.outcome import fix_record
from kernelworks.diagnose.fix.result import OVER
from kernelworks.diagnose.fix.supervisor import ProcessEnded
from kernelworks.diagnose.record import with_fix
from kernelworks.profile.program_errors import raised_by_program
from kernelworks.records import Diagnosis, Peaks
from kernelworks.records.fix import APPLIED, NOT_TRIED, REJECTED, TriedOptimization

PROGRAM = Path(__file__).parents[1] / "support" / "faulty_program.py"
pytestmark = pytest.mark.usefixtures("quick_processes")
ENDINGS = {
    "predict:segfault": "SIGSEGV (segmentation fault)",
    "predict:child": "SIGSEGV (segmentation fault)",
    "put:exit": "exited with code 0",
    "out:abort": "SIGABRT (abort)",
    "run:hang": "it hung",
    "predict:hang": "it hung: for ",
    "run:spin": "it hung: nothing was heard",
    "predict:interrupt": "it raised KeyboardInterrupt",
    "put:leave": "it raised SystemExit",
    "out:fail": "it cannot be undone: RuntimeError: no way back",
    "predict:deaf": "was ended",  # its end of the line is closed, unless what it has started holds it
    "put:dtype": "it leaves the default dtype as it should not",
    "out:folder": "it leaves the working folder as it should not",
    "predict:close": "it leaves the program's output as it should not",
    "run:leak": "GB of memory",
    "run:device": "device",
}


def planted(faults: str, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    monkeypatch.setenv("FAULTS", faults)
    return diagnose_script(f"{PROGRAM}:run", fix=True, fix_s=240.0, budget_s=0.5, rough=True, peaks=ceilings)


def holds(found: Diagnosis, faults: str) -> None:
    """Each fault cost its own trial, and what helps is in the plan."""
    assert found.fix is not None and found.hotspots
    outcomes = {one.optimization: one for one in found.fix.optimizations}
    for fault in faults.split():
        one = outcomes[fault.replace(":", " ")]
        assert one.outcome == REJECTED and ENDINGS[fault] in one.why, one
    assert outcomes["shorter"].outcome == APPLIED
    assert [each["optimization"] for each in found.fix.plan["candidates"]] == ["shorter"]
    assert found.fix.after_s < 0.6 * found.fix.before_s and found.fix.plan_run_s > 0


def test_trials_that_end_their_process_cost_themselves_alone(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = "predict:child put:exit out:fail"
    found = planted(faults, ceilings, monkeypatch)
    holds(found, faults)
    assert found.fix is not None
    ended = [step.what.partition(",")[0] for step in found.fix.steps if step.what.startswith("did not end: ")]
    assert sorted(ended) == ["did not end: predict child", "did not end: put exit"]  # what failed has said so itself
    assert [step.at_s for step in found.fix.steps] == sorted(step.at_s for step in found.fix.steps)


@pytest.mark.thorough  # processes, one after the other
@pytest.mark.parametrize("fault", [fault for fault in ENDINGS if "device" not in fault or torch.cuda.is_available()])
def test_each_fault_by_itself(fault: str, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_limit, "available_bytes", lambda: 1e9)
    if "leak" in fault:  # the memory of a fork is not what stands in its place has
        monkeypatch.setattr(sys, "executable", forked.PYTHON)
    holds(planted(fault, ceilings, monkeypatch), fault)


def test_a_program_that_ends_its_process_by_itself_is_told(
    tmp_path: Path, ceilings: Peaks, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dies.py"
    path.write_text("import os\n\ndef run():\n    print('here it is', flush=True)\n    os.abort()\n")
    with pytest.raises(ProcessEnded, match=r"the program's own run ends its process: .*SIGABRT"):
        diagnose_script(f"{path}:run", fix=True, fix_s=5.0, budget_s=0.2, peaks=ceilings)
    assert "here it is" in capfd.readouterr().out


def test_what_the_program_raises_comes_with_its_own_lines(tmp_path: Path, ceilings: Peaks) -> None:
    path = tmp_path / "raises.py"
    path.write_text("def run():\n    {}['missing']\n")
    with pytest.raises(KeyError, match="missing") as raised:
        diagnose_script(f"{path}:run", fix=True, fix_s=5.0, budget_s=0.2, peaks=ceilings)
    text = raised_by_program(raised.value)
    assert "{}['missing']" in text and str(path) in text and "kernelworks" not in text


def test_an_error_of_the_programs_own_class_is_told_as_it_was_raised(tmp_path: Path, ceilings: Peaks) -> None:
    """The supervisor has not loaded the module of the class."""
    path = tmp_path / "with_its_own_error.py"
    path.write_text("class TooCold(Exception):\n    pass\n\ndef run():\n    raise TooCold('12 degrees')\n")
    with pytest.raises(RuntimeError, match="TooCold: 12 degrees") as raised:
        diagnose_script(f"{path}:run", fix=True, fix_s=5.0, budget_s=0.2, peaks=ceilings)
    text = raised_by_program(raised.value)
    assert "raise TooCold" in text and str(path) in text and "kernelworks" not in text


def test_an_interrupt_that_the_program_raises_is_no_key_of_the_users(tmp_path: Path, ceilings: Peaks) -> None:
    path = tmp_path / "interrupts.py"
    path.write_text("def run():\n    raise KeyboardInterrupt\n")
    with pytest.raises(RuntimeError, match=r"^KeyboardInterrupt$") as raised:
        diagnose_script(f"{path}:run", fix=True, fix_s=5.0, budget_s=0.2, peaks=ceilings)
    text = raised_by_program(raised.value)
    assert "raise KeyboardInterrupt" in text and str(path) in text


def test_the_whole_ends_with_its_time_and_gives_what_it_has(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that goes on for ever and says so again and again is ended with the budget."""
    monkeypatch.setattr(supervisor, "SPARE_S", 0.0)
    monkeypatch.setenv("FAULTS", "predict:chatter")
    begun = time.monotonic()
    found = diagnose_script(f"{PROGRAM}:run", fix=True, fix_s=3.0, budget_s=0.5, rough=True, peaks=ceilings)
    assert time.monotonic() - begun < 120  # it would never end
    assert found.fix is not None and found.hotspots
    one = next(each for each in found.fix.optimizations if each.optimization == "predict chatter")
    assert one.outcome == NOT_TRIED and "the budget" in one.why and one.needs_s > 3.0  # it may be over before it begins


def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "waits.py"
    note = tmp_path / "pid"
    told = f"Path({str(note)!r}).write_text(str(os.getpid()))"
    path.write_text(f"import os, time\nfrom pathlib import Path\n\ndef run():\n    {told}\n    time.sleep(600)\n")
    what = f"from kernelworks.diagnose import diagnose_script\ndiagnose_script({f'{path}:run'!r}, fix=True)"
    starting = subprocess.Popen([sys.executable, "-c", what])
    while not note.is_file() or not note.read_text():
        assert starting.poll() is None
        time.sleep(0.1)
    starting.kill()
    starting.wait()
    worker = Path(f"/proc/{note.read_text()}")
    with contextlib.suppress(OSError):  # it is gone
        while "\nState:\tZ" not in (worker / "status").read_text():
            time.sleep(0.1)


def test_a_worker_without_time_to_take_up_what_was_kept_does_not_lose_it(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third worker's budget is over before it has read what the first one applied."""
    kept = TriedOptimization("shorter", "all", "says", APPLIED, "it saves 40% of the time", 0.4, 0.4)
    fix = fix_record(1.0, 0.6, optimizations=(kept,), rounds=9, agrees=True, budget_s=60.0)
    empty = with_fix(diagnosis, fix_record(1.0, 1.0, ended="the budget was too small", budget_s=60.0))

    def one_worker(request: object, progress: supervisor.Progress, *rest: object) -> Diagnosis | None:
        if progress.deaths:
            return empty
        progress.note_observed(diagnosis, 600.0)
        progress.state, progress.fix = {"steps": [], "running": None}, fix
        progress.deaths.append("it cannot be undone")
        return None

    monkeypatch.setattr(supervisor, "_one_worker", one_worker)
    progress = supervisor.Progress()
    pool = types.SimpleNamespace(worker_ended=lambda: None)
    found = supervisor._with_workers(None, progress, lambda text: None, pool)  # type: ignore[arg-type]
    assert found.fix is not None and found.fix.optimizations == (kept,)
    assert (found.fix.after_s, found.fix.ended, found.fix.refused) == (0.6, OVER, "")
