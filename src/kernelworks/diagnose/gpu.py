"""A diagnosis of a program that runs on a GPU: the same records, made from the device's intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from kernelworks.ceilings import ceilings as measured_ceilings
from kernelworks.diagnose.account import Group, footer
from kernelworks.diagnose.account_gpu import GPU_PARTS, account, kernels
from kernelworks.diagnose.races import Races
from kernelworks.diagnose.regions import regions
from kernelworks.diagnose.told import told
from kernelworks.observe import overhead, replay
from kernelworks.observe.program import Program
from kernelworks.observe.timeline_gpu import GpuTimeline, observe
from kernelworks.observe.trace import without_collection
from kernelworks.records import Diagnosis, Fix, GpuCeilings, GpuTime, KernelTime, Region

__all__ = ["diagnose_gpu", "described"]

Say = Callable[[str], None]
MOST_KERNELS = 200
NOTABLE = 0.02  # of the wall clock


def diagnose_gpu(
    program: Program,
    fix: bool,
    ceilings: GpuCeilings | None,
    budget_s: float,
    say: Say,
    counters: tuple[str, ...] = (),
    *,
    rough: bool = False,
) -> Diagnosis:
    """What ``diagnose`` does once the program has run and used a GPU. ``counters``: the program to start once more
    under Nsight Compute, with its arguments."""
    if ceilings is None:
        say("what this GPU can do")
        ceilings = measured_ceilings(device="cuda")
    say("what a call costs at least")
    floors = overhead.measure()
    timeline = observe(program.run, floors, budget_s=budget_s, say=say)
    say("sorting kernels into regions")
    done = None
    if fix and (rough or not timeline.loud):
        from kernelworks.diagnose.fix import apply_fix
        from kernelworks.diagnose.fix_gpu import GpuSide

        done = apply_fix(program, timeline.walls, GpuSide(timeline, ceilings), budget_s=budget_s, say=say)
    found = described(program.name, timeline, ceilings, done, rough=rough)
    if counters and found.gpu is not None:
        from kernelworks.diagnose.counters import checks

        say("reading counters")
        torch.cuda.empty_cache()  # the other process needs the memory
        counted, line = checks(timeline, counters[0], counters[1:])
        times = dataclasses.replace(found.gpu, counters=counted)
        found = dataclasses.replace(found, gpu=times, findings=(*found.findings, line))
    return found


def described(
    name: str, timeline: GpuTimeline, ceilings: GpuCeilings, fix: Fix | None = None, *, rough: bool = False
) -> Diagnosis:
    """The record of a timeline, live or made from a recorded trace."""
    with without_collection():
        groups = account(timeline, ceilings)
        parts = footer(groups, timeline.wall, GPU_PARTS)
        races = Races(0.0, torch.get_num_threads(), "cuda", ceilings.kind)  # what was timed before is known
        found, problems = regions(groups, timeline.wall, races)
        times = _times(timeline, ceilings)
    more = _findings(timeline, times, groups, found)
    return told(name, timeline, ceilings, parts, found, problems, fix=fix, gpu=times, more=more, rough=rough)


def _times(timeline: GpuTimeline, ceilings: GpuCeilings) -> GpuTime:
    busy = sum(replay.busy_seconds(timeline.played))
    on_device, host = replay.critical(timeline.program, timeline.played)
    return GpuTime(
        busy_s=busy,
        idle_s=timeline.wall - busy,
        critical_device_s=sum(on_device),
        critical_host_s=sum(host.values()),
        without_waits_s=timeline.replayed(waits=False),
        without_host_s=timeline.replayed(host=0.0),
        kernels=tuple(
            KernelTime(
                k.name, k.op, k.runs, k.seconds, k.bound_s, k.regime,
                k.work.flop if k.work else 0.0, k.work.read + k.work.written if k.work else 0.0,
            )
            for k in kernels(timeline, ceilings)[:MOST_KERNELS]
        ),
    )  # fmt: skip


def _findings(
    timeline: GpuTimeline, times: GpuTime, groups: Sequence[Group], found: Sequence[Region]
) -> tuple[str, ...]:
    """What the replay says that no region does."""
    wall = timeline.wall
    busy, device, host = (
        _percent(part, wall) for part in (times.busy_s, times.critical_device_s, times.critical_host_s)
    )
    lines = [
        f"the GPU works for {busy} of the wall clock; {device} of the critical path is kernels, {host} the host and "
        "its launches"
    ]
    waits = sum(1 for step in timeline.program if step.waits)
    if waits > 1 and wall - times.without_waits_s >= NOTABLE * wall:
        lines.append(
            f"the host waits for the GPU {waits} times; with the last wait alone the run would take "
            f"{_ms(times.without_waits_s)} ms of {_ms(wall)} (replayed)"
        )
    if wall - times.without_host_s >= NOTABLE * wall:
        lines.append(
            "launched without a host, as from a CUDA graph, the same kernels would take "
            f"{_ms(times.without_host_s)} ms of {_ms(wall)} (replayed)"
        )
    if timeline.lost:
        lines.append(f"{_ms(timeline.lost)} ms of device work belonged to no launch that was seen: not counted")
    return tuple(lines)


def _percent(seconds: float, wall: float) -> str:
    return f"{100 * seconds / wall:.0f}%" if wall else "0%"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
