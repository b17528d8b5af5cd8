"""Keeping page faults out of a comparison.

torch has no caching allocator on the CPU: glibc maps every large output afresh and gives it back at once, and a
64 MiB relu then runs at a tenth of the memory's rate. That is a regime of its own (``diagnose`` reports it as
allocation); in a race between kernels it would only hide the kernels. So while arms are timed, glibc is told to keep
what it has: the same as starting the process with MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ raised.

glibc adapts both by itself to the blocks that a program frees, up to 32 MiB and 64 MiB, and stops once it is told a
number, which nothing takes back. So that the process is not slower afterwards than it was, it is then left where that
adapting ends; the documented defaults, 128 KiB, would have it map and fault in every larger tensor for good. A program
that is measured both ways must in between run as it did by itself: what malloc had adapted to is found out first.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import ClassVar

__all__ = ["RAISED", "Memory", "free_bytes", "give_back", "grow", "kept_out", "minor_faults", "tell", "thresholds"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
ADAPTED = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}  # as far as glibc goes by itself
# The largest block that an int can name, and never to trim; older versions of glibc take no threshold of blocks above
# what they adapt to.
RAISED = {M_MMAP_THRESHOLD: (1 << 31) - 1, M_TRIM_THRESHOLD: -1}
BLOCK = 64 << 20  # what the heap is grown by at once
LARGE = 100 << 10  # bytes: to free a block so large makes malloc look at what it holds
PLUG = 0.8  # of a size, for which a place is looked for after that
MUCH = 8 << 20  # bytes that a program may leave free in the heap more or less
FIRST_BYTES, STEP = 128 * 1024, 1.03  # where glibc begins to adapt, and how closely it is asked how far it went


def minor_faults() -> int:
    """Page faults of this process that needed no disk, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class _Malloc:
    """What this process's malloc was told."""

    now: Mapping[int, int] | None = None  # None: nothing yet, so it adapts by itself
    times = 0
    plugs: ClassVar[list[int]] = []  # addresses of blocks that keep large ones out of the heap


def tell(wanted: Mapping[int, int]) -> bool:
    """Sets malloc's thresholds from here on; glibc then adapts them no more. False where the C library takes none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    if wanted == RAISED:
        _unplug()
    told = [mallopt(p, size) == 1 or mallopt(p, ADAPTED[p]) == 1 for p, size in wanted.items()]
    _Malloc.now, _Malloc.times = dict(wanted), _Malloc.times + 1
    return all(told)


def thresholds() -> Mapping[int, int] | None:
    """Malloc's thresholds as they are, to be told again; None where the C library takes none."""
    libc = _libc()
    if getattr(libc, "mallopt", None) is None:
        return None
    return _Malloc.now or _adapted(libc)


class _Counts(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _adapted(libc: ctypes.CDLL) -> Mapping[int, int]:
    """How far glibc has adapted by itself. Nothing tells it, so blocks of growing sizes are asked for until one is
    mapped by itself (half a millisecond)."""
    counts = getattr(libc, "mallinfo2", None)
    if counts is None:
        return ADAPTED
    counts.restype = _Counts
    size = FIRST_BYTES
    while size < ADAPTED[M_MMAP_THRESHOLD]:
        before = counts().hblks
        block = libc.malloc(size)
        mapped = counts().hblks > before
        libc.free(block)  # of a mapped block: malloc adapts to it, by one step at most
        if mapped:
            return {M_MMAP_THRESHOLD: size, M_TRIM_THRESHOLD: 2 * size}  # glibc keeps the second twice the first
        size = int(size * STEP)
    return ADAPTED


def grow(size: int) -> None:
    """Has malloc take so many bytes of fresh pages and keep them, where it was told to: a program that runs next is as
    one that has run before."""
    libc = _libc()
    blocks = [libc.malloc(BLOCK) for _ in range(-(-size // BLOCK))]
    for block in filter(None, blocks):
        ctypes.memset(block, 0, BLOCK)
    for block in reversed(blocks):
        libc.free(block)


def give_back(held: int) -> None:
    """Gives the system back what malloc holds free beyond its threshold, as it does by itself when a large block is
    freed: as long as that is there, large blocks are cut from it and take no fresh pages. Where something small lies
    above it, so that more than the bytes ``held`` stay, the pages are given back, and their place in the heap, which
    the next large block would still be cut from, is taken: such blocks are mapped afresh again."""
    libc = _libc()
    for _ in range(2):
        libc.free(libc.malloc(LARGE))
    if free_bytes() > held + MUCH:
        libc.malloc_trim(0)
        _plug(libc)


def _plug(libc: ctypes.CDLL) -> None:
    """Takes every free place of the heap that a block would be cut from which malloc would map otherwise. Of a block
    that nobody writes to no page is ever made."""
    counts, least = getattr(libc, "mallinfo2", None), (_Malloc.now or ADAPTED)[M_MMAP_THRESHOLD]
    if counts is None:
        return
    counts.restype = _Counts
    size = free_bytes()
    while size > least:
        before = counts().hblks
        block = libc.malloc(size)
        if block and counts().hblks == before:
            _Malloc.plugs.append(block)
        else:
            libc.free(block)
            size = int(size * PLUG)


def _unplug() -> None:
    """Lets malloc have those places again."""
    libc = _libc()
    while _Malloc.plugs:
        libc.free(_Malloc.plugs.pop())


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    return libc


def free_bytes() -> int:
    """What malloc holds free in its heap, or -1 where it does not tell."""
    counts = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if counts is None:
        return -1
    counts.restype = _Counts
    return int(counts().fordblks)


class Memory:
    """As a context: from ``keep()`` to the end freed memory is kept for the next allocation.

    ``kept`` says whether malloc was told anything in it, by ``keep()`` or by whoever else ran meanwhile.
    """

    def __init__(self) -> None:
        self._before, self._times, self._held = _Malloc.now, _Malloc.times, free_bytes()

    @property
    def kept(self) -> bool:
        return _Malloc.times > self._times

    def keep(self) -> None:
        """Keeps what is freed from here on."""
        tell(RAISED)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.kept:
            tell(self._before or ADAPTED)
            if self._before != RAISED:
                give_back(self._held)


@contextlib.contextmanager
def kept_out() -> Iterator[bool]:
    """Inside, freed memory is kept for the next allocation. Yields False where the C library cannot be told so."""
    with Memory():
        yield tell(RAISED)
