"""How long the swapped program will take, before it is measured.

The swapped program is surveyed once (its calls, not its times). Calls that the original makes too cost what they cost
there; each call of ours, backwards too, costs what it takes by itself (``isolated_costs``); gaps
cost what gaps cost in the same module before, and fresh pages are added. The timeline replays it all together.

The original's calls are put together in the same way. What comes out is a share, so that what the model leaves out
cancels; and since calls of ours were timed in this minute and the timeline is of an earlier one, the timeline's seconds
are brought to this minute first, by what the original takes now.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kernelworks.diagnose.forecast.device import Device
from kernelworks.diagnose.forecast.isolated_costs import OURS, IsolatedCosts
from kernelworks.dispatch.signature import operator_of
from kernelworks.profile.cost.shapes import bucket_sizes, signature
from kernelworks.profile.timeline import UNKNOWN, CallRun, Cost, Pages, Timeline
from kernelworks.profile.trace import Call

__all__ = ["Forecast", "predict"]


class Forecast(NamedTuple):
    """What the swapped program will take, as a share of the original in the same minute, and how many of its calls of
    ours had to be taken at their bound over 0.6, since none like them was timed by itself."""

    share: float
    unknown: int


def predict(
    timeline: Timeline,
    calls: Sequence[Call],
    isolated_costs: IsolatedCosts,
    device: Device,
    *,
    freed: int = 0,
    faults: int | None = None,
    now: float | None = None,
) -> Forecast:
    """The swapped program's time from its surveyed calls, the original's timeline, and what our calls take by
    themselves. ``freed`` are bytes given back after its last call, ``faults`` its page faults when it runs plain,
    ``now`` is what the original takes in this minute, by default what the timeline says."""
    own = timeline.wall - timeline.taken  # calls and gaps add to this
    pace = now / own if now is not None and own else 1.0
    costs = _Costs(_Known(timeline.entries()), isolated_costs, device, pace)
    after, unknown = costs.of(calls, timeline.pages(calls, freed, faults))
    before, _ = costs.of(timeline.calls, timeline.own_pages)
    was = timeline.replay(before, pace)
    return Forecast(timeline.replay(after, pace) / was if was else 1.0, unknown)


@dataclass
class _Costs:
    """What calls cost now: those of the original by its timeline at today's ``pace``, ours by what they take alone."""

    known: _Known
    isolated_costs: IsolatedCosts
    device: Device
    pace: float

    def of(self, calls: Iterable[Call], pages: Pages) -> tuple[list[tuple[float, Cost]], int]:
        """Of each call what the host does before it and what it takes; how many of ours are taken at their bound."""
        found: list[tuple[float, Cost]] = []
        unknown, inside = 0, ""
        for call in calls:
            before = self.pace * self.known.gap(call, entering=call.place.path != inside)
            inside = call.place.path
            ours = call.name.startswith(OURS)
            cost = kept = self._kept(call)
            if cost is None and ours:
                cost = self.isolated_costs.of(call)
                unknown += cost is None
            if cost is None:
                cost = self.device.at_its_bound(call, self.pace * self.known.host(call))
            if kept is None:
                cost = replace(cost, host=cost.host + call.place.faults * pages.each)
            found.append((before, cost))
        found.append((self.pace * pages.back, Cost(0.0)))
        return found, unknown

    def _kept(self, call: Call) -> Cost | None:
        """What the call costs in the original; None for one that is not made there."""
        found = self.known.cost(call)
        if found is None and self.isolated_costs.takes_torchs(call):
            found = self.known.cost(replace(call, name=f"aten::{operator_of(call.name.removeprefix(OURS))}"))
        return None if found is None else found.at(self.pace)


class _Known:
    """What calls and gaps cost in the original: by op, shapes and module, and with ever less of that."""

    def __init__(self, entries: Iterable[CallRun]) -> None:
        costs: dict[Any, list[Cost]] = {}
        gaps: dict[Any, list[float]] = {}
        inside = ""
        for ran in entries:
            call, cost = ran.call, ran.cost
            if call.name == UNKNOWN:
                continue
            for key in (*_likeness(call), call.name, None):
                costs.setdefault(key, []).append(cost)
            entering, inside = call.place.path != inside, call.place.path
            for module in (call.place.module, ""):
                before = max(0.0, ran.before - ran.released)  # giving memory back is predicted apart
                gaps.setdefault((module, entering, call.backward), []).append(before)
        self.costs = {key: _usual(values) for key, values in costs.items()}
        self.gaps = {key: statistics.fmean(values) for key, values in gaps.items()}

    def cost(self, call: Call) -> Cost | None:
        return next((self.costs[key] for key in _likeness(call) if key in self.costs), None)

    def host(self, call: Call) -> float:
        """What calls of this op take the host, of any shape; else what calls do on average."""
        found = self.costs.get(call.name) or self.costs.get(None)
        return found.host if found else 0.0

    def gap(self, call: Call, *, entering: bool) -> float:
        """Entering a module costs more Python than the next op inside it: the two are kept apart."""
        for module in (call.place.module, ""):
            if (module, entering, call.backward) in self.gaps:
                return self.gaps[module, entering, call.backward]
        return 0.0


def _usual(found: list[Cost]) -> Cost:
    """Of the host the mean, of the device what the call in the middle took."""
    middle = sorted(found, key=lambda cost: sum(cost.kernels))[len(found) // 2]
    return Cost(statistics.fmean(cost.host for cost in found), middle.kernels, middle.waits)


def _likeness(call: Call) -> tuple[Any, ...]:
    """By what a call of the original is known again; sizes at last by their power of two."""
    shapes = signature(call)
    name = (call.name, call.backward)
    return (*name, shapes, call.place.module), (*name, shapes), (*name, bucket_sizes(shapes))
