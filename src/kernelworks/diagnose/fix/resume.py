"""Goes on from what the search of another process noted: what was kept there is put in place here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.journal import State, tries_of
from kernelworks.diagnose.optimization import CombinedChange
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.records.fix import CompilerReport, SearchStep, TriedOptimization

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["resume"]


def resume(search: Search, state: State) -> None:
    search.tried = tries_of(state, search.optimizations)
    search.impossible = [TriedOptimization(**one) for one in state["impossible"]]
    search.reports = [CompilerReport(**one) for one in state["reports"]]
    search.steps = [SearchStep(**one) for one in state["steps"]]
    search.over = [search.tried[number] for number in state["over"]]
    search.kept = [search.tried[number] for number in state["kept"]]
    measured = search.tried[state["last"]] if state["last"] is not None else None
    _take_last(search, measured)  # what is noted meanwhile still has all that was kept
    late: list[BudgetExceeded] = []
    for one in list(search.kept):
        search.guard_trial(one, lambda one=one: _put_in_time(search, one, late))  # type: ignore[misc]
        if late:
            raise late[0]  # what was kept stays so: there is no time to go on from it
        if one.change is None:
            one.applied = False
            search.kept.remove(one)
            _take_last(search, measured)


def _take_last(search: Search, measured: Try | None) -> None:
    search.last = measured if measured in search.kept else next(iter(search.kept[::-1]), None)


def _put_in_time(search: Search, one: Try, late: list[BudgetExceeded]) -> None:
    why = one.why
    try:
        _put_in_place(search, one)
    except BudgetExceeded as over:
        one.why = why
        late.append(over)


def _put_in_place(search: Search, one: Try) -> None:
    search.step(f"putting in place anew: {one.candidate.optimization}, {one.candidate.says}")
    assert search.scene.program is not None
    with search.with_beneath(one, [other for other in search.kept if other.change is not None]):
        change = one.optimization.apply(search.scene, one.candidate)
    with CombinedChange((*search.scene.taken, change)):
        search.scene.program.run()
    one.change = change
    search.scene.taken.append(change)
