"""The experiments, in the order of the concept pages that they belong to."""

from __future__ import annotations

from kernelworks.experiment import (
    all_reduce_ring,
    batch,
    block_size,
    coalescing,
    dispatch,
    experts,
    intensity,
    latency,
    online_softmax,
    rounding,
    smoother,
    state,
    strides,
    summation,
    tile,
    working_set,
)
from kernelworks.experiment.plan import Plan

__all__ = ["PLANS", "plan_named"]

PLANS: tuple[Plan, ...] = (
    smoother.PLAN, dispatch.PLAN, batch.PLAN, intensity.PLAN, working_set.PLAN, latency.PLAN, strides.PLAN, tile.PLAN,
    coalescing.PLAN, rounding.PLAN, summation.PLAN, block_size.PLAN, online_softmax.PLAN, state.PLAN, experts.PLAN,
    all_reduce_ring.PLAN,
)  # fmt: skip


def plan_named(name: str) -> Plan:
    """Raises ValueError for a name that is none's."""
    found = {plan.name: plan for plan in PLANS}.get(name)
    if found is None:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(plan.name for plan in PLANS)}")
    return found
