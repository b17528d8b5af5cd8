"""A graph that inductor cannot compile whole: the parts that it can, compiled; the rest run as it was written.

A graph is halved until a half compiles or is a single node. A part compiles when it is first called, with the tensors
of that call, so a failure shows even if it comes only when kernels are loaded or first run. A node that did not compile
is then left out at once in the rest of the graph: a model has the same block many times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from kernelworks.compile.calls import value_of
from kernelworks.compile.report import Graph
from kernelworks.dispatch.user_warning import warn_user

__all__ = ["Parts", "reason", "stops", "twin"]

MOST_FAILED = 48  # After so many failed attempts to compile, the rest runs as it was written.
MOST_KINDS = 8  # A part is compiled for so many input signatures, as a frame of dynamo's; others run as written.

Settings = Callable[[fx.GraphModule, Sequence[Any]], Any]  # compiles a graph for inputs


def stops(error: Exception) -> bool:
    """Whether an error is dynamo's own way to start anew or to leave a frame alone, and no failure."""
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

    return isinstance(error, TorchDynamoException) and not isinstance(error, BackendCompilerFailed)


def reason(error: Exception) -> str:
    """An error in a line."""
    inner = getattr(error, "inner_exception", None) or error
    first = next((line.strip() for line in str(inner).splitlines() if line.strip()), "")
    return f"{type(inner).__name__}: {first[:160]}" if first else type(inner).__name__


def twin(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph on the same tensors: a compiler changes the one it is given."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    for node, copied in copies.items():
        if hasattr(node, "_dynamo_source"):  # where an input comes from: what stays in its place is known by it
            copied._dynamo_source = node._dynamo_source
    made = fx.GraphModule(module, graph)
    made.meta.update(module.meta)
    if hasattr(module, "_param_name_to_source"):
        made._param_name_to_source = module._param_name_to_source
    return made


class Parts(nn.Module):
    """A graph in the place of what inductor did not make of it. ``because`` is what inductor said of the whole."""

    def __init__(self, module: fx.GraphModule, settings: Settings, graph_report: Graph, because: str) -> None:
        super().__init__()
        self.settings, self.graph_report, self.because = settings, graph_report, because
        self.known: set[tuple[str, str]] = set()  # nodes that do not compile, by how they look
        self.compiled, self.failed = 0, 1
        self.left: list[str] = []  # the targets of nodes that run as they were written
        self.first = True
        self.whole: Callable[..., Any] = _halved(module, self) or module.forward

    def forward(self, *inputs: Any) -> Any:
        result = self.whole(*inputs)
        if self.first:
            self.first = False
            self._tell()
        return result

    def _tell(self) -> None:
        few = list(dict.fromkeys(self.left))
        left = f"{len(self.left)} nodes run as they were written ({', '.join(few[:6])}{', ...' if few[6:] else ''})"
        said = f"inductor failed on the whole graph ({self.because}): {self.compiled} parts of it are compiled, {left}"
        self.graph_report.notes.append(said)
        warn_user(f"kernelworks: {said}", RuntimeWarning)


class _Part(nn.Module):
    """A stretch of the graph: compiled for the kinds of inputs it is called with, or in parts of its own."""

    def __init__(self, module: fx.GraphModule, whole: Parts, *, written: bool) -> None:
        super().__init__()
        self.module, self.written = module, written
        object.__setattr__(self, "parts", whole)  # no child of ours
        self.runs: dict[Any, Callable[..., Any]] = {}

    def forward(self, *inputs: Any) -> Any:
        key = tuple(_look(value) for value in inputs)
        run = self.runs.get(key)
        if run is not None:
            return run(*inputs)
        if len(self.runs) >= MOST_KINDS:
            return self.module(*inputs)
        made, result = self._made(inputs)
        self.runs[key] = made
        return result

    def _made(self, inputs: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        """What runs this stretch, and what it returned."""
        whole: Any = self.parts
        nodes = _computing(self.module)
        if not nodes or self.written or whole.failed >= MOST_FAILED:
            return self._as_written(nodes, inputs)
        versions = [t._version for t in inputs if isinstance(t, Tensor) and not t.is_inference()]
        try:
            with torch._guards.tracing(None):
                run = whole.settings(twin(self.module), list(inputs))
            result = run(*inputs)
        except Exception as error:
            written = [t._version for t in inputs if isinstance(t, Tensor) and not t.is_inference()]
            if stops(error) or written != versions:
                raise
            whole.failed += 1
        else:
            whole.compiled += 1
            return run, result
        pieces = _halved(self.module, whole)
        if pieces is None:
            whole.known.update(map(_looks, nodes))
            return self._as_written(nodes, inputs)
        return pieces, pieces(*inputs)

    def _as_written(self, nodes: Sequence[fx.Node], inputs: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        whole: Any = self.parts
        result = self.module(*inputs)
        whole.left += [_looks(n)[0] for n in nodes]
        return self.module, result


def _look(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad
    return value


def _looks(node: fx.Node) -> tuple[str, str]:
    value = value_of(node)
    shape = f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target)), shape


def _computing(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op in ("call_function", "call_method", "call_module")]


def _halved(module: fx.GraphModule, whole: Parts) -> Callable[..., Any] | None:
    """A module as a sequence of parts: those known not to compile by themselves, else two halves; None if it is too
    small for either."""
    from torch.fx.passes.split_module import split_module

    nodes = _computing(module)
    bad = [_looks(n) in whole.known for n in nodes]
    places: dict[fx.Node, int] = {}
    written: set[int] = set()
    if any(bad) and not all(bad):
        part = 0
        for place, node in enumerate(nodes):
            part += bool(place and bad[place] != bad[place - 1])
            places[node] = part
            written |= {part} if bad[place] else set()
    elif len(nodes) > 1:
        places = {node: int(2 * place >= len(nodes)) for place, node in enumerate(nodes)}
    else:
        return None
    try:
        split_graph = split_module(
            twin_of := twin(module), module, _by_order(twin_of, nodes, places), keep_original_order=True
        )
    except Exception as error:  # regions of autocast that cannot be cut
        if stops(error):
            raise
        return None
    for name, child in list(split_graph.named_children()):
        if name.startswith("submod_") and isinstance(child, fx.GraphModule):
            delattr(split_graph, name)
            split_graph.add_module(name, _Part(child, whole, written=int(name.removeprefix("submod_")) in written))
    made: Callable[..., Any] = split_graph
    return made


def _by_order(copied: fx.GraphModule, nodes: Sequence[fx.Node], places: dict[fx.Node, int]) -> Callable[[fx.Node], int]:
    """The part of a node of the copy, by that of the node in its place."""
    found = dict(zip(_computing(copied), (places[n] for n in nodes), strict=True))
    return lambda node: found[node]
