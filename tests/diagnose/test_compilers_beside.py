"""A fix with cores to spare has its compilers work in processes of their own: what they make is loaded, none of them is
missed, and on two cores all is as without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.diagnose import diagnose_script
from kernelworks.diagnose.fix import compile_pool
from kernelworks.records import Peaks
from kernelworks.records.fix import APPLIED, Fix

PROGRAM = Path(__file__).parents[1] / "support" / "compiling_program.py"
NAMES = {"first", "second", "third"}
MORE_FAULTS = ("hang", "disk")


def fixed(cores: float, folder: Path, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> tuple[Fix, list[list[str]]]:
    """The fix, and who compiled what in their order."""
    monkeypatch.setattr(compile_pool, "usable_cores", lambda: cores)
    monkeypatch.setenv("KEPT", str(folder))
    found = diagnose_script(f"{PROGRAM}:run", fix=True, fix_s=300.0, budget_s=0.5, rough=True, peaks=ceilings).fix
    assert found is not None and not found.refused
    assert {one.says: one.outcome for one in found.optimizations}["second"] == APPLIED
    return found, [line.split() for line in (folder / "log").read_text().splitlines()]


@pytest.mark.usefixtures("quick_processes")
def test_what_is_compiled_beside_is_loaded(tmp_path: Path, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    found, log = fixed(8.0, tmp_path, ceilings, monkeypatch)
    own = [name for who, what, name in log if (who, what) == ("search", "begins")]
    beside = {name for who, what, name in log if (who, what) == ("beside", "compiled")}
    assert len(own) == 1 and beside == NAMES - set(own)  # nobody waits for a process while nothing is ready
    assert {name for who, what, name in log if (who, what) == ("search", "loads")} == beside
    assert any("2 compilers worked beside" in note and "2 of 2 forms compiled" in note for note in found.notes)
    said = [step.what for step in found.steps if step.beside]
    assert sum(what.startswith("compiling: ") for what in said) == 2
    assert [step.at_s for step in found.steps] == sorted(step.at_s for step in found.steps)


@pytest.mark.usefixtures("quick_processes")
def test_on_two_cores_nothing_works_beside(tmp_path: Path, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    found, log = fixed(2.0, tmp_path, ceilings, monkeypatch)
    assert {who for who, _, _ in log} == {"search"}
    assert {name for _, what, name in log if what == "compiled"} == NAMES
    assert not any("beside" in note for note in found.notes) and not any(step.beside for step in found.steps)


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("fault", ["segfault", *(pytest.param(f, marks=pytest.mark.thorough) for f in MORE_FAULTS)])
def test_a_fault_beside_costs_nothing(
    fault: str, tmp_path: Path, ceilings: Peaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESIDE", fault)
    if fault == "hang":  # a process that starts rests for less, but on a machine that is full
        monkeypatch.setattr(compile_pool, "REST_S", 5.0)
        monkeypatch.setattr(compile_pool, "LOOK_S", 0.5)
    found, log = fixed(8.0, tmp_path, ceilings, monkeypatch)
    assert {name for who, what, name in log if (who, what) == ("search", "compiled")} == NAMES
    assert fault == "hang" or {name for who, what, name in log if (who, what) == ("beside", "begins")}
    assert any("0 of 2 forms compiled" in note for note in found.notes)
