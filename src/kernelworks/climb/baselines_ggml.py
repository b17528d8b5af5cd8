"""ggml's CPU backend as a baseline: the library that llama-cpp-python brings, called through ctypes, never imported.

The graph of one matrix product is built once, over the very memory of the inputs, and computed in every call: as its
own users do for every token.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["ggml"]

Inputs = dict[str, Tensor]
F32, Q4_0, Q8_0, BF16 = 0, 2, 8, 30  # enum ggml_type
KINDS = {18: Q4_0, 34: Q8_0}  # by the bytes of a block of 32 weights
CONTEXT_BYTES = 1 << 20  # for the graph and the headers of three tensors

pointer, size, whole = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _Parameters(ctypes.Structure):  # struct ggml_init_params
    _fields_ = (("mem_size", size), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool))


SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_init": (pointer, (_Parameters,)),
    "ggml_free": (None, (pointer,)),
    "ggml_new_tensor_2d": (pointer, (pointer, ctypes.c_int, whole, whole)),
    "ggml_mul_mat": (pointer, (pointer, pointer, pointer)),
    "ggml_new_graph": (pointer, (pointer,)),
    "ggml_build_forward_expand": (None, (pointer, pointer)),
    "ggml_backend_cpu_buffer_from_ptr": (pointer, (pointer, size)),
    "ggml_backend_buffer_free": (None, (pointer,)),
    "ggml_backend_tensor_alloc": (ctypes.c_int, (pointer, pointer, pointer)),
    "ggml_backend_cpu_init": (pointer, ()),
    "ggml_backend_cpu_set_n_threads": (None, (pointer, ctypes.c_int)),
    "ggml_backend_graph_compute": (ctypes.c_int, (pointer, pointer)),
    "ggml_backend_free": (None, (pointer,)),
}


@functools.cache
def _functions() -> dict[str, Any] | None:
    """The functions by name; None where no installed llama_cpp has them all."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "lib"
    try:
        libraries = [ctypes.CDLL(str(folder / f"lib{name}.so")) for name in ("ggml-base", "ggml-cpu")]
    except OSError:
        return None
    found = {}
    for name, (result, arguments) in SIGNATURES.items():
        function = next((getattr(library, name) for library in libraries if hasattr(library, name)), None)
        if function is None:
            return None
        function.restype, function.argtypes = result, list(arguments)
        found[name] = function
    return found


@dataclass
class _Product:
    """A graph of ``weight x`` and what it lives in. The tensors are borrowed: whoever holds this keeps them."""

    call: dict[str, Any]
    context: int
    backend: int
    graph: int
    buffers: list[int]

    @classmethod
    def of(cls, call: dict[str, Any], weight: Tensor, kind: int, x: Tensor, out: Tensor, threads: int) -> _Product:
        context = call["ggml_init"](_Parameters(CONTEXT_BYTES, None, True))
        a = call["ggml_new_tensor_2d"](context, kind, x.numel(), out.numel())
        b = call["ggml_new_tensor_2d"](context, F32, x.numel(), 1)
        product = call["ggml_mul_mat"](context, a, b)
        graph = call["ggml_new_graph"](context)
        call["ggml_build_forward_expand"](graph, product)
        buffers = []
        for header, data in ((a, weight), (b, x), (product, out)):
            buffers.append(call["ggml_backend_cpu_buffer_from_ptr"](data.data_ptr(), data.nbytes))
            call["ggml_backend_tensor_alloc"](buffers[-1], header, data.data_ptr())
        backend = call["ggml_backend_cpu_init"]()
        call["ggml_backend_cpu_set_n_threads"](backend, threads)
        return cls(call, context, backend, graph, buffers)

    def free(self) -> None:
        self.call["ggml_backend_free"](self.backend)
        for buffer in self.buffers:
            self.call["ggml_backend_buffer_free"](buffer)
        self.call["ggml_free"](self.context)


def ggml(given: Inputs, threads: int) -> Callable[[], Tensor] | None:
    """``W x`` for a weight in bfloat16 [N, K] or in blocks of Q8_0 [N, K / 32, 34] or Q4_0 [N, K / 32, 18];
    None without llama-cpp-python."""
    call = _functions()
    if call is None:
        return None
    weight, x = given["W"], given["x"]
    kind = KINDS.get(weight.shape[-1]) if weight.dtype == torch.uint8 else BF16
    if kind is None or weight.dtype not in (torch.uint8, torch.bfloat16):
        return None
    out = torch.empty(weight.shape[0])
    product = _Product.of(call, weight, kind, x, out, threads)

    def run() -> Tensor:
        if call["ggml_backend_graph_compute"](product.backend, product.graph) != 0:
            raise RuntimeError("ggml could not compute its graph")
        return out

    run.__dict__["inputs"] = (weight, x)  # borrowed by the graph
    weakref.finalize(run, product.free)
    return run
