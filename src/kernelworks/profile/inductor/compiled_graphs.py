"""What torch.compile made of a program: its kernels under torch's profiler, each with its name and place.

The profiler sees the operators that a compiled graph calls, and of the kernels that inductor wrote in C++ nothing. So
for the time of an observation each of them, in the modules that are loaded, is called within an annotation that says
its name and holds its arguments: the same code runs, nothing is compiled again. A graph that runs as one of CUDA's
shows no calls at all; what the device did for it is told apart by the names of kernels.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch._C._profiler import _RecordFunctionFast

from kernelworks.profile.calls import Call, Place
from kernelworks.profile.inductor.dynamo import TracedGraphs, collect_graphs
from kernelworks.profile.inductor.provenance import origins
from kernelworks.profile.inductor_code import GeneratedModule, graph_of, parse_module

__all__ = ["KERNEL", "AnnotatedModules", "CompiledGraph", "annotate_kernels", "compiled_of", "name_calls"]

KERNEL = "inductor::"  # what a kernel of inductor's is called here; its name and its module's follow


@dataclass(frozen=True)
class CompiledGraph:
    """One graph that inductor compiled: ``module`` is the name of the module it wrote, ``annotation`` the graph's key
    in the profiler's annotation, ``text`` the module's, ``graph`` that of the graph it was made of, if it is known.
    """

    module: str
    text: str
    annotation: str = ""
    graph: str = ""
    traced: TracedGraphs = field(default_factory=TracedGraphs)
    skipped: str = ""  # why CUDA graphs were not made of it, if they were asked for
    given: tuple[tuple[int, int], ...] = ()  # the numbers among what it was called with: place, value

    @property
    def generated_module(self) -> GeneratedModule:
        return parse_module(self.text)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that it was called with, by the names that they have in the module."""
        inputs = self.generated_module.inputs
        known = {inputs[at]: value for at, value in self.given if at < len(inputs)}
        return known | {name: known[of] for name, of in self.generated_module.symbols if of in known}

    def has_run(self, calls: Sequence[Call]) -> bool:
        """Whether any of the calls is the graph's."""
        key = self.annotation or None
        return any(
            (call.graph and key is not None and key in call.graph) or call.name.endswith(f"@{self.module}")
            for call in calls
        )

    @functools.cached_property
    def places(self) -> list[Place]:
        """Where in the program each of the module's calls comes from."""
        return origins(self.generated_module, graph_of(self.graph), self.traced)


@dataclass
class AnnotatedModules:
    """The modules that are marked."""

    modules: list[ModuleType]
    given: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # by the module's name

    def graphs(self, modules: Collection[str] = ()) -> list[CompiledGraph]:
        """What is known of them now. ``modules`` are the paths of the program's modules, if they are known."""
        if not self.modules:
            return []
        made = {str(g.cache_key): g for g in gc.get_objects() if type(g).__name__ == "CompiledFxGraph"}
        seen = collect_graphs(modules)
        found = []
        for module in self.modules:
            name = _name(module)
            graph = made.get(name)
            text = getattr(graph, "source_code", "") or _text(module)
            key = str(getattr(graph, "_fx_graph_cache_key", "") or "")
            readable = str(getattr(graph, "inductor_post_grad_graph_str", "") or "")
            found.append(CompiledGraph(name, text, key, readable, seen, _skipped(graph), self.given.get(name, ())))
        return found


def _skipped(graph: Any) -> str:
    """The reason that inductor has for it, of a graph for a GPU."""
    if "cuda" not in (getattr(graph, "device_types", None) or ()):
        return ""
    reasons = getattr(getattr(graph, "cudagraph_info", None), "cudagraph_fail_reasons", None) or ()
    return str(getattr(graph, "disabled_cudagraphs_reason", None) or "; ".join(map(str, reasons))).partition("\n")[0]


