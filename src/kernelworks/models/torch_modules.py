"""The forwards that take the place of torch's own modules' while a model is swapped.

Each first asks whether torch's forward, and the function that it calls, still are the ones that torch ships: a user may
have put another there since. Each reads the module's parameters at every call, so tied weights, a later
``.to(dtype)``, ``load_state_dict(assign=True)``, pruning and parametrizations keep working.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.models import calls
from kernelworks.models.shipped import FORWARDS, TORCHS

__all__ = ["TORCH_MODULES", "linear_forward"]

_LINEAR, _LAYER_NORM, _RMS_NORM = FORWARDS[nn.Linear], FORWARDS[nn.LayerNorm], FORWARDS[nn.RMSNorm]
_GELU, _SOFTMAX, _CROSS_ENTROPY = FORWARDS[nn.GELU], FORWARDS[nn.Softmax], FORWARDS[nn.CrossEntropyLoss]


def linear_forward(self: Any, input: Tensor) -> Tensor:
    """It is called hundreds of times a token, so it looks into the module's dictionary of parameters before it takes
    nn.Module.__getattr__, which costs as much as a small kernel."""
    if type(self).forward is not _LINEAR or F.linear is not TORCHS["linear"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:  # computed from others: a parametrization
        return calls.linear(input, self.weight, self.bias)
    return calls.linear(input, parameters["weight"], parameters["bias"])


def _layer_norm(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _LAYER_NORM or F.layer_norm is not TORCHS["layer_norm"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    parameters = self._parameters
    if "weight" not in parameters or "bias" not in parameters:
        return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
    return calls.layer_norm(input, self.normalized_shape, parameters["weight"], parameters["bias"], self.eps)


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    if type(self).forward is not _RMS_NORM or F.rms_norm is not TORCHS["rms_norm"]:
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    parameters = self._parameters
    if "weight" not in parameters:
        return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)
    return calls.rms_norm(x, self.normalized_shape, parameters["weight"], self.eps)


def _gelu(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _GELU or F.gelu is not TORCHS["gelu"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    return calls.gelu(input, approximate=self.approximate)


def _softmax(self: Any, input: Tensor) -> Tensor:
    if type(self).forward is not _SOFTMAX or F.softmax is not TORCHS["softmax"]:
        return type(self).forward(self, input)  # type: ignore[no-any-return]
    return calls.softmax(input, self.dim, _stacklevel=5)


def _cross_entropy(self: Any, input: Tensor, target: Tensor) -> Tensor:
    if type(self).forward is not _CROSS_ENTROPY or F.cross_entropy is not TORCHS["cross_entropy"]:
        return type(self).forward(self, input, target)  # type: ignore[no-any-return]
    return calls.cross_entropy(
        input,
        target,
        weight=self.weight,
        ignore_index=self.ignore_index,
        reduction=self.reduction,
        label_smoothing=self.label_smoothing,
    )


# torch's forward -> what a swap calls it, the op (and torch's function), and the forward that takes its place
TORCH_MODULES: tuple[tuple[Any, str, str, Any], ...] = (
    (_LINEAR, "linear", "linear", linear_forward),
    (_LAYER_NORM, "layer norm", "layer_norm", _layer_norm),
    (_RMS_NORM, "rms norm", "rms_norm", _rms_norm),
    (_GELU, "gelu", "gelu", _gelu),
    (_SOFTMAX, "softmax", "softmax", _softmax),
    (_CROSS_ENTROPY, "cross entropy", "cross_entropy", _cross_entropy),
)

for _shipped, _, _, _ours in TORCH_MODULES:  # errors, signatures and sources tell of the module's own
    functools.update_wrapper(_ours, _shipped)
