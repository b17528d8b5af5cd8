"""Which module of the program each node of dynamo's graphs is in, and on which line: read off the graphs in memory."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.profile.calls import Place, fold

__all__ = ["Step", "TracedGraphs", "breaks", "collect_graphs", "recompilations"]

ROOT = re.compile(r"\w\['\w+'\]")  # ``L['self']``
FRAME = re.compile(r'File "(.*?)", line (\d+)')


@dataclass(frozen=True)
class Step:
    """One node of a graph of dynamo's: what it calls (``layer_norm``), where, and which nodes read it."""

    what: str
    place: Place
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class TracedGraphs:
    """The graphs, each its nodes by name; ``modules`` says in which modules a line runs."""

    graphs: tuple[dict[str, Step], ...] = ()
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def module(self, source: str) -> str:
        """The module that a line runs in; if there are several, what their paths begin with."""
        return common_prefix(self.modules.get(source, ()))

    def near(self, sources: Collection[str]) -> TracedGraphs:
        """With those modules alone, of lines in several graphs, that are of the graph which has most of these."""
        lines = [
            {step.place.source: step.place.module for step in graph.values() if step.place.module}
            for graph in self.graphs
        ]
        shared = [len(set(sources) & its.keys()) for its in lines]
        if not shared or not max(shared):
            return self
        modules: dict[str, dict[str, None]] = {}
        for step in self.graphs[shared.index(max(shared))].values():
            if step.place.source and step.place.module:
                modules.setdefault(step.place.source, {})[step.place.module] = None
        return TracedGraphs(self.graphs, self.modules | {source: tuple(found) for source, found in modules.items()})

    def graph_with(self, names: Sequence[str]) -> dict[str, Step]:
        """The graph that has most nodes of these names."""
        return max(self.graphs, key=lambda graph: sum(name in graph for name in names), default={})


def common_prefix(paths: Sequence[str]) -> str:
    parts = [path.split(".") for path in paths]
    shared: list[str] = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return ".".join(shared)


def collect_graphs(known: Collection[str] = ()) -> TracedGraphs:
    """What dynamo has traced in this process and still holds. ``known`` are paths of the program's modules."""
    graphs: list[dict[str, Step]] = []
    modules: dict[str, dict[str, None]] = {}
    for held in gc.get_objects():
        if type(held).__name__ not in ("GraphModuleImpl", "GraphModule") or "dynamo_compile_id" not in _meta(held):
            continue
        steps: dict[str, Step] = {}
        for node in held.graph.nodes:
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            place = _rooted(_place(node), known)
            steps[node.name] = Step(_what(node), place, tuple(user.name for user in node.users))
            if place.source and place.module:
                modules.setdefault(place.source, {})[place.module] = None
        graphs.append(steps)
    return TracedGraphs(tuple(graphs), {source: tuple(found) for source, found in modules.items()})


def breaks() -> list[tuple[str, str]]:
    """Where dynamo's graphs broke in this process, each line once, and why."""
    found: dict[str, str] = {}
    for each in getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ()):
        stack = getattr(each, "user_stack", None)
        if stack:
            source = f"{Path(stack[-1].filename).name}:{stack[-1].lineno}"
            found.setdefault(source, str(each.reason).strip().partition("\n")[0])
    return list(found.items())


def recompilations() -> list[tuple[str, str, int, float]]:
    """What was compiled anew in this process: line, the guard that failed last, how often, and seconds; most first."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not hasattr(utils, "get_compilation_metrics"):
        return []
    found: dict[str, tuple[str, int, float]] = {}
    for each in utils.get_compilation_metrics():
        reason = getattr(each, "recompile_reason", None)
        if not reason or not each.co_filename:
            continue
        source = f"{Path(each.co_filename).name}:{each.co_firstlineno}"
        guard = re.sub(r"^\d+/\d+: ", "", str(reason).strip().partition("\n")[0]).partition("#")[0].strip()
        _, times, seconds = found.get(source, ("", 0, 0.0))
        found[source] = (guard, times + 1, seconds + (getattr(each, "entire_frame_compile_time_s", None) or 0.0))
    ordered = sorted(found.items(), key=lambda item: -item[1][1])
    return [(source, *its) for source, its in ordered]


def _meta(held: Any) -> Any:
    meta = vars(held).get("meta")
    return meta if isinstance(meta, dict) else {}


def _what(node: Any) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))


def _place(node: Any) -> Place:
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    source = f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
    path = _path(list((node.meta.get("nn_module_stack") or {}).values()))
    return Place(fold(path), source, 0, path, file=frames[-1][0] if frames else "")


def _rooted(place: Place, known: Collection[str]) -> Place:
    """With the path from the outermost module on, if one alone has such a module."""
    if not place.module or place.module in known:
        return place
    whole = [path for path in known if path.endswith(f".{place.module}")]
    root = whole[0].removesuffix(place.module) if len(whole) == 1 else ""
    return Place(root + place.module, place.source, 0, root + place.path, file=place.file)


def _path(stack: Sequence[Any]) -> str:
    """``BertModel.encoder.layer.0`` from what dynamo says of the modules around a node: each its source's expression
    (``L['self'].encoder.layer.0``) and its class. The outermost has no name if its own call was not traced."""
    if not stack:
        return ""
    (first, kind), (last, _) = stack[0][:2], stack[-1][:2]
    root = ROOT.match(str(first))
    inner = str(last)[root.end() :] if root and str(last).startswith(root.group()) else ""
    inner = re.sub(r"\['?(\w+)'?\]", r".\1", inner.replace("_modules", "")).replace("..", ".").strip(".")
    if root is None or root.end() < len(str(first)):
        return inner
    name = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2].strip("'>")
    return f"{name}.{inner}" if inner else name
