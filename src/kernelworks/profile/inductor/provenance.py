"""Where in a program the calls of a module that inductor generated come from: the data that they read says it.

An operator's call is the next node of that operator in the lowered graph that reads the same inputs of the graph. What
a kernel reads was made by such nodes, or given to the graph: among the nodes that read it there are the kernel's own,
and the line that most of them come from is the kernel's place. The module is the one that dynamo saw that line in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelworks.profile.calls import Place
from kernelworks.profile.inductor.dynamo import Step, TracedGraphs
from kernelworks.profile.inductor_code import VIEWS, GeneratedModule, Graph, Invocation, Kernel, Node

__all__ = ["origins"]

DEEP = 6  # So many views may lie between an input of the graph and its reader.


def origins(module: GeneratedModule, graph: Graph, traced: TracedGraphs) -> list[Place]:
    """One place for each of the module's calls; an empty one if nothing tells it."""
    said = [name for call in module.invocations for name in call.sources]
    steps = {} if module.backward else traced.graph_with(said)  # of a backward, comments name its own nodes
    traced = traced.near({node.source for node in graph.values() if node.source})
    nodes = _operators(module, graph)
    writer: dict[str, int] = {}  # block -> the call that wrote it last
    places: list[Place] = []
    for number, call in enumerate(module.invocations):
        kernel = module.kernels.get(call.name)
        own = nodes[number]
        if own is not None:
            place = _placed(own.source, traced)
        elif kernel is not None:
            place = _of_kernel(kernel, call, module, graph, nodes, writer, traced)
        else:
            place = Place()
        step = _step(call, kernel, module, writer, steps)
        told = any(name in steps for name in call.sources)
        if step is not None and (told or not place.module or step.place.source == place.source):
            near = step.place
            place = near if near.source else Place(near.module, place.source, 0, near.path, file=place.file)
        places.append(place)
        for name in call.results or (call.arguments if kernel is not None else ()):
            writer[name] = number
    return places


def _placed(source: str, traced: TracedGraphs) -> Place:
    module = traced.module(source)
    return Place(module, source, 0, module)


def _plain(name: str) -> str:
    return name.rpartition("::")[2]


def _operators(module: GeneratedModule, graph: Graph) -> list[Node | None]:
    """For each call of an operator its node, for the others None."""
    waiting: dict[str, list[Node]] = {}
    for node in graph.values():
        if node.target:
            waiting.setdefault(_plain(node.target), []).append(node)
    found: list[Node | None] = []
    for call in module.invocations:
        if call.name in module.kernels:
            found.append(None)
            continue
        left = waiting.get(_plain(call.name)) or next(
            (waiting[name] for name in reversed(call.operators) if waiting.get(name)), []
        )
        given = [name for name in call.arguments if name in graph and not graph[name].target]
        fitting = [n for n in left if all(_reads(n, name, graph) for name in given)] or left
        made = fitting[0] if fitting else None
        if made is not None:
            left.remove(made)
        found.append(made)
    return found


def _reads(node: Node, name: str, graph: Graph, deep: int = DEEP) -> bool:
    """Whether a node reads another, through views."""
    if name in node.inputs:
        return True
    return deep > 0 and any(
        _reads(graph[its], name, graph, deep - 1) for its in node.inputs if _plain(graph[its].target) in VIEWS
    )


def _of_kernel(
    kernel: Kernel,
    call: Invocation,
    module: GeneratedModule,
    graph: Graph,
    nodes: Sequence[Node | None],
    writer: dict[str, int],
    traced: TracedGraphs,
) -> Place:
    """The line that most of the nodes come from which read what the kernel reads."""
    named = [graph[name] for name in call.sources if name in graph]
    votes: dict[str, float] = {}
    if named:  # a comment says which
        for node in named:
            votes[node.source] = votes.get(node.source, 0.0) + (_plain(node.target) not in VIEWS)
    else:
        taken = {_plain(name) for name in (n.target for n in nodes if n is not None)}
        for node in _read_by(call, graph, nodes, writer):
            readers = [n for n in _readers(node, graph) if _plain(n.target) not in taken and n.source]
            for reader in readers:
                likely = 2.0 if _plain(reader.target) in kernel.fused_name else 1.0
                votes[reader.source] = votes.get(reader.source, 0.0) + likely / len(readers)
    votes.pop("", None)
    return _placed(max(votes, key=lambda source: votes[source]), traced) if votes else Place()


def _read_by(call: Invocation, graph: Graph, nodes: Sequence[Node | None], writer: dict[str, int]) -> Iterable[Node]:
    for name in call.arguments:
        if name in graph and not graph[name].target:
            yield graph[name]
        made = nodes[writer[name]] if name in writer else None
        if made is not None:
            yield made


def _readers(node: Node, graph: Graph, deep: int = DEEP) -> list[Node]:
    """The nodes that read one, through views."""
    found: list[Node] = []
    for name in node.users:
        reader = graph[name]
        if _plain(reader.target) in VIEWS and reader.users and deep:
            found += _readers(reader, graph, deep - 1)
        else:
            found.append(reader)
    return found


def _step(
    call: Invocation, kernel: Kernel | None, module: GeneratedModule, writer: dict[str, int], steps: dict[str, Step]
) -> Step | None:
    """The node of dynamo's graph that a call is made of: the last that its comment names; of a kernel without one, the
    node that reads what an operator before it made, and has the kernel's name."""
    said = [steps[name] for name in call.sources if name in steps]
    if said:
        return said[-1]
    if kernel is None:
        return None
    for name in call.arguments:
        before = module.invocations[writer[name]] if name in writer else None
        for source in reversed(before.sources if before is not None else ()):
            for user in steps[source].users if source in steps else ():
                if user in steps and steps[user].what in kernel.fused_name:
                    return steps[user]
    return None
