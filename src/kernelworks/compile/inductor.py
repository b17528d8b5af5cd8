"""A graph of dynamo's, with kernels of ours if they win, compiled by inductor in its modes and with its options."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernelworks.compile.algebra import simplify_products
from kernelworks.compile.choice import Races, choose_kernels
from kernelworks.compile.frozen_weights import freeze_if_faster, weights_of
from kernelworks.compile.layouts import check, outputs_of
from kernelworks.compile.partition import Parts, reason, stops, twin
from kernelworks.compile.progress import say
from kernelworks.compile.report import CompileReport, Graph
from kernelworks.compile.written_modules import note_modules

__all__ = ["compile_graph", "races_within"]

OURS = "kernelworks."
BUDGET_S = 60.0  # The benchmarks of a graph may take so long, with compiling their regions.
MANY = 64  # nodes; a graph of fewer has proportionally less time


@dataclass
class _Seconds:
    left: float


_most: contextvars.ContextVar[_Seconds] = contextvars.ContextVar("seconds of races")


@contextlib.contextmanager
def races_within(seconds: float) -> Iterator[None]:
    """The races of all graphs that this thread compiles within take so long at the most, whatever each may take."""
    token = _most.set(_Seconds(max(0.0, seconds)))
    try:
        yield
    finally:
        _most.reset(token)


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], mode: str | None, options: dict[str, Any]) -> Any:
    """A graph compiled by inductor in a mode, with options of its own and of ours."""
    graph_report = Graph(f"graph {len(CompileReport.current())}", len(graph.graph.nodes))
    CompileReport.add(graph_report)
    with note_modules(graph_report.modules):
        return _compiled(graph, inputs, graph_report, *_read(mode, options))


def _compiled(graph: fx.GraphModule, inputs: Sequence[Any], graph_report: Graph, budget_s: float, settings: Any) -> Any:
    most = _most.get(_Seconds(math.inf))
    budget_s = min(most.left, budget_s * min(1.0, graph_report.nodes / MANY))
    before = twin(graph)
    try:
        returned = outputs_of(before, inputs)
        gone = simplify_products(graph.graph)
        if gone:
            check(graph, inputs, returned)
        graph_report.simpler = len(gone)
        graph_report.notes += [f"{gone.count(line)} x {line}" for line in dict.fromkeys(gone)]
        places = weights_of(graph, inputs)
        share = 0.5 if places else 1.0  # of the time, for regions: the rest is for the benchmark of constant weights
        own = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))
        races = Races(share * budget_s, settings.config, own)
        choose_kernels(graph, races, graph_report)
        if graph_report.replaced_count:
            check(graph, inputs, returned)
        constant = freeze_if_faster(graph, inputs, places, settings, budget_s - races.spent_s, graph_report)
        if constant is not None:
            return constant
    except Exception as error:  # whatever is odd about a graph, inductor may know what to do with it
        if stops(error):
            raise
        graph_report.notes.append(f"nothing was replaced: {reason(error)}")
        graph_report.drop_kernels()
        graph = twin(before)
    finally:
        most.left -= graph_report.seconds
    return _by_inductor(graph, before, inputs, settings, graph_report)


def _by_inductor(
    graph: fx.GraphModule, before: fx.GraphModule, inputs: Sequence[Any], settings: Any, graph_report: Graph
) -> Any:
    """The graph compiled. If that fails with kernels of ours, the graph as it was ``before``; if that fails, too, its
    parts."""
    say(f"compiling a graph of {graph_report.nodes} operators")
    try:
        return settings(graph, inputs)
    except Exception as error:
        if stops(error):
            raise
        because = reason(error)
    if graph_report.replaced_count or graph_report.simpler:
        graph_report.notes.append(
            f"inductor failed on the graph with our changes, and compiled it without them ({because})"
        )
        graph_report.drop_kernels()
        try:
            return settings(twin(before), inputs)
        except Exception as error:
            if stops(error):
                raise
            because = reason(error)
    return Parts(before, settings, graph_report, because)


def _read(mode: str | None, options: dict[str, Any]) -> tuple[float, Any]:
    """The budget of the races, and inductor's settings as torch.compile would read them. Raises what that raises."""
    ours = {name.removeprefix(OURS): options.pop(name) for name in list(options) if name.startswith(OURS)}
    budget_s = float(ours.pop("budget_s", BUDGET_S))
    if ours:
        raise RuntimeError(f"unexpected option {OURS}{next(iter(ours))}: the only one is {OURS}budget_s")
    return budget_s, torch._TorchCompileInductorWrapper(mode, options, None)
