"""The experiments, in the order of the concept pages that they belong to."""

from __future__ import annotations

from kernelworks.experiment import strides
from kernelworks.experiment.plan import Plan

__all__ = ["PLANS", "plan_named"]

PLANS: tuple[Plan, ...] = (strides.PLAN,)


def plan_named(name: str) -> Plan:
    """Raises ValueError for a name that is none's."""
    found = {plan.name: plan for plan in PLANS}.get(name)
    if found is None:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(plan.name for plan in PLANS)}")
    return found
