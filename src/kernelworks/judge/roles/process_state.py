"""What is set in a process, and what a candidate left otherwise than it found it.

A kernel that speeds itself up by a switch of the whole process (less precision, no gradients, another number of
threads) changes what its user's other code computes. The process reports on itself, so a candidate may lie about it;
no figure and no answer depends on what is said here.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from kernelworks.judge.roles.on_cuda import persisting
from kernelworks.machine import environment

__all__ = ["State"]

_C: Any = torch._C
_sys: Any = sys  # whose tools that monitor are a later Python's
_deterministic: Any = torch.utils.deterministic
_backends: Any = torch.backends
_dispatch: Any = __import__("torch.utils._python_dispatch", fromlist=["_len"])


def _flushes() -> bool:
    """Whether numbers too small for a full mantissa are taken for zero."""
    return float(torch.full((1,), 1e-40) * 0.5) == 0.0


_fegetround = ctypes.CDLL(None).fegetround


def _rounding() -> int:
    return int(_fegetround())


ATTENTION = (
    "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
)  # fmt: skip


def _narrower(backend: str, what: str) -> str:
    """Of float32 in some ops, "" where it is float32's own: which stays so where one says so."""
    found: str = _C._get_fp32_precision_getter(backend, what)
    return "" if found in ("none", "ieee") else found


