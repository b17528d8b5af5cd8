"""What is set in a process, and what a candidate left otherwise than it found it.

A kernel that speeds itself up by a switch of the whole process (less precision, no gradients, another number of
threads) changes what its user's other code computes. The process reports on itself, so a candidate may lie about it;
no figure and no answer depends on what is said here.
"""

from __future__ import annotations

import copyreg
import ctypes
import decimal
import gc
import locale
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from kernelworks.judge.roles.on_cuda import persisting
from kernelworks.judge.roles.reachable import Reachable, changes_since_fork, marked_modules
from kernelworks.judge.roles.system_state import (
    SYSTEM_SETTINGS,
    library_variables,
    other_arithmetic,
    other_handlers,
    signal_handlers,
    strange_modules,
)
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


def _event_loops() -> str:
    """ "" where it is the usual one, or nobody has asked for one yet."""
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    usual = policy is None or type(policy).__module__.startswith("asyncio.")
    return "" if usual else type(policy).__qualname__


# Of NumPy, which a candidate may be the first to load.
NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
LIMITS = 16  # of the kernel's, the last of which is that of real time
FIRST_NODES = dict(torch.utils._pytree.SUPPORTED_NODES)
COPIED_LIBRARIES = ("builtins", "torch")  # whose types are copied in their own way: libraries say that of their own
FIRST_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)
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
    "timers that send signals": lambda: [(signal.getitimer(n)[0] > 0, signal.getitimer(n)[1]) for n in range(3)],
    "tools that monitor": lambda: [_sys.monitoring.get_tool(n) for n in range(6)],
    "seconds between threads": sys.getswitchinterval,
    "cores that it may run on": lambda: sorted(os.sched_getaffinity(0)),
    # whoever owns the machine may lower it meanwhile, which gains a candidate nothing
    "priority": lambda: (min(os.getpriority(os.PRIO_PROCESS, 0), FIRST_PRIORITY), os.sched_getscheduler(0)),
    "containers": lambda: [
        kind.__name__ for kind, how in FIRST_NODES.items() if torch.utils._pytree.SUPPORTED_NODES.get(kind) is not how
    ],
    "how objects are copied": lambda: sorted(
        f"{kind.__qualname__} {id(how)}"
        for kind, how in copyreg.dispatch_table.items()
        if kind.__module__.split(".")[0] in COPIED_LIBRARIES
    ),
    "policy of event loops": lambda: _event_loops(),
    "gradients' anomalies": torch.is_anomaly_enabled,
    "gradients' threads": lambda: _C._is_multithreading_enabled(),
    "NNPACK": lambda: _C._get_nnpack_enabled(),
    "float16 sums on a CPU": lambda: _C._get_cpu_allow_fp16_reduced_precision_reduction(),
    "memory that is filled": lambda: _deterministic.fill_uninitialized_memory,
    "float16 accumulation in cuBLAS": lambda: _C._get_cublas_allow_fp16_accumulation(),
    "dtypes of autocast": lambda: [str(torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
    "cache of autocast": torch.is_autocast_cache_enabled,
    "oneDNN's determinism": lambda: _C._get_mkldnn_deterministic(),
    "opt_einsum": lambda: (_backends.opt_einsum.enabled, _backends.opt_einsum.strategy),
    "fast path of attention": lambda: torch.backends.mha.get_fastpath_enabled(),
    "hooks on saved tensors": lambda: _C._autograd._top_saved_tensors_default_hooks(True) is not None,
    "level of forward gradients": lambda: torch.autograd.forward_ad._current_level,
    "level of vmap": lambda: str(_C._functorch.peek_interpreter_stack()),
    "mode of files": lambda: _umask(),
    "limits of the process": lambda: [resource.getrlimit(n) for n in range(LIMITS)],
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "path of modules": lambda: [place for place in sys.path if not place.startswith(os.getcwd())],
    "errors and output": lambda: [id(sys.excepthook), id(sys.stdout), id(sys.stderr), id(sys.stdin)],
    "digits of numbers": sys.get_int_max_str_digits,
    "functions of threads": lambda: (threading.getprofile(), threading.gettrace(), threading.stack_size()),
    "hooks of coroutines": lambda: (sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth()),
    "libraries' flags": sys.getdlopenflags,
    "what is logged": lambda: logging.root.manager.disable,
    "garbage that is reported": gc.get_debug,
    "torch's warnings": torch.is_warn_always_enabled,
    "views that are replayed": lambda: _C._is_view_replay_enabled(),
    "how weights are converted": lambda: (
        torch.__future__.get_swap_module_params_on_conversion(),
        torch.__future__.get_overwrite_module_params_on_conversion(),
    ),
    "how files are loaded": torch.serialization.get_default_load_endianness,
    "errors of NumPy": lambda: sys.modules["numpy"].geterr() if "numpy" in sys.modules else NUMPY_ERRORS,
    "how NumPy prints": lambda: sys.modules["numpy"].get_printoptions() if "numpy" in sys.modules else "",
    "NumPy's buffers": lambda: sys.modules["numpy"].getbufsize() if "numpy" in sys.modules else "",
    "how torch prints": lambda: torch._tensor_str.PRINT_OPTS,
    "decimal numbers": lambda: (decimal.getcontext().prec, decimal.getcontext().rounding),
    "how scripts are run": lambda: (
        _C._get_graph_executor_optimize(),
        _C._jit_texpr_fuser_enabled(),
        _C._jit_can_fuse_on_cpu(),
        _read_back(_C._jit_set_profiling_executor),
        _read_back(_C._jit_set_profiling_mode),
    ),
    "order of kernels of attention": lambda: _C._get_sdp_priority_order(),
    "libraries of linear algebra": lambda: (_C._get_blas_preferred_backend(), _C._get_linalg_preferred_backend()),
    "who is told of NumPy's errors": lambda: sys.modules["numpy"].geterrcall() if "numpy" in sys.modules else None,
}


def _read_back(switch: Callable[[bool], bool]) -> bool:
    """What a switch was, which says so as it is set."""
    was = switch(True)
    switch(was)
    return was


# Variables that compilers and libraries set themselves while they are loaded or build something.
OURS = frozenset({
    "TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "KINETO_LOG_LEVEL", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
    "KMP_INIT_AT_FORK", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
})  # fmt: skip
# Of these one that tells of another process's memory may be inherited: whose process compiles sets it to its own.
ADDRESSES = frozenset({"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"})


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


# Where other benchmarks have their clocks and comparisons; looked at where they are loaded later than this.
WATCHED_MODULES = ("numpy", "numpy.testing", "timeit", "torch.utils.benchmark", "triton", "triton.testing")


def _late() -> list[str]:
    """Functions of a candidate's in modules of others that were loaded since."""
    found = []
    for place in WATCHED_MODULES:
        for name, value in list(vars(sys.modules[place]).items()) if place in sys.modules else ():
            if isinstance(value, FunctionType) and Path(value.__code__.co_filename).name.startswith("judged_"):
                found.append(f"{place}.{name} is another function")
    return found


def _settings(known: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    found = {}
    for name, read in known.items():
        try:
            found[name] = str(read())
        except (AttributeError, RuntimeError, OSError, ValueError):
            found[name] = "unknown"
    return found


class State:
    """As it was when this was made."""

    def __init__(self) -> None:
        # A GPU's driver and compilers catch signals and set the C library's variables at a time of their own.
        self.on_gpu = torch.cuda.is_initialized()
        self.known = SETTINGS if self.on_gpu else SETTINGS | SYSTEM_SETTINGS
        self.settings = _settings(self.known)
        self.later = Reachable(others=marked_modules())
        self.variables, self.modules = environment.variables(), frozenset(sys.modules)
        self.library_variables = {} if self.on_gpu else library_variables()
        self.handlers = {} if self.on_gpu else signal_handlers()

    def changes(self) -> list[str]:
        """What is set otherwise now, a line each."""
        now = _settings(self.known)
        found = [f"{name}: {was} -> {now[name]}" for name, was in self.settings.items() if now[name] != was]
        for was, now_set in (
            (self.variables, environment.variables()),
            (self.library_variables, {} if self.on_gpu else library_variables()),
        ):
            found += [f"the variable {k} is set otherwise" for k in sorted(was.keys() & now_set.keys())
                      if was[k] != now_set[k] and k not in ADDRESSES]  # fmt: skip
            found += [f"the variable {k} is set" for k in sorted(now_set.keys() - was.keys()) if k not in OURS]
            found += [f"the variable {k} is gone" for k in sorted(was.keys() - now_set.keys())]
        found += [] if self.on_gpu else other_handlers(self.handlers)
        found += other_arithmetic()
        return list(dict.fromkeys(found))

    def reachable_changes(self) -> list[str]:
        """What of the modules is another function, value or module now, a line each."""
        found = changes_since_fork(self.later)
        return found + [line for line in (*strange_modules(self.modules), *_late()) if line not in found]
