"""Calls of our ops as a program on the CPU made them, timed by themselves.

Each is run again on the program's own arguments, in the program's order, so that weights come from memory as they will,
into outputs that exist: page faults are counted apart.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts, Kind, kind_of_args, takes_torchs
from kernelworks.dispatch.mutation import own_arguments
from kernelworks.dispatch.op import Op
from kernelworks.profile.cost.calls import op_and_pass
from kernelworks.profile.cost.shapes import bucket_sizes
from kernelworks.profile.timeline import Cost

__all__ = ["Capture", "CapturedCall", "time_isolated"]

MOST_BYTES = 1 << 30  # so many bytes of arguments, weights not counted, are kept alive to be used again
MOST_OF_A_KIND = 32
PASSES = 5
_MODULE: Any = nn.Module  # its ``__call__`` is replaced


@dataclass(frozen=True)
class CapturedCall:
    """One call of an op of ours, or of its backward, with its own arguments, by its full name."""

    name: str
    op: Op
    pass_: str
    args: tuple[Any, ...]
    kind: Kind
    torchs: bool = False  # torch's own kernel is taken
    kernel: str | None = None  # the autotuned one, if there is one


class Capture(TorchDispatchMode):
    """Keeps the arguments of calls of our ops, below autograd: of each kind some, until they hold a gigabyte, and until
    ``budget_s`` is over: then it leaves the program alone at its next call of a module, since being told of an op costs
    many times a small one. Calls of kinds that it had not met by then count at their bound."""

    sees_kernelworks = True

    def __init__(self, persistent: Mapping[int, int], budget_s: float = math.inf) -> None:
        TorchDispatchMode.__init__(self)
        self.persistent, self.budget_s = persistent, budget_s
        self.captured: list[CapturedCall] = []
        self._kinds: dict[Any, int] = {}
        self._torchs: dict[Any, bool] = {}
        self._held = 0
        self._begun = 0.0
        self._there = False

    def __enter__(self) -> Any:
        self._call: Callable[..., Any] = nn.Module.__call__
        self._begun, self._there = time.perf_counter(), True
        self._inference = torch.is_inference_mode_enabled()
        capture = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if time.perf_counter() - capture._begun > capture.budget_s:
                capture._leave()
            return capture._call(module, *args, **kwargs)

        _MODULE.__call__ = call
        return TorchDispatchMode.__enter__(self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _MODULE.__call__ = self._call
        if self._there:
            self._there = False
            TorchDispatchMode.__exit__(self, kind, error, trace)

    def _leave(self) -> None:
        """Before the program's run is over, if no mode of its own stands above: leaving inference mode puts back
        what torch had for dispatch when it was entered, and with it a mode that is gone by then."""
        entered = torch.is_inference_mode_enabled() and not self._inference
        if self._there and not entered and _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "kernelworks" and self._held < MOST_BYTES:
            self._keep(func._schema.name, args)
        return func(*args, **(kwargs or {}))

    def _keep(self, name: str, args: Any) -> None:
        found = op_and_pass(name)
        if found is None or not found[0].contract.returned_outputs:
            return
        op, pass_ = found
        count = len(op.passes[pass_].names)
        given, kernel = tuple(args[:count]), args[count] if len(args) > count else None
        if pass_ == "forward":  # what a call writes to stays the program's
            given = own_arguments(op, given, lambda a: a if a is None else a.clone())
        kind = kind_of_args(name, given)
        alike = (name, bucket_sizes(kind[1]), kind[2])
        self._kinds[alike] = self._kinds.get(alike, 0) + 1
        if self._kinds[alike] <= MOST_OF_A_KIND:
            same = (kind, kernel)
            if same not in self._torchs:
                self._torchs[same] = takes_torchs(op, pass_, given, kernel)
            self.captured.append(CapturedCall(name, op, pass_, given, kind, self._torchs[same], kernel))
            held = (a for a in args if isinstance(a, Tensor))
            self._held += sum(t.nbytes for t in held if t.untyped_storage().data_ptr() not in self.persistent)


def time_isolated(captured: list[CapturedCall], budget_s: float = math.inf) -> IsolatedCosts:
    """Seconds of each call signature: medians over passes, of which there is one at the least, and no more once
    ``budget_s`` is over."""
    begin = time.perf_counter()
    seconds: dict[Kind, list[float]] = {}
    inference = any(isinstance(a, Tensor) and a.is_inference() for c in captured for a in c.args)
    outputs: list[Any] = []
    for turn in range(PASSES + 1):
        if turn > 1 and time.perf_counter() - begin > budget_s:
            break
        with torch.inference_mode() if inference else torch.no_grad():
            for i, call in enumerate(captured):
                if not turn:
                    outputs.append(None if call.pass_ == "backward" else _output(call.op, call))
                    continue
                start = time.perf_counter()
                if call.pass_ == "backward":
                    call.op.run("backward", call.args, kernel=call.kernel)
                else:
                    call.op(*call.args, out=outputs[i], kernel=call.kernel)
                seconds.setdefault(call.kind, []).append(time.perf_counter() - start)
    costs = {kind: Cost(statistics.median(values)) for kind, values in seconds.items()}
    return IsolatedCosts(costs, {call.kind for call in captured if call.torchs})


def _output(op: Op, call: CapturedCall) -> Any:
    """What the call returns, to be written again; None if it cannot be given back as ``out``."""
    result = op(*call.args, kernel=call.kernel)
    try:
        op(*call.args, out=result, kernel=call.kernel)
    except (TypeError, ValueError, RuntimeError):
        return None
    return result
