"""kernelworks: what every kernel of a PyTorch program waits on, and kernels proved right on this machine to swap in.

Importing this package probes no device, reads no environment variable and patches nothing. It loads the ops, so that
torch knows them; the verbs, modules and records are loaded where they are first named.
"""

import gc
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

# What is made here stays: a pass over all of torch's objects in the midst of it finds nothing, and takes longer than
# the rest.
_collects = gc.isenabled()
gc.disable()
try:
    from kernelworks.ops import (
        adamw_,
        attention,
        cross_entropy,
        embedding,
        gelu,
        layer_norm,
        linear,
        linear_cross_entropy,
        rms_norm,
        rope,
        silu_mul,
        softmax,
    )  # fmt: skip
finally:
    if _collects:
        gc.enable()

if TYPE_CHECKING:
    from kernelworks import nn
    from kernelworks.bench import bench
    from kernelworks.diagnose import diagnose
    from kernelworks.explanation import explain
    from kernelworks.machine import Machine, machine
    from kernelworks.models.swap import Swap, swap
    from kernelworks.optim import AdamW
    from kernelworks.prove import prove
    from kernelworks.records import Settled
    from kernelworks.settle import settle

__version__ = "0.1.0"

__all__ = [
    "AdamW", "Machine", "Settled", "Swap", "__version__", "adamw_", "attention", "bench", "cross_entropy", "diagnose",
    "embedding", "explain", "gelu", "layer_norm", "linear", "linear_cross_entropy", "machine", "nn", "prove",
    "rms_norm", "rope", "settle", "silu_mul", "softmax", "swap",
]  # fmt: skip

# Where the names are that are loaded when they are first asked for.
_HOMES = {
    "AdamW": "optim", "Machine": "machine", "Settled": "records", "Swap": "models", "bench": "bench",
    "diagnose": "diagnose", "explain": "explanation", "machine": "machine", "prove": "prove", "settle": "settle",
    "swap": "models",
}  # fmt: skip


if not TYPE_CHECKING:  # to a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name == "nn":
            return importlib.import_module("kernelworks.nn")
        if name not in _HOMES:
            raise AttributeError(
                f"module 'kernelworks' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
            )
        found = getattr(importlib.import_module(f"kernelworks.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)


class _Face(types.ModuleType):
    """The package, with the verbs where Python would put the folders of their name.

    Importing ``kernelworks.bench`` makes ``bench`` an attribute of the package. ``kernelworks.bench`` is the function,
    whichever module was imported first; ``from kernelworks.bench import ...`` reaches the folder. (Reading attributes
    is Python's own: an op that is called as ``kernelworks.gelu`` is found as quickly as in any module.)
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, types.ModuleType):
            return
        super().__setattr__(name, value)


for _name in _HOMES.keys() & globals().keys():  # folders that the ops have imported
    del globals()[_name]
sys.modules[__name__].__class__ = _Face
