"""The forwards that take the place of torch's own modules' while a model is swapped.

Each first asks whether torch's forward, and the function that it calls, still are the ones that torch ships: a user may
have put another there since. Each reads the module's parameters at every call, so tied weights, a later
``.to(dtype)``, ``load_state_dict(assign=True)``, pruning and parametrizations keep working.
"""

from __future__ import annotations

import builtins
import dis
import functools
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.models import calls
from kernelworks.models.shipped import FORWARDS, TORCHS, shipped_forward

__all__ = ["TORCH_MODULES", "linear_forward"]

_LINEAR, _LAYER_NORM, _RMS_NORM = FORWARDS[nn.Linear], FORWARDS[nn.LayerNorm], FORWARDS[nn.RMSNorm]


def linear_forward(self: Any, input: Tensor) -> Tensor:
    """It is called hundreds of times a token, so it looks into the module's dictionary of parameters before it takes
    nn.Module.__getattr__, which costs as much as a small kernel."""
    if type(self).forward is not _LINEAR or F.linear is not TORCHS["linear"]:
        result: Tensor = type(self).forward(self, input)
        return result
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:  # computed from others: a parametrization
        return calls.linear(input, self.weight, self.bias)
    return calls.linear(input, parameters["weight"], parameters["bias"])


def _layer_norm(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _LAYER_NORM or F.layer_norm is not TORCHS["layer_norm"]:
        result: Tensor = type(self).forward(self, input)
        return result
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:
        return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
    return calls.layer_norm(input, self.normalized_shape, parameters["weight"], parameters["bias"], self.eps)


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    if type(self).forward is not _RMS_NORM or F.rms_norm is not TORCHS["rms_norm"]:
        result: Tensor = type(self).forward(self, x)
        return result
    parameters = self._parameters
    if "weight" not in parameters:
        return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)
    return calls.rms_norm(x, self.normalized_shape, parameters["weight"], self.eps)


# Parameters are looked for where torch keeps them before nn.Module.__getattr__ is asked.
_BY_HAND: tuple[tuple[Any, str, Any], ...] = (
    (_LINEAR, "linear", linear_forward),
    (_LAYER_NORM, "layer_norm", _layer_norm),
    (_RMS_NORM, "rms_norm", _rms_norm),
)


def _by_its_function(cls: type[nn.Module]) -> tuple[Any, str, Any] | None:
    """A class of torch's whose forward hands its arguments to one function that is ours too: torch's forward, that
    function, and the same forward with ours in its place. None for any other."""
    shipped = shipped_forward(cls)
    code = getattr(shipped, "__code__", None)
    if code is None:
        return None
    read = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    used = sorted(set(code.co_names) & calls.FUNCTIONS.keys())
    if read - vars(builtins).keys() != {"F"} or len(used) != 1 or getattr(shipped, "__closure__", None):
        return None
    (name,) = used
    functional = ModuleType(F.__name__)
    setattr(functional, name, calls.FUNCTIONS[name])
    ours = FunctionType(code, {"F": functional, "__builtins__": vars(builtins)}, shipped.__name__, shipped.__defaults__)
    ours.__kwdefaults__ = shipped.__kwdefaults__
    torchs = TORCHS[name]

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if type(self).forward is not shipped or getattr(F, name) is not torchs:
            return type(self).forward(self, *given, **named)
        return ours(self, *given, **named)

    return shipped, name, forward


def _classes() -> Iterator[type[nn.Module]]:
    for value in vars(nn).values():
        if isinstance(value, type) and issubclass(value, nn.Module) and "forward" in vars(value):
            yield value


def _modules() -> Iterator[tuple[Any, str, str, Any]]:
    known = [shipped for shipped, _, _ in _BY_HAND]
    found = [*_BY_HAND, *(m for m in map(_by_its_function, _classes()) if m is not None and m[0] not in known)]
    for shipped, name, ours in found:
        # errors, signatures and sources tell of the module's own
        yield shipped, name.replace("_", " "), name, functools.update_wrapper(ours, shipped)


# torch's forward -> what a swap calls it, torch's function, and the forward that takes its place
TORCH_MODULES: tuple[tuple[Any, str, str, Any], ...] = tuple(_modules())
