"""What goes over a judge's sockets: a line of JSON a message, and descriptors of memory beside it.

What comes from a candidate is never more than JSON: nothing in it is code. Pickles go the other way alone, to it.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import pickle
import socket
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "MOST_BYTES",
    "Memory",
    "Spot",
    "hear",
    "pair",
    "read_papers",
    "say",
    "tensors_into",
    "within",
    "write_papers",
]  # fmt: skip

MOST_BYTES = 1 << 17  # of one message: below every kernel's limit for a socket of packets
MOST_DESCRIPTORS = 8
# Of memory that is shared: whoever made it shorter would end all who read it.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
NO_NEW_WRITER = 0x10  # a seal: maps that are made from then on are for reading alone
ALIGNMENT = 64  # bytes: a cache line, as torch's own allocator has it

Spot = tuple[int, tuple[int, ...], tuple[int, ...], str]  # bytes from the start, shape, strides, dtype


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a socket of packets: a message arrives whole or not at all."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def say(to: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Raises OSError if the other end is gone, ValueError for a message that is too long."""
    data = json.dumps(message).encode()
    if len(data) > MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes")
    if not descriptors:  # the call that hands them on is refused to a candidate
        to.send(data)
        return
    to.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def hear(at: socket.socket, seconds: float | None = None) -> tuple[Any, list[int]]:
    """A message and its descriptors. Raises TimeoutError, EOFError if the other end is gone, ValueError where it
    is no JSON."""
    at.settimeout(seconds)
    ancillary_bytes = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
    data, rights, flags, _ = at.recvmsg(MOST_BYTES, ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, held in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(held[: len(held) - len(held) % found.itemsize])
    if not data:
        raise EOFError("the process ended")
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a message that is too long")
        return json.loads(data), list(found)
    except (ValueError, RecursionError) as error:
        for number in found:
            os.close(number)
        if isinstance(error, RecursionError):
            raise ValueError("a message that is nested too deep") from error
        raise


def within(spot: Spot, size: int) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, int]:
    """Where a spot begins, its shape, strides and dtype, and how many elements its memory is long. Raises ValueError
    where it does not lie within ``size`` bytes."""
    at, shape, strides, name = spot
    dtype: torch.dtype = getattr(torch, name)
    steps = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    if at < 0 or any(s < 0 for s in strides) or at + steps * dtype.itemsize > size:
        raise ValueError("a tensor that does not lie in its memory")
    return at, shape, strides, dtype, steps


class Memory:
    """Bytes that two processes see: a file of memory, mapped."""

    descriptor = -1

    def __init__(self, size: int, descriptor: int = -1, *, read_only: bool = False) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = descriptor if descriptor >= 0 else os.memfd_create("judged", flags)
        if descriptor < 0:
            os.ftruncate(self.descriptor, max(size, mmap.PAGESIZE))
        self.size = os.fstat(self.descriptor).st_size
        self.map = self._mapped()
        if descriptor < 0:
            if read_only:
                with contextlib.suppress(OSError):  # a kernel that does not know it: who writes there is not seen
                    fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, NO_NEW_WRITER)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that nobody may write to it
            self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)

    def _mapped(self) -> mmap.mmap:
        """All pages at once: those that are drawn for a call's tensors would be faulted in while it is timed."""
        how = mmap.MAP_SHARED | mmap.MAP_POPULATE
        try:
            return mmap.mmap(self.descriptor, self.size, flags=how)
        except PermissionError:  # whose maker alone writes to it
            return mmap.mmap(self.descriptor, self.size, flags=how, prot=mmap.PROT_READ)

    @classmethod
    def of(cls, descriptor: int) -> Memory:
        """The memory behind a descriptor that came over a socket."""
        return cls(0, descriptor)

    def tensor(self, spot: Spot) -> Tensor:
        """The tensor at a spot. Raises ValueError if it does not lie within."""
        at, shape, strides, dtype, steps = within(spot, self.size)
        if not steps:
            return torch.empty(tuple(shape), dtype=dtype)
        flat = torch.frombuffer(self.map, dtype=dtype, count=steps, offset=at)
        return flat.as_strided(tuple(shape), tuple(strides))

    def handed_on(self) -> int:
        """The descriptor, which whoever asks closes from here on."""
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def close(self) -> None:
        """Once: the number may be another file's by then. The map stays for as long as a tensor needs it."""
        descriptor = self.handed_on()
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def tensors_into(tensors: Sequence[Tensor]) -> tuple[Memory, list[Spot]]:
    """Tensors, each contiguous, in memory made for them."""
    spots: list[Spot] = []
    at = 0
    for value in tensors:
        plain = torch.empty(value.shape)
        spots.append((at, tuple(value.shape), plain.stride(), str(value.dtype).removeprefix("torch.")))
        at += -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT
    memory = Memory(at)
    for value, spot in zip(tensors, spots, strict=True):
        memory.tensor(spot).copy_(value)
    return memory, spots


def write_papers(papers: Any) -> int:
    """A descriptor of what a child is given at its start."""
    descriptor = os.memfd_create("papers", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        pickle.dump(papers, file)
    return descriptor


def read_papers(descriptor: int) -> Any:
    """What the supervisor has put there; for children alone."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return pickle.load(file)