# name -> what reads it
SETTINGS: dict[str, Callable[[], Any]] = {
    "threads": torch.get_num_threads,
    "threads between ops": torch.get_num_interop_threads,
    "gradients": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "precision of float32 products": torch.get_float32_matmul_precision,
    "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
    "autocast on CUDA": lambda: torch.is_autocast_enabled("cuda"),
    "oneDNN": lambda: _C._get_mkldnn_enabled(),
    "TF32 in cuBLAS": lambda: _C._get_cublas_allow_tf32(),
    "TF32 in cuDNN": lambda: _C._get_cudnn_allow_tf32(),
    "float16 sums in cuBLAS": lambda: _C._get_cublas_allow_fp16_reduced_precision_reduction(),
    "bfloat16 sums in cuBLAS": lambda: _C._get_cublas_allow_bf16_reduced_precision_reduction(),
    "cuDNN's search": lambda: _C._get_cudnn_benchmark(),
    "cuDNN": lambda: _C._get_cudnn_enabled(),
    "precision of oneDNN's products": lambda: _narrower("mkldnn", "matmul"),
    "precision of oneDNN's convolutions": lambda: _narrower("mkldnn", "conv"),
    "precision of CUDA's products": lambda: _narrower("cuda", "matmul"),
    "precision of CUDA's convolutions": lambda: _narrower("cuda", "conv"),
    "precision of float32": lambda: (_narrower("generic", "all"), _narrower("cuda", "all")),
    "kernels of attention": lambda: [getattr(_C, name)() for name in ATTENTION],
    "CUDA's current device and stream": lambda: (
        _C._cuda_getCurrentStream(_C._cuda_getDevice()) if torch.cuda.is_initialized() else None
    ),
    "L2 that is kept for somebody": persisting,
    "tiny numbers flushed to zero": _flushes,
    "rounding of the processor": _rounding,
    "function modes": lambda: _C._len_torch_function_stack(),
    "dispatch modes": lambda: _C._len_torch_dispatch_stack(),
    "hooks on every module": lambda: (
        len(torch.nn.modules.module._global_forward_hooks) + len(torch.nn.modules.module._global_forward_pre_hooks)
    ),
    "profile function": sys.getprofile,
    "trace function": sys.gettrace,
    "collection of garbage": lambda: (gc.isenabled(), gc.get_threshold()),
    "working directory": os.getcwd,
    "signal handlers": lambda: [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "timers that send signals": lambda: [signal.getitimer(n)[1] for n in range(3)],
    "tools that monitor": lambda: [_sys.monitoring.get_tool(n) for n in range(6)],
    "seconds between threads": sys.getswitchinterval,
    "cores that it may run on": lambda: sorted(os.sched_getaffinity(0)),
    "priority": lambda: (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
    "gradients' anomalies": torch.is_anomaly_enabled,
    "gradients' threads": lambda: _C._is_multithreading_enabled(),
    "NNPACK": lambda: _C._get_nnpack_enabled(),
    "float16 sums on a CPU": lambda: _C._get_cpu_allow_fp16_reduced_precision_reduction(),
    "memory that is filled": lambda: _deterministic.fill_uninitialized_memory,
}

# Whose functions others rely on: timers, what compares, what torch's users call.
HOLDERS: dict[str, Any] = {
    "builtins": builtins, "gc": gc, "json": json, "os": os, "random": random, "socket": socket, "time": time,
    "socket.socket": socket.socket, "threading": threading, "torch": torch, "torch.Tensor": torch.Tensor,
    "torch._C": _C, "torch.nn.functional": torch.nn.functional, "torch.nn.Module": torch.nn.Module,
    "torch.cuda": torch.cuda, "torch.cuda.Event": torch.cuda.Event, "torch.cuda.Stream": torch.cuda.Stream,
    "torch.backends": torch.backends, "torch.random": torch.random, "torch.testing": torch.testing,
    "torch.linalg": torch.linalg, "torch.special": torch.special, "torch.ops.aten": torch.ops.aten,
}  # fmt: skip
JUDGES = tuple(
    f"kernelworks.judge.{name}"
    for name in (
        "roles.candidate",
        "process.ipc",
        "inputs.values",
        "roles.process_state",
        "roles.device",
        "roles.on_cuda",
    )
)
# torch's compiler puts functions of its own in others' places, once it is loaded.
COMPILERS = tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo", "_compile", "_inductor"))
KINDS = (object, type, int, float, complex, str, bytes, list, tuple, dict, set)  # Python's own
# Where other benchmarks have their clocks and comparisons; looked at where they are loaded.
WATCHED_MODULES = (
    "numpy", "numpy.testing", "statistics", "math", "timeit", "operator", "subprocess", "inspect", "pickle",
    "torch.autograd", "torch.nn.init", "torch.nn.modules.module", "torch.testing._comparison", "torch.utils.benchmark",
    "torch.utils.data", "triton", "triton.testing",
)  # fmt: skip


def _mark(value: Any) -> tuple[int, int, str]:
    """What a function is known by: itself, its code, and where that is written."""
    function = value.__func__ if isinstance(value, MethodType) else value
    code = function.__code__ if isinstance(function, FunctionType) else None
    return (id(value), id(code), code.co_filename if code else "")


def _functions() -> dict[str, tuple[int, int, str]]:
    found = {}
    modules: Mapping[str, Any] = {
        name: sys.modules[name] for name in (*JUDGES, *WATCHED_MODULES) if name in sys.modules
    }
    kinds = {kind.__name__: kind for kind in KINDS}
    for place, holder in {**HOLDERS, **kinds, **modules}.items():
        for name, value in _of(holder):
            if callable(value) or isinstance(value, (staticmethod, classmethod)):
                found[f"{place}.{name}"] = _mark(value)
    for name, kind in list(vars(torch.nn).items()):
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
            found[f"torch.nn.{name}.forward"] = _mark(kind.forward)
    return found


def _of(holder: Any) -> list[tuple[str, Any]]:
    """Names of a module; of a class those too that it has from others: what is put in front of one of them is no new
    name."""
    if not isinstance(holder, type):
        return list(vars(holder).items())
    every: dict[str, Any] = {}
    for kind in reversed(holder.__mro__):
        every |= vars(kind)
    return list(every.items())


def _late() -> list[str]:
    """Functions of a candidate's in modules of others that were loaded since."""
    found = []
    for place in WATCHED_MODULES:
        for name, value in list(vars(sys.modules[place]).items()) if place in sys.modules else ():
            if isinstance(value, FunctionType) and Path(value.__code__.co_filename).name.startswith("judged_"):
                found.append(f"{place}.{name} is another function")
    return found


def _settings() -> dict[str, Any]:
    found = {}
    for name, read in SETTINGS.items():
        try:
            found[name] = str(read())
        except (AttributeError, RuntimeError):
            found[name] = "unknown"
    return found


# What of torch's own operators runs on a CPU, a GPU or for a graph; a kernel in whose place another one was put is kept
# below it, and said to be inactive.
REPLACEMENT_MARKS = tuple(f"\n{key} (inactive)" for key in (
    "CPU", "AutogradCPU", "CUDA", "AutogradCUDA", "Autograd[alias]",
    "CompositeImplicitAutograd[alias]", "CompositeExplicitAutograd[alias]",
))  # fmt: skip


def _replaced() -> list[str]:
    """Operators of torch's in whose place somebody has put kernels of their own."""
    names = (n for n in _C._dispatch_get_all_op_names() if n.startswith("aten::"))
    usual = (n for n in names if "backward" not in n and not n.endswith("out") and "_foreach_" not in n)
    return [
        f"{name} is another operator"
        for name in usual
        if any(mark in _C._dispatch_dump(name) for mark in REPLACEMENT_MARKS)
    ]


class State:
    """As it was when this was made."""

    def __init__(self) -> None:
        self.settings, self.functions = _settings(), _functions()
        self.variables = environment.variables()
        self.had = frozenset(_replaced() if torch.cuda.is_initialized() else ())  # torch replaces some for a GPU itself

    def replaced_operators(self) -> list[str]:
        """Operators of torch's in whose place somebody has put others since."""
        return [line for line in _replaced() if line not in self.had]

    def changes(self) -> list[str]:
        """What is otherwise now, a line each."""
        now, functions = _settings(), _functions()
        found = [f"{name}: {was} -> {now[name]}" for name, was in self.settings.items() if now[name] != was]
        found += [
            f"{name} is another function"
            for name, was in self.functions.items()
            if name in functions and functions[name] != was and not functions[name][2].startswith(COMPILERS)
        ]
        found += [line for line in _late() if line not in found]
        variables = environment.variables()
        changed = {k for k in self.variables.keys() & variables.keys() if self.variables[k] != variables[k]}
        return found + [f"the variable {name} is set otherwise" for name in sorted(changed)]
