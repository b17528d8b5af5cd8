"""Keeping page faults out of a comparison.

torch has no caching allocator on the CPU: glibc maps every large output afresh and gives it back at once, and a 64 MiB
relu then runs at a tenth of the memory's rate. That bottleneck has its own name (``diagnose`` reports it as
allocation); in a race between kernels it would only hide the kernels. So while variants are timed, glibc is told to
keep what it has: the same as starting the process with MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ raised.

glibc adapts both by itself to the blocks that a program frees, up to 32 MiB and 64 MiB, and stops once it is told a
number, which nothing takes back. So that the process is not slower afterwards than it was, it is then left where that
adapting ends; the documented defaults, 128 KiB, would have it map and fault in every larger tensor for good. A program
that is measured both ways must in between run as it did by itself: what malloc had adapted to is found out first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import resource
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import ClassVar

__all__ = [
    "RAISED_THRESHOLDS",
    "Memory",
    "free_bytes",
    "grow_heap",
    "learn_heap",
    "minor_faults",
    "release_memory",
    "restore_heap",
    "run_with_own_faults",
    "set_thresholds",
    "thresholds",
    "without_page_faults",
]  # fmt: skip

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # These are from glibc's malloc.h.
ADAPTIVE_THRESHOLDS = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}  # as far as glibc goes by itself
# The largest block that an int can name, and never to trim; older versions of glibc take no threshold of blocks above
# what they adapt to.
RAISED_THRESHOLDS = {M_MMAP_THRESHOLD: (1 << 31) - 1, M_TRIM_THRESHOLD: -1}
BLOCK = 64 << 20  # The heap grows by this much at once.
LARGE = 100 << 10  # Freeing a block this large (bytes) makes malloc look at what it holds.
PLUG = 0.8  # of a size, for which a place is looked for after that
MUCH = 8 << 20  # A program may leave so many bytes more or less free in the heap.
SIZES, AT_ONCE = (1 << 20, 128 << 10), 64  # bytes of the blocks by which places are taken, and how many between looks
ATTEMPTS, ALIKE = 5, 1.3  # in which runs come to take as many page faults as the program by itself, and how nearly
RESIDENT = 1 << 30  # Others may leave so many bytes free with their pages.
FIRST_BYTES = 128 * 1024  # From this block size on, glibc adapts.
PAGE, HEADER = mmap.PAGESIZE, 8  # bytes that a mapped block is rounded up to, and that a block takes beside its own


def minor_faults() -> int:
    """Page faults of this process that needed no disk, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class _Malloc:
    """What this process's malloc was told."""

    now: Mapping[int, int] | None = None  # None: nothing yet, so it adapts by itself
    own: Mapping[int, int] | None = None  # what it had adapted to, by itself, for the program that is being measured
    holes = 0  # bytes that were free below the heap's end as that program had run
    taken: int | None = None  # page faults of a run of it, if they are about as many in each
    few = 1  # page faults that take no time that matters
    times = 0
    open = 0  # contexts of ``Memory``, the outermost of which lets go of what was learnt
    probes: ClassVar[list[int]] = []  # addresses of blocks by which its thresholds were found out
    plugs: ClassVar[list[int]] = []  # addresses of blocks that keep large ones out of the heap


def set_thresholds(wanted: Mapping[int, int]) -> bool:
    """Sets malloc's thresholds from here on; glibc then adapts them no more. False if the C library takes none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    if (
        wanted == RAISED_THRESHOLDS and _Malloc.own is None
    ):  # else the heap's end serves the program, and keeps its pages
        _unplug(with_pages=True)
    told = [mallopt(p, size) == 1 or mallopt(p, ADAPTIVE_THRESHOLDS[p]) == 1 for p, size in wanted.items()]
    _Malloc.now, _Malloc.times = dict(wanted), _Malloc.times + 1
    while _Malloc.probes:
        _libc().free(_Malloc.probes.pop())
    return all(told)


def thresholds() -> Mapping[int, int] | None:
    """Malloc's thresholds as they are, to be told again; None if the C library takes none."""
    libc = _libc()
    if getattr(libc, "mallopt", None) is None or _foreign():
        return None
    return _Malloc.now or _adapted(libc)


def _foreign() -> bool:
    """Whether another malloc than glibc's serves the process."""
    return hasattr(_libc(), "mallinfo2") and _counts() is None


