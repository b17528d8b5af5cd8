"""CUDA graphs as torch captures them, and what puts the process right if a capture fails.

A call that waits for the device raises while it is captured, and the capture is void. torch leaves much behind then: a
side stream that stays the current one, an allocator that goes on giving from the capture's pool, generators that take
every later draw for one of the capture. So the capture is ended by hand, the pool given back, and a small graph is
captured to its end, which puts the generators right. The graph that failed stays: torch's allocators may ask it later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from kernelworks.profile.trace import without_collection

__all__ = ["WARM", "Recorder"]

WARM = 3  # so many runs precede a capture: in them libraries choose their kernels
SCARCE = 0.25  # if less of the device's memory is free, torch's cache is emptied before a capture
OF_THIS_THREAD = "thread_local"  # a capture forbids some calls, in its own thread only

_streams: dict[int, Any] = {}  # by device: where graphs are captured, and runs ahead of it are made
_failed: list[Any] = []
_pools: set[Any] = set()  # that graphs which were captured hold


class Recorder:
    """One CUDA graph. ``record`` runs a function once, for capture, and returns what it returns: what a ``replay``
    writes anew."""

    broken: ClassVar[str] = ""  # why nothing more is captured in this process
    nbytes = 0  # of the device, that the capture took

    def __init__(self, pool: Any) -> None:
        self.graph: Any = torch.cuda.CUDAGraph()
        self.pool = pool

    def record(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        if Recorder.broken:
            raise RuntimeError(Recorder.broken)
        torch.cuda.synchronize()
        free, all_of_it = torch.cuda.mem_get_info()
        if free < SCARCE * all_of_it:
            torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        with without_collection(), torch.cuda.stream(_stream()):  # what is dropped within a capture is part of it
            try:
                self.graph.capture_begin(pool=self.pool, capture_error_mode=OF_THIS_THREAD)
                made = run()
                self.graph.capture_end()
            except BaseException:
                self._give_up()
                raise
        _pools.add(self.pool)
        self.nbytes = max(0, torch.cuda.memory_reserved() - before)
        return made

    def replay(self) -> None:
        self.graph.replay()

    def _give_up(self) -> None:
        """Ends a capture that failed, on its stream. Nothing more can be captured into its pool."""
        device, torchs = torch.cuda.current_device(), torch._C
        _failed.append(self.graph)
        with contextlib.suppress(RuntimeError):
            self.graph.capture_end()
        try:
            self.graph.pool()
            whole = True  # what failed was no call of CUDA's: the graph is one, and gives its pool back itself
        except RuntimeError:
            whole = False
        with contextlib.suppress(RuntimeError):  # if the capture's end came so far by itself
            torchs._cuda_endAllocateToPool(device, self.pool)
        with contextlib.suppress(RuntimeError):
            self.graph.reset()
        if not whole and self.pool not in _pools:  # else others' memory would go with it
            with contextlib.suppress(RuntimeError):
                torchs._cuda_releasePool(device, self.pool)
        try:
            torch.cuda.synchronize()
            mark, small = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            small.capture_begin(capture_error_mode=OF_THIS_THREAD)
            mark.add_(1)
            small.capture_end()
            small.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:
            said = next(iter(str(error).splitlines()), "")
            Recorder.broken = f"a capture failed, and nothing can be captured after it: {said}"

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        """Whether a graph reads and writes it: what the host computes is not in one, nor what another device does."""
        return tensor.is_cuda and tensor.get_device() == torch.cuda.current_device()

    @staticmethod
    def pools() -> Any:
        return torch.cuda.graph_pool_handle()

    @staticmethod
    def busy() -> bool:
        """Whether a capture is under way, the program's own or one of ours."""
        return torch.cuda.is_current_stream_capturing()

    @staticmethod
    def warm(run: Callable[[], Any], times: int = WARM) -> None:
        """Runs ahead of a capture, on its stream: what libraries keep for each stream is there by then."""
        stream = _stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(times):
                    run()
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    @staticmethod
    @contextlib.contextmanager
    def rehearsal() -> Iterator[None]:
        """What runs is told that it is captured, and raises where the host waits. It is not: so it can say where."""
        of_torch: Any = torch.cuda
        mode, asked = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
        of_torch.is_current_stream_capturing = lambda: True
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            of_torch.is_current_stream_capturing = asked


def _stream() -> Any:
    device = torch.cuda.current_device()
    if device not in _streams:
        _streams[device] = torch.cuda.Stream()
    return _streams[device]
