"""Does a candidate's own kernel make its answer? Every kernel of its own is run, and what it wrote is then garbled: an
answer that stays right was made by something else.

Own kernels are Triton's, C++ and CUDA compiled by torch's extensions or its NVRTC, functions of libraries through
ctypes and tvm-ffi, and operators that were not torch's before the candidate was loaded. What is written over is in the
range of what was there, so that an answer to which the kernel's part adds nothing stays what it is.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.judge.inputs.raw_addresses import addresses_in, windows_at

__all__ = ["KernelGarbler"]

# Functions of a compiler's or a driver's libraries that come before a kernel, and are none.
AROUND = (
    "nvrtc", "nvml", "cuModule", "cuLibrary", "cuFunc", "cuKernel", "cuGet", "cuCtx", "cuDevice", "cuInit", "cuMem",
    "cudaGet", "cudaDevice", "cudaFunc",
)  # fmt: skip


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    return []


def _same(was: Tensor, now: Tensor) -> bool:
    """The same numbers in the same order, whatever their shape."""
    if was.numel() != now.numel() or was.dtype != now.dtype:
        return False
    a, b = was.detach().reshape(-1), now.detach().reshape(-1)
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _garble(value: Tensor) -> None:
    """Other numbers of the same kind."""
    with torch.no_grad():
        flat = value.detach()
        if not flat.numel():
            return
        if flat.is_floating_point():
            finite = flat[flat.isfinite()]
            low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
            flat.copy_(torch.rand(flat.shape, device=flat.device) * (high - low + 1.0) + low)
        elif flat.dtype is torch.bool:
            flat.logical_not_()
        else:
            flat.add_(1)


class KernelGarbler:
    """From when this is made on, in a process of its own: kernels are watched, and garbled once ``garbling`` is set.
    ``called`` names those that ran, ``working`` those that did anything."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.garbling = False
        self.working: list[str] = []  # of those that ran, the ones that do not merely hand on what they are given
        self._pointers: dict[int, Tensor] = {}
        self._known_at: dict[int, weakref.ref[Tensor]] = {}  # by identity, of all that were ever asked for an address
        self._address = Tensor.data_ptr
        self._known = set(dir(torch.ops)) | set(_namespaces())
        self._triton()
        self._extensions()
        self._libraries()
        self._modules()
        _Operators(self).__enter__()  # type: ignore[no-untyped-call]

    def run(self, name: str, kernel: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Runs a kernel and garbles what it wrote and returned."""
        if name not in self.called:
            self.called.append(name)
        addresses = [] if torch.cuda.is_initialized() else [*addresses_in([*args, *kwargs.values()])]
        named = [*_tensors(list(args)), *_tensors(kwargs), *self._pointers.values(), *self._asked_before(addresses)]
        given = [t for t in {id(t): t for t in named}.values() if not t.requires_grad]
        before = [t.detach().clone() for t in given]
        windows = windows_at(addresses, named)
        result = kernel(*args, **kwargs)
        written = [now for was, now in zip(before, given, strict=True) if not _same(was, now)]
        known = {id(t) for t in given}
        written += [tensor for tensor in _tensors(result) if id(tensor) not in known]
        written += [now for window in windows if (now := window.written_numbers()) is not None]
        if self.garbling:
            for tensor in written:
                _garble(tensor)
        elif name not in self.working:
            handed_on = (
                any(_same(was, n) for was in before) or any(w.begins_with(n) for w in windows) for n in written
            )
            if not all(handed_on) or (type(result) is float and result not in args):
                self.working.append(name)
        self._pointers.clear()
        # Of a function of numbers, as those of the C library are.
        return result + 1.0 + abs(result) if self.garbling and type(result) is float else result

    def _asked_before(self, addresses: Sequence[int]) -> list[Tensor]:
        """Tensors whose address was asked at any time, in whose memory one of these lies."""
        held = [t for t in (reference() for reference in self._known_at.values()) if t is not None]
        ranges = [(self._address(t), t) for t in held]
        return [t for low, t in ranges if any(low <= at < low + t.nbytes for at in addresses)]

    def _triton(self) -> None:
        try:
            from triton.runtime import interpreter, jit
        except ImportError:
            return
        self._wrap(jit.JITFunction, "run", lambda kernel: getattr(kernel, "__name__", "a Triton kernel"))
        self._compiled()
        self._wrap(
            interpreter.GridExecutor, "__call__", lambda kernel: getattr(kernel.fn, "__name__", "a Triton kernel")
        )

    def _compiled(self) -> None:
        """A kernel that is launched as it came from the compiler."""
        from triton.compiler import CompiledKernel

        its = CompiledKernel.__getitem__

        def muted(kernel: Any, grid: Any) -> Callable[..., Any]:
            launch = its(kernel, grid)
            return lambda *args, **kwargs: self.run(str(kernel.metadata.name), launch, args, kwargs)

        CompiledKernel.__getitem__ = muted

    def _wrap(self, holder: Any, name: str, called: Callable[[Any], str]) -> None:
        its = getattr(holder, name)

        def muted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return self.run(called(kernel), lambda *a, **k: its(kernel, *a, **k), args, kwargs)

        setattr(holder, name, muted)

    def _extensions(self) -> None:
        from torch.utils import cpp_extension

        for name in ("load", "load_inline"):
            its = getattr(cpp_extension, name)

            def loaded(*args: Any, _its: Any = its, **kwargs: Any) -> Any:
                return self._module(_its(*args, **kwargs))

            setattr(cpp_extension, name, loaded)

    def _module(self, module: Any) -> Any:
        """A module of compiled functions, each of them muted."""
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, BuiltinFunctionType):

                def muted(*args: Any, _its: Any = value, _name: str = name, **kwargs: Any) -> Any:
                    return self.run(_name, _its, args, kwargs)

                setattr(module, name, muted)
        return module

    def _libraries(self) -> None:
        """Functions by ctypes know addresses alone: those that were asked of tensors since the last such call."""
        muted, asked = self, Tensor.data_ptr

        def data_ptr(tensor: Tensor) -> int:
            muted._pointers[id(tensor)] = tensor
            muted._known_at[id(tensor)] = weakref.ref(tensor)
            return asked(tensor)

        class Library(ctypes.CDLL):
            def __getitem__(self, name: Any) -> Any:
                function = super().__getitem__(name)
                return _Foreign(muted, str(name), function)

        Tensor.data_ptr = data_ptr  # type: ignore[assignment]
        ctypes.CDLL = Library  # type: ignore[misc]
        ctypes.cdll = ctypes.LibraryLoader(Library)

    def _modules(self) -> None:
        """Functions of libraries by tvm-ffi, which take tensors as they are."""
        try:
            from tvm_ffi import Module
        except ImportError:
            return
        its = Module.get_function

        def get_function(module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            found = its(module, name, *args, **kwargs)
            return lambda *given: self.run(name, found, given, {})

        Module.get_function = get_function


class _Foreign:
    """A function of a library, with what is set on it."""

    def __init__(self, muted: KernelGarbler, name: str, function: Any) -> None:
        self.__dict__["_held"] = (muted, name, function)

    def __call__(self, *args: Any) -> Any:
        muted, name, function = self._held
        if name.startswith(AROUND):
            return function(*args)
        return muted.run(name, function, args, {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held[2], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._held[2], name, value)


def _namespaces() -> list[str]:
    return sorted({name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()})


class _Operators(TorchDispatchMode):
    """Operators of namespaces that nobody had registered."""

    def __init__(self, muted: KernelGarbler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.muted = muted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in self.muted._known:
            return func(*args, **(kwargs or {}))
        return self.muted.run(str(func), func, args, kwargs or {})