class _Counts(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _adapted(libc: ctypes.CDLL) -> Mapping[int, int]:
    """How far glibc has adapted by itself: from which number of pages on a block is mapped by itself, bisected. What
    comes from a free place says nothing, and is held meanwhile. Mapped blocks are freed once malloc has been told
    something, as it would adapt to them; nobody writes to any."""
    counts = _counts()
    if counts is None:
        return ADAPTIVE_THRESHOLDS
    held: list[int] = []

    def mapped(pages: int) -> bool:
        while True:
            before = counts()
            block = libc.malloc(pages * PAGE - HEADER)
            after = counts()
            if not block or after.hblks > before.hblks:
                _Malloc.probes.append(block)
                return True
            held.append(block)
            if after.arena > before.arena:
                return False

    low, high = FIRST_BYTES // PAGE - 1, ADAPTIVE_THRESHOLDS[M_MMAP_THRESHOLD] // PAGE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mapped(middle) else (middle, high)
    for block in reversed(held):
        libc.free(block)
    return {M_MMAP_THRESHOLD: high * PAGE, M_TRIM_THRESHOLD: 2 * high * PAGE}  # glibc keeps the second twice the first


def learn_heap(taken: Sequence[int], few: int = 1) -> None:
    """What malloc has adapted to by now, and what it holds free, are the program's own, whose runs took so many page
    faults, the last ones as it goes on; a ``few`` take no time that matters. ``restore_heap`` goes back to both, until
    the end of the outermost ``Memory``; outside of any nothing is learnt."""
    counts = _counts()
    if _Malloc.open and _Malloc.now != RAISED_THRESHOLDS and counts is not None:
        _Malloc.own, _Malloc.holes = thresholds(), _below(counts())
        late = taken[-max(2, len(taken) // 3) :]
        steady = max(late) <= max(ALIKE**2 * min(late), min(late) + few)
        _Malloc.taken, _Malloc.few = (int(statistics.median_low(late)) if steady else None), max(1, few)


def restore_heap() -> bool:
    """Before runs of the program that was learnt of: malloc's thresholds are its own again, and it finds as much free
    below the heap's end as by itself. Other places there, in which others had theirs, are taken, the smaller ones
    first; nobody writes to them. Nothing if malloc was told to keep what is freed. Returns whether anything changed,
    so that the next run finds the heap as no run of the program left it."""
    counts = _counts()
    if _Malloc.own is None or _Malloc.now == RAISED_THRESHOLDS or counts is None:
        return False
    changed = _Malloc.now != _Malloc.own
    if changed:
        set_thresholds(_Malloc.own)
    libc = _libc()
    for _ in range(2):
        libc.free(libc.malloc(LARGE))  # what lies free at the end beyond the threshold goes back
    if _below(counts()) - _Malloc.holes <= MUCH:
        return changed
    _unplug()  # places taken for good would leave the program fresh ones alone, and the heap to grow
    more = _below(counts()) - _Malloc.holes
    if more > RESIDENT:
        libc.malloc_trim(0)
    if more > SIZES[0]:
        _fill(libc, counts)
    return True


def run_with_own_faults(run: Callable[[], float], runs: int) -> float:
    """The median of what so many runs of the program that was learnt of say, once they take about as many page faults
    as by itself; else of those that came nearest. A run finds what the one before it left, as by itself, and only if
    that does not do, more or fewer bytes free below the heap's end."""
    found: list[tuple[float, float]] = []
    for attempt in range(ATTEMPTS):
        said, taken = [], []
        for _ in range(runs):
            before = minor_faults()
            said.append(run())
            taken.append(minor_faults() - before)
        middle, faults = statistics.median(said), statistics.median_low(taken)
        found.append((_apart(faults), middle))
        if not found[-1][0]:
            break
        _nearer(faults, warmed_up=attempt > 0)
    return min(found)[1]


def _apart(taken: int) -> float:
    """How much further from the page faults that the program takes by itself a run took than two of its runs may be:
    the logarithm of their share; 0 if they are alike, and if nothing is known of them."""
    own, few = _Malloc.taken, _Malloc.few
    if _Malloc.own is None or _Malloc.now == RAISED_THRESHOLDS or own is None or abs(taken - own) <= few:
        return 0.0
    return max(0.0, abs(math.log(max(taken, few) / max(own, few))) - math.log(ALIKE))


def _nearer(taken: int, *, warmed_up: bool) -> None:
    """Leaves fewer bytes free if a run takes fewer page faults than the program by itself; more if it takes more,
    once it has had a run to settle."""
    counts = _counts()
    assert _Malloc.taken is not None and counts is not None
    below = _below(counts())
    if taken < _Malloc.taken:
        _Malloc.holes = min(_Malloc.holes, below) // 2
        restore_heap()
    elif warmed_up:
        for _ in range(-(-len(_Malloc.plugs) // 4)):
            _libc().free(_Malloc.plugs.pop())
        _Malloc.holes = _below(counts())


@functools.cache
def _counts() -> Callable[[], _Counts] | None:
    """glibc's ``mallinfo2``; None if there is none, or if another malloc (jemalloc, tcmalloc) serves the process:
    glibc's counts stand still then, and what it is told changes nothing."""
    libc = _libc()
    counts = getattr(libc, "mallinfo2", None)
    if counts is None:
        return None
    counts.restype = _Counts
    before = counts()
    block = libc.malloc(LARGE)
    after = counts()
    libc.free(block)
    return counts if (after.uordblks, after.hblks) != (before.uordblks, before.hblks) else None


def _below(now: _Counts) -> int:
    """Bytes free below the heap's end."""
    return int(now.fordblks - now.keepcost)


def _fill(libc: ctypes.CDLL, counts: Callable[[], _Counts]) -> None:
    """Takes places below the heap's end until no more is free there than the program's own. Malloc cuts a block from
    the smallest place that it fits in."""
    for size in SIZES:
        while (more := _below(before := counts()) - _Malloc.holes) > size:
            blocks = [libc.malloc(size) for _ in range(max(1, min(AT_ONCE, more // (2 * size))))]
            after = counts()
            if (after.hblks, after.arena, after.keepcost) != (before.hblks, before.arena, before.keepcost):
                for block in reversed(blocks):
                    libc.free(block)
                break
            _Malloc.plugs += blocks


def grow_heap(size: int) -> None:
    """Has malloc take so many bytes of fresh pages and keep them, if it was told to: a program that runs next is as
    one that has run before."""
    libc = _libc()
    blocks = [libc.malloc(BLOCK) for _ in range(-(-size // BLOCK))]
    for block in filter(None, blocks):
        ctypes.memset(block, 0, BLOCK)
    for block in reversed(blocks):
        libc.free(block)


def release_memory(held: int) -> None:
    """Gives the system back what malloc holds free beyond its threshold, as it does by itself when a large block is
    freed: as long as that is there, large blocks are cut from it and take no fresh pages. If something small lies
    above it, so that more than the bytes ``held`` stay, the pages are given back, and their place in the heap, which
    the next large block would still be cut from, is taken: such blocks are mapped afresh again."""
    if _Malloc.own is not None:
        restore_heap()
        return
    libc = _libc()
    for _ in range(2):
        libc.free(libc.malloc(LARGE))
    if free_bytes() > held + MUCH:
        libc.malloc_trim(0)
        _plug(libc)


def _plug(libc: ctypes.CDLL) -> None:
    """Takes every free place of the heap that a block would be cut from which malloc would map otherwise. Of a block
    that nobody writes to no page is ever made."""
    counts, least = _counts(), (_Malloc.now or ADAPTIVE_THRESHOLDS)[M_MMAP_THRESHOLD]
    if counts is None:
        return
    size = free_bytes()
    while size > least:
        before = counts().hblks
        block = libc.malloc(size)
        if block and counts().hblks == before:
            _Malloc.plugs.append(block)
        else:
            libc.free(block)
            size = int(size * PLUG)


def _unplug(*, with_pages: bool = False) -> None:
    """Lets malloc have those places again. A large block is cut from one of them before any other: ``with_pages`` it
    takes no fresh ones."""
    libc = _libc()
    while _Malloc.plugs:
        block = _Malloc.plugs.pop()
        if with_pages:
            ctypes.memset(block, 0, libc.malloc_usable_size(block))
        libc.free(block)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    if hasattr(libc, "malloc_usable_size"):
        libc.malloc_usable_size.restype, libc.malloc_usable_size.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    return libc


def free_bytes() -> int:
    """What malloc holds free in its heap, or -1 if it does not tell."""
    counts = _counts()
    return -1 if counts is None else int(counts().fordblks)


class Memory:
    """As a context: from ``keep()`` to the end freed memory is kept for the next allocation.

    ``has_changed`` says whether malloc was told anything in it, by ``keep()`` or by whoever else ran meanwhile.
    """

    def __init__(self) -> None:
        self._before, self._times, self._held = _Malloc.now, _Malloc.times, free_bytes()
        self._own = _Malloc.own

    @property
    def has_changed(self) -> bool:
        return _Malloc.times > self._times

    def keep(self) -> None:
        """Keeps what is freed from here on."""
        set_thresholds(RAISED_THRESHOLDS)

    def __enter__(self) -> Memory:
        _Malloc.open += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _Malloc.open -= 1
        if (ours := _Malloc.own is not None) and self._own is None:
            _unplug()
        _Malloc.own = self._own
        if self.has_changed or ours:
            set_thresholds(self._before or _Malloc.own or ADAPTIVE_THRESHOLDS)
            if self._before != RAISED_THRESHOLDS:
                release_memory(self._held)


@contextlib.contextmanager
def without_page_faults() -> Iterator[bool]:
    """Inside, freed memory is kept for the next allocation. Yields False if the C library cannot be told so."""
    with Memory():
        yield set_thresholds(RAISED_THRESHOLDS)
