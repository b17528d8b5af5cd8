"""A GPU as the judge has it: memory that the supervisor and one process see, and the device's own events.

Memory is made by the driver's calls for virtual memory and handed on as a descriptor, which works between processes
that are apart; handles of CUDA's older kind need one namespace of processes. What is used of torch in a candidate's
process is taken before the candidate is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.judge.process.ipc import Spot, within
from kernelworks.judge.roles.device import Host

__all__ = ["Cuda", "persisting"]

PROBES = 9
OVER_L2 = 3  # times its size are read to empty it
PINNED, ON_DEVICE, DESCRIPTOR, READ_AND_WRITE, PERSISTING = 1, 1, 1, 3, 0x06  # as cuda.h numbers them


class _Kind(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
        ("security", ctypes.c_void_p), ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4),
    ]  # fmt: skip


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("place", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


@functools.cache
def _driver() -> ctypes.CDLL:
    found = ctypes.CDLL("libcuda.so.1")
    for name in NAMES:
        getattr(found, name).restype = ctypes.c_int  # found now: ctypes may be another one later
    return found


NAMES = (
    "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
    "cuMemSetAccess", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
    "cuMemGetAllocationGranularity", "cuCtxGetLimit",
)  # fmt: skip


def _call(name: str, *args: Any) -> None:
    code = getattr(_driver(), name)(*args)
    if code:
        raise RuntimeError(f"{name} of the CUDA driver returned {code}")


def persisting() -> int:
    """Bytes of L2 that are kept for what a program marks. Raises RuntimeError if no GPU is in use."""
    if not torch.cuda.is_initialized():
        raise RuntimeError("no GPU is in use")
    found = ctypes.c_size_t()
    _call("cuCtxGetLimit", ctypes.byref(found), ctypes.c_int(PERSISTING))
    return found.value


class _Range:
    """Addresses behind which an allocation lies. Gives them back with the last tensor that is made of them."""

    def __init__(self, handle: Any, size: int, device: int) -> None:
        self.size = size
        address = ctypes.c_ulonglong()
        _call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0),
              ctypes.c_ulonglong(0), ctypes.c_ulonglong(0))  # fmt: skip
        self.address = address.value
        _call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        access = _Access(ON_DEVICE, device, READ_AND_WRITE)
        _call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        _call("cuMemRelease", handle)  # the addresses keep it
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (self.address, False), "version": 2, "strides": None,
        }  # fmt: skip

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the driver may be gone before
            address, size = ctypes.c_ulonglong(self.address), ctypes.c_size_t(self.size)
            _call("cuMemUnmap", address, size)
            _call("cuMemAddressFree", address, size)


def _bytes(behind: _Range, device: str) -> Tensor:
    """A tensor of these addresses, which keeps them."""
    return torch.as_tensor(behind, device=device)


class DeviceMemory:
    """Bytes of a GPU that two processes see; to the judge what ``wire.Memory`` is on the CPU."""

    descriptor = -1

    def __init__(self, size: int, descriptor: int = -1) -> None:
        device, handle = torch.cuda.current_device(), ctypes.c_ulonglong()
        kind = _Kind(PINNED, DESCRIPTOR, ON_DEVICE, device)
        if descriptor < 0:
            step = ctypes.c_size_t()
            _call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(kind), ctypes.c_int(0))
            size = -(-max(size, 1) // step.value) * step.value
            _call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(kind), ctypes.c_ulonglong(0))
            made = ctypes.c_int(-1)
            _call("cuMemExportToShareableHandle", ctypes.byref(made), handle, ctypes.c_int(DESCRIPTOR),
                  ctypes.c_ulonglong(0))  # fmt: skip
            descriptor = made.value
        else:
            _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor),
                  ctypes.c_int(DESCRIPTOR))  # fmt: skip
        self.descriptor, self.size = descriptor, size
        self.bytes = _bytes(_Range(handle, size, device), f"cuda:{device}")

    def tensor(self, spot: Spot) -> Tensor:
        """The tensor at a spot. Raises ValueError if it does not lie within."""
        at, shape, strides, dtype, steps = within(spot, self.size)
        if not steps:
            return torch.empty(tuple(shape), dtype=dtype, device=self.bytes.device)
        flat = self.bytes[at : at + steps * dtype.itemsize].view(dtype)
        return flat.as_strided(tuple(shape), tuple(strides))

    def close(self) -> None:
        """Once. The addresses stay for as long as a tensor needs them."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        self.close()


class Cuda(Host):
    """The GPU that is torch's current one. Its clock is only shown: the judge's own is the supervisor's."""

    name = "cuda"
    apart = True
    alignment = 512
    seen_least_s = 2e-4

    def __init__(self) -> None:
        self._scratch: Tensor | None = None

    def __reduce__(self) -> tuple[type[Cuda], tuple[()]]:
        return Cuda, ()

    # ------------------------------------------------------------ as the supervisor has it

    def memory(self, size: int, *, read_only: bool = False) -> DeviceMemory:
        torch.zeros(1, device="cuda")  # the driver's calls are for the context that torch has made
        return DeviceMemory(size)

    def tensors_on_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t.to("cuda") for t in tensors]

    def finish_supervisor_work(self) -> None:
        torch.cuda.synchronize()

    def flush(self) -> None:
        if self._scratch is None:
            l2: int = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self._scratch = torch.zeros(OVER_L2 * max(l2, 1 << 20) // 4, dtype=torch.int32, device="cuda")
        self._scratch.sum()
        torch.cuda.synchronize()

    def delay_s(self) -> float:
        """A GPU serves processes in turns of a millisecond or two: beside one whose kernels run, each of these
        waits for its turn."""
        one, found = torch.zeros(1, device="cuda"), []
        for _ in range(PROBES):
            begin = time.perf_counter_ns()
            one.add_(1)
            torch.cuda.synchronize()
            found.append((time.perf_counter_ns() - begin) / 1e9)
        return statistics.median(found)

    # ------------------------------------------------------------ as a process has it that makes and calls

    def start(self) -> None:
        """Products of float32 are float32's, and sums of narrower ones are float32's too: cuDNN and cuBLAS have it
        otherwise of themselves."""
        _driver()
        torch.zeros(1, device="cuda")
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        with contextlib.suppress(ImportError):
            import triton  # noqa: F401  # what it does to torch is not the candidate's
        core: Any = torch._C
        self._event, self._synchronize = core._CudaEventBase, core._cuda_synchronize
        self._stream = functools.partial(core._cuda_getCurrentStream, torch.cuda.current_device())
        self._stream_of = core._CudaStreamBase

    def memory_of(self, descriptor: int, size: int) -> DeviceMemory:
        return DeviceMemory(size, descriptor)

    def to_device(self, value: Any) -> Any:
        return value.to("cuda") if isinstance(value, (nn.Module, Tensor)) else value

    def _current(self) -> Any:
        number, device, kind = self._stream()
        return self._stream_of(stream_id=number, device_index=device, device_type=kind)

    def mark(self) -> Any:
        event = self._event(enable_timing=True)
        event.record(self._current())
        return event

    def elapsed_times(self, marks: Sequence[tuple[Any, Any]]) -> list[float]:
        return [begin.elapsed_time(end) / 1e3 for begin, end in marks]

    def wait(self) -> None:
        self._current().synchronize()

    def synchronize(self) -> None:
        self._synchronize()

    def release(self) -> None:
        torch.cuda.empty_cache()
