"""Calls that are no work on tensors, whose time is a part of the wall clock by itself: input, communication, compiling.

torch annotates the batches that a DataLoader gives and what its compiler does; collectives are operators of ``c10d``.
An operator of a namespace that is not torch's is the program's own: its time and arguments are known, and no more.
"""

from __future__ import annotations

import re

__all__ = [
    "COMMUNICATION",
    "COMPILES",
    "COMPILING",
    "CUSTOM_KERNELS",
    "INPUT",
    "LOADING_WORKERS",
    "call_name",
    "is_custom_op",
    "time_category",
]

COMPILING, INPUT, COMMUNICATION = "compiling (torch.compile)", "input (DataLoader)", "communication"
CUSTOM_KERNELS = "kernels of its own"  # in which its operators spend what no model accounts for

COMPILES = "torch.compile at work"
LOADER = re.compile(r"enumerate\(DataLoader\)#_?(\w*?)Iter")
LOADING_WORKERS = "DataLoader's workers"
LOADERS = {
    "SingleProcessDataLoader": "DataLoader, in this process",
    "MultiProcessingDataLoader": LOADING_WORKERS,
}
# The outermost annotations of torch's compiler, whichever it has.
COMPILER = ("entire_frame_compile", "entire_backward_compile", "_compile.compile_inner")
COLLECTIVES = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "symm_mem::")
TORCH_NAMESPACES = frozenset({
    "aten", "prims", "prim", "mkldnn", "mkldnn_prepacked", "mkl", "onednn", "quantized", "_quantized", "inductor",
    "quantized_decomposed", "profiler", "sparse", "fsdp", "rngprims", "kernelworks", "symm_mem", "c10d", "xnnpack",
    "_c10d_functional", "cuda", "debugprims", "torch_attn",
})  # fmt: skip


def call_name(name: str) -> str:
    """What an annotation is called here that is a call by itself; "" if it is none."""
    if name == "dynamo" or name.startswith(COMPILER):
        return COMPILES
    loader = LOADER.match(name)
    return LOADERS.get(loader.group(1), f"DataLoader ({loader.group(1)})") if loader else ""


def time_category(name: str) -> str:
    """The part of the wall clock that a call of this name is; "" for work."""
    if name == COMPILES:
        return COMPILING
    if name.startswith("DataLoader"):
        return INPUT
    return COMMUNICATION if name.startswith(COLLECTIVES) else ""


def is_custom_op(name: str) -> bool:
    """Whether an operator is of the program's own, or of another package's."""
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace not in TORCH_NAMESPACES and "." not in namespace