@contextlib.contextmanager
def annotate_kernels() -> Iterator[AnnotatedModules]:
    """Every kernel of the modules that inductor has loaded within an annotation of its name."""
    modules = _loaded()
    replaced: list[tuple[ModuleType, str, Any, Any]] = []
    for module in modules:
        for name in parse_module(_text(module)).kernels:
            kernel = vars(module).get(name)
            if kernel is None:
                continue
            its = _annotated(f"{KERNEL}{name}@{_name(module)}", kernel)
            replaced.append((module, name, kernel, its))
            setattr(module, name, its)
    found = AnnotatedModules(modules)
    try:
        with _numbers_seen(found):
            yield found
    finally:
        for module, name, kernel, its in reversed(replaced):
            if vars(module).get(name) is its:
                setattr(module, name, kernel)


@contextlib.contextmanager
def _numbers_seen(found: AnnotatedModules) -> Iterator[None]:
    """Every graph says which numbers it is called with: the sizes of a graph of dynamic shapes."""
    graph: Any = getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)
    if graph is None or not found.modules:
        yield
        return
    called: Any = graph.__call__

    def call(self: Any, inputs: Any) -> Any:
        numbers = tuple((at, value) for at, value in enumerate(inputs) if type(value) is int)
        if numbers:
            found.given[str(self.cache_key)] = numbers
        return called(self, inputs)

    graph.__call__ = call
    try:
        yield
    finally:
        graph.__call__ = called


def _loaded() -> list[ModuleType]:
    codecache = sys.modules.get("torch._inductor.codecache")
    held = getattr(getattr(codecache, "PyCodeCache", None), "modules", ())
    return list({id(m): m for m in (held.values() if isinstance(held, dict) else held)}.values())


def _name(module: ModuleType) -> str:
    return Path(module.__file__ or "").stem


def _text(module: ModuleType) -> str:
    return _read(module.__file__ or "")


@functools.lru_cache(maxsize=256)
def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


class _Launched:
    """A kernel for Triton, which is launched by its ``run``."""

    __slots__ = ("_kernel", "_mark")

    def __init__(self, mark: str, kernel: Any) -> None:
        self._mark, self._kernel = mark, kernel

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with _RecordFunctionFast(self._mark, args):
            return self._kernel.run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def _annotated(mark: str, kernel: Any) -> Any:
    if hasattr(kernel, "run"):
        return _Launched(mark, kernel)

    def run(*args: Any) -> Any:
        with _RecordFunctionFast(mark, args):
            return kernel(*args)

    return run


# ---------------------------------------------------------------- names


def name_calls(calls: Sequence[Call], compiled: Sequence[CompiledGraph]) -> None:
    """Says of each call in a compiled graph where it comes from, and of a kernel of inductor's which it is."""
    runs: dict[str, list[Call]] = {}
    for call in calls:
        if call.graph:
            runs.setdefault(call.graph, []).append(call)
    for graph, its in runs.items():
        found = compiled_of(graph, its, compiled)
        if found is not None:
            _name_all(its, found)


def compiled_of(graph: str, calls: Sequence[Call], compiled: Sequence[CompiledGraph]) -> CompiledGraph | None:
    """Which graph a run is of: by the module of its kernels, else by its annotation."""
    modules = {call.name.partition("@")[2] for call in calls if call.name.startswith(KERNEL)}
    return next(
        (c for c in compiled if c.module in modules or (not modules and c.annotation and c.annotation in graph)), None
    )


def _name_all(calls: Sequence[Call], compiled: CompiledGraph) -> None:
    waiting: dict[str, list[int]] = {}
    for number, invocation in enumerate(compiled.generated_module.invocations):
        waiting.setdefault(invocation.name, []).append(number)
    place = Place()
    for call in calls:
        name = call.name.removeprefix(KERNEL).partition("@")[0]
        if call.name.startswith(KERNEL):
            call.kernel = compiled.generated_module.kernels.get(name)
        left = waiting.get(name)
        if left:
            place = compiled.places[left.pop(0)]
        if place.source or place.module:
            call.place = Place(place.module, place.source, call.place.faults, place.path, file=place.file)
