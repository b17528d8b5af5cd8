"""The outermost modules that a program calls; if much of its time is outside of them, its functions too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelworks.diagnose.sites.functions import count_outside_calls, find_functions
from kernelworks.diagnose.sites.modules import Roots, find_roots
from kernelworks.profile.budget import Budget
from kernelworks.profile.program import Program

__all__ = ["find_program_roots"]

OUTSIDE = 0.1  # of the program's time: with more outside of modules its functions are looked at


def find_program_roots(program: Program, budget: Budget, timeline: Any, step: Callable[[str], None]) -> Roots:
    """``step`` is told before the functions are looked for. Raises BudgetExceeded."""
    roots = find_roots(program.run, budget)
    if roots.fresh or sum(roots.seconds.values()) > (1 - OUTSIDE) * budget.wall:
        return roots
    step("finding the functions that the program calls")
    functions = find_functions(program, count_outside_calls(timeline))
    return find_roots(program.run, budget, functions) if functions else roots
