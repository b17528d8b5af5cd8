"""``capture(model)``: the calls of a module as CUDA graphs, each launched as one.

What ``diagnose --fix`` puts in place as the optimization "CUDA graph", put there by hand; and the steps of a model that
decodes with a cache of fixed size.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

from kernelworks.diagnose.graphs.graphed_module import GraphedModule
from kernelworks.diagnose.graphs.recorder import Recorder
from kernelworks.diagnose.optimizations.compiler_settings import install_impls
from kernelworks.diagnose.optimizations.torch_compile import is_compiled

__all__ = ["CapturedModel", "capture"]


class CapturedModel:
    """What serves a model's calls; ``undo()`` takes it out. Also a context manager that undoes on leaving.

    ``reason`` says what kept the last call that could not be captured from it.
    """

    def __init__(self, model: nn.Module, recorder: type[Recorder] = Recorder) -> None:
        self.model = model
        self._graphed = GraphedModule(model, recorder, objects=True)
        self._undo: Any = install_impls([(model, self._graphed)])

    @property
    def active(self) -> bool:
        """Whether it is in place, that is until ``undo()``."""
        return self._undo is not None

    @property
    def graph_count(self) -> int:
        """How many graphs serve by now: one for each call signature, and for each cache of fixed size."""
        return sum(graph is not None for graph in self._graphed.graphs.values())

    @property
    def reason(self) -> str:
        return self._graphed.reason

    def undo(self) -> None:
        """The model is called as it was before, and the graphs' memory is given back. A second call does nothing."""
        if self._undo is not None:
            undo, self._undo = self._undo, None
            undo()
            self._graphed.graphs.clear()

    def __enter__(self) -> CapturedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        why = f"; a call that is not captured: {self.reason}" if self.reason else ""
        return f"{type(self.model).__name__}: {self.graph_count} call signatures captured{why}"


def capture(model: nn.Module) -> CapturedModel:
    """Has the calls of ``model`` captured as CUDA graphs, each at its first call, and launched as one from then on: a
    step that is mostly launches then takes as long as its kernels.

    A graph is captured for each call signature (sizes, dtypes, modes, whether gradients are made), four of them at the
    most, forward and backward; and for each object that a call writes into where it lies, such as transformers'
    ``StaticCache``: decoding steps with one replay as one. A cache that grows is written anew at each step, and no
    graph can go on with it. Every call that no graph may serve runs as it always did: one whose host waits for the
    device or decides by what it is given, one of a module that holds something else than when it was captured. The
    first call of a signature takes some ten calls more, and what is captured is held against the module on other data.

    Swap first: ``kernelworks.swap(model)`` and then ``capture(model)`` has our kernels in the graphs. While a model is
    swapped, or one is taken back, the calls change their signature and are captured anew. transformers' ``generate``
    compiles its steps with a static cache by itself, unless ``generation_config.disable_compile`` says not to.

    Args:
        model: a module whose parameters lie on a CUDA device.

    Returns:
        CapturedModel: ``undo()``, ``graph_count``, ``reason``; a context manager too.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: it has parameters that lie elsewhere, or none.
        RuntimeError: it, or a part of it, is compiled or captured already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    places = {p.device.type for p in model.parameters()}
    if places != {"cuda"}:
        raise ValueError(f"model must have its parameters on a CUDA device, got {', '.join(sorted(places)) or 'none'}")
    if is_compiled(model):
        raise RuntimeError("model, or a part of it, is compiled or captured already: undo that first")
    return CapturedModel(model)
