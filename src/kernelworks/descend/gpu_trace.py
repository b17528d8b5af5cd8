"""From a recorded trace of a program on a GPU down to the machine code of its kernels: nothing is run.

What a trace holds is read: modules, operators with shapes, launches, times. The dispatcher is asked what it would
choose for the same calls on that kind of machine. Code is what Triton's cache beside the trace holds, or, of
kernelworks' own kernels, what is compiled here for sm_90 from the shapes; of torch's and NVIDIA's own, names and
launches alone are seen.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.descend.device_code import (
    KernelCode,
    device_loop,
    find_code,
    ir_operations,
    ptx_operations,
    read_cache,
)  # fmt: skip
from kernelworks.descend.kernel_names import UNKNOWN_MAKER, launch_sentences, maker_of, name_sentences
from kernelworks.descend.trace_dispatch import OursCompiled, chosen_for, our_source, same_op
from kernelworks.diagnose.foreign_trace import bound_on_gpu, peaks_of_devices, tops_of_work, window_events
from kernelworks.measure.roofline.bound import bottleneck_of
from kernelworks.profile.foreign.breakdown import find_window
from kernelworks.profile.foreign.events import COPY, FILL, KERNEL, OP, Events, TraceError
from kernelworks.profile.foreign.formats import KernelSums, read_trace_file
from kernelworks.profile.foreign.nesting import FRAME, MODULE, Nesting, nest
from kernelworks.profile.foreign.work import call_of, shapes_text, work_of
from kernelworks.profile.replay import short
from kernelworks.records import GpuPeaks, from_json
from kernelworks.records.descent import Descent, DeviceKernel, OperatorTime

__all__ = ["TraceError", "descend_trace", "read_peaks"]

KERNELS = 4  # of an operator that are shown
LEAST_SHARE = 0.03  # of an operator's time
MOST_MODULES = 12
MODULE_NUMBER = re.compile(r"_\d+$")
MOVING = ("load", "store")


@dataclass
class _Group:
    typical: int  # an event of such a call
    calls: int = 0
    host_us: float = 0.0
    device_us: float = 0.0
    kernels: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # events by name


def read_peaks(path: Path) -> GpuPeaks:
    """Measured peaks of a GPU from a record of ``kernelworks machine --json``, or one that holds them under ``peaks``.
    Raises ValueError, OSError."""
    found = json.loads(path.read_text(encoding="utf-8"))
    held = found.get("peaks", found) if isinstance(found, dict) else found
    for one in held if isinstance(held, list) else [held]:
        if isinstance(one, dict) and "multiprocessors" in one:
            return from_json(GpuPeaks, json.dumps(one))
    raise ValueError(f"{path} holds no measured peaks of a GPU: `kernelworks machine --json` writes them there")


def descend_trace(
    path: Path, *, cache: Path | None = None, peaks: GpuPeaks | None = None, op: str = "", most: int = 5,
    say: Callable[[str], None] = lambda line: None,
) -> Descent:  # fmt: skip
    """The ``most`` operators with the most time on the GPU, or all whose name or kernels have ``op`` in their names.

    Args:
        path: torch.profiler's trace. cache: a folder of Triton's, or inductor's, from the recording. peaks: of the GPU
            that it was recorded on, by default this machine's if it is of that name.
    Raises: TraceError if the file is no trace or holds no kernels, LookupError if nothing has ``op`` in its name,
        OSError if a file cannot be read.
    """
    say(f"reading {path}")
    found = read_trace_file(path)
    if isinstance(found.content, KernelSums):
        raise TraceError(f"{path.name} holds sums of kernels and no calls: descend reads torch.profiler's traces")
    events = found.content.finish()
    window = find_window(events)
    events = window_events(events, window)
    if not events.of(KERNEL).any():
        raise TraceError(f"{path.name} holds no kernels of a GPU: of a CPU's program, descend runs it")
    nesting = nest(events)
    groups = _grouped(events, nesting, tops_of_work(events, nesting))
    named = {key: group for key, group in groups.items() if _is_asked(key, group, op)}
    if not named:
        seen = ", ".join(sorted({key[0].removeprefix("aten::") for key in groups})[:20])
        raise LookupError(f"no operator or kernel of the trace has {op!r} in its name; there are {seen}")
    say("reading the code of its kernels")
    reader = _Reader(
        events, nesting, peaks or peaks_of_devices(events.table.devices), read_cache(cache) if cache else [],
        sum(group.device_us for group in groups.values()), OursCompiled(events.table.capability),
    )  # fmt: skip
    order = sorted(named.values(), key=lambda group: -group.device_us)[:most]
    operators = tuple(reader.operator(group) for group in order)
    table = events.table
    return Descent(
        program=path.name, machine=table.devices[0] if table.devices else "an unnamed GPU", wall_s=window.seconds,
        runs=max(1, len(window.steps)), samples=0, period_ms=0.0, operators=operators, whole=len(groups),
        notes=tuple(_notes(events, reader, cache)),
    )  # fmt: skip


def _is_asked(key: tuple[str, ...], group: _Group, op: str) -> bool:
    return any(op.lower() in name.lower() for name in (key[0], *group.kernels))


def _grouped(events: Events, nesting: Nesting, tops: dict[int, int]) -> dict[tuple[str, ...], _Group]:
    groups: dict[tuple[str, ...], _Group] = {}
    keys: dict[int, tuple[str, ...]] = {}
    for work, top in tops.items():
        if events.kind[work] not in (KERNEL, COPY, FILL):
            continue
        if top >= 0 and top not in keys:
            keys[top] = (events.text(top), _module(events, nesting, top), _source(events, nesting, top),
                         shapes_text(events, top))  # fmt: skip
        key = keys.get(top, ("kernels outside any operator", "", "", ""))
        group = groups.setdefault(key, _Group(top))
        group.device_us += float(events.end[work] - events.start[work])
        group.kernels[events.text(work)].append(work)
    for top, key in keys.items():
        groups[key].calls += 1
        groups[key].host_us += float(events.end[top] - events.start[top])
    return groups


def _module(events: Events, nesting: Nesting, index: int) -> str:
    """The modules around an operator, outermost first, like ones as one: "Decoder.Layer.*.Linear.*"."""
    names: list[str] = []
    at = int(nesting.module[index])
    while at >= 0 and len(names) < MOST_MODULES:
        text = events.text(at)
        if text.startswith(MODULE):
            names.append(MODULE_NUMBER.sub("", text.removeprefix(MODULE)))
        at = int(nesting.parent[at])
    return ".".join(reversed(names))


def _source(events: Events, nesting: Nesting, index: int) -> str:
    frame = int(nesting.frame[index])
    match = FRAME.fullmatch(events.text(frame)) if frame >= 0 else None
    return f"{match['file']}:{match['line']}" if match else ""


@dataclass
class _Reader:
    """What is known beside the trace."""

    events: Events
    nesting: Nesting
    peaks: GpuPeaks | None
    codes: list[KernelCode]
    whole_us: float
    compiled: OursCompiled
    unseen: Counter[str] = field(default_factory=Counter)  # kernels without code, by maker

    def operator(self, group: _Group) -> OperatorTime:
        events, index = self.events, group.typical
        kernels = self._kernels(group)
        if index < 0:
            return _outside(group, kernels, group.device_us / self.whole_us if self.whole_us else 0.0)
        call, seconds = call_of(events, index), group.device_us / 1e6
        place, line = _source(events, self.nesting, index).rpartition(":")[::2]
        work = work_of(events, index)
        limit = bound_on_gpu(work, self.peaks, [*group.kernels]) if work and self.peaks else None
        kernel, because, declined = chosen_for(call, self.kind)
        return OperatorTime(
            operator=events.text(index), module=_module(events, self.nesting, index),
            source=f"{Path(place).name}:{line}" if place else "",
            code=linecache.getline(place, int(line)).strip() if line.isdecimal() else "",
            shapes=shapes_text(events, index), calls=group.calls, seconds=seconds,
            share=group.device_us / self.whole_us if self.whole_us else 0.0, op=same_op(events.text(index)),
            capability="", kernel=kernel, because=because, declined=declined,
            kernel_source=next((one.source for one in kernels if one.source), ""),
            flop=None if work is None else work.flop * group.calls,
            bytes=None if work is None else (work.read + work.written) * group.calls,
            bound_s=None if limit is None else limit.seconds * group.calls,
            bottleneck="" if limit is None else bottleneck_of(limit, seconds / max(1, group.calls)),
            peak="" if limit is None else limit.peak, samples=0, kernels=kernels, host_s=group.host_us / 1e6,
        )  # fmt: skip

    @property
    def kind(self) -> str:
        """Of machine, as certificates and tuning records name it."""
        table = self.events.table
        name = table.devices[0].lower().replace(" ", "_") if table.devices else "unknown"
        return f"sm_{table.capability[0]}{table.capability[1]}-{name}"

    def _kernels(self, group: _Group) -> tuple[DeviceKernel, ...]:
        times = {
            name: sum(float(self.events.end[i] - self.events.start[i]) for i in ids)
            for name, ids in group.kernels.items()
        }
        order = sorted(times, key=lambda name: -times[name])[:KERNELS]
        return tuple(
            self._kernel(group, name, group.kernels[name], times[name] / 1e6)
            for name in order if times[name] >= LEAST_SHARE * group.device_us
        )  # fmt: skip

    def _kernel(self, group: _Group, name: str, ids: list[int], seconds: float) -> DeviceKernel:
        events, at = self.events, int(self.events.detail[ids[0]])
        launch: dict[str, Any] = events.table.details[at] if at >= 0 else {}
        grid, block = (tuple(launch.get(key) or ()) for key in ("grid", "block"))
        registers = int(launch.get("registers per thread") or 0)
        share = 1e6 * seconds / group.device_us if group.device_us else 0.0
        maker, source, said = maker_of(name), "", list(name_sentences(name))
        several = find_code(self.codes, name, threads=block[0] if block else 0, registers=registers)
        code = several[0] if several else None
        if len(several) > 1:
            said.append(
                f"{len(several)} kernels of the cache have this name and fit; shown is the nearest by registers"
            )
        if maker == UNKNOWN_MAKER and code is None:
            code = self.compiled.code_of(events, group.typical, name, block)
        if maker == UNKNOWN_MAKER:
            source = our_source(events.text(group.typical), name) if group.typical >= 0 else ""
            maker = "kernelworks" if source else maker
        elif maker == "inductor" and group.typical >= 0 and int(events.detail[group.typical]) >= 0:
            source = str(events.table.details[int(events.detail[group.typical])].get("kernel_file", ""))
        said += launch_sentences(grid, block, events.table.multiprocessors)
        made = DeviceKernel(
            name=short(name) or name, maker=maker, runs=len(ids), seconds=seconds, share=share, grid=grid, block=block,
            registers=registers, shared_bytes=int(launch.get("shared memory") or 0), said=tuple(said), source=source,
        )  # fmt: skip
        if code is None:
            self.unseen[maker] += 1
            return made
        return dataclasses.replace(
            made, code=code.where, ir=ir_operations(code.ttir), ptx=ptx_operations(code.ptx),
            loop=device_loop(code, moving=not ir_operations(code.ttir).get("tt.dot")),
        )  # fmt: skip


def _outside(group: _Group, kernels: tuple[DeviceKernel, ...], share: float) -> OperatorTime:
    return OperatorTime(
        operator="kernels outside any operator", module="", source="", code="", shapes="", calls=0,
        seconds=group.device_us / 1e6, share=share, op="", capability="", kernel="", because="", declined=(),
        kernel_source="", flop=None, bytes=None, bound_s=None, bottleneck="", peak="", samples=0, kernels=kernels,
    )  # fmt: skip


def _notes(events: Events, reader: _Reader, cache: Path | None) -> list[str]:
    notes = list(events.table.remarks)
    if reader.peaks is None:
        name = events.table.devices[0] if events.table.devices else "its machine"
        notes.append(f"roofline: the measured peaks of {name} are not here; --peaks FILE reads them from a record")
    if not events.table.has_shapes:
        notes.append("operators without shapes: record with record_shapes=True")
    if not any(text.startswith(MODULE) for text in events.table.names.texts) and events.of(OP).any():
        notes.append("no modules and lines: record with with_stack=True, of a program that is not compiled whole")
    for maker, count in reader.unseen.items():
        why = {
            "inductor": "its code lies in inductor's cache where the trace was recorded: --cache FOLDER",
            "kernelworks": "compiled here only with Triton, from shapes that the trace holds",
        }.get(
            maker, "its code lies in a library where the trace was recorded; its name and launch are all that is seen"
        )
        notes.append(f"{count} kernel{'s' if count > 1 else ''} by {maker} without code: {why}")
    if importlib.util.find_spec("triton") is None:
        notes.append("no machine code: the disassembler comes with Triton (pip install triton)")
    elif cache is not None and not reader.codes:
        notes.append(f"{cache} holds no kernel that Triton compiled (a .cubin beside a .json)")
    return notes
