"""A fix of very many modules or calls ends within its budget, beside the program's own runs, and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.profile import budget as budgets
from kernelworks.profile.budget import Budget, BudgetExceeded
from kernelworks.records import Peaks

X = torch.randn(2, 16)
MANY = 2000


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _one_model_often() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))

    def program() -> None:
        for _ in range(MANY // 3):
            model(X)

    return program


def _many_modules() -> Callable[[], None]:
    modules = [nn.GELU() for _ in range(MANY)]

    def program() -> None:
        for module in modules:
            module(X)

    return program


def _fresh_modules() -> Callable[[], None]:
    def program() -> None:
        for _ in range(MANY):
            nn.GELU()(X)

    return program


PROGRAMS = {
    "one model, called often": _one_model_often,
    "many modules": _many_modules,
    "fresh modules": _fresh_modules,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fix_ends_and_says_why(name: str, ceilings: Peaks) -> None:
    program = PROGRAMS[name]()
    begun = time.process_time()  # of this process: others may have the cores meanwhile
    program()
    run = time.process_time() - begun
    found = kw.diagnose(program, fix=True, budget_s=0.2, fix_s=0.2, peaks=ceilings, rough=True)
    took = time.process_time() - begun
    assert found.fix is not None
    tried = any(one.gain_s is not None for one in found.fix.optimizations)  # what costs a run or two may fit
    said = " ".join(one.why for one in found.fix.optimizations) if tried else found.fix.ended
    assert "budget" in said, found.fix
    assert tried or "budget" in found.sentence
    assert took < 60 * run + 10, f"{took:.1f} s, a run takes {run:.2f} s"


@pytest.mark.thorough  # a real clock
def test_modules_of_a_run_are_found_in_time_that_grows_with_their_number() -> None:
    seconds = []
    for number in (1000, 8000):
        modules, took = [nn.Identity() for _ in range(number)], list[float]()
        for _ in range(3):
            begun = time.process_time()
            found = find_roots(lambda modules=modules: [module(X) for module in modules])  # type: ignore[misc]
            took.append(time.process_time() - begun)
        seconds.append(min(took))
        assert len(found.modules) == number and len(found.samples) == 32 and found.alike == number - 32
    assert seconds[1] < 24 * seconds[0], seconds  # quadratic would be 64 times


def test_where_the_budget_ends_while_the_program_runs_it_runs_on_alone() -> None:
    ran = []

    def program() -> None:
        for number in range(50):
            nn.Identity()(X)
            time.sleep(0.001)
            ran.append(number)

    with pytest.raises(BudgetExceeded, match=r"finding the modules.*budget of"):
        find_roots(program, Budget(0.001, 0.01))
    assert ran == list(range(50)) and nn.Module.__call__.__qualname__.startswith("Module.")


def test_a_programs_first_runs_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(budgets, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    budget = Budget(0.05, 0.02)
    run = budget.count_runs(lambda: now.append(now.pop() + 0.021))
    for _ in range(10):
        run()
    assert budget.seconds_left == pytest.approx(0.04)  # a hundredth was for looking
    budget.ask("nothing")
    with pytest.raises(BudgetExceeded, match=r"looking takes about 3 s.* budget of 10 s would do"):
        budget.ask("looking", 3.0)
    few = Budget(0.05, 0.02, free_runs=3, runs=9, begun=budget.begun)
    assert few.seconds_left < 0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(16), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x))  # type: ignore[no-any-return]


def test_of_modules_that_are_alike_the_budget_has_some_compared() -> None:
    modules = [Scaled() for _ in range(8)]
    samples = find_roots(lambda: [module(X) for module in modules]).samples
    assert len(samples) == 8
    found = compare(samples, 0.0)
    assert found.agrees and "7 modules were not compared" in found.note
    none = compare(samples, 0.0, 0.0)
    assert not none.agrees and "not compared: the budget was over" in none.note
