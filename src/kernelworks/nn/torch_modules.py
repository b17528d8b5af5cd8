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
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from kernelworks.nn import functional as calls
from kernelworks.nn.originals import FORWARDS, TORCH_FUNCTIONS, TWINS, shipped_forward

__all__ = ["TORCH_MODULES", "linear_forward", "only_calls"]

_LINEAR, _LAYER_NORM, _RMS_NORM = FORWARDS[nn.Linear], FORWARDS[nn.LayerNorm], FORWARDS[nn.RMSNorm]
_INSTANCE_NORM = shipped_forward(_InstanceNorm)
_APPLY_INSTANCE_NORM = _InstanceNorm._apply_instance_norm  # which its forward calls


def linear_forward(self: Any, input: Tensor) -> Tensor:
    """It is called hundreds of times a token, so it looks into the module's dictionary of parameters before it takes
    nn.Module.__getattr__, which costs as much as a small kernel."""
    if type(self).forward is not _LINEAR or F.linear is not TORCH_FUNCTIONS["linear"]:
        result: Tensor = type(self).forward(self, input)
        return result
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:  # computed from others: a parametrization
        return calls.linear(input, self.weight, self.bias)
    return calls.linear(input, parameters["weight"], parameters["bias"])


def _layer_norm(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _LAYER_NORM or F.layer_norm is not TORCH_FUNCTIONS["layer_norm"]:
        result: Tensor = type(self).forward(self, input)
        return result
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:
        return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
    return calls.layer_norm(input, self.normalized_shape, parameters["weight"], parameters["bias"], self.eps)


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    if type(self).forward is not _RMS_NORM or F.rms_norm is not TORCH_FUNCTIONS["rms_norm"]:
        result: Tensor = type(self).forward(self, x)
        return result
    parameters = self._parameters
    if "weight" not in parameters:
        return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)
    return calls.rms_norm(x, self.normalized_shape, parameters["weight"], self.eps)


def _instance_norm(self: Any, input: Tensor) -> Tensor:
    """What torch warns of or refuses, and an input without a batch, is torch's."""
    cls, batched = type(self), input.dim() == self._get_no_batch_dim() + 1
    if (
        cls.forward is not _INSTANCE_NORM
        or cls._apply_instance_norm is not _APPLY_INSTANCE_NORM
        or F.instance_norm is not TORCH_FUNCTIONS["instance_norm"]
        or not batched
        or input.shape[1] != self.num_features
    ):
        result: Tensor = cls.forward(self, input)
        return result
    normed: Tensor = calls.FUNCTIONS["instance_norm"](
        input, self.running_mean, self.running_var, self.weight, self.bias,
        self.training or not self.track_running_stats, 0.0 if self.momentum is None else self.momentum, self.eps,
    )  # fmt: skip
    return normed


# Parameters are looked for where torch keeps them before nn.Module.__getattr__ is asked.
_BY_HAND: tuple[tuple[Any, str, Any], ...] = (
    (_LINEAR, "linear", linear_forward),
    (_LAYER_NORM, "layer_norm", _layer_norm),
    (_RMS_NORM, "rms_norm", _rms_norm),
    (_INSTANCE_NORM, "instance_norm", _instance_norm),
)


@functools.cache
def only_calls() -> tuple[tuple[Any, str], ...]:
    """The forwards of torch's own modules that only call one of ``TORCH_FUNCTIONS`` or ``TWINS``, each with the
    function's name. All of torch.nn's are looked at, once: two modules ask as the package starts."""
    return tuple(_only_calls())


def _only_calls() -> Iterator[tuple[Any, str]]:
    for cls in vars(nn).values():
        if isinstance(cls, type) and issubclass(cls, nn.Module) and "forward" in vars(cls):
            shipped = shipped_forward(cls)
            code = getattr(shipped, "__code__", None)
            if code is None or getattr(shipped, "__closure__", None):
                continue
            for home, known in (("F", TORCH_FUNCTIONS), ("torch", TWINS)):
                used = set(code.co_names) & known.keys()
                # The bytecode of few is read: of those whose names, attributes among them, allow it.
                if home in code.co_names and len(used) == 1 and _globals_of(code) == {home}:
                    yield shipped, *used


def _globals_of(code: CodeType) -> set[str]:
    """The names that are no builtins and that a function looks up outside of itself."""
    read = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return read - vars(builtins).keys()


def _by_its_function(shipped: Any, name: str) -> tuple[Any, str, Any]:
    """Such a forward, its function, and the same forward with ours in its place."""
    of_twin = "F" not in shipped.__code__.co_names
    home, torchs = (torch, TWINS[name]) if of_twin else (F, TORCH_FUNCTIONS[name])
    module = ModuleType(home.__name__)
    setattr(module, name, calls.twin_stand_in(name) if of_twin else calls.FUNCTIONS[name])
    scope = {"torch" if of_twin else "F": module, "__builtins__": vars(builtins)}
    ours = FunctionType(shipped.__code__, scope, shipped.__name__, shipped.__defaults__)
    ours.__kwdefaults__ = shipped.__kwdefaults__

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if type(self).forward is not shipped or getattr(home, name) is not torchs:
            return type(self).forward(self, *given, **named)
        return ours(self, *given, **named)

    return shipped, name, forward


def _modules() -> Iterator[tuple[Any, str, str, Any]]:
    known = [shipped for shipped, _, _ in _BY_HAND]
    called = [c for c in only_calls() if c[0] not in known and c[1] in calls.FUNCTIONS]
    found = [*_BY_HAND, *(_by_its_function(*c) for c in called)]
    for shipped, name, ours in found:
        # errors, signatures and sources tell of the module's own
        yield shipped, name.replace("_", " "), name, functools.update_wrapper(ours, shipped)


# torch's forward -> what a swap calls it, torch's function, and the forward that takes its place
TORCH_MODULES: tuple[tuple[Any, str, str, Any], ...] = tuple(_modules())
