"""``torch.compile(model, backend="kernelworks")``: torch's own compiler, with our kernels if a benchmark favours them.

``backend`` hands a graph on to inductor, with its modes and options. Before it does, it looks for calls that match the
torch signature of an op. It gives such a call to a kernel of ours if the region around the call ran faster with that
kernel than inductor's version of the region. ``compile_report`` says what was replaced, what was not, and why.
``docs/reference/compile.md`` tells more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kernelworks.compile.report import CompileReport

__all__ = ["backend", "compile_report"]


def backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What ``torch.compile(model, backend="kernelworks", mode=..., options=...)`` calls with each graph.

    ``mode`` and ``options`` are inductor's, and inductor refuses what it does not know. ``options`` may also hold
    ``kernelworks.budget_s``, the seconds that benchmarks may take for a graph (60). With 0 nothing is benchmarked, and
    earlier results still count. Returns the compiled graph. Raises what inductor raises if a graph runs neither whole
    nor in parts.
    """
    from kernelworks.compile.inductor import compile_graph

    made: Callable[..., Any] = compile_graph(graph, inputs, mode, dict(options or {}))
    return made


def _reset() -> None:
    """What ``torch.compiler.reset()`` asks of a backend: recorded CUDA graphs are dropped, as inductor drops them."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()


backend.__dict__["reset"] = _reset


def compile_report() -> CompileReport:
    """What ``backend="kernelworks"`` did with the graphs that it compiled in this process: text when printed."""
    from kernelworks.compile.report import CompileReport

    return CompileReport.current()
