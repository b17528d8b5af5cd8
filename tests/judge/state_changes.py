"""Changes of a process that a judge must say, and uses of libraries that are none.

Both are run in a process in which nothing else has run: what other tests load may go on by itself. hypothesis, once it
is used, writes the time into its own module whenever garbage is collected.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

__all__ = ["CHANGES", "print_reports"]

INHERITED = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"  # of whatever process has compiled something before this one


def _code(function: Any) -> None:
    def other(*args: Any, **kwargs: Any) -> None:
        return None

    function.__code__ = other.__code__


def _set(path: str, value: Any) -> Callable[[], None]:
    """Sets what a dotted path names."""

    def change() -> None:
        *parts, name = path.split(".")
        for count in range(len(parts), 0, -1):
            try:
                holder: Any = import_module(".".join(parts[:count]))
            except ImportError:
                continue
            for part in parts[count:]:
                holder = getattr(holder, part)
            setattr(holder, name, value)
            return

    return change


def _call(expression: str) -> Callable[[], Any]:
    def change() -> Any:
        return eval(expression, {"torch": torch, "os": os, "gc": gc, "sys": sys, "load": import_module, **OWN})

    return change


class Finder:
    find_spec = staticmethod(lambda *_: None)


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def use_locale() -> None:
    libc = ctypes.CDLL(None)
    libc.newlocale.restype = libc.uselocale.restype = ctypes.c_void_p
    libc.uselocale(ctypes.c_void_p(libc.newlocale(1, b"C", None)))


class Policy(asyncio.DefaultEventLoopPolicy):
    pass


on_fault = ctypes.CFUNCTYPE(None, ctypes.c_int)(nothing)
BIG_ENDIAN = _call("torch.serialization.set_default_load_endianness(torch.serialization.LoadEndianness.BIG)")
OWN = {"Finder": Finder, "nothing": nothing, "on_fault": on_fault, "use_locale": use_locale, "Policy": Policy}
# What is changed -> what the report must say of it, and the change.
CHANGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "a step of an optimizer": ("AdamW.step is another function", _set("torch.optim.AdamW.step", nothing)),
    "a layer's constructor": ("Linear.__init__ is another function", _set("torch.nn.Linear.__init__", nothing)),
    "a layer's beginning": ("Linear.reset_parameters is", _set("torch.nn.Linear.reset_parameters", nothing)),
    "clipping": ("clip_grad_norm_ is another function", _set("torch.nn.utils.clip_grad_norm_", nothing)),
    "a transform": ("torch.fft.rfft is another function", _set("torch.fft.rfft", nothing)),
    "a sparse product": ("torch.sparse.mm is another function", _set("torch.sparse.mm", nothing)),
    "a storage's address": ("UntypedStorage.data_ptr is another", _set("torch.UntypedStorage.data_ptr", nothing)),
    "scripting": ("torch.jit.script is another function", _set("torch.jit.script", nothing)),
    "an operator's maker": ("torch.library.custom_op is another", _set("torch.library.custom_op", nothing)),
    "a checkpoint": ("checkpoint.checkpoint is another", _set("torch.utils.checkpoint.checkpoint", nothing)),
    "a loader": ("DataLoader.__iter__ is another function", _set("torch.utils.data.DataLoader.__iter__", nothing)),
    "a dtype": ("torch.float32 is another value", _set("torch.float32", torch.float16)),
    "torch's pi": ("torch.pi is another value", _set("torch.pi", 3.0)),
    "Python's pi": ("math.pi is another value", _set("math.pi", 3.0)),
    "a copy": ("copy.deepcopy is another function", _set("copy.deepcopy", nothing)),
    "a code": ("contextlib.suppress.__init__ is another", lambda: _code(__import__("contextlib").suppress.__init__)),
    "a partial": ("functools.partial is another function", _set("functools.partial", nothing)),
    "an import": ("importlib.import_module is another", _set("importlib.import_module", nothing)),
    "a hash": ("hashlib.sha256 is another function", _set("hashlib.sha256", nothing)),
    "a path": ("Path.exists is another function", _set("pathlib.Path.exists", nothing)),
    "a temporary file": ("tempfile.mkdtemp is another function", _set("tempfile.mkdtemp", nothing)),
    "a library's loader": ("ctypes.CDLL is another function", _set("ctypes.CDLL", nothing)),
    "a method in front": ("torch.Tensor.allclose is another", _set("torch.Tensor.allclose", nothing)),
    "a module": ("the module json is another one", _call("sys.modules.__setitem__('json', type(sys)('json'))")),
    "a finder": ("sys.meta_path holds others", _call("sys.meta_path.insert(0, Finder)")),
    "a callback": ("gc.callbacks holds others", _call("gc.callbacks.append(nothing)")),
    "a hook on modules": (
        "_global_forward_hooks is another value",
        _call("load('torch.nn.modules.module').register_module_forward_hook(print)"),
    ),
    "an accumulation": (
        "float16 accumulation in cuBLAS",
        _call("setattr(torch.backends.cuda.matmul, 'allow_fp16_accumulation', True)"),
    ),
    "autocast's dtype": ("dtypes of autocast", _call("torch.set_autocast_dtype('cpu', torch.float16)")),
    "autocast's cache": ("cache of autocast", _call("torch.set_autocast_cache_enabled(False)")),
    "attention": ("fast path of attention", _call("torch.backends.mha.set_fastpath_enabled(False)")),
    "saved tensors": (
        "hooks on saved tensors", _call("torch.autograd.graph.saved_tensors_hooks(print, print).__enter__()")
    ),
    "forward gradients": ("level of forward gradients", _call("torch.autograd.forward_ad.enter_dual_level()")),
    "a variable": ("the variable JUDGED_ANEW is set", _call("os.environ.__setitem__('JUDGED_ANEW', '1')")),
    "a mode of files": ("mode of files", _call("os.umask(0o77)")),
    "a limit": ("limits of the process", _call("load('resource').setrlimit(7, (64, 64))")),
    "modules' path": ("path of modules", _call("sys.path.append('/nowhere')")),
    "an excepthook": ("errors and output", _set("sys.excepthook", nothing)),
    "NumPy's errors": ("errors of NumPy", _call("load('numpy').seterr(all='ignore')")),
    "oneDNN": ("oneDNN's determinism", _call("torch._C._set_mkldnn_deterministic(True)")),
    "digits of numbers": ("digits of numbers", _call("sys.set_int_max_str_digits(100_000)")),
    "threads' functions": ("functions of threads", _call("load('threading').settrace(nothing)")),
    "what is logged": ("what is logged", _call("load('logging').disable(50)")),
    "how weights are converted": (
        "how weights are converted", _call("torch.__future__.set_swap_module_params_on_conversion(True)")
    ),
    "how files are loaded": ("how files are loaded", BIG_ENDIAN),
    "a default by name": (
        "torch.testing.assert_close is another function",
        _call("torch.testing.assert_close.__kwdefaults__.update(rtol=9.0)"),
    ),
    "a table of tolerances": (
        "_comparison._DTYPE_PRECISIONS is another value",
        _call("load('torch.testing._comparison')._DTYPE_PRECISIONS.update({torch.float32: (9.0, 9.0)})"),
    ),
    "a variable of the C library": ("the variable JUDGED_BELOW is set", _call("os.putenv('JUDGED_BELOW', '1')")),
    "a handler in C": ("signal 12 goes elsewhere", _call("load('ctypes').CDLL(None).signal(12, 1)")),
    "its own code for faults": ("signal 31 goes elsewhere", _call("load('ctypes').CDLL(None).signal(31, on_fault)")),
    "a blocked signal": ("signals that are blocked", _call("load('signal').pthread_sigmask(0, {10})")),
    "a descriptor": ("descriptors of input and output", _call("os.dup2(os.open('/dev/zero', os.O_RDWR), 0)")),
    "faults that are told": ("faults that are told", _call("load('faulthandler').enable(sys.__stderr__)")),
    "a depth of calls": ("depth of calls", _call("sys.setrecursionlimit(700)")),
    "patience of sockets": ("patience of sockets", _call("load('socket').setdefaulttimeout(1.5)")),
    "an audit": ("hooks of audits", _call("sys.addaudithook(nothing)")),
    "a key of dispatch": (
        "keys of dispatch", _call("torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.XLA, True)")
    ),
    "a timer's slack": ("ways of the kernel", _call("load('ctypes').CDLL(None).prctl(29, 1234567, 0, 0, 0)")),
    "a number in its place": (
        "math.tau is another value",
        _call("setattr(load('ctypes').c_double.from_address(id(load('math').tau) + 16), 'value', 6.0)"),
    ),
    "arithmetic that traps": ("arithmetic of its first thread", _call("load('ctypes').CDLL(None).feenableexcept(8)")),
    "a timer of the kernel": (
        "timers of the kernel",
        _call("load('ctypes').CDLL(None).timer_create(1, None, load('ctypes').byref(load('ctypes').c_void_p()))"),
    ),
    "a locale of a thread": ("locale of its first thread", _call("use_locale()")),
    "a kind of container": ("containers: ", _call("load('torch.utils._pytree').SUPPORTED_NODES.pop(tuple)")),
    "how sizes are copied": (
        "how objects are copied", _call("load('copyreg').pickle(torch.Size, lambda size: (torch.Size, ((),)))")
    ),
    "event loops": ("policy of event loops", _call("load('asyncio').set_event_loop_policy(Policy())")),
    "NumPy's listener": ("who is told of NumPy's errors", _call("load('numpy').seterrcall(nothing)")),
    "a module that nobody has loaded": (
        "the module colorsys is another one", _call("sys.modules.__setitem__('colorsys', type(sys)('colorsys'))")
    ),
    "the compiler": (
        "torch._inductor.config.max_autotune", _call("setattr(load('torch._inductor.config'), 'max_autotune', True)")
    ),
}  # fmt: skip


LAST = ("a module", "a finder", "an import", "a partial", "a copy", "a path", "a library's loader", "a code", "a limit")


def after_changes() -> list[str]:
    """What is said once all changes are made, each of them in this process, which is good for nothing else then."""
    import numpy  # noqa: F401  # as in most programs
    import torch._inductor.config
    import torch.utils.checkpoint
    import torch.utils.data  # noqa: F401

    from kernelworks.judge.roles import reachable, system_state
    from kernelworks.judge.roles.process_state import State

    system_state.count_audit_hooks()
    reachable.mark_all()
    state = State()
    before = [*state.changes(), *state.reachable_changes()]
    assert not before, before
    for name in sorted(CHANGES, key=lambda name: name in LAST):
        CHANGES[name][1]()
    return [*state.changes(), *state.reachable_changes()]


def after_use() -> list[str]:
    """What is said once libraries were used as they are meant to be."""
    import torch._inductor.config as compiler

    from kernelworks.judge.roles import reachable, system_state
    from kernelworks.judge.roles.process_state import State

    system_state.count_audit_hooks()
    reachable.mark_all()
    state = State()
    with compiler.patch(max_autotune=True):  # type: ignore[attr-defined]  # as it does for itself
        os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = "1"
    layer = torch.nn.Linear(4, 4)
    torch.optim.AdamW(layer.parameters()).step()
    torch.jit.script(torch.nn.ReLU())(layer(torch.ones(2, 4)))
    torch.func.vmap(torch.sin)(torch.ones(3))
    library = torch.library.Library("judged_here", "DEF")
    library.define("same(Tensor a) -> Tensor")
    library.impl("same", lambda a: a, "CPU")
    torch.ops.judged_here.same(torch.ones(1))
    import tvm_ffi  # noqa: F401  # which catches a fault

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))  # as torch's compiler does
    os.putenv("KMP_JUDGED", "1")  # as OpenMP's libraries note what they have loaded
    return [*state.changes(), *state.reachable_changes()]


def print_reports(after: str) -> None:
    os.environ[INHERITED] = "1"
    with tempfile.TemporaryDirectory() as folder:  # a candidate's own, in which nobody's libraries lie
        os.chdir(folder)
        _print_reports(after)


def _print_reports(after: str) -> None:
    print(json.dumps({"changes": after_changes, "use": after_use}[after]()), flush=True)
