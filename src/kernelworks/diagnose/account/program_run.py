"""What a diagnosis keeps of the run itself: each module's time, when operators ran, the source around their calls."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence

from kernelworks.diagnose.account.account import Group
from kernelworks.profile.calls import DeviceWork, fold
from kernelworks.profile.replay import short
from kernelworks.records.program_run import DeviceSpans, ModuleTime, ModuleTree, OperatorSpans, SourceLines

__all__ = ["layers_text", "module_tree", "operator_spans", "source_lines"]

AROUND = 2  # lines of source before and after the one that is called from
MOST_COLUMNS = 160  # of a line of source that are kept
MOST_LAYERS = 4  # that are named; of more the path with its asterisk says it
MOST_SPANS = 10_000  # operators of the timeline, and kernels: 0.2 MB of a record


def source_lines(file: str, source: str) -> SourceLines | None:
    """The lines around ``file.py:123``; None if the file cannot be read, or is another by now."""
    _, _, number = source.rpartition(":")
    if not file or not number.isdecimal():
        return None
    lines = linecache.getlines(file)  # of a notebook's cell too
    at = int(number)
    if not 1 <= at <= len(lines):
        return None
    first = max(1, at - AROUND)
    return SourceLines(first, tuple(line.rstrip()[:MOST_COLUMNS] for line in lines[first - 1 : at + AROUND]))


# ---------------------------------------------------------------- modules


def module_tree(groups: Iterable[Group], wall: float) -> ModuleTree:
    """The time of every module with an operator of its own or of a module in it. What no group holds ran outside."""
    own: dict[str, float] = {"": 0.0}
    for group in groups:
        for entry in group.entries:
            place = entry.call.place
            path = place.path if fold(place.path) == place.module else place.module  # of a hotspot's module, its paths
            own[path] = own.get(path, 0.0) + entry.seconds
    own[""] += wall - sum(own.values())
    whole: dict[str, float] = {}
    for path, seconds in own.items():
        whole[path] = whole.get(path, 0.0) + seconds
        while "." in path:
            path = path.rpartition(".")[0]
            whole[path] = whole.get(path, 0.0) + seconds
    folded: dict[str, list[str]] = {}
    for path in whole:
        folded.setdefault(fold(path), []).append(path)
    found = [_module(name, paths, own, whole) for name, paths in folded.items()]
    return ModuleTree(tuple(_in_order(found)))


def layers_text(module: str, paths: Sequence[str]) -> str:
    """Which layers a folded path stands for, if they are few: ``features.4, .8``. "" if the path says as much, or if
    they differ in more than their last index."""
    found = list(dict.fromkeys(path for path in paths if path != module))
    if not found or len(found) > MOST_LAYERS or any(fold(path) != module for path in paths):
        return ""
    stems = {path.rpartition(".")[0] for path in found}
    if len(stems) > 1:
        return ""
    first, *others = sorted(found, key=lambda path: (len(path), path))  # .8 before .10
    return ", ".join([first, *(f".{path.rpartition('.')[2]}" for path in others)])


def _module(name: str, paths: Sequence[str], own: Mapping[str, float], whole: Mapping[str, float]) -> ModuleTime:
    slowest = max(paths, key=lambda path: whole[path])
    return ModuleTime(
        path=name,
        instances=len(paths),
        seconds=sum(whole[path] for path in paths),
        own_s=sum(own.get(path, 0.0) for path in paths),
        least_s=min(whole[path] for path in paths),
        most_s=whole[slowest],
        slowest=slowest,
    )


def _in_order(modules: Sequence[ModuleTime]) -> list[ModuleTime]:
    """Each module after the one it is in, the longest first."""
    inner: dict[str, list[ModuleTime]] = {}
    for module in sorted(modules, key=lambda m: m.seconds):
        inner.setdefault(module.path.rpartition(".")[0], []).append(module)
    pending, found = inner.get("", []), list[ModuleTime]()
    while pending:
        module = pending.pop()
        found.append(module)
        pending += inner.get(module.path, []) if module.path else []
    return found


# ---------------------------------------------------------------- the timeline


def operator_spans(groups: Sequence[Group], numbers: Sequence[int]) -> OperatorSpans | None:
    """When each call of the groups ran; ``numbers`` has the place of each group's hotspot. None if nothing ran."""
    calls = [
        (entry.call.start, entry.call.end - entry.call.start, number)
        for group, number in zip(groups, numbers, strict=True)
        if not group.gap
        for entry in group.entries
        if entry.call.end > entry.call.start
    ]
    if not calls:
        return None
    calls.sort()
    begun, kept = calls[0][0], calls[:MOST_SPANS]
    device, beyond = _device_spans(groups, numbers, begun)
    return OperatorSpans(
        starts_ns=tuple(start - begun for start, _, _ in kept),
        lengths_ns=tuple(length for _, length, _ in kept),
        hotspots=tuple(number for _, _, number in kept),
        device=device,
        left_out=len(calls) - len(kept) + beyond,
    )


def _device_spans(groups: Sequence[Group], numbers: Sequence[int], begun: int) -> tuple[DeviceSpans | None, int]:
    """What a GPU did, and how many spans are left out."""
    works: list[tuple[DeviceWork, int]] = []
    owners = {id(e.call): n for g, n in zip(groups, numbers, strict=True) if not g.gap for e in g.entries}
    for group, number in zip(groups, numbers, strict=True):
        if group.gap:
            continue
        for entry in group.entries:
            for call in (entry.call, *entry.call.children):
                for made in call.runtime:
                    works += [(w, owners.get(id(w.call), number) if w.call else number) for w in made.works]
    if not works:
        return None, 0
    works.sort(key=lambda pair: pair[0].start)
    kept = works[:MOST_SPANS]
    texts = {name: at for at, name in enumerate(dict.fromkeys(short(work.name) for work, _ in kept))}
    spans = DeviceSpans(
        starts_ns=tuple(work.start - begun for work, _ in kept),
        lengths_ns=tuple(work.end - work.start for work, _ in kept),
        streams=tuple(work.stream for work, _ in kept),
        names=tuple(texts[short(work.name)] for work, _ in kept),
        texts=tuple(texts),
        hotspots=tuple(number for _, number in kept),
    )
    return spans, len(works) - len(kept)
