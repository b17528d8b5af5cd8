"""Memory of another process, as the kernel gives it to the supervisor: a stopped process has no part in that, and
nothing that it could do would be done on anybody's clock but its own."""

from __future__ import annotations

import ctypes
import errno
import os

import torch
from torch import Tensor

__all__ = ["MemoryUnreadable", "ReadingRefused", "read_bytes", "read_tensor"]

MOST_AT_ONCE = 1 << 30  # bytes of one system call

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class MemoryUnreadable(Exception):
    """There is no memory at an address that a process has named."""


class ReadingRefused(Exception):
    """This system does not let one process of a user read another's memory."""


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def read_tensor(pid: int, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor of these strides at an address of a process, flat and contiguous.

    Raises MemoryUnreadable, ReadingRefused.
    """
    if not all(shape):
        return torch.empty(0, dtype=dtype)
    steps = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    whole = torch.empty(steps, dtype=dtype)
    _read_into(whole.data_ptr(), pid, address, whole.nbytes)
    return whole.as_strided(shape, strides).reshape(-1)


def read_bytes(pid: int, address: int, size: int) -> bytes:
    """What lies at an address of a process. Raises MemoryUnreadable, ReadingRefused."""
    held = ctypes.create_string_buffer(size)
    _read_into(ctypes.addressof(held), pid, address, size)
    return held.raw


def _read_into(into: int, pid: int, address: int, size: int) -> None:
    done = 0
    while done < size:
        most = min(MOST_AT_ONCE, size - done)
        ours, theirs = _Piece(into + done, most), _Piece(address + done, most)
        count = _libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if count <= 0:
            code = ctypes.get_errno()
            if code in (errno.EPERM, errno.ENOSYS):
                raise ReadingRefused(f"a process's memory cannot be read: {os.strerror(code)}")
            raise MemoryUnreadable(f"memory at an address where there is none ({os.strerror(code)})")
        done += count
