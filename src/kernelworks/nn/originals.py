"""What torch and transformers ship under a name, told from what a user has put there.

``torch.nn.functional.gelu``, ``nn.Linear.forward`` and ``modeling_llama.apply_rotary_pos_emb`` are variables. A swap
takes the place of what the library ships, so it has to know that from a patch. It knows by the file that the code was
compiled from, also if the patch was made before this module was read, or wraps what it replaces (``functools.wraps``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernelworks.dispatch.signature import gates, torch_signatures

__all__ = [
    "FORWARDS",
    "ONLY_FUNCTIONALS",
    "TORCH_FUNCTIONS",
    "TWINS",
    "forward_of",
    "is_from_package",
    "shipped_forward",
    "unwrap_decorators",
]


def _function(name: str) -> Any:
    """The function that torch ships as ``torch.nn.functional.<name>``, or else as ``torch.<name>``,
    ``torch.fft.<name>`` or ``torch.linalg.<name>``; where a user put another there before this module was read, an
    object that nothing is identical to."""
    if not hasattr(F, name):
        operator = known.operator if (known := torch_signatures().get(name)) is not None else name
        home = {f"fft_{name}": torch.fft, f"linalg_{name}": torch.linalg}.get(operator, torch)
        found = getattr(home, name, None)
        shipped = isinstance(found, BuiltinFunctionType) and found.__name__ in (name, operator)
        written = getattr(found, "__code__", None)  # of a function that torch writes in Python
        said = written is not None and (written.co_filename, written.co_name) == (torch.functional.__file__, name)
        return found if shipped or said else object()
    found = getattr(F, name)
    code = getattr(found, "__code__", None)
    if code is not None and code.co_filename == F.__file__ and code.co_name in (name, f"_{name}"):
        return found
    # A function that only chooses between two of F's, by a flag (``max_pool2d`` by ``return_indices``).
    if code is not None and code.co_filename == torch._jit_internal.__file__ and found.__module__ == F.__name__:
        return found
    # What torch wrote in C++ has the same name in one of these, but for underscores.
    for home in (torch._C._nn, torch._C._VariableFunctions):
        for spelled in (name, getattr(found, "__name__", "")):
            if spelled.replace("_", "") == name.replace("_", "") and hasattr(home, spelled):
                return getattr(home, spelled)
    return object()


def shipped_forward(cls: type[nn.Module]) -> Any:
    """The forward that torch ships for a class, or else an object that nothing is identical to."""
    found = cls.__dict__.get("forward")
    code, home = getattr(found, "__code__", None), sys.modules[cls.__module__]
    same = code is not None and code.co_filename == home.__file__ and code.co_qualname == f"{cls.__name__}.forward"
    return found if same else object()


# Of the functions that a swap looks for: those that an op of ours says the same as, and the gates' activations.
TORCH_FUNCTIONS: dict[str, Any] = {
    name: _function(name)
    for name in (*(name for name, s in torch_signatures().items() if not s.no_swap_reason), *gates())
}

# The function in ``torch`` of an activation that ``torch.nn.functional`` has, too: ``torch.sigmoid``. It takes the same
# tensor and numbers, by the same names, but for those that only the latter's have. So does one of a tensor's lines.
ONLY_FUNCTIONALS = ("inplace", "_stacklevel")
OF_LINES = frozenset(("input", "dim", "dtype", *ONLY_FUNCTIONALS))
TWINS: dict[str, Any] = {
    name: twin
    for name, signature in torch_signatures().items()
    if signature.op.template is not None
    and (getattr(signature.op.template, "entry", None) is not None or signature.name_set <= OF_LINES)
    and isinstance(twin := getattr(torch, name, None), BuiltinFunctionType)
    and twin is not TORCH_FUNCTIONS.get(name)
}

FORWARDS: dict[type[nn.Module], Any] = {cls: shipped_forward(cls) for cls in (nn.Linear, nn.LayerNorm, nn.RMSNorm)}


def forward_of(module: nn.Module) -> Any:
    """The forward of a module's class, or None where it has none in Python (``torch.jit.script`` made it)."""
    return None if isinstance(module, torch.jit.ScriptModule) else type(module).forward


def is_from_package(package: str, function: Any) -> bool:
    """Whether a plain function's code lies in a package's own files."""
    home = getattr(sys.modules.get(package), "__file__", None)
    if home is None or not isinstance(function, FunctionType):
        return False
    return Path(function.__code__.co_filename).is_relative_to(Path(home).parent)


def unwrap_decorators(function: Any, package: str) -> Any:
    """What a function decorates, through the package's own decorators only; None if somebody else's is met."""
    while is_from_package(package, function):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner
    return None
