"""kernelworks: what every kernel of a PyTorch program waits on, and kernels proved right on this machine to swap in.

Importing this package probes no device, reads no environment variable and patches nothing of torch's. It does not
import torch: torch knows the ops by their schemas as soon as both are imported, in either order
(``dispatch.torch_import``). Ops, verbs, modules and records are loaded where they are first named.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from kernelworks.dispatch.registry import FunctionPackage

if TYPE_CHECKING:
    from kernelworks import nn
    from kernelworks.compile import compile_report
    from kernelworks.diagnose import apply, diagnose
    from kernelworks.diagnose.capture import CapturedModel, capture
    from kernelworks.diagnose.explain import explain
    from kernelworks.diagnose.fix.handle import Fix, fix
    from kernelworks.fuse import fuse
    from kernelworks.fuse.dropout import dropout
    from kernelworks.judge import judge
    from kernelworks.machine import Machine, machine
    from kernelworks.measure.autotune import autotune
    from kernelworks.measure.bench import bench
    from kernelworks.nn.block_optim import AdamW8bit
    from kernelworks.nn.experts import moe_mlp
    from kernelworks.nn.gguf import load_gguf, save_gguf
    from kernelworks.nn.kernel_attention import kernel_attention
    from kernelworks.nn.optim import SGD, Adadelta, Adagrad, Adam, AdamW, Lion, Muon, RMSprop
    from kernelworks.nn.swap import Swap, swap
    from kernelworks.ops.generated import *  # noqa: F403
    from kernelworks.records import AutotuneResult
    from kernelworks.records.compare import compare
    from kernelworks.records.search import Search
    from kernelworks.search import search
    from kernelworks.verify import verify

__version__ = "0.1.0"

# Where the names are that are no op's.
_HOMES = {
    **dict.fromkeys(("SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "Muon", "RMSprop"), "nn.optim"),
    "AdamW8bit": "nn.block_optim", "CapturedModel": "diagnose.capture", "Fix": "diagnose.fix.handle",
    "Machine": "machine", "Search": "records.search", "AutotuneResult": "records", "Swap": "nn.swap",
    "apply": "diagnose.fix.plan", "bench": "measure.bench", "capture": "diagnose.capture", "compare": "records.compare",
    "compile_report": "compile",
    "diagnose": "diagnose", "dropout": "fuse.dropout", "explain": "diagnose.explain", "fix": "diagnose.fix.handle",
    "fuse": "fuse", "judge": "judge",
    "kernel_attention": "nn.kernel_attention",
    "load_gguf": "nn.gguf", "machine": "machine", "moe_mlp": "nn.experts", "save_gguf": "nn.gguf", "verify": "verify",
    "search": "search", "autotune": "measure.autotune", "swap": "nn.swap",
}  # fmt: skip


class _Package(FunctionPackage):
    """The package, with the verbs where Python would put the folders of their name."""

    hidden = frozenset(_HOMES)


sys.modules[__name__].__class__ = _Package

from kernelworks import ops  # noqa: E402  whatever is imported from here on hides no verb
from kernelworks.dispatch import torch_import  # noqa: E402

torch_import.call_when_imported(ops.define_all)

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdamW8bit",
    "AutotuneResult",
    "CapturedModel",
    "Fix",
    "Lion",
    "Machine",
    "Muon",
    "RMSprop",
    "Search",
    "Swap",
    "__version__",
    "apply",
    "autotune",
    "bench",
    "capture",
    "compare",
    "compile_report",
    "diagnose",
    "dropout",
    "explain",
    "fix",
    "fuse",
    "judge",
    "kernel_attention",
    "load_gguf",
    "machine",
    "moe_mlp",
    "nn",
    "save_gguf",
    "search",
    "swap",
    "verify",
]  # fmt: skip
__all__ += ops.NAMES  # type checkers have them from what is generated


def _imported(name: str) -> Any:
    """A module of ours. What it imports may draw a random number (rich does): the caller's stay as they are."""
    import random  # what draws loads it

    state = random.getstate()
    try:
        return importlib.import_module(name)
    finally:
        random.setstate(state)


if not TYPE_CHECKING:  # to a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name == "nn":
            return importlib.import_module("kernelworks.nn")
        if name in ops.NAMES:
            found = getattr(ops, name)
        elif name in _HOMES:
            found = getattr(_imported(f"kernelworks.{_HOMES[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        globals()[name] = found
        return found


def pages() -> Any:
    """What draws records as pages and as text. Records ask the package's face for it, which is above both."""
    return importlib.import_module("kernelworks.report.html")


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext kernelworks`` calls."""
    importlib.import_module("kernelworks.integrations.notebook").register_magics(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
