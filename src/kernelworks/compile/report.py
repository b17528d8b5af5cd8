"""What became of a graph: each call signature that a kernel of ours might have served, and why one does or does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

__all__ = ["Call", "CompileReport", "Graph", "merge_calls"]


@dataclass(frozen=True)
class Call:
    """One call signature in a graph. ``kernel`` is what serves it, "" for inductor; ``ratio`` is the time of inductor's
    version of the region over its time with the kernel, 0 if nothing was benchmarked."""

    op: str
    call: str  # its arguments, in words
    count: int
    kernel: str
    why: str
    ratio: float = 0.0

    def __str__(self) -> str:
        return f"{self.times}{self.op}({self.call}): {self.kernel or 'inductor'}: {self.why}"

    @property
    def times(self) -> str:
        return f"{self.count} x " if self.count > 1 else ""


@dataclass
class Graph:
    """One graph that dynamo handed over, in the order of their coming. ``notes`` are what else is to be said of it."""

    name: str
    nodes: int
    calls: list[Call] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0  # spent on benchmarks
    simpler: int = 0  # products that were made simpler before all that
    modules: set[str] = field(default_factory=set)  # the files that inductor wrote for it, without their endings

    def add(self, call: Call) -> None:
        """Calls of which the same is to be said are one line."""
        self.calls = merge_calls([*self.calls, call])

    def drop_kernels(self) -> None:
        """Nothing is replaced after all."""
        self.calls = [
            replace(c, kernel="", why=f"{c.kernel} was not taken: {c.why}") if c.kernel else c for c in self.calls
        ]

    @property
    def replaced_count(self) -> int:
        return sum(c.count for c in self.calls if c.kernel)

    def __str__(self) -> str:
        head = f"{self.name}: {self.nodes} nodes, {self.replaced_count} calls replaced"
        if self.seconds >= 0.5:
            head += f", {self.seconds:.0f} s of benchmarks"
        return "\n".join([head, *(f"  {line}" for line in (*self.calls, *self.notes))])


def merge_calls(calls: Iterable[Call]) -> list[Call]:
    """Each of the calls of which the same is to be said once, with how many they are."""
    found: dict[Call, int] = {}
    for call in calls:
        alike = replace(call, count=0)
        found[alike] = found.get(alike, 0) + call.count
    return [replace(call, count=count) for call, count in found.items()]


_graphs: list[Graph] = []
MOST = 1000  # So many graphs are remembered: a program that compiles without end must not grow without end.


@dataclass(frozen=True)
class CompileReport:
    """The graphs that this process compiled with ``backend="kernelworks"``."""

    graphs: tuple[Graph, ...]

    @classmethod
    def current(cls) -> CompileReport:
        return cls(tuple(_graphs))

    @staticmethod
    def add(graph: Graph) -> None:
        _graphs.append(graph)
        del _graphs[:-MOST]

    @staticmethod
    def clear() -> None:
        """Forgets what was compiled so far."""
        _graphs.clear()

    @property
    def calls(self) -> list[Call]:
        """The call signatures in all graphs, the most frequent first."""
        return sorted(merge_calls(call for graph in self.graphs for call in graph.calls), key=lambda call: -call.count)

    def of(self, op: str, call: str) -> tuple[str, ...]:
        """What was done with such a call of an op, in words."""
        return tuple(
            f"{each.kernel or 'inductor'}: {each.why}" for each in self.calls if (each.op, each.call) == (op, call)
        )

    def __iter__(self) -> Iterator[Graph]:
        return iter(self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "nothing was compiled with backend='kernelworks' in this process"
